//! What the kernel counts for a container, read from its control groups: cgroups(7), and of v1 the
//! kernel's `admin-guide/cgroup-v1`. The engine's own statistics lack what is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mcp_forge_ports::vocabulary::SandboxUsage;

const MOUNT: &str = "/sys/fs/cgroup";

/// What was counted for the container of this process up to now; nothing when it has ended.
pub(crate) fn of(process: i64) -> Option<SandboxUsage> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let mount = Path::new(MOUNT);
    if mount.join("cgroup.controllers").exists() {
        let group = directory(mount, &groups, "")?;
        return group.join("memory.events").exists().then(|| v2(&group));
    }
    let of = |controller: &str| directory(&mount.join(controller), &groups, controller);
    let memory = of("memory");
    let is_there = memory
        .as_ref()
        .is_some_and(|group| group.join("memory.oom_control").exists());
    is_there.then(|| v1(memory, of("pids"), of("cpuacct")))
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

fn v1(memory: Option<PathBuf>, pids: Option<PathBuf>, cpu: Option<PathBuf>) -> SandboxUsage {
    let file = |group: &Option<PathBuf>, name: &str| group.as_ref().map(|group| group.join(name));
    SandboxUsage {
        cpu: file(&cpu, "cpuacct.usage")
            .and_then(|path| number(&path))
            .map(Duration::from_nanos),
        peak_memory_bytes: file(&memory, "memory.max_usage_in_bytes")
            .and_then(|path| number(&path)),
        oom_kills: file(&memory, "memory.oom_control")
            .and_then(|path| keyed(&path, "oom_kill"))
            .unwrap_or(0),
        pids_refused: file(&pids, "pids.events")
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
        assert_eq!(v1(group(), group(), group()), expected);
        assert_eq!(v1(None, None, None), SandboxUsage::default());
    }
}
