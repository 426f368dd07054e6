//! Entries of the audit log.

use std::time::SystemTime;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuditKind {
    /// A run was asked for and allowed.
    ExecutionRequest,
    /// A run ended.
    ExecutionResult,
    /// A run was refused.
    ExecutionRefused,
    /// A sandbox was made.
    ContainerCreate,
    /// A sandbox was started.
    ContainerStart,
    /// A sandbox was killed or ended.
    ContainerStop,
    /// A sandbox was removed.
    ContainerRemove,
    /// An image was made, or given a name.
    ImageImport,
    /// An image, or a name of one, was removed.
    ImageRemove,
    /// How strong the sandbox proved to be.
    SandboxVerdict,
    /// A barrier was found broken, or somebody tried to pass one.
    SecurityViolation,
}

impl AuditKind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::ExecutionRequest,
        Self::ExecutionResult,
        Self::ExecutionRefused,
        Self::ContainerCreate,
        Self::ContainerStart,
        Self::ContainerStop,
        Self::ContainerRemove,
        Self::ImageImport,
        Self::ImageRemove,
        Self::SandboxVerdict,
        Self::SecurityViolation,
    ];

    /// The name in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ExecutionRequest => "execution.request",
            Self::ExecutionResult => "execution.result",
            Self::ExecutionRefused => "execution.refused",
            Self::ContainerCreate => "container.create",
            Self::ContainerStart => "container.start",
            Self::ContainerStop => "container.stop",
            Self::ContainerRemove => "container.remove",
            Self::ImageImport => "image.import",
            Self::ImageRemove => "image.remove",
            Self::SandboxVerdict => "sandbox.verdict",
            Self::SecurityViolation => "security.violation",
        }
    }
}

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Routine.
    Info,
    /// Worth a look.
    Warning,
    /// Something failed.
    Error,
    /// A barrier is broken.
    Critical,
}

impl Severity {
    /// The name in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
        }
    }
}

/// One entry. Never holds code, tokens, file contents or tool arguments: hashes instead.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEvent {
    /// When.
    pub time: SystemTime,
    /// What.
    pub kind: AuditKind,
    /// How much it matters.
    pub severity: Severity,
    /// The run, where there is one.
    pub run_id: Option<String>,
    /// The session, where there is one.
    pub session: Option<String>,
    /// Who asked, as it calls itself (unverified); nothing for the command line.
    pub client: Option<String>,
    /// Ties entries of one request together.
    pub correlation_id: String,
    /// Whether it went well, where that can be said.
    pub success: Option<bool>,
    /// More, by kind.
    pub details: serde_json::Map<String, serde_json::Value>,
    /// What went wrong.
    pub error: Option<String>,
}
