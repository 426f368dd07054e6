//! An agent that follows a script. It runs nothing and speaks no wire format.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::support::{Journal, lock};
use crate::driven::{ByteStream, Guest, GuestRun};
use crate::vocabulary::{
    GuestEvent, GuestExit, GuestHello, GuestJob, GuestMount, Namespaces, OutputStream,
    RunnerReport, SandboxExit,
};
use crate::{PortError, PortErrorKind};

/// What the agent of a sound sandbox says of itself.
pub fn sound_hello() -> GuestHello {
    let mount = |path: &str, read_only: bool, bytes| GuestMount {
        path: path.to_owned(),
        read_only,
        inert: true,
        bytes,
    };
    GuestHello {
        version: "1".to_owned(),
        uid: 1000,
        gid: 1000,
        groups: 0,
        no_new_privs: true,
        seccomp_mode: 2,
        capabilities: 0,
        descriptors: 16,
        core_bytes: 0,
        namespaces: host_namespaces()
            .into_iter()
            .map(|(name, inode)| (name, inode + 100))
            .collect(),
        mounts: vec![
            mount("/", true, 1),
            mount("/usr", true, 1),
            mount("/tmp", false, 1 << 20),
            mount("/workspace", false, 1 << 20),
        ],
    }
}

/// The namespaces of the host in tests.
pub fn host_namespaces() -> Namespaces {
    [("net", 1), ("user", 2)]
        .map(|(name, inode)| (name.to_owned(), inode))
        .into()
}

/// One step of a script. When the script is over, the stream ends.
#[derive(Debug, Clone)]
pub enum GuestStep {
    /// Sends this.
    Event(GuestEvent),
    /// Sends this again and again, and yields between.
    Forever(GuestEvent),
    /// The stream fails; nothing comes after it.
    Fail(PortErrorKind),
    /// Nothing comes until the program is interrupted.
    UntilInterrupt,
    /// Nothing comes until the program is killed. Only reached by an agent that does not obey.
    UntilKill,
    /// Nothing comes until the test lets it.
    Until(CancellationToken),
    /// The library that reads the stream panics.
    Panic,
}

impl GuestStep {
    /// A sound hello.
    pub fn hello() -> Self {
        Self::Event(GuestEvent::Hello(sound_hello()))
    }

    /// Bytes on standard output.
    pub fn stdout(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Event(GuestEvent::Output {
            stream: OutputStream::Stdout,
            bytes: bytes.into(),
        })
    }

    /// Bytes on standard error.
    pub fn stderr(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Event(GuestEvent::Output {
            stream: OutputStream::Stderr,
            bytes: bytes.into(),
        })
    }

    /// The value of the last expression.
    pub fn value(json: Option<serde_json::Value>, repr: impl Into<String>) -> Self {
        Self::report(RunnerReport::Value {
            json,
            repr: repr.into(),
        })
    }

    /// An exception with this class and message.
    pub fn error(name: impl Into<String>, message: impl Into<String>) -> Self {
        let (name, message) = (name.into(), message.into());
        Self::report(RunnerReport::Error {
            traceback: format!("{name}: {message}"),
            name,
            message,
        })
    }

    /// A report of the runner.
    pub fn report(report: RunnerReport) -> Self {
        Self::Event(GuestEvent::Report {
            bytes: format!("{report:?}").len(),
            report: Some(report),
        })
    }

    /// The program exits with this status.
    pub fn exit(status: i32) -> Self {
        Self::ended(SandboxExit::Exited(status))
    }

    /// This signal ends the program.
    pub fn signal(signal: i32) -> Self {
        Self::ended(SandboxExit::Signaled(signal))
    }

    fn ended(status: SandboxExit) -> Self {
        Self::Event(GuestEvent::Exited(exit_with(status)))
    }
}

fn exit_with(status: SandboxExit) -> GuestExit {
    GuestExit {
        status,
        cpu: Duration::from_millis(7),
        max_rss_bytes: 7_000_000,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obedience {
    /// Dies when killed, ends with its stream.
    Obeys,
    /// Does not die when the agent is told to kill it; ends with its stream.
    IgnoresKill,
    /// Not even the end of the stream is noticed.
    Deaf,
}

/// Plays the same script for each job. Writes `guest run`, `guest interrupt` and `guest kill` to
/// the journal.
#[derive(Debug)]
pub struct FakeGuest {
    journal: Journal,
    script: Vec<GuestStep>,
    obedience: Obedience,
    failing: Mutex<Option<PortErrorKind>>,
    signals_fail: bool,
    jobs: Arc<Mutex<Vec<GuestJob>>>,
}

impl FakeGuest {
    /// An agent that kills the program when it is told to.
    pub fn new(journal: &Journal, script: impl Into<Vec<GuestStep>>) -> Self {
        Self {
            journal: journal.clone(),
            script: script.into(),
            obedience: Obedience::Obeys,
            failing: Mutex::default(),
            signals_fail: false,
            jobs: Arc::default(),
        }
    }

    /// The script goes on when the agent is told to kill; only the end of the stream stops it.
    #[must_use]
    pub fn ignoring_kill(mut self) -> Self {
        self.obedience = Obedience::IgnoresKill;
        self
    }

    /// Nothing stops the script.
    #[must_use]
    pub fn deaf(mut self) -> Self {
        self.obedience = Obedience::Deaf;
        self
    }

    /// Interrupting and killing fail, as on a stream that is closed in that direction.
    #[must_use]
    pub fn unreachable(mut self) -> Self {
        self.signals_fail = true;
        self
    }

    /// From now on, giving a job fails.
    pub fn fail(&self, kind: PortErrorKind) {
        *lock(&self.failing) = Some(kind);
    }

    /// Every job it was given.
    pub fn jobs(&self) -> Vec<GuestJob> {
        lock(&self.jobs).clone()
    }
}

#[async_trait]
impl Guest for FakeGuest {
    async fn run(
        &self,
        stream: Box<dyn ByteStream>,
        job: GuestJob,
    ) -> Result<Box<dyn GuestRun>, PortError> {
        if let Some(kind) = *lock(&self.failing) {
            return Err(PortError::new(kind, "give the agent its job: told to fail"));
        }
        self.journal.push("guest run");
        lock(&self.jobs).push(job);
        Ok(Box::new(FakeGuestRun {
            journal: self.journal.clone(),
            stream,
            script: self.script.iter().cloned().collect(),
            obedience: self.obedience,
            signals_fail: self.signals_fail,
            interrupted: false,
            killed: false,
        }))
    }
}

struct FakeGuestRun {
    journal: Journal,
    stream: Box<dyn ByteStream>,
    script: VecDeque<GuestStep>,
    obedience: Obedience,
    signals_fail: bool,
    interrupted: bool,
    killed: bool,
}

impl FakeGuestRun {
    async fn stream_end(&mut self) {
        if self.obedience == Obedience::Deaf {
            std::future::pending::<()>().await;
        }
        let mut byte = [0; 1];
        let _ = std::future::poll_fn(|cx| {
            Pin::new(&mut self.stream).poll_read(cx, &mut ReadBuf::new(&mut byte))
        })
        .await;
    }

    /// Waits for the end of the stream and forgets the rest of the script.
    async fn cut_off(&mut self) -> Option<GuestEvent> {
        self.stream_end().await;
        self.script.clear();
        None
    }

    fn signal(&self, name: &str) -> Result<(), PortError> {
        self.journal.push(format!("guest {name}"));
        if self.signals_fail {
            return Err(PortError::new(
                PortErrorKind::Unreachable,
                format!("{name} the program: stream closed"),
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl GuestRun for FakeGuestRun {
    async fn next_event(&mut self) -> Result<Option<GuestEvent>, PortError> {
        loop {
            if self.killed && self.obedience == Obedience::Obeys {
                self.killed = false;
                self.script.clear();
                return Ok(Some(GuestEvent::Exited(exit_with(SandboxExit::Signaled(
                    9,
                )))));
            }
            let Some(step) = self.script.front().cloned() else {
                return Ok(None);
            };
            match step {
                GuestStep::Event(event) => {
                    self.script.pop_front();
                    return Ok(Some(event));
                }
                GuestStep::Forever(event) => {
                    tokio::select! {
                        biased;
                        () = self.stream_end() => {
                            self.script.clear();
                            return Ok(None);
                        }
                        () = tokio::task::yield_now() => return Ok(Some(event)),
                    }
                }
                GuestStep::Fail(kind) => {
                    self.script.clear();
                    return Err(PortError::new(kind, "read from the agent: told to fail"));
                }
                GuestStep::UntilInterrupt if !self.interrupted => return Ok(self.cut_off().await),
                GuestStep::UntilKill if !self.killed => return Ok(self.cut_off().await),
                GuestStep::UntilInterrupt | GuestStep::UntilKill => {}
                GuestStep::Until(gate) => tokio::select! {
                    biased;
                    () = gate.cancelled() => {}
                    () = self.stream_end() => {
                        self.script.clear();
                        return Ok(None);
                    }
                },
                GuestStep::Panic => panic!("told to panic"),
            }
            self.script.pop_front();
        }
    }

    async fn interrupt(&mut self) -> Result<(), PortError> {
        self.signal("interrupt")?;
        self.interrupted = true;
        Ok(())
    }

    async fn kill(&mut self) -> Result<(), PortError> {
        self.signal("kill")?;
        self.killed = true;
        Ok(())
    }
}
