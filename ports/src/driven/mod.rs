//! What the core needs from the world.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::PortError;
use crate::vocabulary::{
    AuditEvent, EffectiveLimits, GuestEvent, GuestJob, Image, ImageRecipe, ImportedImage,
    RuntimeInfo, SandboxExit, SandboxId, SandboxSpec, SandboxUsage,
};

/// The one byte stream of a sandbox.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Makes, watches and removes sandboxes. Every operation on an id is idempotent.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait ContainerRuntime: Send + Sync {
    /// What this runtime is and what it cannot enforce here.
    async fn info(&self) -> Result<RuntimeInfo, PortError>;

    /// Makes a sandbox, everything but its first process, and reads its limits back.
    ///
    /// # Errors
    ///
    /// `Unsupported` when a field of the specification cannot be obeyed or the id is no name,
    /// `AlreadyExists` for an id in use. Nothing is left behind then.
    async fn create(&self, spec: &SandboxSpec) -> Result<EffectiveLimits, PortError>;

    /// Starts the agent and gives its stream. Once for each sandbox.
    ///
    /// # Errors
    ///
    /// `NotFound` for an id that does not exist, `AlreadyExists` when it was started before; any
    /// kind when it was killed.
    async fn start(&self, id: &SandboxId) -> Result<Box<dyn ByteStream>, PortError>;

    /// Waits until the first process of the sandbox is gone; tells the same again afterwards.
    ///
    /// # Errors
    ///
    /// `NotFound` for an id that does not exist, and when it is removed meanwhile.
    async fn wait(&self, id: &SandboxId) -> Result<SandboxExit, PortError>;

    /// What the kernel has counted up to now.
    ///
    /// # Errors
    ///
    /// `NotFound` for an id that does not exist.
    async fn usage(&self, id: &SandboxId) -> Result<SandboxUsage, PortError>;

    /// Kills every process of the sandbox; returns when none is left.
    ///
    /// # Errors
    ///
    /// `Internal` when processes are left. An unknown id is no error.
    async fn kill(&self, id: &SandboxId) -> Result<(), PortError>;

    /// Kills and removes the sandbox with everything that belongs to it.
    ///
    /// # Errors
    ///
    /// `Internal` when something is left. An unknown id is no error.
    async fn remove(&self, id: &SandboxId) -> Result<(), PortError>;
}

/// Told how many bytes of how many were read.
pub type ImageProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Keeps images: root file systems that sandboxes share, read-only. An image is told by one of its names, its id, or
/// the first digits of its id.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait ImageStore: Send + Sync {
    /// All of them.
    ///
    /// # Errors
    ///
    /// `Internal` when that cannot be read.
    async fn list(&self) -> Result<Vec<Image>, PortError>;

    /// One of them.
    ///
    /// # Errors
    ///
    /// `NotFound`, with the way to make one.
    async fn find(&self, image: &str) -> Result<Image, PortError>;

    /// Makes one of a file or directory. The same contents give the same image, which is made once.
    ///
    /// # Errors
    ///
    /// `Unsupported` for what is no image, `Denied` for one that is refused: nothing of it is kept.
    async fn import(
        &self,
        source: &Path,
        progress: ImageProgress,
    ) -> Result<ImportedImage, PortError>;

    /// Gives it a name, which another image may lose by that.
    ///
    /// # Errors
    ///
    /// `Unsupported` when there is no such image.
    async fn tag(&self, id: &str, name: &str) -> Result<Image, PortError>;

    /// Removes it; of several names only this one. One that is not there is removed.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` when it is in use.
    async fn remove(&self, image: &str) -> Result<(), PortError>;

    /// Keeps it from being removed until this is dropped.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is not there.
    async fn hold(&self, id: &str) -> Result<Arc<dyn Send + Sync>, PortError>;
}

/// Told each line that a build prints, without control characters.
pub type BuildLog = Arc<dyn Fn(&str) + Send + Sync>;

/// Builds images.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait ImageBuilder: Send + Sync {
    /// Builds one and writes it to the file `target`, which must not be there yet, as an archive that [`ImageStore::import`]
    /// takes. Where it was built, nothing stays but the image that it is based on and what can be used again of a build
    /// that failed. A build that is dropped ends, at the latest with the command that runs.
    ///
    /// # Errors
    ///
    /// `Unsupported` when the recipe fails, or is for another builder; `Unreachable` when nobody builds; `LimitExceeded` when
    /// it is too large; `Internal` when the file cannot be written. There may be a part of the file then.
    async fn build(
        &self,
        recipe: &ImageRecipe,
        target: &Path,
        log: BuildLog,
    ) -> Result<(), PortError>;
}

/// Where images are pulled from.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait ImageRegistry: Send + Sync {
    /// Writes the image with this reference, of this host's platform, into a directory as an OCI layout. Everything in it has
    /// the digest that led to it. Of an image whose id is `known` the layers are left out.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Denied` (by the registry, or since it says what is not so), `Unreachable`, `Internal` when it cannot be
    /// written.
    async fn fetch(
        &self,
        reference: &str,
        directory: &Path,
        known: &[String],
        progress: ImageProgress,
    ) -> Result<(), PortError>;
}

/// Speaks to the agent over a sandbox's stream.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait Guest: Send + Sync {
    /// Gives the agent its job.
    ///
    /// # Errors
    ///
    /// `Unreachable` when the stream is closed.
    async fn run(
        &self,
        stream: Box<dyn ByteStream>,
        job: GuestJob,
    ) -> Result<Box<dyn GuestRun>, PortError>;
}

/// One job of the agent.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait GuestRun: Send {
    /// The next event; `None` when the stream ended. Cancel-safe.
    ///
    /// # Errors
    ///
    /// `Protocol` when the sandbox sent what it must not; the stream is useless then.
    async fn next_event(&mut self) -> Result<Option<GuestEvent>, PortError>;

    /// Asks the program to stop (SIGINT).
    ///
    /// # Errors
    ///
    /// `Unreachable` when the stream is closed.
    async fn interrupt(&mut self) -> Result<(), PortError>;

    /// Kills the program and everything it started; the agent then reports how it ended.
    ///
    /// # Errors
    ///
    /// `Unreachable` when the stream is closed.
    async fn kill(&mut self) -> Result<(), PortError>;
}

/// The audit log.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait AuditLog: Send + Sync {
    /// Appends one entry; returns when it is written.
    ///
    /// # Errors
    ///
    /// Any kind: the entry is not in the log.
    async fn record(&self, event: AuditEvent) -> Result<(), PortError>;
}

/// Time.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait Clock: Send + Sync {
    /// Wall-clock time, for records.
    fn now(&self) -> SystemTime;

    /// Time since some fixed moment, never going back, for durations.
    fn monotonic(&self) -> Duration;

    /// Returns when [`Clock::monotonic`] has reached `deadline`. Cancel-safe.
    async fn sleep_until(&self, deadline: Duration);
}

/// What an id is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdKind {
    /// A run.
    Run,
    /// A request's correlation id.
    Correlation,
}

/// Unguessable ids (at least 122 random bits).
#[cfg_attr(feature = "testing", mockall::automock)]
pub trait IdSource: Send + Sync {
    /// A fresh id in `[A-Za-z0-9_-]`.
    fn mint(&self, kind: IdKind) -> String;
}

/// Keeps bytes, in memory or on disk. Nothing of it outlives the process.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait BlobStore: Send + Sync {
    /// An empty blob.
    fn create(&self) -> Box<dyn Blob>;
}

/// Bytes that only grow. Dropped, they are gone.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait Blob: Send + Sync {
    /// Adds bytes at the end. Cancel-safe: all of them or none.
    ///
    /// # Errors
    ///
    /// `Internal`, for one when the disk is full; nothing was added.
    async fn append(&self, bytes: Vec<u8>) -> Result<(), PortError>;

    /// Up to `length` bytes from `offset` on, fewer at the end.
    ///
    /// # Errors
    ///
    /// `Internal` when they cannot be read.
    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, PortError>;
}

/// Runs work that outlives the call that started it.
#[cfg_attr(feature = "testing", mockall::automock)]
pub trait Background: Send + Sync {
    /// Starts `task`; the process does not end before it has.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}
