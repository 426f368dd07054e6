//! The outcome of one run. The failure of user code is told here, never as an error.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Language, LimitsReport};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndedBy {
    /// The program ran to its end with exit status 0.
    Completed,
    /// The program failed: an uncaught exception or an exit status other than 0.
    Error,
    /// The time limit was reached.
    Timeout,
    /// The caller cancelled.
    Cancelled,
    /// The kernel killed it for its memory limit.
    Oom,
    /// It failed after its processes and threads reached their limit.
    Pids,
    /// It wrote more than the operator allows and was stopped.
    OutputLimit,
    /// A signal ended it that mcp-forge did not send.
    Crashed,
    /// The sandbox vanished, or was killed or removed by somebody else.
    RuntimeLost,
}

impl EndedBy {
    /// The name in results and audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Oom => "oom",
            Self::Pids => "pids",
            Self::OutputLimit => "output_limit",
            Self::Crashed => "crashed",
            Self::RuntimeLost => "runtime_lost",
        }
    }
}

/// One of the two text streams of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    /// The name in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// An exception that reached the top of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramError {
    /// Class of the exception (`ZeroDivisionError`).
    pub name: String,
    /// Its message.
    pub message: String,
    /// The traceback as the language prints it, with the user's own frames only.
    pub traceback: String,
}

/// One piece of output, in order of appearance.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum OutputBlock {
    /// Text of a stream, joined as long as nothing else came between.
    Stream {
        /// Which stream.
        stream: OutputStream,
        /// Text, UTF-8; invalid bytes are replaced.
        text: String,
    },
    /// The value of the last expression.
    Value {
        /// The value, where JSON can carry it.
        json: Option<serde_json::Value>,
        /// Its printed form.
        repr: String,
    },
    /// The exception that ended the program.
    Error(ProgramError),
    /// A message that the language tells apart from its streams; part of `stderr` too.
    Message {
        /// As the language prints it.
        text: String,
    },
    /// A warning; part of `stderr` too.
    Warning {
        /// Its message.
        text: String,
        /// The call that gave it.
        call: Option<String>,
    },
    /// A picture.
    Image {
        /// The picture.
        picture: Picture,
        /// The same as plain text.
        text: Option<String>,
    },
    /// Something shown as HTML.
    Html {
        /// The HTML; untrusted.
        html: String,
        /// The same as plain text.
        text: Option<String>,
    },
    /// Something shown as JSON.
    Json {
        /// The JSON.
        json: serde_json::Value,
        /// The same as plain text.
        text: Option<String>,
    },
    /// Something shown as plain text only, or a note of what was left out.
    Text {
        /// The text.
        text: String,
    },
}

/// A picture as a program made it. Its first bytes are those of its type; what follows is not
/// looked at.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    /// `image/png`, `image/jpeg`, `image/gif`, `image/webp` or `image/svg+xml`.
    pub mime_type: String,
    /// The file.
    pub data: Arc<[u8]>,
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.mime_type, self.data.len())
    }
}

/// A file that a program left in its workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFile {
    /// Path below the workspace.
    pub path: String,
    /// Its size, bytes.
    pub size: u64,
    /// Its type, by its name.
    pub mime_type: String,
    /// Its contents can be read; not so when it was too large.
    pub kept: bool,
}

/// What is kept of the streams of a run as they were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLog {
    /// Its length, bytes.
    pub bytes: u64,
    /// Nothing is missing at its end.
    pub complete: bool,
}

/// What a run used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all its processes.
    pub cpu: Duration,
    /// Peak memory in bytes: of the cgroup, or the largest process where there is none.
    pub peak_memory_bytes: u64,
}

/// Where a run took place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeDescription {
    /// `libcontainer`, `podman` or `docker`.
    pub kind: String,
    /// The image, or `host` for the host presentation.
    pub image: String,
    /// Digest of the image, where there is one.
    pub image_digest: Option<String>,
    /// Digest of the custom environment, where there is one.
    pub environment_digest: Option<String>,
}

/// The outcome of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionOutcome {
    /// How it ended.
    pub ended_by: EndedBy,
    /// In which language.
    pub language: Language,
    /// Unguessable id of the run.
    pub run_id: String,
    /// Id that ties the run to the caller's request and to the audit log.
    pub correlation_id: String,
    /// Standard output, head and tail within the limit.
    pub stdout: String,
    /// Standard error, head and tail within the limit.
    pub stderr: String,
    /// Something was cut out of `stdout`.
    pub stdout_truncated: bool,
    /// Something was cut out of `stderr`.
    pub stderr_truncated: bool,
    /// `stdout` held bytes that are not UTF-8; they were replaced.
    pub stdout_not_utf8: bool,
    /// `stderr` held bytes that are not UTF-8; they were replaced.
    pub stderr_not_utf8: bool,
    /// The value of the last expression, where JSON can carry it.
    pub result: Option<serde_json::Value>,
    /// The printed form of that value; none when there is no value.
    pub result_repr: Option<String>,
    /// Everything in order of appearance.
    pub blocks: Vec<OutputBlock>,
    /// The files that the program made or changed, in order of their paths.
    pub files: Vec<OutputFile>,
    /// Files that are not in `files` because there are too many.
    pub files_omitted: u64,
    /// The streams as they were written, both in one; none when nothing was written.
    pub log: Option<RunLog>,
    /// The exception that ended the program, if one did.
    pub error: Option<ProgramError>,
    /// Exit status of the program, when it exited by itself.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it (`SIGSEGV`).
    pub signal: Option<String>,
    /// From the start of the sandbox to the end of the program.
    pub duration: Duration,
    /// Limits, requested and effective.
    pub limits: LimitsReport,
    /// What it used.
    pub usage: Usage,
    /// Where it ran.
    pub runtime: RuntimeDescription,
}

impl ExecutionOutcome {
    /// Whether the program did what it was asked to.
    pub fn success(&self) -> bool {
        self.ended_by == EndedBy::Completed
    }
}
