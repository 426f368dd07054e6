//! Images: root file systems on disk, each under the digest of what it was made of, unpacked once and shared
//! read-only by the sandboxes of every runtime.
//!
//! They come from archives: a tar of a root file system, what `docker save` and `podman save` write, and
//! OCI image layouts, as directories or archives (OCI image-spec 1.1).

mod archive;
mod source;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod unpack;

use std::io;
use std::path::Path;

use mcp_forge_ports::{PortError, PortErrorKind};

pub use store::{Beside, Bounds, DiskImages};

/// Something of an archive that is not taken.
#[derive(Debug, thiserror::Error)]
#[error("{what} is refused: {why}")]
struct Refused {
    what: String,
    why: String,
}

impl Refused {
    fn new(what: &Path, why: &str) -> Self {
        let what: String = what
            .display()
            .to_string()
            .escape_debug()
            .take(200)
            .collect();
        Self {
            what: format!("\"{what}\""),
            why: why.to_owned(),
        }
    }
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The archive cannot be read as what it should be.
    #[error("it cannot be read: {}", shown(&.0.to_string()))]
    Read(io::Error),
    /// A file that was given cannot be read at all.
    #[error("{path}: {error}")]
    Source { path: String, error: io::Error },
    /// It is none, or says what is not so.
    #[error("{0}")]
    Wrong(String),
    /// The store is where it must not be.
    #[error("{path}: {why}")]
    Place { path: String, why: &'static str },
    /// The list of images cannot be read.
    #[error("{path}: {error}")]
    Index {
        path: String,
        error: serde_json::Error,
    },
    /// The store cannot be written.
    #[error("{what}: {error}")]
    Write { what: String, error: io::Error },
}

/// A text with parts of an archive, harmless and short.
fn shown(text: &str) -> String {
    text.escape_debug().take(120).collect()
}

impl Failure {
    fn entry(path: &Path, error: io::Error) -> Self {
        let Refused { what, .. } = Refused::new(path, "");
        Self::Write { what, error }
    }

    fn source(path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.display().to_string();
        move |error| Self::Source {
            path: path.clone(),
            error,
        }
    }

    fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        let what = path.display().to_string();
        move |error| Self::Write {
            what: what.clone(),
            error,
        }
    }

    fn port(self, attempt: String) -> PortError {
        let (kind, hint) = match &self {
            Self::Refused(_) => (
                PortErrorKind::Denied,
                "see how the archive was made; nothing of it was kept",
            ),
            Self::Read(_) | Self::Wrong(_) => (
                PortErrorKind::Unsupported,
                "give a tar of a root file system, what `docker save` or `podman save` writes, or an OCI layout",
            ),
            Self::Source { .. } => (
                PortErrorKind::Unsupported,
                "see whether it is there and who may read it",
            ),
            Self::Place { .. } => (
                PortErrorKind::Denied,
                "what is there runs: it must be a directory of yours or of root's that no other may write to (`chmod go-w`); \
                 `images.directory` names another one",
            ),
            Self::Index { .. } => (
                PortErrorKind::Internal,
                "move it away and import the images again",
            ),
            Self::Write { .. } => (
                PortErrorKind::Internal,
                "see whether there is room and who may write there (`mcp-forge doctor`)",
            ),
        };
        PortError::new(kind, attempt)
            .with_source(self)
            .with_hint(hint)
    }
}
