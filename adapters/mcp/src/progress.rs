//! Tells a client that asked for it how a run goes on.
//!
//! The run never waits for the client here: what happens is noted, and the newest state goes out
//! at the pace of the settings. Nothing is sent after the run has ended.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use mcp_forge_ports::driving::RunObserver;
use mcp_forge_ports::vocabulary::{OutputStream, RunEvent};
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::newest_line::NewestLine;
use crate::settings::ProgressPace;

/// Longest line of output that a message shows, characters.
const LINE_CHARS: usize = 200;

/// What is known of one run.
#[derive(Debug, Default)]
pub(crate) struct RunWatch {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Grows with each event.
    version: u64,
    phase: Phase,
    stdout: NewestLine,
    stderr: NewestLine,
    /// The stream that was written to last.
    newest: Option<OutputStream>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Accepted,
    Queued(usize),
    Starting,
    Running(Instant),
}

impl State {
    fn line(&self) -> Option<String> {
        let (newest, other) = match self.newest? {
            OutputStream::Stdout => (&self.stdout, &self.stderr),
            OutputStream::Stderr => (&self.stderr, &self.stdout),
        };
        newest.get(LINE_CHARS).or_else(|| other.get(LINE_CHARS))
    }

    /// The message of a notification; `fresh` when something happened since the last one.
    fn message(&self, fresh: bool) -> String {
        let line = self.line();
        match (self.phase, line) {
            (Phase::Running(_), Some(line)) if fresh => line,
            (Phase::Running(since), Some(line)) => {
                format!("running {} s, last line: {line}", since.elapsed().as_secs())
            }
            (Phase::Running(since), None) => format!("running {} s", since.elapsed().as_secs()),
            (Phase::Queued(position), _) => format!("queued: number {position} in the queue"),
            (Phase::Starting, _) => "starting".to_owned(),
            (Phase::Accepted, _) => "accepted".to_owned(),
        }
    }
}

#[async_trait]
impl RunObserver for RunWatch {
    async fn observe(&self, event: RunEvent) {
        {
            let mut state = self.lock();
            match event {
                RunEvent::Queued { position } => state.phase = Phase::Queued(position),
                RunEvent::Starting => state.phase = Phase::Starting,
                RunEvent::Running => state.phase = Phase::Running(Instant::now()),
                RunEvent::Output { stream, bytes } => {
                    state.newest = Some(stream);
                    match stream {
                        OutputStream::Stdout => state.stdout.push(&bytes),
                        OutputStream::Stderr => state.stderr.push(&bytes),
                    }
                }
                // An event this version cannot show.
                _ => return,
            }
            state.version += 1;
        }
        self.news.notify_one();
    }
}

impl RunWatch {
    /// Sends notifications until `ended` or `cancelled`. A notification that has begun is sent to
    /// its end, unless `cancelled`, so that none can follow the result.
    pub(crate) async fn report(
        &self,
        peer: &Peer<RoleServer>,
        token: ProgressToken,
        pace: ProgressPace,
        ended: &CancellationToken,
        cancelled: &CancellationToken,
    ) {
        let stop = async {
            tokio::select! {
                () = ended.cancelled() => {}
                () = cancelled.cancelled() => {}
            }
        };
        tokio::pin!(stop);
        let mut last_sent = Instant::now();
        let mut next_allowed = last_sent;
        let mut seen = 0;
        let mut progress = 0.0;
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = self.news.notified() => {
                    if self.lock().version == seen {
                        continue;
                    }
                    tokio::select! {
                        biased;
                        () = &mut stop => return,
                        () = sleep_until(next_allowed) => {}
                    }
                }
                () = sleep_until(last_sent + pace.silence) => {}
            }
            let message = {
                let state = self.lock();
                let fresh = state.version != seen;
                seen = state.version;
                state.message(fresh)
            };
            progress += 1.0;
            let notification =
                ProgressNotificationParam::new(token.clone(), progress).with_message(message);
            let sent = tokio::select! {
                biased;
                () = cancelled.cancelled() => return,
                sent = peer.notify_progress(notification) => sent,
            };
            if sent.is_err() {
                return;
            }
            last_sent = Instant::now();
            next_allowed = last_sent + pace.gap;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
