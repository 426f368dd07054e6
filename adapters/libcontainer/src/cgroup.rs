//! Control groups of the containers, on the v1 and the v2 hierarchies of the kernel.
//!
//! The nursery owns one delegated subtree and makes one leaf below it for each container. It
//! writes the limits itself and reads them back, because libcontainer goes on without limits
//! when it is refused in a user namespace. A creator process enters the leaf before it calls
//! libcontainer, so every process of the container is born in it.
//!
//! Sources: the kernel's `admin-guide/cgroup-v1/` and `admin-guide/cgroup-v2.rst`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::protocol::{Counted, Effective, Limits};

mod delegation;

pub(crate) use delegation::delegate;

const V1_ROOT: &str = "/sys/fs/cgroup";
const PERIOD_US: u64 = 100_000;
/// Prefix of every control group that an instance makes, followed by `PID-STARTTIME`.
const PREFIX: &str = "mcp-forge-";
/// The group (v2) into which the server and its warden move, out of the way of those below.
const SERVER: &str = "mcp-forge-server";
/// The controllers used on v1. `cpu` and `cpuacct` may be one hierarchy.
const V1_CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "cpuacct"];
const V2_CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// A delegated subtree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tree {
    /// One directory per controller, as far as this host has them.
    V1 {
        memory: Option<PathBuf>,
        pids: Option<PathBuf>,
        cpu: Option<PathBuf>,
        cpuacct: Option<PathBuf>,
    },
    /// One directory.
    V2(PathBuf),
    /// Nothing can be enforced; the reason and the remedy.
    None { reason: String },
}

/// Path of a process's cgroup in the unified hierarchy, from the text of `/proc/PID/cgroup`.
pub(crate) fn unified_path(proc_cgroup: &str) -> Option<&str> {
    proc_cgroup
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
}

/// Path of a process's cgroup under one v1 controller, from the text of `/proc/PID/cgroup`.
fn v1_path<'a>(proc_cgroup: &'a str, controller: &str) -> Option<&'a str> {
    proc_cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|c| c == controller)
            .then_some(path)
    })
}

/// Whether `/sys/fs/cgroup` is the v2 hierarchy.
pub(crate) fn is_unified() -> bool {
    Path::new(V1_ROOT).join("cgroup.controllers").exists()
}

fn enable_v2(dir: &Path) -> io::Result<()> {
    for controller in V2_CONTROLLERS {
        fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"))?;
    }
    Ok(())
}

impl Tree {
    fn dirs(&self) -> Vec<&PathBuf> {
        match self {
            Self::V1 {
                memory,
                pids,
                cpu,
                cpuacct,
            } => [memory, pids, cpu, cpuacct].into_iter().flatten().collect(),
            Self::V2(dir) => vec![dir],
            Self::None { .. } => Vec::new(),
        }
    }

    /// The same tree as seen below another mount point, for a process that moved it.
    pub(crate) fn rebased(&self, from: &Path, to: &Path) -> Self {
        let rebase = |p: &PathBuf| {
            p.strip_prefix(from)
                .map_or_else(|_| p.clone(), |r| to.join(r))
        };
        match self {
            Self::V1 {
                memory,
                pids,
                cpu,
                cpuacct,
            } => Self::V1 {
                memory: memory.as_ref().map(rebase),
                pids: pids.as_ref().map(rebase),
                cpu: cpu.as_ref().map(rebase),
                cpuacct: cpuacct.as_ref().map(rebase),
            },
            Self::V2(dir) => Self::V2(rebase(dir)),
            Self::None { reason } => Self::None {
                reason: reason.clone(),
            },
        }
    }

    /// The leaf of one container.
    pub(crate) fn leaf(&self, id: &str) -> Leaf {
        let below = |p: &Option<PathBuf>| p.as_ref().map(|p| p.join(id));
        Leaf {
            tree: match self {
                Self::V1 {
                    memory,
                    pids,
                    cpu,
                    cpuacct,
                } => Self::V1 {
                    memory: below(memory),
                    pids: below(pids),
                    cpu: below(cpu),
                    cpuacct: below(cpuacct),
                },
                Self::V2(dir) => Self::V2(dir.join(id)),
                Self::None { reason } => Self::None {
                    reason: reason.clone(),
                },
            },
        }
    }

    /// Moves the calling process into a leaf of the tree and, on v2, hands the controllers to
    /// the groups below.
    pub(crate) fn settle(&self) -> io::Result<()> {
        if let Self::V2(dir) = self {
            let leaf = dir.join("nursery");
            fs::create_dir_all(&leaf)?;
            fs::write(leaf.join("cgroup.procs"), "0")?;
            enable_v2(dir)?;
        }
        Ok(())
    }

    /// Moves a process to the top of the tree (v2), so that it may move itself below.
    pub(crate) fn admit(&self, pid: u32) -> io::Result<()> {
        match self {
            Self::V2(dir) => fs::write(dir.join("cgroup.procs"), pid.to_string()),
            _ => Ok(()),
        }
    }

    /// Kills what is left in the tree and removes it.
    pub(crate) fn destroy(&self) -> io::Result<()> {
        self.dirs().into_iter().try_for_each(|dir| destroy_dir(dir))
    }
}

fn destroy_dir(dir: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            destroy_dir(&entry.path())?;
        }
    }
    remove_group(dir)
}

/// Removes one group, killing what is in it. Zombies count until they are reaped, so it waits.
fn remove_group(dir: &Path) -> io::Result<()> {
    let mut pause = Duration::from_micros(200);
    let mut waited = Duration::ZERO;
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if waited > Duration::from_secs(2) => return Err(e),
            Err(_) => {
                for pid in fs::read_to_string(dir.join("cgroup.procs"))
                    .unwrap_or_default()
                    .split_whitespace()
                    .filter_map(|p| p.parse().ok())
                    .filter(|p| *p > 1)
                {
                    let _ = nix::sys::signal::kill(
                        nix::unistd::Pid::from_raw(pid),
                        nix::sys::signal::Signal::SIGKILL,
                    );
                }
                nap(pause);
                waited += pause;
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    }
}

/// The nursery is a process of its own with nothing else to do while a group drains.
fn nap(pause: Duration) {
    std::thread::sleep(pause);
}

/// The group of one container.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    tree: Tree,
}

impl Leaf {
    /// Makes the group, without limits.
    pub(crate) fn create(&self) -> io::Result<()> {
        for dir in self.tree.dirs() {
            match fs::create_dir(dir) {
                // cpu and cpuacct may be the same directory.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Sets the limits, and tells what the kernel enforces now.
    pub(crate) fn limit(&self, limits: &Limits) -> io::Result<Effective> {
        match &self.tree {
            Tree::V2(dir) => limit_v2(dir, limits),
            Tree::V1 {
                memory, pids, cpu, ..
            } => limit_v1([memory, pids, cpu].map(|p| p.as_deref()), limits),
            Tree::None { reason } => Ok(Effective {
                weak: vec![format!("memory, cpu, pids: {reason}")],
                ..Effective::default()
            }),
        }
    }

    /// Moves the calling process, which has one thread, into the group.
    ///
    /// On v1 through `tasks`: a thread that moves itself needs no lock over all thread groups of
    /// the host, whose taking waits for an RCU grace period (10 ms).
    pub(crate) fn enter(&self) -> io::Result<()> {
        let file = if matches!(self.tree, Tree::V1 { .. }) {
            "tasks"
        } else {
            "cgroup.procs"
        };
        self.tree
            .dirs()
            .into_iter()
            .try_for_each(|dir| fs::write(dir.join(file), "0"))
    }

    /// Lets what is in the group use the CPU freely: processes that are to die need it, and a
    /// crowd that has used up its quota would take its time.
    pub(crate) fn unthrottle(&self) {
        let (file, free) = match &self.tree {
            Tree::V1 { cpu: Some(dir), .. } => (dir.join("cpu.cfs_quota_us"), "-1"),
            Tree::V2(dir) => (dir.join("cpu.max"), "max"),
            _ => return,
        };
        if let Err(e) = fs::write(file, free) {
            tracing::debug!(error = %e, "the CPU quota of a sandbox that ends stays");
        }
    }

    /// What the kernel counted in the group.
    pub(crate) fn counted(&self) -> Counted {
        match &self.tree {
            Tree::V1 {
                memory,
                pids,
                cpuacct,
                ..
            } => {
                let memory = memory.as_deref();
                let pids = pids.as_deref();
                Counted {
                    cpu_ns: cpuacct
                        .as_deref()
                        .and_then(|d| number(&d.join("cpuacct.usage"))),
                    peak_memory_bytes: memory
                        .and_then(|d| number(&d.join("memory.max_usage_in_bytes"))),
                    oom_kills: keyed(memory, "memory.oom_control", "oom_kill"),
                    pids_refused: keyed(pids, "pids.events", "max"),
                }
            }
            Tree::V2(dir) => {
                let dir = Some(dir.as_path());
                Counted {
                    cpu_ns: Some(keyed(dir, "cpu.stat", "usage_usec").saturating_mul(1000)),
                    peak_memory_bytes: dir.and_then(|d| number(&d.join("memory.peak"))),
                    oom_kills: keyed(dir, "memory.events", "oom_kill"),
                    pids_refused: keyed(dir, "pids.events", "max"),
                }
            }
            Tree::None { .. } => Counted::default(),
        }
    }

    /// Removes the group.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.tree
            .dirs()
            .into_iter()
            .try_for_each(|dir| remove_group(dir))
    }
}

fn limit_v1(dirs: [Option<&Path>; 3], limits: &Limits) -> io::Result<Effective> {
    let [memory, pids, cpu] = dirs;
    let mut weak = Vec::new();
    let mut missing = |name: &str| {
        weak.push(format!("{name}: this kernel has no {name} controller"));
    };
    let mut effective = Effective::default();
    let mut weak_swap = None;
    match memory {
        Some(dir) => {
            fs::write(
                dir.join("memory.limit_in_bytes"),
                limits.memory_bytes.to_string(),
            )?;
            effective.memory_bytes = number(&dir.join("memory.limit_in_bytes"));
            // The sum of memory and swap: equal to the memory is no swap.
            let sum = dir.join("memory.memsw.limit_in_bytes");
            let most = effective.memory_bytes.unwrap_or(limits.memory_bytes);
            weak_swap = deny_swap(&sum, most)?;
        }
        None => missing("memory"),
    }
    match pids {
        Some(dir) => {
            fs::write(dir.join("pids.max"), limits.pids.to_string())?;
            effective.pids = number(&dir.join("pids.max"));
        }
        None => missing("pids"),
    }
    match cpu.filter(|dir| dir.join("cpu.cfs_quota_us").exists()) {
        Some(dir) => {
            fs::write(dir.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(dir.join("cpu.cfs_quota_us"), limits.cpu_quota.to_string())?;
            effective.cpu_quota = number(&dir.join("cpu.cfs_quota_us"));
        }
        None => missing("cpu"),
    }
    weak.extend(weak_swap);
    effective.weak = weak;
    Ok(effective)
}

fn limit_v2(dir: &Path, limits: &Limits) -> io::Result<Effective> {
    fs::write(dir.join("memory.max"), limits.memory_bytes.to_string())?;
    let weak_swap = deny_swap(&dir.join("memory.swap.max"), 0)?;
    fs::write(dir.join("pids.max"), limits.pids.to_string())?;
    fs::write(
        dir.join("cpu.max"),
        format!("{} {PERIOD_US}", limits.cpu_quota),
    )?;
    let cpu = fs::read_to_string(dir.join("cpu.max"))?;
    Ok(Effective {
        memory_bytes: number(&dir.join("memory.max")),
        pids: number(&dir.join("pids.max")),
        cpu_quota: cpu
            .split_whitespace()
            .next()
            .and_then(|quota| quota.parse().ok()),
        weak: weak_swap.into_iter().collect(),
    })
}

/// Sets the limit that leaves no swap; tells if this is not enforced.
///
/// A kernel that does not account for swap (`swapaccount=0`, `cgroup.memory=noswap`) has no such
/// file. That is no matter as long as nothing can be swapped out.
fn deny_swap(file: &Path, limit: u64) -> io::Result<Option<String>> {
    let remedy = "boot with `swapaccount=1` or turn swap off (`swapoff -a`)";
    if !file.exists() {
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        return Ok(has_swap(&swaps).then(|| {
            format!("memory: this kernel does not limit swap, and there is some; {remedy}")
        }));
    }
    fs::write(file, limit.to_string())?;
    let kept = number(file).is_some_and(|read| read <= limit);
    Ok((!kept).then(|| format!("memory: the kernel does not keep the limit of swap; {remedy}")))
}

/// Whether `/proc/swaps` names an area: a line after the headings.
fn has_swap(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number after `key` in a flat keyed file; 0 when there is none.
fn keyed(dir: Option<&Path>, file: &str, key: &str) -> u64 {
    let text = dir
        .and_then(|d| fs::read_to_string(d.join(file)).ok())
        .unwrap_or_default();
    flat_keyed(&text, key).unwrap_or(0)
}

fn flat_keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// The name of this instance's subtree: it names the process that owns it, so that a later
/// start can tell a dead owner from a live one.
pub(crate) fn instance_name() -> String {
    let pid = std::process::id();
    format!("{PREFIX}{pid}-{}", start_time(pid).unwrap_or(0))
}

/// Start time of a live process in clock ticks since boot (field 22 of `/proc/PID/stat`). One that
/// only waits to be reaped (field 3 is `Z` or `X`) is none: it clears nothing up any more.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    live_start_time(&stat)
}

fn live_start_time(stat: &str) -> Option<u64> {
    // The command name may hold spaces and parentheses; it ends at the last one.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| started.parse().ok())?
}

/// Whether a directory name is a subtree whose owner is gone.
fn is_leftover(name: &str) -> bool {
    let Some((pid, started)) = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.split_once('-'))
    else {
        return false;
    };
    match (pid.parse::<u32>(), started.parse::<u64>()) {
        (Ok(pid), Ok(started)) => start_time(pid) != Some(started),
        _ => false,
    }
}

/// Removes the subtrees of instances that died without cleaning up; returns how many.
pub(crate) fn reap() -> usize {
    let mine = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut parents = Vec::new();
    if is_unified() {
        parents = delegation::bases_v2();
    } else {
        for controller in V1_CONTROLLERS {
            let mount = Path::new(V1_ROOT).join(controller);
            if let Some(own) = v1_path(&mine, controller) {
                parents.push(mount.join(own.trim_start_matches('/')));
            }
            parents.push(mount);
        }
    }
    let mut reaped = 0;
    for parent in parents {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(is_leftover)
                && destroy_dir(&entry.path()).is_ok()
            {
                reaped += 1;
            }
        }
    }
    reaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROC_CGROUP: &str = "5:cpu,cpuacct:/user.slice\n4:memory:/a b:c\n0::/system.slice/x\n";

    #[test]
    fn paths_are_read_from_proc_cgroup() {
        assert_eq!(v1_path(PROC_CGROUP, "cpuacct"), Some("/user.slice"));
        assert_eq!(v1_path(PROC_CGROUP, "memory"), Some("/a b:c"));
        assert_eq!(v1_path(PROC_CGROUP, "pids"), None);
        assert_eq!(unified_path(PROC_CGROUP), Some("/system.slice/x"));
    }

    #[test]
    fn flat_keyed_files_are_read_by_whole_key() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(flat_keyed(text, "oom_kill"), Some(3));
        assert_eq!(flat_keyed(text, "oom"), None);
        assert_eq!(flat_keyed("max many\n", "max"), None);
    }

    #[test]
    fn a_zombie_is_no_live_process() {
        let stat =
            |state| format!("7 (a) b) {state} 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0");
        assert_eq!(live_start_time(&stat("S")), Some(4711));
        assert_eq!(live_start_time(&stat("Z")), None);
        assert_eq!(live_start_time("7 (a"), None);
    }

    #[test]
    fn a_live_instance_is_no_leftover() {
        let mine = instance_name();
        assert!(!is_leftover(&mine));
        assert!(is_leftover(&format!("{PREFIX}{}-1", std::process::id())));
        assert!(!is_leftover("mcp-forge-server"));
        assert!(!is_leftover("user.slice"));
    }

    #[test]
    fn swap_that_is_not_limited_is_told() {
        assert!(!has_swap("Filename\tType\tSize\tUsed\tPriority\n"));
        assert!(has_swap("Filename\tType\n/dev/vda2 partition 1 0 -2\n"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory.swap.max");
        fs::write(&file, "max").unwrap();
        assert_eq!(deny_swap(&file, 0).unwrap(), None);
        // A file that takes any limit and keeps none.
        let told = deny_swap(Path::new("/dev/null"), 0).unwrap().unwrap();
        assert!(
            told.starts_with("memory: the kernel does not keep"),
            "{told}"
        );
    }

    #[test]
    fn limits_of_a_host_without_control_groups_are_none_and_say_why() {
        let leaf = Tree::None {
            reason: "no delegation".to_owned(),
        }
        .leaf("x");
        let limits = Limits {
            memory_bytes: 1,
            cpu_quota: 1,
            pids: 1,
            descriptors: 1,
            tmp_bytes: 1,
            workspace_bytes: 1,
        };
        let effective = leaf.limit(&limits).unwrap();
        assert_eq!(effective.memory_bytes, None);
        assert_eq!(effective.weak.len(), 1);
        assert!(effective.weak[0].starts_with("memory, cpu, pids: no delegation"));
    }
}
