//! The engine's errors as those of the port.

use std::io;

use bollard::errors::Error;
use mcp_forge_ports::{PortError, PortErrorKind};

/// The status of an answer, where there was one.
pub(crate) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// The first error of the operating system behind an error.
fn io(error: &Error) -> Option<&io::Error> {
    // It shows itself as its own source.
    if let Error::IOError { err } = error {
        return Some(err);
    }
    let mut error = Some(error as &(dyn std::error::Error + 'static));
    while let Some(one) = error {
        if let Some(io) = one.downcast_ref::<io::Error>() {
            return Some(io);
        }
        error = one.source();
    }
    None
}

/// What was attempted, and why it failed.
pub(crate) fn failed(attempt: impl Into<String>, error: Error) -> PortError {
    let cause = io(&error);
    let attempt = match cause {
        Some(cause) => format!("{}: {cause}", attempt.into()),
        None => attempt.into(),
    };
    let (kind, hint) = match (status(&error), cause.map(io::Error::kind)) {
        (Some(404), _) => (PortErrorKind::NotFound, None),
        (Some(409), _) => (PortErrorKind::AlreadyExists, None),
        (Some(400 | 501), _) => (
            PortErrorKind::Unsupported,
            Some("see what the engine says; `mcp-forge doctor` tells its version"),
        ),
        (Some(_), _) => (
            PortErrorKind::Internal,
            Some("see the log of the engine (`journalctl -u docker`)"),
        ),
        (None, Some(io::ErrorKind::PermissionDenied)) => (
            PortErrorKind::Denied,
            Some(
                "become a member of the socket's group (`usermod -aG docker USER`), or run a rootless engine",
            ),
        ),
        (None, Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)) => (
            PortErrorKind::Unreachable,
            Some("start the engine (`systemctl start docker`), or name its socket in DOCKER_HOST"),
        ),
        (None, _) if matches!(error, Error::RequestTimeoutError) => (
            PortErrorKind::TimedOut,
            Some("see what the engine does (`docker ps`)"),
        ),
        (None, _) => (
            PortErrorKind::Unreachable,
            Some("see whether the engine runs (`docker version`)"),
        ),
    };
    let failed = PortError::new(kind, attempt).with_source(error);
    match hint {
        Some(hint) => failed.with_hint(hint),
        None => failed,
    }
}
