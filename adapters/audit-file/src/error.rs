//! What can go wrong with the file, and the one place where it becomes a `PortError`.
//!
//! Messages name the file and never what was to be written.

use std::io;
use std::path::Path;

use crate::place::HEAD;
use mcp_forge_ports::{PortError, PortErrorKind};

/// A failure of the audit file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileAuditError {
    #[error("cannot open the file or make its directory")]
    Open { source: io::Error },
    #[error("not a regular file, or a symbolic link")]
    NotRegular,
    #[error("the file has other names too (hard links)")]
    Linked,
    #[error("the file belongs to user {owner}, and mcp-forge runs as user {own}")]
    Foreign { owner: u32, own: u32 },
    #[error("others may write the file (mode {mode:04o})")]
    Writable { mode: u32 },
    #[error("others may replace the file: its directory belongs to user {owner}, mode {mode:04o}")]
    Directory { owner: u32, mode: u32 },
    #[error("another process holds the lock")]
    Locked,
    #[error("the file was deleted while it was in use")]
    Deleted,
    #[error("cannot write the entry")]
    Write { source: io::Error },
    #[error("cannot write the entry, and part of it is left in the file: {left}")]
    Torn { source: io::Error, left: io::Error },
    #[error("cannot begin a new file")]
    Rotate { source: io::Error },
    #[error("its head or its entries have numbers that are no longer possible")]
    Numbers,
    #[error("cannot read it")]
    Read { source: io::Error },
    #[error("of the head")]
    Head { source: Box<Self> },
    #[error("there is no audit log")]
    Missing,
    #[error("the time of the entry is out of range")]
    Time { source: jiff::Error },
    #[error("the entry cannot be encoded")]
    Encode { source: serde_json::Error },
}

impl FileAuditError {
    /// That of the head, not of the log.
    pub(crate) fn of_head(self) -> Self {
        let source = Box::new(self);
        Self::Head { source }
    }

    /// The error of the port, with what the operator can do.
    pub(crate) fn into_port(self, path: &Path) -> PortError {
        if let Self::Head { source } = self {
            let mut head = path.as_os_str().to_owned();
            head.push(HEAD);
            return source.into_port(Path::new(&head));
        }
        let (kind, hint) = match &self {
            Self::Linked => (
                PortErrorKind::Unsupported,
                "remove its other names, or name another file",
            ),
            Self::Foreign { .. } => (
                PortErrorKind::Denied,
                "name another file; what this one holds may be another user's",
            ),
            Self::Writable { .. } => (
                PortErrorKind::Denied,
                "look whether its entries can be trusted, then `chmod 600` it, or name another file",
            ),
            Self::Directory { .. } => (
                PortErrorKind::Denied,
                "take the directory over (`chown`, `chmod go-w`), or name a file elsewhere",
            ),
            Self::Open { source } | Self::Write { source } | Self::Torn { source, .. } => {
                classify(source)
            }
            Self::NotRegular => (
                PortErrorKind::Unsupported,
                "name a regular file, by its real path",
            ),
            Self::Locked => (
                PortErrorKind::TimedOut,
                "find the process that holds the lock (`lslocks`), or name another file",
            ),
            Self::Deleted => (
                PortErrorKind::NotFound,
                "start mcp-forge again so that it makes a new file",
            ),
            Self::Rotate { source } if source.kind() == io::ErrorKind::AlreadyExists => (
                PortErrorKind::Unsupported,
                "move the older files of the log elsewhere: the name of the next one is taken",
            ),
            Self::Rotate { source } | Self::Read { source } => classify(source),
            Self::Numbers => (
                PortErrorKind::Unsupported,
                "it was changed (`mcp-forge audit verify`): put it elsewhere with its head",
            ),
            Self::Missing => (
                PortErrorKind::NotFound,
                "look whether that is its place (--path, audit.path); the first run or server makes it",
            ),
            Self::Time { .. } => (PortErrorKind::Internal, "set the clock of the host"),
            Self::Head { .. } | Self::Encode { .. } => {
                (PortErrorKind::Internal, "report this as a defect")
            }
        };
        PortError::new(kind, format!("audit log {}", path.display()))
            .with_hint(hint)
            .with_source(self)
    }
}

fn classify(error: &io::Error) -> (PortErrorKind, &'static str) {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            (
                PortErrorKind::LimitExceeded,
                "free space on the file system of the audit log",
            )
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => (
            PortErrorKind::Denied,
            "give mcp-forge write access to the audit log and its directory",
        ),
        // A file in the place of its directory, or the other way round.
        io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::AlreadyExists => {
            (PortErrorKind::Unsupported, "name a file in a directory")
        }
        _ => (
            PortErrorKind::Internal,
            "look at the file system of the audit log",
        ),
    }
}
