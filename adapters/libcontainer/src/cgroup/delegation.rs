//! Where on this host the subtree of an instance is made, and what must move out of its way.
//!
//! It runs in the warden, in the host's namespaces. What is made below the subtree is the
//! nursery's business. `docs/cgroup-v2.md` tells what was tried.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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
    let not_delegated = |e: io::Error| format!("the control group is not delegated ({e})");
    let ours = [std::process::id(), server];
    let clear = |members: &[u32]| {
        let strangers = members.iter().any(|pid| !ours.contains(pid));
        if members.is_empty() || !inner(base) || may_rearrange(base) || !(root || strangers) {
            Ok(())
        } else if strangers {
            Err("other processes share the control group".to_owned())
        } else {
            Err("the control group is not delegated".to_owned())
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
    let marked = [c"user.delegate", c"trusted.delegate"]
        .iter()
        .any(|mark| sys::is_marked(group, mark));
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
    (given || marked || whole) && untouched()
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
