//! What the tests ask the machine: processes, waiting for a condition, and whether a test can run
//! here at all. Nothing in here knows sandboxes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for what must happen soon, also on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Longest wait for an answer that takes a whole program.
pub(crate) const LATER: Duration = Duration::from_secs(150);

/// How often a condition is looked at.
pub(crate) const GLANCE: Duration = Duration::from_millis(5);

/// Waits until `look` has nothing to complain of any more.
///
/// # Panics
///
/// With its last complaint when `patience` is over.
#[track_caller]
pub(crate) fn wait_until<T>(patience: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        match look() {
            Ok(seen) => return seen,
            Err(complaint) if Instant::now() > deadline => {
                panic!("after {patience:?} still: {complaint}")
            }
            Err(_) => std::thread::sleep(GLANCE),
        }
    }
}

/// Says by name that something is not tested here. On a build server nothing may be left out.
///
/// # Panics
///
/// On a build server: `CI` is set, or nextest runs its profile `ci`.
#[track_caller]
pub(crate) fn skip(what: &str, why: &str) {
    let on_server = std::env::var_os("CI").is_some()
        || std::env::var_os("NEXTEST_PROFILE").is_some_and(|profile| profile == "ci");
    assert!(!on_server, "{what} must be tested here: {why}");
    note(&format!("SKIPPED {what}: {why}"));
}

/// A line for whoever reads the log of the tests. It is shown also when they pass.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether this is root.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A process as /proc shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// Clock ticks since boot: with the number it names one process for good.
    pub(crate) started: u64,
    /// Effective user id.
    pub(crate) user: u32,
    /// As in proc_pid_stat(5): `Z` is a zombie.
    pub(crate) state: char,
    pub(crate) name: String,
}

impl Process {
    /// None when it is gone.
    pub(crate) fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // The name may hold anything; what follows it does not.
        let (name, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            user: users.split_whitespace().nth(1)?.parse().ok()?,
            state: fields.first()?.chars().next()?,
            name: name.split_once('(')?.1.to_owned(),
        })
    }

    /// The words of its command line. To read them takes a lock that a process without CPU time
    /// may hold for long.
    pub(crate) fn command(&self) -> Vec<String> {
        fs::read(format!("/proc/{}/cmdline", self.pid))
            .unwrap_or_default()
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    /// The file of its program; none when it may not be known.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }
}

/// All processes, by number.
pub(crate) fn processes() -> BTreeMap<i32, Process> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .map(|process| (process.pid, process))
        .collect()
}

/// A number in kB of `/proc/PID/status`, such as `VmRSS`, in bytes.
pub(crate) fn memory(pid: i32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib * 1024
}

/// How many descriptors a process has open.
pub(crate) fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
