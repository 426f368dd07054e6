//! Starts the program: an interpreter with its runner, an environment built from nothing, pipes
//! for its streams, and a private channel for the runner's reports.

mod python;
mod r;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use mcp_forge_agent::Runner;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};

use crate::workspace::WORKSPACE;

/// The environment of every program. Nothing is inherited.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", WORKSPACE),
    ("USER", "forge"),
    ("LANG", "C.UTF-8"),
    ("TZ", "UTC"),
    ("TMPDIR", "/tmp"),
    // fontconfig keeps a cache; the home is the user's workspace.
    ("XDG_CACHE_HOME", "/tmp/.cache"),
];

/// A started program.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) channel: Channel,
}

/// Our ends of the runner's channel.
pub(crate) struct Channel {
    /// Where reports come.
    pub(crate) reports: File,
    /// Where the job and the answers to reports go.
    pub(crate) answers: File,
}

/// The program's ends of a channel as it inherits them, and ours.
struct Ends {
    theirs: Vec<OwnedFd>,
    ours: Channel,
}

/// Holds the descriptors 3 and 4 until the program's ends of its channel take their place, so that
/// the program has them at these numbers whatever else is open.
pub(crate) struct Reserved {
    three: OwnedFd,
    four: OwnedFd,
}

impl Reserved {
    /// Called before anything else is opened.
    pub(crate) fn new() -> io::Result<Self> {
        let null = || Ok::<_, io::Error>(File::open("/dev/null")?.into());
        Ok(Self {
            three: null()?,
            four: null()?,
        })
    }
}

/// Starts the runner and gives it its job.
///
/// # Errors
///
/// A text for the person: what is missing.
pub(crate) fn start(
    runner: Runner,
    name: &str,
    code: &str,
    has_stdin: bool,
    reserved: Reserved,
) -> Result<Program, String> {
    let say = |e: io::Error| format!("cannot start the program: {e}");
    let (mut command, ends, missing) = match runner {
        Runner::Python => (
            python::command(),
            python::ends(reserved),
            "there is no python3 in the sandbox; install Python 3 on the host (in /usr), or use an image that has it",
        ),
        Runner::R => (
            r::command()?,
            r::ends(reserved),
            "there is no R in the sandbox; install R on the host (in /usr), or use an image that has it",
        ),
    };
    let Ends { theirs, ours } = ends.map_err(say)?;
    // The descriptors that the interpreter inherits on purpose. No other thread could start a
    // process in between.
    for fd in &theirs {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|e| say(e.into()))?;
    }
    let mut child = command
        .current_dir(WORKSPACE)
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
            io::ErrorKind::NotFound => missing.to_owned(),
            _ => say(e),
        })?;
    drop(theirs);
    // When memory runs out, the program shall die and not the agent.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
    // A runner that is gone already is told by its exit status.
    let _ = (&ours.answers).write_all(&job(name, code, has_stdin));
    let stdin = child.stdin.take().map(OwnedFd::from);
    let streams = child.stdout.take().zip(child.stderr.take());
    let (stdout, stderr) = streams.ok_or("the program has no streams")?;
    let outputs = [
        stdout.as_fd(),
        stderr.as_fd(),
        ours.reports.as_fd(),
        ours.answers.as_fd(),
    ];
    for fd in outputs.into_iter().chain(stdin.as_ref().map(AsFd::as_fd)) {
        unblock(fd).map_err(say)?;
    }
    Ok(Program {
        child,
        stdin,
        stdout: stdout.into(),
        stderr: stderr.into(),
        channel: ours,
    })
}

/// An interpreter with the environment of every program.
fn interpreter(path: &str) -> Command {
    let mut command = Command::new(path);
    command.env_clear().envs(ENVIRONMENT);
    command
}

fn unblock(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// The job as the runners read it; their documentation defines the form.
fn job(name: &str, code: &str, has_stdin: bool) -> Vec<u8> {
    let mut bytes = vec![u8::from(has_stdin)];
    for part in [name, code] {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(0).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}
