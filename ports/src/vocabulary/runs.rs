//! Runs that go on or have ended, as a client may look at them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{ExecutionOutcome, Language, Refusal};

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// It waits for a slot.
    Queued {
        /// 1 is the next one.
        position: usize,
    },
    /// Its sandbox is being made.
    Starting,
    /// Its program runs.
    Running,
    /// It has an answer.
    Ended,
}

impl RunState {
    /// The name in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Ended => "ended",
        }
    }
}

/// A run at one moment.
#[derive(Debug, Clone)]
pub struct RunStatus {
    /// Its id.
    pub run_id: String,
    /// Ties it to the caller's request and to the audit log.
    pub correlation_id: String,
    /// Its language.
    pub language: Language,
    /// How far it has come.
    pub state: RunState,
    /// When it was asked for.
    pub requested_at: SystemTime,
    /// Since then, until now or until it ended.
    pub age: Duration,
    /// The newest line of its output, while it runs.
    pub newest_line: Option<String>,
    /// Its answer, once it has one.
    pub answer: Option<Result<Arc<ExecutionOutcome>, Refusal>>,
}

/// A part of what is kept of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunPart {
    /// Both streams as they were written, in one.
    Log,
    /// A file of its workspace, by its path.
    File(String),
    /// A picture, by its number among the pictures of the run, from 0.
    Picture(usize),
}

/// Bytes of a part of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunBytes {
    /// The type of the whole part.
    pub mime_type: String,
    /// Length of the whole part so far, bytes.
    pub total: u64,
    /// The bytes that were asked for, as far as they are there.
    pub data: Vec<u8>,
}
