//! The warden: a small process between the server and the nursery.
//!
//! It stays in the host's namespaces, so it can do the two things that the nursery cannot: give
//! the nursery its control groups and its user-id range, and clear away what is left when the
//! nursery or the server died, however they died. It reads nothing that a sandbox wrote.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigHandler, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, geteuid, getuid, setsid};

use crate::cgroup::{self, Tree};
use crate::nursery;
use crate::protocol::{MAX_MESSAGE, Message};
use crate::{ids, sys};
use mcp_forge_presentation::Placed;

/// Entry of the helper process. Standard input is the control socket.
///
/// Returns the exit status.
pub(crate) fn main(placed: &[Placed]) -> i32 {
    // Alone in its session: a ^C at the terminal is the server's to handle.
    let _ = setsid();
    sys::close_inherited();
    let control = match sys::take_stdin() {
        Ok(control) => control,
        Err(_) => return 2,
    };
    match guard(&control, placed) {
        Ok(()) => 0,
        Err(failure) => {
            tell(&control, &failure);
            1
        }
    }
}

struct Failure {
    error: String,
    hint: String,
}

impl Failure {
    fn new(error: impl Into<String>, hint: &str) -> Self {
        Self {
            error: error.into(),
            hint: hint.to_owned(),
        }
    }
}

/// What most failures here mean, and the way out.
const NAMESPACES: &str = "user namespaces must be allowed: check `sysctl user.max_user_namespaces`, \
                          `kernel.unprivileged_userns_clone` and \
                          `kernel.apparmor_restrict_unprivileged_userns`; `mcp-forge doctor` tells";

fn tell(control: &OwnedFd, failure: &Failure) {
    let message = Message::Fatal {
        error: failure.error.clone(),
        hint: failure.hint.clone(),
    };
    if let Ok(bytes) = postcard::to_stdvec(&message)
        && bytes.len() <= MAX_MESSAGE
    {
        let _ = nix::unistd::write(control, &bytes);
    }
}

fn guard(control: &OwnedFd, placed: &[Placed]) -> Result<(), Failure> {
    cgroup::reap();
    let map =
        ids::map(getuid().as_raw()).map_err(|reason| Failure::new(reason.error, &reason.hint))?;
    let server = nix::unistd::getppid().as_raw().unsigned_abs();
    let tree = cgroup::delegate(&cgroup::instance_name(), map.root(), server);
    let result = supervise(control, placed, &map, &tree);
    if let Err(e) = tree.destroy() {
        tracing::error!(error = %e, "control groups are left behind");
    }
    result
}

fn supervise(
    control: &OwnedFd,
    placed: &[Placed],
    map: &ids::Map,
    tree: &Tree,
) -> Result<(), Failure> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |e: io::Error| Failure::new(format!("{what}: {e}"), NAMESPACES)
    };
    let (mine, theirs) = UnixStream::pair().map_err(failed("cannot make a socket pair"))?;
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let warden = std::process::id();
    let nursery = sys::fork_into(flags, || {
        if sys::die_with_parent().is_err() {
            return 2;
        }
        // This process's copy of the warden's end must go, or a wait for it would never end.
        drop(sys::adopt(mine.as_raw_fd()));
        match become_nursery(&theirs) {
            Ok(()) => nursery::main(control, tree, placed, ids::Users::new(map.last(), warden)),
            Err(e) => {
                tell(
                    control,
                    &Failure::new(format!("cannot set up the nursery: {e}"), NAMESPACES),
                );
                1
            }
        }
    })
    .map_err(failed("cannot make namespaces"))?;
    drop(theirs);
    let outcome = adopt(nursery, &mine, map, tree);
    if let Err(failure) = outcome {
        let _ = kill(nursery, Signal::SIGKILL);
        let _ = waitpid(nursery, None);
        return Err(failure);
    }
    tracing::debug!(warden, nursery = nursery.as_raw(), "the nursery runs");
    watch(control, nursery);
    Ok(())
}

/// In the new process: wait until ids and control groups are given, then take them.
fn become_nursery(sync: &UnixStream) -> io::Result<()> {
    let mut go = [0u8; 1];
    (&*sync).read_exact(&mut go)?;
    nix::unistd::setgroups(&[]).or_else(|e| {
        // `deny` in /proc/PID/setgroups, for an ordinary user without a range.
        if e == nix::errno::Errno::EPERM {
            Ok(())
        } else {
            Err(e)
        }
    })?;
    nix::unistd::setresgid(0.into(), 0.into(), 0.into())?;
    nix::unistd::setresuid(0.into(), 0.into(), 0.into())?;
    // Changing ids clears the parent-death signal.
    sys::die_with_parent()?;
    unshare(CloneFlags::CLONE_NEWCGROUP)?;
    (&*sync).write_all(b"r")?;
    Ok(())
}

/// Writes the id maps of the new process and moves it into the delegated group.
fn adopt(nursery: Pid, sync: &UnixStream, map: &ids::Map, tree: &Tree) -> Result<(), Failure> {
    let pid = nursery.as_raw().unsigned_abs();
    map.write(pid)
        .map_err(|reason| Failure::new(reason.error, &reason.hint))?;
    tree.admit(pid).map_err(|e| {
        Failure::new(
            format!("cannot move the nursery into its control group: {e}"),
            "the control group must be delegated; `mcp-forge doctor` tells",
        )
    })?;
    let talk = || -> io::Result<()> {
        (&*sync).write_all(b"g")?;
        (&*sync).read_exact(&mut [0u8; 1])
    };
    talk().map_err(|e| Failure::new(format!("the nursery did not come up: {e}"), NAMESPACES))
}

/// Waits until the nursery or the server is gone, and sees to it that the nursery is then.
fn watch(control: &OwnedFd, nursery: Pid) {
    // SIGTERM and friends: the server tells by closing the socket.
    let ignored = [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGPIPE,
    ];
    sys::handle_signals(&ignored, SigHandler::SigIgn);
    let pidfd = sys::pidfd_open(nursery).ok();
    loop {
        let mut fds = vec![PollFd::new(control.as_fd(), PollFlags::empty())];
        if let Some(pidfd) = &pidfd {
            fds.push(PollFd::new(pidfd.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, PollTimeout::from(1000u16)) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => break,
            Ok(_) => {}
        }
        let gone = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        if gone(&fds[0]) {
            break;
        }
        if matches!(
            waitpid(nursery, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_)
        ) {
            return;
        }
    }
    // Its death kills every container: it is the first process of their process-id namespace.
    let _ = kill(nursery, Signal::SIGKILL);
    let _ = waitpid(nursery, None);
}

/// Runs `newuidmap` or `newgidmap` (package uidmap) with a clean environment.
pub(crate) fn run_id_helper(program: &str, arguments: &[String]) -> io::Result<()> {
    let path = ["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"]
        .iter()
        .map(|dir| Path::new(dir).join(program))
        .find(|path| path.exists())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{program} not found")))?;
    let output = Command::new(path).env_clear().args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    ))
}

/// Whether this process is root in the first user namespace or has at least its powers here.
pub(crate) fn privileged() -> bool {
    geteuid().is_root()
        && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"))
}
