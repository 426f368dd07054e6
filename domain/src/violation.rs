//! A request that breaks a rule, before it is tied to a correlation id. It decides nothing.

use mcp_forge_ports::vocabulary::{Refusal, RefusalKind};

/// What is wrong with a request, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The kind.
    pub kind: RefusalKind,
    /// The argument that is wrong, by its public name; none when no single one is.
    pub field: Option<&'static str>,
    /// What is wrong, with the value (bounded in length).
    pub message: String,
    /// What to do instead.
    pub hint: String,
    /// What the argument may be.
    pub allowed: Option<String>,
}

impl Violation {
    /// A malformed argument.
    pub(crate) fn invalid(field: &'static str, message: String, allowed: String) -> Self {
        Self::of(RefusalKind::InvalidArgument, field, message, allowed)
    }

    /// A value beyond the operator's maximum.
    pub(crate) fn above(field: &'static str, message: String, allowed: String) -> Self {
        Self::of(RefusalKind::LimitExceeded, field, message, allowed)
    }

    fn of(kind: RefusalKind, field: &'static str, message: String, allowed: String) -> Self {
        Self {
            kind,
            field: Some(field),
            message,
            hint: format!("give `{field}` as: {allowed}"),
            allowed: Some(allowed),
        }
    }

    /// Something that no argument is to blame for.
    pub(crate) fn general(
        kind: RefusalKind,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            field: None,
            message: message.into(),
            hint: hint.into(),
            allowed: None,
        }
    }

    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// The refusal of the request with this correlation id.
    pub fn into_refusal(self, correlation_id: impl Into<String>) -> Refusal {
        Refusal {
            kind: self.kind,
            message: self.message,
            hint: self.hint,
            field: self.field.map(str::to_owned),
            allowed: self.allowed,
            correlation_id: correlation_id.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_everything() {
        let violation =
            Violation::above("timeout", "2000 s is too long".into(), "1 to 1800 s".into());
        let refusal = violation.into_refusal("c-1");
        assert_eq!(refusal.kind, RefusalKind::LimitExceeded);
        assert_eq!(refusal.field.as_deref(), Some("timeout"));
        assert_eq!(refusal.allowed.as_deref(), Some("1 to 1800 s"));
        assert_eq!(refusal.hint, "give `timeout` as: 1 to 1800 s");
        assert_eq!(refusal.correlation_id, "c-1");
    }
}
