//! The audit log as append-only files of JSON lines, and what is needed to trust them.
//!
//! A line is in the file as a whole or not at all, whoever else writes the same log: other tasks,
//! other logs of this process, other processes. When it cannot be written the caller is told, so
//! that nothing goes unaudited unnoticed. Every entry carries the hash of the one before
//! ([`verify`] finds what was changed, removed or put elsewhere), a file that is full is put away
//! under the number of its last entry, and the forms of well-known secrets are masked.
//!
//! It deliberately does not look into what an entry says (the core keeps code and secrets out).

mod append;
mod chain;
mod entry;
mod error;
mod lines;
mod mask;
mod place;
mod read;
mod verify;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::AuditLog;
use mcp_forge_ports::vocabulary::AuditEvent;
use tokio::sync::Mutex;

pub use chain::Hash;
pub use entry::MAX_LINE_BYTES;
use error::FileAuditError;
pub use read::{Entry, Follower, entries};
pub use verify::{Finding, MAX_FINDINGS, Verification, verify};
use writer::Writer;

/// Longest wait for other processes that write the same log.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// How a log is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAuditOptions {
    /// Size from which on a file is full, bytes.
    pub max_bytes: u64,
    /// How many files that are full are kept; nothing keeps all.
    pub keep: Option<u32>,
    /// Whether each entry is on the disk before it counts as recorded (`fdatasync`). Without, a
    /// crash of the whole machine can lose the newest ones, and only that.
    pub sync: bool,
}

impl Default for FileAuditOptions {
    /// 64 MiB, all files, no `fdatasync`.
    fn default() -> Self {
        Self {
            max_bytes: 64 << 20,
            keep: None,
            sync: false,
        }
    }
}

/// An audit log in a file. Clones write to the same one.
///
/// Entries of one task are in the file in the order in which they were recorded.
#[derive(Debug, Clone)]
pub struct FileAuditLog {
    path: Arc<Path>,
    writer: Arc<Mutex<Writer>>,
}

impl FileAuditLog {
    /// Opens the log at `path` for appending. Files that are missing are created with mode 0600,
    /// and directories that are missing with mode 0700. A file that others may read is made 0600.
    /// Blocks for as long as the file system does.
    ///
    /// # Errors
    ///
    /// `Unsupported` when `path` leads to something other than a regular file, is itself a symbolic
    /// link or one of several names of the file; `Denied` when the operating system refuses, and
    /// when the file is another user's or somebody else may write it or replace it in its
    /// directory; `LimitExceeded` when the file system is full; otherwise `Internal`.
    pub fn open(path: impl Into<PathBuf>, options: FileAuditOptions) -> Result<Self, PortError> {
        let path = path.into();
        match Writer::open(&path, options) {
            Ok(writer) => Ok(Self {
                path: path.into(),
                writer: Arc::new(Mutex::new(writer)),
            }),
            Err(error) => Err(error.into_port(&path)),
        }
    }
}

#[async_trait]
impl AuditLog for FileAuditLog {
    /// Appends the entry. When the returned future is dropped after it was first polled, the entry
    /// may be written all the same, and then as a whole.
    ///
    /// Written on the blocking pool: nothing beside a run of many milliseconds, but a stalled disk
    /// or another process that holds the lock would stop every other task of the thread. One
    /// thread at most is used at a time.
    async fn record(&self, event: AuditEvent) -> Result<(), PortError> {
        let deadline = Instant::now() + LOCK_WAIT;
        let entry = entry::line(&event).map_err(|error| error.into_port(&self.path))?;
        let mut writer = Arc::clone(&self.writer).lock_owned().await;
        let written = tokio::task::spawn_blocking(move || writer.append(entry, deadline));
        let written = written.await.unwrap_or_else(|stopped| {
            Err(FileAuditError::Write {
                source: io::Error::other(stopped),
            })
        });
        written.map_err(|error| error.into_port(&self.path))
    }
}

#[cfg(test)]
mod tests;
