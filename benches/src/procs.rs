//! What the host sees of the processes and control groups below a server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A process, alive or a zombie.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: u32,
    /// Clock ticks since boot; with the number it names the process for good.
    started: u64,
    pub(crate) name: String,
    /// Inode of its process-id namespace.
    pub(crate) namespace: Option<u64>,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = field(&stat, 4)?.try_into().ok()?;
        let name = stat.split_once('(')?.1.rsplit_once(')')?.0.to_owned();
        let namespace = fs::metadata(format!("/proc/{pid}/ns/pid"))
            .ok()
            .map(|m| m.ino());
        Some(Self {
            pid,
            parent,
            started: start_time(&stat)?,
            name,
            namespace,
        })
    }

    /// Whether it is process 1 of its namespace.
    pub(crate) fn is_first(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .is_some_and(|ids| ids.split_whitespace().next_back() == Some("1"))
    }

    /// Whether it is still there, if only as a zombie.
    pub(crate) fn exists(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .ok()
            .and_then(|stat| start_time(&stat))
            == Some(self.started)
    }
}

/// Field `number` (from 1, beyond the name) of a line of `/proc/PID/stat`.
fn field(stat: &str, number: usize) -> Option<u64> {
    // The name may hold spaces and parentheses; it ends at the last one.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(number - 3)?
        .parse()
        .ok()
}

/// Start time in clock ticks since boot, from a line of `/proc/PID/stat`.
pub(crate) fn start_time(stat: &str) -> Option<u64> {
    field(stat, 22)
}

/// Every process below `root`, without itself.
pub(crate) fn descendants(root: u32) -> Result<Vec<Process>> {
    let mut children: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(process) = Process::read(pid) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(pid) = next.pop() {
        for process in children.remove(&pid).unwrap_or_default() {
            next.push(process.pid);
            found.push(process);
        }
    }
    Ok(found)
}

pub(crate) fn pid_namespaces(processes: &[Process]) -> BTreeSet<u64> {
    processes
        .iter()
        .filter_map(|process| process.namespace)
        .collect()
}

/// Memory of a process in bytes: all that is resident, and its share of what it shares.
pub(crate) fn memory(pid: u32) -> Result<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = |name: &str| {
        text.lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
            .with_context(|| format!("no {name} of process {pid}"))
    };
    Ok((kib("Rss:")? * 1024, kib("Pss:")? * 1024))
}

/// The control groups that mcp-forge made for a process, one for each hierarchy.
pub(crate) fn control_groups(pid: u32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(hierarchy), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        if path.contains("/mcp-forge-") {
            let mount = Path::new("/sys/fs/cgroup").join(hierarchy.trim_start_matches("name="));
            found.push(mount.join(path.trim_start_matches('/')));
        }
    }
    found
}

/// The topmost control groups of the instance of mcp-forge that these processes belong to.
pub(crate) fn instance_groups(processes: &[Process]) -> BTreeSet<PathBuf> {
    let named = |path: &Path| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("mcp-forge-"))
    };
    processes
        .iter()
        .flat_map(|process| control_groups(process.pid))
        .filter_map(|path| {
            path.ancestors()
                .find(|path| named(path))
                .map(Path::to_owned)
        })
        .filter(|path| path.is_dir())
        .collect()
}

/// All control groups at and below these.
pub(crate) fn groups_below(roots: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut next: Vec<PathBuf> = roots.iter().filter(|path| path.is_dir()).cloned().collect();
    while let Some(dir) = next.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(entry.path());
            }
        }
        found.insert(dir);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let stat = "7 (a) (b c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 99 1";
        assert_eq!(start_time(stat), Some(4711));
        assert_eq!(field(stat, 4), Some(1));
        assert_eq!(start_time("7 (a"), None);
    }

    #[test]
    fn a_child_is_a_descendant_until_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        let all = descendants(std::process::id()).unwrap();
        let process = all.into_iter().find(|p| p.pid == child.id()).unwrap();
        assert!(process.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.exists());
    }
}
