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
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::AuditLog;
use mcp_forge_ports::vocabulary::AuditEvent;
use tokio::sync::oneshot;

pub use chain::Hash;
pub use entry::MAX_LINE_BYTES;
use error::FileAuditError;
pub use read::{Entry, Follower, entries, newest};
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
    jobs: Sender<Job>,
}

/// An entry that is to be written.
#[derive(Debug)]
struct Job {
    entry: Vec<u8>,
    deadline: Instant,
    written: oneshot::Sender<Result<(), FileAuditError>>,
}

/// Writes what comes until no log is left that could send more.
fn work(mut writer: Writer, jobs: Receiver<Job>) {
    for job in jobs {
        // Nobody may wait for it any more.
        let _ = job.written.send(writer.append(job.entry, job.deadline));
    }
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
        let open = || {
            let writer = Writer::open(&path, options)?;
            let (jobs, queue) = mpsc::channel();
            thread::Builder::new()
                .name("audit".to_owned())
                .spawn(|| work(writer, queue))
                .map_err(|source| FileAuditError::Open { source })?;
            Ok(jobs)
        };
        match open() {
            Ok(jobs) => Ok(Self {
                path: path.into(),
                jobs,
            }),
            Err(error) => Err(FileAuditError::into_port(error, &path)),
        }
    }
}

#[async_trait]
impl AuditLog for FileAuditLog {
    /// Appends the entry. When the returned future is dropped after it was first polled, the entry
    /// is written all the same.
    ///
    /// Written by a thread of its own: a stalled disk, or another process that holds the lock,
    /// stops no task, and a future that is not polled any more keeps no other entry waiting.
    async fn record(&self, event: AuditEvent) -> Result<(), PortError> {
        let deadline = Instant::now() + LOCK_WAIT;
        let write = async {
            let entry = entry::line(&event)?;
            let (written, done) = oneshot::channel();
            let job = Job {
                entry,
                deadline,
                written,
            };
            let stopped = || FileAuditError::Write {
                source: io::Error::other("the thread that writes it has ended"),
            };
            self.jobs.send(job).map_err(|_| stopped())?;
            done.await.map_err(|_| stopped())?
        };
        write.await.map_err(|error| error.into_port(&self.path))
    }
}

#[cfg(test)]
mod tests;
