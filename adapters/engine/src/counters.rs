//! What the kernel counts for a container and allows it, read from its control groups: cgroups(7), and
//! of v1 the kernel's `admin-guide/cgroup-v1`. The engine's own statistics lack what is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mcp_forge_ports::vocabulary::SandboxUsage;

use crate::request::CPU_PERIOD;

const MOUNT: &str = "/sys/fs/cgroup";

/// The limits of a control group; nothing where it has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Bytes.
    pub(crate) memory: Option<u64>,
    /// Bytes, both together.
    pub(crate) memory_and_swap: Option<u64>,
    /// Microseconds per period of 100 ms.
    pub(crate) cpu_quota: Option<u64>,
    pub(crate) pids: Option<u64>,
}

/// The control groups of a container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    V1 {
        memory: Option<PathBuf>,
        pids: Option<PathBuf>,
        cpu: Option<PathBuf>,
        cpuacct: Option<PathBuf>,
    },
    V2(PathBuf),
}

/// What is known of the groups of a container's first process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Groups(Groups),
    /// It has ended.
    Ended,
    /// The process of this number is another one here, or has no group of its own.
    Elsewhere,
}

/// The groups of the container with this id, whose first process this is.
pub(crate) fn find(process: i64, id: &str) -> Found {
    let Ok(text) = fs::read_to_string(format!("/proc/{process}/cgroup")) else {
        return Found::Ended;
    };
    let mount = Path::new(MOUNT);
    let unified = mount.join("cgroup.controllers").exists();
    groups(mount, unified, &text, id).map_or(Found::Elsewhere, Found::Groups)
}

/// The groups of proc(5)'s `cgroup`, which engines name after the container.
fn groups(mount: &Path, unified: bool, text: &str, id: &str) -> Option<Groups> {
    let of = |mount: &Path, controller: &str| {
        let group = directory(mount, text, controller)?;
        (!id.is_empty() && group.to_string_lossy().contains(id)).then_some(group)
    };
    if unified {
        return of(mount, "").map(Groups::V2);
    }
    let of = |controller: &str| of(&mount.join(controller), controller);
    let (memory, pids, cpu, cpuacct) = (of("memory"), of("pids"), of("cpu"), of("cpuacct"));
    let any = memory.is_some() || pids.is_some() || cpu.is_some();
    any.then_some(Groups::V1 {
        memory,
        pids,
        cpu,
        cpuacct,
    })
}

impl Groups {
    /// What was counted up to now; nothing when the groups are gone.
    pub(crate) fn usage(&self) -> Option<SandboxUsage> {
        match self {
            Self::V2(group) => group.join("memory.events").exists().then(|| v2(group)),
            Self::V1 {
                memory,
                pids,
                cpuacct,
                ..
            } => {
                let gone = memory
                    .as_ref()
                    .is_some_and(|group| !group.join("memory.oom_control").exists());
                (!gone).then(|| v1(memory, pids, cpuacct))
            }
        }
    }

    /// The limits; nothing when the groups are gone.
    pub(crate) fn bounds(&self) -> Option<Bounds> {
        match self {
            Self::V2(group) => {
                let file = |name: &str| group.join(name);
                let memory = number(&file("memory.max"));
                let swap = number(&file("memory.swap.max"));
                let quota = fs::read_to_string(file("cpu.max")).unwrap_or_default();
                let mut quota = quota.split_whitespace().map(|part| part.parse().ok());
                group.exists().then(|| Bounds {
                    memory,
                    memory_and_swap: memory
                        .zip(swap)
                        .map(|(memory, swap)| memory.saturating_add(swap)),
                    cpu_quota: per_period(quota.next().flatten(), quota.next().flatten()),
                    pids: number(&file("pids.max")),
                })
            }
            Self::V1 {
                memory, pids, cpu, ..
            } => {
                let read = |group: &Option<PathBuf>, name: &str| {
                    group.as_ref().and_then(|group| number(&group.join(name)))
                };
                let there = [memory, pids, cpu]
                    .into_iter()
                    .flatten()
                    .all(|group| group.exists());
                there.then(|| Bounds {
                    memory: read(memory, "memory.limit_in_bytes"),
                    memory_and_swap: read(memory, "memory.memsw.limit_in_bytes"),
                    // No quota is -1, which is no number here.
                    cpu_quota: per_period(
                        read(cpu, "cpu.cfs_quota_us"),
                        read(cpu, "cpu.cfs_period_us"),
                    ),
                    pids: read(pids, "pids.max"),
                })
            }
        }
    }
}

/// A quota as it would be for the period of limits.
fn per_period(quota: Option<u64>, period: Option<u64>) -> Option<u64> {
    let period = period.filter(|period| *period > 0)?;
    Some(quota?.saturating_mul(CPU_PERIOD.unsigned_abs()) / period)
}

/// The directory of a process's group in the hierarchy of a controller.
fn directory(mount: &Path, groups: &str, controller: &str) -> Option<PathBuf> {
    let line = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|one| one == controller)
            .then_some(path)
    })?;
    let path = line.trim_start_matches('/');
    let plain = !path.is_empty() && path.split('/').all(|part| part != "..");
    plain.then(|| mount.join(path))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The value of a key in a file of lines `key value`.
fn keyed(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

fn v2(group: &Path) -> SandboxUsage {
    let file = |name: &str| group.join(name);
    SandboxUsage {
        cpu: keyed(&file("cpu.stat"), "usage_usec").map(Duration::from_micros),
        peak_memory_bytes: number(&file("memory.peak")),
        oom_kills: keyed(&file("memory.events"), "oom_kill").unwrap_or(0),
        pids_refused: keyed(&file("pids.events"), "max").unwrap_or(0),
    }
}

fn v1(memory: &Option<PathBuf>, pids: &Option<PathBuf>, cpu: &Option<PathBuf>) -> SandboxUsage {
    let file = |group: &Option<PathBuf>, name: &str| group.as_ref().map(|group| group.join(name));
    SandboxUsage {
        cpu: file(cpu, "cpuacct.usage")
            .and_then(|path| number(&path))
            .map(Duration::from_nanos),
        peak_memory_bytes: file(memory, "memory.max_usage_in_bytes").and_then(|path| number(&path)),
        oom_kills: file(memory, "memory.oom_control")
            .and_then(|path| keyed(&path, "oom_kill"))
            .unwrap_or(0),
        pids_refused: file(pids, "pids.events")
            .and_then(|path| keyed(&path, "max"))
            .unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_their_controller() {
        let groups = "5:cpu,cpuacct:/docker/a\n3:memory:/docker/b\n2:pids:/../c\n0::/d\n1:x:/\n";
        let of = |controller| directory(Path::new("/m"), groups, controller);
        assert_eq!(of("cpuacct"), Some("/m/docker/a".into()));
        assert_eq!(of("memory"), Some("/m/docker/b".into()));
        assert_eq!(of(""), Some("/m/d".into()));
        // Not below the mount, not there, everything.
        assert_eq!((of("pids"), of("y"), of("x")), (None, None, None));
    }

    #[test]
    fn both_versions_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("cpu.stat", "usage_usec 5000\nuser_usec 1\n");
        write("memory.peak", "4096\n");
        write(
            "memory.events",
            "low 0\noom 2\noom_kill 1\noom_group_kill 9\n",
        );
        write("pids.events", "max 3\n");
        let expected = SandboxUsage {
            cpu: Some(Duration::from_millis(5)),
            peak_memory_bytes: Some(4096),
            oom_kills: 1,
            pids_refused: 3,
        };
        assert_eq!(v2(dir.path()), expected);
        write("cpuacct.usage", "5000000\n");
        write("memory.max_usage_in_bytes", "4096\n");
        write(
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        );
        let group = || Some(dir.path().to_owned());
        assert_eq!(v1(&group(), &group(), &group()), expected);
        assert_eq!(v1(&None, &None, &None), SandboxUsage::default());
    }

    #[test]
    fn groups_belong_to_the_container() {
        let text =
            "5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n2:pids:/docker/x\n0::/docker/abc\n";
        let at = |path: &str| Some(Path::new("/m").join(path));
        let v1 = Groups::V1 {
            memory: at("memory/docker/abc"),
            pids: None,
            cpu: at("cpu/docker/abc"),
            cpuacct: at("cpuacct/docker/abc"),
        };
        let found = |unified, id| groups(Path::new("/m"), unified, text, id);
        assert_eq!(found(false, "abc"), Some(v1));
        assert_eq!(found(true, "abc"), Some(Groups::V2("/m/docker/abc".into())));
        for unified in [false, true] {
            assert_eq!((found(unified, "abd"), found(unified, "")), (None, None));
        }
        assert_eq!(find(i64::MAX, "abc"), Found::Ended);
        assert_eq!(find(std::process::id().into(), "abc"), Found::Elsewhere);
    }

    #[test]
    fn limits_of_both_versions_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let group = || Some(dir.path().to_owned());
        let one = Groups::V1 {
            memory: group(),
            pids: group(),
            cpu: group(),
            cpuacct: None,
        };
        let two = Groups::V2(dir.path().to_owned());
        assert_eq!(two.bounds(), Some(Bounds::default()));
        write("cpu.max", "max 100000\n");
        write("cpu.cfs_quota_us", "-1\n");
        write("cpu.cfs_period_us", "100000\n");
        write("memory.max", "max\n");
        write("pids.max", "max\n");
        assert_eq!(
            (one.bounds(), two.bounds()),
            (Some(Bounds::default()), Some(Bounds::default()))
        );
        let expected = Bounds {
            memory: Some(4096),
            memory_and_swap: Some(4096),
            cpu_quota: Some(50_000),
            pids: Some(9),
        };
        write("cpu.max", "25000 50000\n");
        write("memory.max", "4096\n");
        write("memory.swap.max", "0\n");
        write("pids.max", "9\n");
        write("cpu.cfs_quota_us", "25000\n");
        write("cpu.cfs_period_us", "50000\n");
        write("memory.limit_in_bytes", "4096\n");
        write("memory.memsw.limit_in_bytes", "4096\n");
        assert_eq!(
            (one.bounds(), two.bounds()),
            (Some(expected), Some(expected))
        );
        drop(dir);
        assert_eq!((one.bounds(), two.bounds()), (None, None));
    }
}
