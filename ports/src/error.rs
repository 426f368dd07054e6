//! The one error of all driven ports. Adapters map their own errors to it, once.

use std::error::Error;

/// What kind of infrastructure failure a port met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortErrorKind {
    /// The named thing does not exist.
    NotFound,
    /// The named thing exists already.
    AlreadyExists,
    /// The adapter cannot do what the specification asks; it never weakens it instead.
    Unsupported,
    /// A bound of the adapter was exceeded.
    LimitExceeded,
    /// The other side did not answer in time.
    TimedOut,
    /// The other side is not there: not running, connection refused, gone.
    Unreachable,
    /// The operating system or the engine refused.
    Denied,
    /// A sandbox or its stream broke its contract.
    Protocol,
    /// Anything that is a defect of mcp-forge or of the adapter's library.
    Internal,
}

/// An infrastructure failure. The failure of user code is never one of these: it is an outcome.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct PortError {
    /// The kind that callers decide by.
    pub kind: PortErrorKind,
    /// What was attempted and with which value; lower case, no full stop.
    pub context: String,
    /// What the person can do about it.
    pub hint: Option<String>,
    /// The adapter's own error.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl PortError {
    /// An error without a source.
    pub fn new(kind: PortErrorKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            hint: None,
            source: None,
        }
    }

    /// Adds what the person can do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the adapter's own error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The context followed by every source, for a log line or a message to a person.
    pub fn chain(&self) -> String {
        let mut text = self.context.clone();
        let mut next = Error::source(self);
        while let Some(error) = next {
            text.push_str(": ");
            text.push_str(&error.to_string());
            next = error.source();
        }
        text
    }
}
