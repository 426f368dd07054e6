//! What a caller asks for, what it is told meanwhile, and how it is refused.

use std::fmt;

use super::{Language, OutputBlock, OutputStream};

/// A file for the workspace.
#[derive(Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Path below the workspace, with `/` between its parts.
    pub path: String,
    /// Its contents.
    pub data: Vec<u8>,
}

impl fmt::Debug for InputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({} bytes)", self.path, self.data.len())
    }
}

/// One run, as the caller asks for it. Nothing here is checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionRequest {
    /// The language.
    pub language: Language,
    /// The program text.
    pub code: String,
    /// Name of the program in tracebacks; `<code>` when absent.
    pub source_name: Option<String>,
    /// Time limit in seconds; the operator's default when absent.
    pub timeout: Option<u64>,
    /// Memory limit as written, such as `512m`.
    pub memory: Option<String>,
    /// CPU limit in µs per 100 ms.
    pub cpu_quota: Option<u64>,
    /// Text for the program's standard input; without it, reading is refused at once.
    pub stdin: Option<String>,
    /// Files for the workspace, placed before the program starts.
    pub files: Vec<InputFile>,
    /// A reference to the image whose programs it has; the host's own when absent.
    pub image: Option<String>,
    /// The caller's name for this request: repeated, it gives the answer of the first one and runs
    /// nothing.
    pub idempotency_key: Option<String>,
    /// The caller's own correlation id; minted when absent.
    pub correlation_id: Option<String>,
    /// Who asks, for the audit log (unverified).
    pub client: Option<String>,
}

impl ExecutionRequest {
    /// A request with the operator's defaults for everything but the code.
    pub fn new(language: Language, code: impl Into<String>) -> Self {
        Self {
            language,
            code: code.into(),
            source_name: None,
            timeout: None,
            memory: None,
            cpu_quota: None,
            stdin: None,
            files: Vec::new(),
            image: None,
            idempotency_key: None,
            correlation_id: None,
            client: None,
        }
    }
}

/// What an observer is told while a run goes on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RunEvent {
    /// All slots are taken; the run waits. Told again when its position changes.
    Queued {
        /// 1 is the next one.
        position: usize,
    },
    /// The sandbox is being made.
    Starting,
    /// The program runs.
    Running,
    /// The program wrote these bytes.
    Output {
        /// On which stream.
        stream: OutputStream,
        /// The bytes as written; a character may be split.
        bytes: Vec<u8>,
    },
    /// Something other than text came, or a value.
    Block(OutputBlock),
}

/// Why a request was refused, in the words of the public interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// An argument is malformed.
    InvalidArgument,
    /// A value exceeds what the operator allows.
    LimitExceeded,
    /// The policy forbids it.
    PolicyViolation,
    /// The named thing does not exist.
    NotFound,
    /// Everything is taken; try again.
    Busy,
    /// This installation cannot do it.
    Unsupported,
    /// Something it needs is not there.
    Unavailable,
    /// Too many requests.
    RateLimited,
    /// A person has to approve it first.
    ApprovalRequired,
    /// A defect of mcp-forge.
    Internal,
}

impl RefusalKind {
    /// The name in results and audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::LimitExceeded => "limit_exceeded",
            Self::PolicyViolation => "policy_violation",
            Self::NotFound => "not_found",
            Self::Busy => "busy",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::RateLimited => "rate_limited",
            Self::ApprovalRequired => "approval_required",
            Self::Internal => "internal",
        }
    }
}

/// A refused or failed request: no outcome of the code exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind.
    pub kind: RefusalKind,
    /// What is wrong, with the value.
    pub message: String,
    /// What to do instead.
    pub hint: String,
    /// The argument that is wrong.
    pub field: Option<String>,
    /// What that argument may be.
    pub allowed: Option<String>,
    /// Id that ties the refusal to the audit log.
    pub correlation_id: String,
}
