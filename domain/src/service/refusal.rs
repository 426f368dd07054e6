//! From a failure of a port to what the caller is told. The failure's sources may name paths of
//! the host, so they go to the log and not to the caller.

use mcp_forge_ports::vocabulary::RefusalKind;
use mcp_forge_ports::{PortError, PortErrorKind};

use crate::violation::Violation;

/// The kind of refusal for a kind of infrastructure failure.
pub const fn refusal_kind(kind: PortErrorKind) -> RefusalKind {
    match kind {
        PortErrorKind::NotFound => RefusalKind::NotFound,
        PortErrorKind::Unsupported => RefusalKind::Unsupported,
        PortErrorKind::LimitExceeded => RefusalKind::LimitExceeded,
        // The caller did nothing wrong when the operating system said no to mcp-forge.
        PortErrorKind::TimedOut | PortErrorKind::Unreachable | PortErrorKind::Denied => {
            RefusalKind::Unavailable
        }
        // `PortErrorKind` may grow; what is not known here is a defect.
        _ => RefusalKind::Internal,
    }
}

/// The refusal of a run that failed at a port.
pub(super) fn failed(error: &PortError) -> Violation {
    let kind = refusal_kind(error.kind);
    let hint = match (&error.hint, kind) {
        (Some(hint), _) => hint.as_str(),
        (None, RefusalKind::Internal) => {
            "this is a defect; the operator finds more under this correlation id in the log"
        }
        (None, _) => "`mcp-forge doctor` tells what is missing and how to mend it",
    };
    Violation::general(kind, error.context.clone(), hint)
}

/// The refusal of a run that could not be audited.
pub(super) fn unaudited(error: &PortError) -> Violation {
    Violation::general(
        RefusalKind::Unavailable,
        format!("the audit log takes no entries: {}", error.context),
        "nothing runs unaudited; the operator has to make room for the audit log or mend it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_refusal() {
        for (kind, refusal) in [
            (PortErrorKind::NotFound, RefusalKind::NotFound),
            (PortErrorKind::AlreadyExists, RefusalKind::Internal),
            (PortErrorKind::Unsupported, RefusalKind::Unsupported),
            (PortErrorKind::LimitExceeded, RefusalKind::LimitExceeded),
            (PortErrorKind::TimedOut, RefusalKind::Unavailable),
            (PortErrorKind::Unreachable, RefusalKind::Unavailable),
            (PortErrorKind::Denied, RefusalKind::Unavailable),
            (PortErrorKind::Protocol, RefusalKind::Internal),
            (PortErrorKind::Internal, RefusalKind::Internal),
        ] {
            assert_eq!(refusal_kind(kind), refusal, "{kind:?}");
        }
    }

    #[test]
    fn the_caller_gets_context_and_hint_but_no_sources() {
        let error = PortError::new(PortErrorKind::Unreachable, "connect to the engine")
            .with_source("/run/user/1000/engine.sock: refused");
        let told = failed(&error);
        assert_eq!(told.message, "connect to the engine");
        assert!(told.hint.contains("mcp-forge doctor"));
        let told = failed(&error.with_hint("start it"));
        assert_eq!(told.hint, "start it");
    }
}
