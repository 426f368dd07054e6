//! What sandboxes could leave behind, over the whole machine: processes, control groups, mounts,
//! files.
//!
//! Other programs of ours may be at work (the tests of an adapter, a developer's server): what
//! belongs to a server that is alive and none of this test's is left out of the count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::host::{Process, processes};

/// The ids that sandboxes have on the host when root makes them: of these each server has a range.
pub(crate) const RANGE: Range<u32> = 1_879_048_192..2_147_352_576;

/// How many ids a server has.
const SERVER_IDS: u32 = 65_536;

/// Files outside of the home that anybody may write, and so could be left.
const PUBLIC: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];

/// Directory of the home that holds what the test itself wrote.
pub(crate) const GIVEN: &str = "given";

/// Everything of ours at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Traces {
    processes: BTreeSet<Process>,
    pub(crate) groups: BTreeSet<PathBuf>,
    mounts: BTreeSet<String>,
    files: BTreeSet<PathBuf>,
}

impl Traces {
    /// Looks now. `home` is the test's own directory, `ids` the ids of sandboxes.
    pub(crate) fn now(home: &Path, ids: &Range<u32>) -> Self {
        let census = Census::take(ids.clone());
        Self {
            processes: census.ours().cloned().collect(),
            groups: census.groups(),
            mounts: [1, std::process::id().cast_signed()]
                .into_iter()
                .flat_map(mounts)
                .collect(),
            files: files(home, ids),
        }
    }

    /// What is here and was not there; the state of a process does not count.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let known = |process: &&Process| {
            before
                .processes
                .iter()
                .any(|p| (p.pid, p.started) == (process.pid, process.started))
        };
        Self {
            processes: self
                .processes
                .iter()
                .filter(|p| !known(p))
                .cloned()
                .collect(),
            groups: &self.groups - &before.groups,
            mounts: &self.mounts - &before.mounts,
            files: &self.files - &before.files,
        }
    }

    /// Takes these processes out of it, and the control groups that they made.
    pub(crate) fn forget(&mut self, helpers: &[&Process]) {
        let named = |process: &Process| {
            helpers
                .iter()
                .any(|p| (p.pid, p.started) == (process.pid, process.started))
        };
        self.processes.retain(|process| !named(process));
        let instances: Vec<String> = helpers
            .iter()
            .map(|p| format!("{INSTANCE}{}-{}", p.pid, p.started))
            .collect();
        let made = |group: &PathBuf| {
            group
                .components()
                .any(|part| instances.iter().any(|name| part.as_os_str() == &**name))
        };
        self.groups.retain(|group| !made(group));
    }

    /// Names what there is.
    pub(crate) fn none(&self) -> Result<(), String> {
        if *self == Self::default() {
            Ok(())
        } else {
            Err(format!("left over: {self:#?}"))
        }
    }
}

/// The processes at one moment, seen as those of sandboxes, of helpers, and of others.
pub(crate) struct Census {
    all: BTreeMap<i32, Process>,
    ids: Range<u32>,
}

impl Census {
    pub(crate) fn take(ids: Range<u32>) -> Self {
        Self {
            all: processes(),
            ids,
        }
    }

    /// In a sandbox, or on the way into one.
    pub(crate) fn in_sandbox(&self, process: &Process) -> bool {
        // The first id of a server is the root of its nursery, which is nobody's in a sandbox.
        let within = |ids: &Range<u32>| !(process.user - ids.start).is_multiple_of(SERVER_IDS);
        self.ids.contains(&process.user) && within(&self.ids)
    }

    /// A sandbox's process, or one that makes and guards sandboxes.
    fn is_ours(&self, process: &Process) -> bool {
        self.ids.contains(&process.user)
            || process
                .command()
                .get(1)
                .is_some_and(|word| word == "__nursery")
    }

    /// All of these but those of a living server that this test did not start.
    pub(crate) fn ours(&self) -> impl Iterator<Item = &Process> {
        self.all
            .values()
            .filter(|process| self.is_ours(process) && !self.foreign(process))
    }

    /// How many Python programs run in sandboxes.
    pub(crate) fn programs(&self) -> usize {
        let program = |p: &&Process| p.command().iter().any(|word| word.contains("runner.main"));
        self.ours().filter(program).count()
    }

    fn foreign(&self, process: &Process) -> bool {
        let mut top = process;
        while let Some(parent) = self
            .all
            .get(&top.parent)
            .filter(|parent| self.is_ours(parent))
        {
            top = parent;
        }
        let Some(server) = self.all.get(&top.parent) else {
            return false;
        };
        // Whoever inherits orphans runs another program.
        let served = top.program().is_some() && top.program() == server.program();
        served && !self.descends(server, std::process::id().cast_signed())
    }

    fn descends(&self, process: &Process, from: i32) -> bool {
        let mut next = Some(process);
        while let Some(process) = next {
            if process.pid == from {
                return true;
            }
            next = self.all.get(&process.parent);
        }
        false
    }

    /// What runs below one process, itself left out.
    pub(crate) fn below(&self, pid: i32) -> Vec<&Process> {
        self.all
            .values()
            .filter(|p| p.pid != pid && self.descends(p, pid))
            .collect()
    }

    /// Control groups of an instance and what is in them, in every hierarchy.
    pub(crate) fn groups(&self) -> BTreeSet<PathBuf> {
        instances()
            .into_iter()
            .filter(|dir| !self.foreign_group(dir))
            .flat_map(directories)
            .collect()
    }

    /// A group carries the number and the start of the helper that made it.
    fn foreign_group(&self, instance: &Path) -> bool {
        let owner = || {
            let name = instance.file_name()?.to_str()?.strip_prefix(INSTANCE)?;
            let (pid, started) = name.split_once('-')?;
            let owner = self.all.get(&pid.parse().ok()?)?;
            (started.parse() == Ok(owner.started)).then_some(owner)
        };
        owner().is_some_and(|owner| self.foreign(owner))
    }
}

/// How the control group of an instance begins.
const INSTANCE: &str = "mcp-forge-";

/// The top groups of all instances.
fn instances() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut unseen = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = unseen.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            // `mcp-forge-server` is where a server on v2 moves to; it stays as long as the unit.
            let name = entry.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(INSTANCE));
            if rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
                found.push(entry.path());
            } else {
                unseen.push(entry.path());
            }
        }
    }
    found
}

/// A directory and all directories in it.
fn directories(top: PathBuf) -> Vec<PathBuf> {
    let mut found = vec![top];
    let mut next = 0;
    while let Some(dir) = found.get(next) {
        let inside: Vec<PathBuf> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        found.extend(inside);
        next += 1;
    }
    found
}

/// Lines of a process's mount table; none when it is gone.
pub(crate) fn mounts(pid: i32) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table.lines().map(str::to_owned).collect()
}

/// Everything in the home but the audit log with its head, and what sandboxes own in public places.
fn files(home: &Path, ids: &Range<u32>) -> BTreeSet<PathBuf> {
    let state = home.join("state/mcp-forge");
    let log = ["audit.jsonl", "audit.jsonl.head"].map(|name| state.join(name));
    let expected = [&log[..], &[state]].concat();
    let given = home.join(GIVEN);
    let mut found: BTreeSet<PathBuf> = entries(home, usize::MAX)
        .into_iter()
        .filter(|path| !expected.contains(path) && !path.starts_with(&given))
        .collect();
    let owned =
        |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|meta| ids.contains(&meta.uid()));
    found.extend(
        PUBLIC
            .iter()
            .flat_map(|dir| entries(Path::new(dir), 1))
            .filter(owned),
    );
    found
}

/// What is in a directory, and in the directories in it as deep as told.
pub(crate) fn entries(top: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        found.push(entry.path());
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(entries(&entry.path(), depth - 1));
        }
    }
    found
}
