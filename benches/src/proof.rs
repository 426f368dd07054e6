//! Proof that an execution was fresh, from what the program itself saw.
//!
//! The program prints 42 and one line more. Inode numbers of namespaces alone prove nothing over
//! time: the kernel gives the number of a namespace that is gone to the next one. So a run counts
//! when all of this holds:
//!
//! - every namespace asked for has another inode than the one of this process, which lives on;
//! - a file that each run leaves in both writable directories is not there at the beginning, and
//!   can be read back after it was written;
//! - the program has the same process id as the first run had, on engines nearly. The kernel hands out ids within a
//!   process-id namespace in ascending order, so a second run in an old one would get a higher
//!   number;
//! - the first process of that namespace and the namespace's inode are not those of the run before.
//!
//! `held` closes the gap that is left: it keeps the namespaces of several runs open, so that no
//! inode can be given out again, and compares them all.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::mcp::Client;
use crate::procs::{self, Process};

const PROGRAM: &str = include_str!("program.py");

/// In the order in which the program reports them.
const NAMESPACES: [&str; 7] = ["pid", "mnt", "net", "ipc", "uts", "cgroup", "user"];

/// The program without its proof.
pub(crate) const PLAIN: &str = "print(42)";

/// Where the program leaves its file, everywhere but on the bare host.
pub(crate) const DIRECTORIES: [&str; 2] = ["/tmp", "/workspace"];

/// What one execution reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    found: [String; 2],
    written: [String; 2],
    pid: u32,
    /// Start of process 1, clock ticks since boot.
    first_started: u64,
    namespaces: Vec<String>,
}

/// The text of the program for one run.
pub(crate) fn program(nonce: &str, directories: [&str; 2]) -> String {
    PROGRAM
        .replace("NONCE", nonce)
        .replace("DIRECTORY1", directories[0])
        .replace("DIRECTORY2", directories[1])
}

impl Proof {
    /// Reads the output of the program.
    pub(crate) fn parse(stdout: &str) -> Result<Self> {
        let line = stdout
            .strip_prefix("42\nproof|")
            .and_then(|rest| rest.strip_suffix('\n'))
            .with_context(|| format!("not the output of the program: {stdout:?}"))?;
        let fields: Vec<&str> = line.split('|').collect();
        let [a, b, c, d, pid, stat, namespaces @ ..] = fields.as_slice() else {
            bail!("too short: {line}");
        };
        ensure!(
            namespaces.len() == NAMESPACES.len(),
            "not every namespace: {line}"
        );
        Ok(Self {
            found: [(*a).to_owned(), (*b).to_owned()],
            written: [(*c).to_owned(), (*d).to_owned()],
            pid: pid.parse().context("the process id")?,
            first_started: procs::start_time(stat).context("the first process")?,
            namespaces: namespaces.iter().map(|n| (*n).to_owned()).collect(),
        })
    }
}

/// Judges the runs of one contestant, in their order.
#[derive(Debug)]
pub(crate) struct Judge {
    fresh: &'static [&'static str],
    /// How far process ids of fresh namespaces lie apart.
    slack: u32,
    own: Vec<String>,
    first: Option<Proof>,
    last: Option<Proof>,
    pub(crate) judged: usize,
}

impl Judge {
    /// `fresh` names the namespaces that must not be those of this process.
    pub(crate) fn new(fresh: &'static [&'static str]) -> Result<Self> {
        let link = |name| Ok(std::fs::read_link(format!("/proc/self/ns/{name}"))?);
        let own: Result<Vec<_>> = NAMESPACES.into_iter().map(link).collect();
        let own = own?
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        Ok(Self {
            fresh,
            slack: 0,
            own,
            first: None,
            last: None,
            judged: 0,
        })
    }

    /// For an engine: the threads of its runtime take some of the first numbers, now more, now less. Every run in an
    /// old namespace would still be further away than the one before.
    pub(crate) fn of_engine(mut self) -> Self {
        self.slack = 8;
        self
    }

    /// Whether the run was fresh. `alone`: no other run was going on, so that the one before has a
    /// meaning.
    pub(crate) fn check(&mut self, proof: &Proof, nonce: &str, alone: bool) -> Result<()> {
        for (name, (own, theirs)) in NAMESPACES
            .iter()
            .zip(self.own.iter().zip(&proof.namespaces))
        {
            ensure!(
                !self.fresh.contains(name) || own != theirs,
                "ran in the {name} namespace of the host"
            );
        }
        ensure!(
            proof.written.iter().all(|text| text == nonce),
            "the file was not written: {:?}",
            proof.written
        );
        ensure!(
            proof.found.iter().all(|text| text == "-"),
            "a file of an earlier run was there: {:?}",
            proof.found
        );
        if let Some(first) = &self.first {
            ensure!(
                proof.pid.abs_diff(first.pid) <= self.slack,
                "process id {} after {} in the first run: not a new process-id namespace",
                proof.pid,
                first.pid
            );
        }
        if let (true, Some(last)) = (alone, &self.last) {
            let same = last.first_started == proof.first_started
                && last.namespaces[0] == proof.namespaces[0];
            ensure!(!same, "the first process is that of the run before");
        }
        self.first.get_or_insert_with(|| proof.clone());
        self.last = Some(proof.clone());
        self.judged += 1;
        Ok(())
    }

    /// For runs on the bare host: the check must find what the run before left, or it proves
    /// nothing.
    pub(crate) fn check_control(&mut self, proof: &Proof, nonce: &str) -> Result<()> {
        ensure!(
            proof.written.iter().all(|text| text == nonce),
            "the file was not written"
        );
        if self.judged > 0 {
            ensure!(
                proof.found.iter().all(|text| text != "-"),
                "the check does not see a file that is there"
            );
        }
        self.judged += 1;
        Ok(())
    }
}

/// Runs `runs` programs one after the other and keeps the namespaces of all of them open. Gives,
/// for each kind, how many different ones there were.
pub(crate) fn held(client: &mut Client, runs: usize) -> Result<Vec<(&'static str, usize)>> {
    // What ran before is cleared away meanwhile.
    std::thread::sleep(Duration::from_millis(300));
    let idle = procs::pid_namespaces(&procs::descendants(client.pid())?);
    let code = "import time\nprint(42, flush=True)\ntime.sleep(0.6)";
    let mut open: Vec<(&'static str, File)> = Vec::new();
    for _ in 0..runs {
        let (id, sent) = client.call_later("execute_python", &json!({ "code": code }))?;
        let first = first_process(client.pid(), &idle)?;
        for name in NAMESPACES {
            let path = format!("/proc/{}/ns/{name}", first.pid);
            let file =
                File::open(path).with_context(|| format!("the {name} namespace of a run"))?;
            open.push((name, file));
        }
        let answer = client.answer(id, sent)?;
        let stdout = &answer.value["structuredContent"]["stdout"];
        ensure!(
            stdout.as_str() == Some("42\n"),
            "not the output: {}",
            answer.value
        );
        let until = Instant::now() + Duration::from_secs(5);
        while first.exists() {
            ensure!(
                Instant::now() < until,
                "the first process of a run outlives it"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let mut counts = Vec::new();
    for name in NAMESPACES {
        let mut inodes = BTreeSet::new();
        for (kind, file) in &open {
            if *kind == name {
                inodes.insert(file.metadata()?.ino());
            }
        }
        counts.push((name, inodes.len()));
    }
    Ok(counts)
}

/// The first process of the sandbox that runs now, below the server `root`, in a process-id
/// namespace that was not there when it was idle.
fn first_process(root: u32, idle: &BTreeSet<u64>) -> Result<Process> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let fresh = procs::descendants(root)?.into_iter().find(|process| {
            process.namespace.is_some_and(|ns| !idle.contains(&ns)) && process.is_first()
        });
        if let Some(process) = fresh {
            // A little later all of its namespaces are made.
            std::thread::sleep(Duration::from_millis(200));
            return Ok(process);
        }
        ensure!(
            Instant::now() < until,
            "no process of the run is to be found"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(found: &str, nonce: &str, pid: u32, start: u64) -> String {
        let names = NAMESPACES.map(|n| format!("{n}:[1]")).join("|");
        let stat = format!("1 (a b) S 0 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 5");
        format!("42\nproof|{found}|{found}|{nonce}|{nonce}|{pid}|{stat}|{names}\n")
    }

    fn judge() -> Judge {
        Judge::new(&["pid", "mnt", "net"]).unwrap()
    }

    #[test]
    fn fresh_runs_pass() {
        let mut judge = judge();
        for start in [100, 101] {
            let proof = Proof::parse(&output("-", "n", 2, start)).unwrap();
            judge.check(&proof, "n", true).unwrap();
        }
        assert_eq!(judge.judged, 2);
    }

    #[test]
    fn each_sign_of_reuse_is_seen() {
        let refused = |text: &str| {
            let mut judge = judge();
            judge
                .check(&Proof::parse(&output("-", "n", 2, 100)).unwrap(), "n", true)
                .unwrap();
            let proof = Proof::parse(text).unwrap();
            judge.check(&proof, "n", true).unwrap_err().to_string()
        };
        assert!(refused(&output("old", "n", 2, 101)).contains("earlier run"));
        assert!(refused(&output("-", "m", 2, 101)).contains("not written"));
        assert!(refused(&output("-", "n", 3, 101)).contains("process id 3 after 2"));
        assert!(refused(&output("-", "n", 2, 100)).contains("first process"));
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let text = output("-", "n", 2, 101).replace("net:[1]", &own.to_string_lossy());
        assert!(refused(&text).contains("net namespace of the host"));
    }

    #[test]
    fn other_output_is_no_proof() {
        assert!(Proof::parse("42\n").is_err());
        assert!(Proof::parse("41\nproof|-|-|n|n|2|x|a|b\n").is_err());
    }
}
