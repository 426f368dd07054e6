//! Where on this host the subtree of an instance is made, and what must move out of its way.
//!
//! It runs in the warden, in the host's namespaces. What is made below the subtree is the
//! nursery's business. `docs/cgroup-v2.md` tells what was tried.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{
    PREFIX, SERVER, Tree, V1_CONTROLLERS, V1_ROOT, V2_CONTROLLERS, enable_v2, is_unified,
    unified_path, v1_path,
};
use crate::sys;

/// Makes the subtree of this instance and gives it to `owner` (uid and gid, the mapped root of
/// the nursery). `name` is unique to the instance. As an ordinary user it works where the own
/// control group is delegated (systemd `Delegate=yes`).
pub(crate) fn delegate(name: &str, owner: u32, server: u32) -> Tree {
    let attempt = if is_unified() {
        delegate_v2(name, owner, server)
    } else {
        delegate_v1(name, owner)
    };
    attempt.unwrap_or_else(|reason| Tree::None { reason })
}

fn delegate_v1(name: &str, owner: u32) -> Result<Tree, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err(
            "cgroup v1 cannot be delegated to an ordinary user; boot with cgroup v2 \
             (systemd.unified_cgroup_hierarchy=1) or run as root"
                .to_owned(),
        );
    }
    let mine = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let mut made: [Option<PathBuf>; 4] = Default::default();
    for (slot, controller) in made.iter_mut().zip(V1_CONTROLLERS) {
        let mount = Path::new(V1_ROOT).join(controller);
        if !mount.is_dir() {
            continue;
        }
        // Below the own group, so that limits of an outer supervisor go on to bind.
        let parent = v1_path(&mine, controller)
            .map(|p| mount.join(p.trim_start_matches('/')))
            .filter(|p| p.is_dir())
            .unwrap_or(mount);
        let dir = parent.join(name);
        if !dir.is_dir() {
            fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        }
        give(&dir, owner).map_err(|e| format!("cannot give away {}: {e}", dir.display()))?;
        *slot = Some(dir);
    }
    let [memory, pids, cpu, cpuacct] = made;
    Ok(Tree::V1 {
        memory,
        pids,
        cpu,
        cpuacct,
    })
}

/// Finds the group to make the subtree in.
///
/// It is the own one where that is delegated. Root, which may stand in a session or a service
/// that is not (whose supervisor would take a killed sandbox for a failure of the service, see
/// `OOMPolicy=` in systemd.service(5)), goes up to the nearest group that holds only groups;
/// limits of those above it go on to bind.
fn delegate_v2(name: &str, owner: u32, server: u32) -> Result<Tree, String> {
    let root = nix::unistd::geteuid().is_root();
    let mut refused = None;
    for base in bases_v2() {
        match hand_down(&base, server) {
            Ok(()) => {
                let dir = base.join(name);
                fs::create_dir_all(&dir)
                    .map_err(|e| format!("cannot make {}: {e}; {REMEDY}", dir.display()))?;
                if root {
                    give(&dir, owner)
                        .map_err(|e| format!("cannot give away {}: {e}", dir.display()))?;
                }
                return Ok(Tree::V2(dir));
            }
            Err(reason) => {
                refused.get_or_insert(reason);
            }
        }
        if !root {
            break;
        }
    }
    let reason = refused.unwrap_or_else(|| "this process is in no unified control group".into());
    Err(format!("{reason}; {REMEDY}"))
}

const REMEDY: &str = "start mcp-forge in a delegated control group of its own: \
                      `systemd-run --user --scope -p Delegate=yes mcp-forge serve`";

const NOT_DELEGATED: &str = "the control group is not delegated";

/// The group that the subtree belongs in and those above it, nearest first.
pub(super) fn bases_v2() -> Vec<PathBuf> {
    let mine = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(own) = unified_path(&mine) else {
        return Vec::new();
    };
    // A server that moved out of the way, or a child of what it moved, belongs one above.
    let own = Path::new(own);
    let own = match own.parent() {
        Some(above) if own.ends_with(SERVER) => above,
        _ => own,
    };
    let top = Path::new(V1_ROOT);
    own.ancestors()
        .map(|group| match group.strip_prefix("/") {
            Ok(below) if !below.as_os_str().is_empty() => top.join(below),
            _ => top.to_owned(),
        })
        .collect()
}

/// Makes a group hand its controllers to those below it.
///
/// Only a group without processes can (but for the root of the hierarchy), so what is in it moves
/// to a leaf: the server and its warden, and others too where the group is delegated. They stay in
/// the group as far as its limits and systemd are concerned.
fn hand_down(base: &Path, server: u32) -> Result<(), String> {
    if lacks(base, "cgroup.subtree_control").is_none() {
        return Ok(());
    }
    let root = nix::unistd::geteuid().is_root();
    if !root && !is_marked(base) {
        ask_manager(base)?;
    }
    let not_delegated = |e: io::Error| format!("{NOT_DELEGATED} ({e})");
    let ours = [std::process::id(), server];
    let clear = |members: &[u32]| {
        let strangers = members.iter().any(|pid| !ours.contains(pid));
        if members.is_empty() || !inner(base) || may_rearrange(base) || !(root || strangers) {
            Ok(())
        } else if strangers {
            Err("other processes share the control group".to_owned())
        } else {
            Err(NOT_DELEGATED.to_owned())
        }
    };
    clear(&members(base).map_err(not_delegated)?)?;
    if let Some(missing) = lacks(base, "cgroup.controllers") {
        // Root can have it handed down from above, where nothing but groups is.
        let above = base.parent().filter(|_| root && inner(base));
        let absent = || format!("the control group has no {missing} controller");
        let above = above.ok_or_else(absent)?;
        let vacant = |group: &Path| !inner(group) || members(group).is_ok_and(|m| m.is_empty());
        let chain: Vec<&Path> = above
            .ancestors()
            .take_while(|g| g.starts_with(V1_ROOT))
            .collect();
        if !chain.iter().all(|group| vacant(group)) {
            return Err(absent());
        }
        for group in chain.iter().rev() {
            enable_v2(group).map_err(|e| format!("{} ({e})", absent()))?;
        }
    }
    let leaf = base.join(SERVER);
    // What it holds may fork, or another server may start, between the look and the move.
    for _ in 0..50 {
        match enable_v2(base) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {}
            done => return done.map_err(not_delegated),
        }
        let members = members(base).map_err(not_delegated)?;
        clear(&members)?;
        fs::create_dir_all(&leaf).map_err(not_delegated)?;
        for pid in members {
            match fs::write(leaf.join("cgroup.procs"), pid.to_string()) {
                // Ended meanwhile.
                Err(e) if e.raw_os_error() == Some(nix::libc::ESRCH) => {}
                other => other.map_err(not_delegated)?,
            }
        }
    }
    Err("the control group does not come to rest".to_owned())
}

/// The first of the controllers that a list in a group's directory does not name.
fn lacks(group: &Path, list: &str) -> Option<&'static str> {
    let list = fs::read_to_string(group.join(list)).unwrap_or_default();
    V2_CONTROLLERS
        .into_iter()
        .find(|c| !list.split_whitespace().any(|have| have == *c))
}

/// Whether a group is not the root of the whole hierarchy; that of a namespace is none.
fn inner(group: &Path) -> bool {
    group.join("cgroup.type").exists()
}

fn members(group: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text
        .split_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect())
}

/// Whether a group's inside is for its user to arrange: it is given to an ordinary user, or
/// systemd marked it as delegated, or it is all that its namespace has, and nobody has begun to
/// arrange it.
fn may_rearrange(group: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let user = nix::unistd::geteuid();
    let given = !user.is_root()
        && fs::metadata(group.join("cgroup.procs")).is_ok_and(|file| file.uid() == user.as_raw());
    let whole = group == Path::new(V1_ROOT) && inner(group);
    let untouched = || {
        fs::read_dir(group).is_ok_and(|entries| {
            entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
                .all(|entry| {
                    entry
                        .file_name()
                        .to_str()
                        .is_some_and(|n| n.starts_with(PREFIX))
                })
        })
    };
    (given || is_marked(group) || whole) && untouched()
}

/// Whether the system's manager marked a group as delegated.
fn is_marked(group: &Path) -> bool {
    [c"user.delegate", c"trusted.delegate"]
        .iter()
        .any(|mark| sys::is_marked(group, mark))
}

/// How long the user's manager may take to answer, in milliseconds. It takes a small part of what
/// the start takes, but to refuse a delegated group because the host is busy would be worse.
const PATIENCE: u16 = 10_000;

/// Refuses a group that the user's service manager keeps for itself.
///
/// The groups of all its units belong to the user, and it marks none (`cgroup_xattr_apply` of
/// systemd), so that only the manager can tell which are delegated. No answer is a refusal:
/// a unit that is not delegated ends as a whole when a sandbox is killed in it.
fn ask_manager(group: &Path) -> Result<(), String> {
    let user = nix::unistd::geteuid().as_raw();
    let Some(unit) = unit_of_user(group, user) else {
        return Ok(());
    };
    let mut show = Command::new("systemctl");
    show.env_clear()
        .env("PATH", "/usr/bin:/bin:/run/current-system/sw/bin")
        .env("XDG_RUNTIME_DIR", format!("/run/user/{user}"))
        .args(["--user", "show", "--property=Delegate", "--value", "--"])
        .arg(unit);
    match answer(&mut show, PATIENCE) {
        Ok(told) if told == "yes" => Ok(()),
        Ok(told) if told == "no" => Err(NOT_DELEGATED.to_owned()),
        other => {
            let why = other.map_or_else(|e| e.to_string(), |told| format!("it says {told:?}"));
            Err(format!(
                "systemctl does not tell whether the control group is delegated ({why})"
            ))
        }
    }
}

/// The unit of the user's service manager that a group belongs to.
fn unit_of_user(group: &Path, user: u32) -> Option<&str> {
    let manager = format!("user@{user}.service");
    let names: Vec<&str> = group.iter().filter_map(|name| name.to_str()).collect();
    names.contains(&manager.as_str()).then_some(())?;
    let unit = names
        .into_iter()
        .rfind(|name| name.ends_with(".service") || name.ends_with(".scope"))?;
    // systemd puts it before names that the kernel might take for its own.
    Some(unit.strip_prefix('_').unwrap_or(unit))
}

/// What a command prints at first, which is killed when it has, or when it takes too long.
fn answer(command: &mut Command, patience: u16) -> io::Result<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut told = [0; 64];
    let length = child.stdout.take().map_or(Ok(0), |mut output| {
        let mut ready = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::from(patience))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => output.read(&mut told),
        }
    });
    let _ = child.kill();
    child.wait()?;
    let told = told.get(..length?).unwrap_or_default();
    Ok(String::from_utf8_lossy(told).trim().to_owned())
}

/// Gives the directory and the files that its owner needs to make and fill groups below it.
fn give(dir: &Path, owner: u32) -> io::Result<()> {
    std::os::unix::fs::chown(dir, Some(owner), Some(owner))?;
    for file in [
        "cgroup.procs",
        "tasks",
        "cgroup.subtree_control",
        "cgroup.threads",
    ] {
        let file = dir.join(file);
        if file.exists() {
            std::os::unix::fs::chown(file, Some(owner), Some(owner))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGER: &str = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service";

    #[test]
    fn the_unit_of_the_users_manager_is_the_innermost() {
        let unit = |below: &str| {
            unit_of_user(&Path::new(MANAGER).join(below), 1000).map(ToOwned::to_owned)
        };
        let app = |unit: &str| Some(unit.to_owned());
        assert_eq!(unit("app.slice/run-r1.scope"), app("run-r1.scope"));
        assert_eq!(unit("app.slice/a.service/below/it"), app("a.service"));
        assert_eq!(unit("app.slice/_cpu.service"), app("cpu.service"));
        // Of its own service, and so of a slice, the user's manager says that it is not delegated.
        assert_eq!(unit("app.slice"), app("user@1000.service"));
    }

    #[test]
    fn a_group_outside_of_the_users_manager_has_none_of_its_units() {
        for group in [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/system.slice/forge.service",
            "/sys/fs/cgroup/user.slice/user-1000.slice/session-1.scope",
            "/sys/fs/cgroup/user.slice/user-1001.slice/user@1001.service/app.slice/a.service",
        ] {
            assert_eq!(unit_of_user(Path::new(group), 1000), None, "{group}");
        }
    }

    #[test]
    fn an_answer_is_waited_for_only_so_long() {
        let shell =
            |script: &str, patience| answer(Command::new("/bin/sh").args(["-c", script]), patience);
        assert_eq!(
            shell("sleep 0.1; echo yes; exec sleep 60", 30_000).unwrap(),
            "yes"
        );
        assert_eq!(shell("echo broken >&2; exit 1", 30_000).unwrap(), "");
        let late = shell("exec sleep 60", 50).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(answer(&mut Command::new("/no/such/program"), 50).is_err());
    }
}
