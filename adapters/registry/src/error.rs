//! Why an image was not pulled.

use std::io;
use std::path::{Path, PathBuf};

use mcp_forge_ports::{PortError, PortErrorKind};
use reqwest::StatusCode;

/// Longest part of what a registry says that is shown, characters.
const SHOWN: usize = 300;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    /// The registry answers, and refuses.
    #[error("{status}{}", told(.message))]
    Refused { status: StatusCode, message: String },
    /// It says what cannot be so, or more than anybody needs.
    #[error("{0}")]
    Wrong(String),
    #[error("{}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
}

fn told(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(": {message}"),
    }
}

/// A text of a registry, harmless and short.
pub(crate) fn shown(text: &str) -> String {
    text.escape_debug().take(SHOWN).collect()
}

impl Fault {
    pub(crate) fn write(path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Write {
            path: path.clone(),
            error,
        }
    }

    /// Whether it may go better the next time.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Http(error) => !error.is_builder() && !error.is_redirect(),
            Self::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Wrong(_) | Self::Write { .. } => false,
        }
    }

    pub(crate) fn port(self, reference: &str, registry: &str) -> PortError {
        let attempt = format!("cannot pull {reference}");
        let (kind, hint) = match &self {
            Self::Refused { status, .. } => match *status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (
                    PortErrorKind::Denied,
                    format!(
                        "see how it is spelt; where it is not public: `podman login {registry}` or `docker login {registry}`"
                    ),
                ),
                StatusCode::NOT_FOUND => {
                    (PortErrorKind::NotFound, "see how it is spelt".to_owned())
                }
                StatusCode::TOO_MANY_REQUESTS => (
                    PortErrorKind::Unreachable,
                    format!("wait, or log in: `podman login {registry}` or `docker login {registry}`"),
                ),
                _ => (PortErrorKind::Unreachable, "try again later".to_owned()),
            },
            Self::Http(_) => (
                PortErrorKind::Unreachable,
                "see whether this host reaches it, HTTPS_PROXY, and SSL_CERT_FILE for an authority of your own".to_owned(),
            ),
            Self::Wrong(_) => (
                PortErrorKind::Denied,
                "nothing of it was kept".to_owned(),
            ),
            Self::Write { .. } => (
                PortErrorKind::Internal,
                "see whether there is room and who may write there (`mcp-forge doctor`)".to_owned(),
            ),
        };
        PortError::new(kind, attempt)
            .with_source(self)
            .with_hint(hint)
    }
}
