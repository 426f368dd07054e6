//! Starts the program: an interpreter with its runner, an environment built from nothing, pipes
//! for its streams, and one private socket for the runner's reports.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use mcp_forge_agent::Runner;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// The environment of every program. Nothing is inherited.
const ENVIRONMENT: [(&str, &str); 9] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/workspace"),
    ("USER", "forge"),
    ("LANG", "C.UTF-8"),
    ("TZ", "UTC"),
    ("TMPDIR", "/tmp"),
    ("MPLBACKEND", "agg"),
    // matplotlib and fontconfig keep caches; the home is the user's workspace.
    ("MPLCONFIGDIR", "/tmp/.matplotlib"),
    ("XDG_CACHE_HOME", "/tmp/.cache"),
];

/// A started program.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) reports: UnixStream,
}

/// Starts the runner and gives it its job. `reports` is the pair of sockets for its reports, ours
/// first.
///
/// # Errors
///
/// A text for the person: what is missing.
pub(crate) fn start(
    runner: Runner,
    name: &str,
    code: &str,
    has_stdin: bool,
    (reports, theirs): (UnixStream, UnixStream),
) -> Result<Program, String> {
    let Runner::Python = runner;
    let say = |e: io::Error| format!("cannot start the program: {e}");
    // The one descriptor that the interpreter inherits on purpose. No other thread could start a
    // process in between.
    fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|e| say(e.into()))?;
    let mut child = Command::new("python3")
        .args([
            "-I",
            "-S",
            "-B",
            "-u",
            "-X",
            "utf8",
            "-c",
            &bootstrap(theirs.as_raw_fd()),
        ])
        .env_clear()
        .envs(ENVIRONMENT)
        .current_dir("/workspace")
        .process_group(0)
        .stdin(if has_stdin {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                "there is no python3 in the sandbox; install Python 3 on the host (in /usr)".into()
            }
            _ => say(e),
        })?;
    drop(theirs);
    // When memory runs out, the program shall die and not the agent.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
    // A runner that is gone already is told by its exit status.
    let _ = (&reports).write_all(&job(name, code, has_stdin));
    let stdin = child.stdin.take().map(OwnedFd::from);
    let streams = child.stdout.take().zip(child.stderr.take());
    let (stdout, stderr) = streams.ok_or("the program has no streams")?;
    let streams = [stdout.as_fd(), stderr.as_fd()].into_iter();
    for fd in streams.chain(stdin.as_ref().map(AsFd::as_fd)) {
        unblock(fd).map_err(say)?;
    }
    unblock(reports.as_fd()).map_err(say)?;
    Ok(Program {
        child,
        stdin,
        stdout: stdout.into(),
        stderr: stderr.into(),
        reports,
    })
}

fn unblock(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
    Ok(())
}

fn bootstrap(reports: i32) -> String {
    format!(
        "import sys; sys.path.insert(0, '/run/forge/python'); import runner; runner.main({reports})"
    )
}

/// The job as `runner.py` reads it; its documentation defines the form.
fn job(name: &str, code: &str, has_stdin: bool) -> Vec<u8> {
    let mut bytes = vec![u8::from(has_stdin)];
    for part in [name, code] {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(0).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}
