//! What happens from the moment the program runs until it has ended: its events, the time limit,
//! cancelling, the output limit, and the steps of a stop.
//!
//! Everything from the sandbox is untrusted. Whatever it sends or does not send, this ends: each
//! stage has a time at which the next one comes, and that time is looked at before each event.
//! What the end means is decided in `conclude`.

use std::sync::Arc;
use std::time::Duration;

use mcp_forge_ports::PortErrorKind;
use mcp_forge_ports::driven::{Blob, GuestRun};
use mcp_forge_ports::vocabulary::{
    EndedBy, GuestEvent, GuestExit, OutputFile, OutputStream, RunEvent, SandboxVerdict,
};

use super::bounded;
use super::registry::Entry;
use super::run::{Facts, Run};
use super::sandbox::Sandbox;
use crate::attestation::missing_barriers;
use crate::limits::weaknesses;
use crate::output::files::FileCollector;
use crate::output::{OutputCollector, Taken};

/// Characters of an untrusted message that are kept.
const MESSAGE: usize = 500;

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Interrupted,
    Killed,
    KilledFromOutside,
    /// The program has ended and its files come.
    Collecting,
}

/// The files as they come after the end of the program.
struct Collecting {
    exit: GuestExit,
    ended_at: Duration,
    files: FileCollector,
    blob: Arc<dyn Blob>,
}

/// How long files may take to come.
const COLLECTING: Duration = Duration::from_secs(10);

/// Why there are no more events.
#[derive(Debug)]
pub(super) enum Ending {
    /// The agent told how the program ended.
    Exited(GuestExit),
    /// The agent could not start the program.
    NotStarted(String),
    /// The stream ended.
    StreamEnded,
    /// The sandbox sent what it must not.
    Broken(String),
    /// The agent did not report in time.
    Silent,
    /// The agent says that a barrier is missing, or something spoke before the agent.
    Unattested(Vec<String>),
    /// It went on after everything that stops it.
    Unstoppable,
}

/// A program that has ended.
pub(super) struct Watched {
    pub(super) ending: Ending,
    /// Why mcp-forge stopped it, if it did.
    pub(super) stopped: Option<EndedBy>,
    pub(super) output: OutputCollector,
    /// What the program left in its workspace.
    pub(super) files: Left,
    /// By the monotonic clock.
    pub(super) ended_at: Duration,
}

/// The files of a workspace.
#[derive(Default)]
pub(super) struct Left {
    pub(super) files: Vec<OutputFile>,
    pub(super) omitted: u64,
}

impl Watched {
    /// A run that never got as far.
    pub(super) fn without_program(
        run: &Run,
        output: OutputCollector,
        stopped: Option<EndedBy>,
    ) -> Self {
        Self {
            ending: Ending::StreamEnded,
            stopped,
            output,
            files: Left::default(),
            ended_at: run.clock().monotonic(),
        }
    }
}

pub(super) struct Watch<'a> {
    run: &'a Run,
    facts: &'a Facts,
    sandbox: &'a Sandbox,
    guest: Box<dyn GuestRun>,
    output: OutputCollector,
    /// When the program's time is over.
    deadline: Duration,
    attested: bool,
    stopped: Option<EndedBy>,
    stage: Stage,
    /// When the stage is over.
    until: Duration,
    collecting: Option<Collecting>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        run: &'a Run,
        facts: &'a Facts,
        sandbox: &'a Sandbox,
        guest: Box<dyn GuestRun>,
        output: OutputCollector,
        deadline: Duration,
        startup_deadline: Duration,
    ) -> Self {
        Self {
            run,
            facts,
            sandbox,
            guest,
            output,
            deadline,
            attested: false,
            stopped: None,
            stage: Stage::Running,
            until: deadline.min(startup_deadline),
            collecting: None,
        }
    }

    pub(super) async fn until_end(mut self) -> Watched {
        let ending = loop {
            if let Some(ending) = self.turn().await {
                break ending;
            }
        };
        let (ended_at, files) = match self.collecting {
            Some(collecting) => (collecting.ended_at, collecting.store(&self.run.entry)),
            None => (self.run.clock().monotonic(), Left::default()),
        };
        Watched {
            ending,
            stopped: self.stopped,
            output: self.output,
            files,
            ended_at,
        }
    }

    /// Waits for one thing to happen and deals with it.
    async fn turn(&mut self) -> Option<Ending> {
        let (run, running) = (self.run, self.stopped.is_none());
        if running && run.cancel.is_cancelled() {
            if let Some(collecting) = &self.collecting {
                return Some(Ending::Exited(collecting.exit));
            }
            self.stop(EndedBy::Cancelled).await;
            return None;
        }
        if run.clock().monotonic() >= self.until {
            return self.escalate().await;
        }
        // Time and cancelling were looked at just now, so that events that are always there
        // cannot keep them from being noticed.
        let event = tokio::select! {
            biased;
            () = run.cancel.cancelled(), if running => return None,
            event = self.guest.next_event() => event,
            () = run.clock().sleep_until(self.until) => return None,
        };
        if let Some(collecting) = &mut self.collecting {
            return match event {
                Ok(Some(event)) => collecting.take(event).await,
                // The program has ended all the same.
                Ok(None) | Err(_) => Some(Ending::Exited(collecting.exit)),
            };
        }
        match event {
            Ok(Some(event)) => self.take(event).await,
            Ok(None) => Some(Ending::StreamEnded),
            Err(error) if error.kind == PortErrorKind::Protocol => {
                Some(Ending::Broken(error.chain()))
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, error = error.chain(), "stream failed");
                Some(Ending::StreamEnded)
            }
        }
    }

    async fn take(&mut self, event: GuestEvent) -> Option<Ending> {
        if !self.attested {
            return self.take_first(event).await;
        }
        match event {
            GuestEvent::Output { stream, bytes } => {
                self.take_output(stream, bytes).await;
                None
            }
            GuestEvent::Report { bytes, report } => {
                let Taken { block, spoken } = self.output.report(bytes, report);
                if let Some(text) = spoken {
                    self.log(text.as_bytes()).await;
                }
                self.check_output().await;
                if let Some(block) = block {
                    self.tell(RunEvent::Block(block)).await;
                }
                None
            }
            GuestEvent::Exited(exit) if self.run.core.policy.collect.files > 0 => {
                self.collect(exit);
                None
            }
            GuestEvent::Exited(exit) => Some(Ending::Exited(exit)),
            GuestEvent::StartFailed { message } if self.output.is_empty() => {
                Some(Ending::NotStarted(message.chars().take(MESSAGE).collect()))
            }
            GuestEvent::StartFailed { .. } => Some(Ending::Broken(
                "the agent failed to start a program that has written".to_owned(),
            )),
            GuestEvent::Hello(_) => Some(Ending::Broken("the agent said hello twice".to_owned())),
            _ => None,
        }
    }

    /// The first event has to be the agent's, and the agent has to find itself well confined.
    async fn take_first(&mut self, event: GuestEvent) -> Option<Ending> {
        match event {
            GuestEvent::Hello(hello) => {
                let limits = &self.facts.limits;
                let host = self.run.core.host_namespaces();
                let missing = missing_barriers(&hello, &limits.requested, host);
                if !missing.is_empty() {
                    return Some(Ending::Unattested(missing));
                }
                self.attested = true;
                if weaknesses(limits).is_empty() {
                    *self.run.core.verdict() = Some(SandboxVerdict::Confirmed);
                    self.run.trail.note(self.run.trail.confirmed(&hello)).await;
                }
                if self.stopped.is_none() {
                    self.until = self.deadline;
                    self.run.entry.running();
                    self.run.tell(RunEvent::Running, self.until, true).await;
                }
                None
            }
            // It was stopped before it came to that.
            GuestEvent::Exited(exit) if self.stopped.is_some() => Some(Ending::Exited(exit)),
            _ => Some(Ending::Unattested(vec![
                "the first event is not the agent's hello".to_owned(),
            ])),
        }
    }

    async fn take_output(&mut self, stream: OutputStream, bytes: Vec<u8>) {
        self.output.write(stream, &bytes);
        self.log(&bytes).await;
        self.check_output().await;
        self.tell(RunEvent::Output { stream, bytes }).await;
    }

    async fn log(&mut self, bytes: &[u8]) {
        let core = &self.run.core;
        let most = core.policy.output_stop_bytes;
        self.run.entry.log(&*core.ports.blobs, bytes, most).await;
    }

    async fn tell(&mut self, event: RunEvent) {
        self.run
            .tell(event, self.until, self.stopped.is_none())
            .await;
    }

    /// The program has ended; its files come next.
    fn collect(&mut self, exit: GuestExit) {
        let core = &self.run.core;
        self.collecting = Some(Collecting {
            exit,
            ended_at: core.ports.clock.monotonic(),
            files: FileCollector::new(core.policy.collect),
            blob: core.ports.blobs.create().into(),
        });
        // The caller waits for a stop to be over.
        let patience = self.stopped.map_or(COLLECTING, |_| self.grace());
        self.enter(Stage::Collecting, patience);
    }

    async fn check_output(&mut self) {
        let most = self.run.core.policy.output_stop_bytes;
        if self.stopped.is_none() && self.output.received() > most {
            self.stop(EndedBy::OutputLimit).await;
        }
    }

    /// The stage is over.
    async fn escalate(&mut self) -> Option<Ending> {
        match self.stage {
            Stage::Running if !self.attested && self.until < self.deadline => {
                return Some(Ending::Silent);
            }
            Stage::Running => self.stop(EndedBy::Timeout).await,
            Stage::Interrupted => self.kill().await,
            Stage::Killed => self.kill_from_outside().await,
            Stage::Collecting => {
                return self.collecting.as_ref().map(|it| Ending::Exited(it.exit));
            }
            Stage::KilledFromOutside => return Some(Ending::Unstoppable),
        }
        None
    }

    async fn stop(&mut self, reason: EndedBy) {
        self.stopped = Some(reason);
        match reason {
            // Somebody who floods gets no time to say more.
            EndedBy::OutputLimit => self.kill().await,
            _ => self.interrupt().await,
        }
    }

    fn enter(&mut self, stage: Stage, time: Duration) {
        self.stage = stage;
        self.until = self.run.clock().monotonic() + time;
    }

    async fn interrupt(&mut self) {
        self.enter(Stage::Interrupted, self.grace());
        let sent = bounded(self.run.clock(), self.until, self.guest.interrupt()).await;
        if let Some(Err(_)) = sent {
            self.kill().await;
        }
    }

    async fn kill(&mut self) {
        self.enter(Stage::Killed, self.grace());
        let sent = bounded(self.run.clock(), self.until, self.guest.kill()).await;
        if let Some(Err(_)) = sent {
            self.kill_from_outside().await;
        }
    }

    async fn kill_from_outside(&mut self) {
        self.enter(Stage::KilledFromOutside, self.grace() / 2);
        self.sandbox.kill(self.until).await;
    }

    fn grace(&self) -> Duration {
        self.run.core.policy.grace
    }
}

impl Collecting {
    /// Takes what comes after the end; gives it when nothing more comes.
    async fn take(&mut self, event: GuestEvent) -> Option<Ending> {
        match event {
            GuestEvent::File { path, size } => self.files.file(path, size),
            GuestEvent::FileData(bytes) => {
                if self.files.data(&bytes)
                    && let Err(error) = self.blob.append(bytes).await
                {
                    tracing::warn!(error = error.chain(), "files of a run are not kept");
                    self.files.lost();
                }
            }
            GuestEvent::Collected { omitted } => {
                self.files.complete(omitted);
                return Some(Ending::Exited(self.exit));
            }
            // Nothing else can come from a sound agent; what the program did is known already.
            _ => return Some(Ending::Exited(self.exit)),
        }
        None
    }

    /// Leaves the contents with the run and tells the names.
    fn store(self, entry: &Entry) -> Left {
        let (stored, omitted) = self.files.finish();
        let files = stored.iter().map(|stored| stored.file.clone()).collect();
        entry.store_files(self.blob, stored);
        Left { files, omitted }
    }
}
