//! The small fakes: journal, audit log, ids, background work, observer. No policy of their own.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::driven::{AuditLog, Background, Blob, BlobStore, IdKind, IdSource};
use crate::driving::RunObserver;
use crate::vocabulary::{AuditEvent, AuditKind, RunEvent};
use crate::{PortError, PortErrorKind};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What happened, in order, over all fakes that share it.
#[derive(Debug, Clone)]
pub struct Journal(Arc<watch::Sender<Vec<String>>>);

impl Default for Journal {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }
}

impl Journal {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line.
    pub fn push(&self, line: impl Into<String>) {
        self.0.send_modify(|lines| lines.push(line.into()));
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Whether this line was written.
    pub fn has(&self, line: &str) -> bool {
        self.0.borrow().iter().any(|known| known == line)
    }

    /// Returns when this line has been written.
    pub async fn until(&self, line: &str) {
        // The sender lives as long as the journal, so this ends only when the line is there.
        let _ = self
            .0
            .subscribe()
            .wait_for(|lines| lines.iter().any(|known| known == line))
            .await
            .map(|_| ());
    }
}

/// An audit log in memory. Writes `audit <kind>` to the journal.
#[derive(Debug, Default)]
pub struct FakeAudit {
    journal: Journal,
    events: Mutex<Vec<AuditEvent>>,
    broken: Mutex<HashSet<AuditKind>>,
}

impl FakeAudit {
    /// An empty log.
    pub fn new(journal: &Journal) -> Self {
        Self {
            journal: journal.clone(),
            ..Self::default()
        }
    }

    /// From now on, no entry of this kind can be written.
    pub fn fail_on(&self, kind: AuditKind) {
        lock(&self.broken).insert(kind);
    }

    /// All entries.
    pub fn events(&self) -> Vec<AuditEvent> {
        lock(&self.events).clone()
    }

    /// All entries of one kind.
    pub fn of(&self, kind: AuditKind) -> Vec<AuditEvent> {
        let mut events = self.events();
        events.retain(|event| event.kind == kind);
        events
    }

    /// Names of all entries, in order.
    pub fn names(&self) -> Vec<&'static str> {
        lock(&self.events)
            .iter()
            .map(|event| event.kind.as_str())
            .collect()
    }
}

#[async_trait]
impl AuditLog for FakeAudit {
    async fn record(&self, event: AuditEvent) -> Result<(), PortError> {
        if lock(&self.broken).contains(&event.kind) {
            return Err(PortError::new(
                PortErrorKind::Internal,
                "append to the audit log: no space left",
            ));
        }
        self.journal.push(format!("audit {}", event.kind.as_str()));
        lock(&self.events).push(event);
        Ok(())
    }
}

/// Ids that count: `run-1`, `run-2`, `correlation-1`.
#[derive(Debug, Default)]
pub struct FakeIds {
    runs: Mutex<u64>,
    correlations: Mutex<u64>,
}

impl FakeIds {
    /// Starts at 1.
    pub fn new() -> Self {
        Self::default()
    }
}

impl IdSource for FakeIds {
    fn mint(&self, kind: IdKind) -> String {
        let (name, counter) = match kind {
            IdKind::Run => ("run", &self.runs),
            IdKind::Correlation => ("correlation", &self.correlations),
        };
        let mut counter = lock(counter);
        *counter += 1;
        format!("{name}-{}", *counter)
    }
}

/// Blobs in memory. Once broken, they take nothing any more.
#[derive(Debug, Clone, Default)]
pub struct FakeBlobs {
    broken: Arc<AtomicBool>,
}

impl FakeBlobs {
    /// A store with endless room.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on, nothing can be added.
    pub fn fail(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

impl BlobStore for FakeBlobs {
    fn create(&self) -> Box<dyn Blob> {
        Box::new(FakeBlob {
            broken: Arc::clone(&self.broken),
            bytes: Mutex::default(),
        })
    }
}

struct FakeBlob {
    broken: Arc<AtomicBool>,
    bytes: Mutex<Vec<u8>>,
}

#[async_trait]
impl Blob for FakeBlob {
    async fn append(&self, bytes: Vec<u8>) -> Result<(), PortError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(PortError::new(PortErrorKind::Internal, "no space left"));
        }
        lock(&self.bytes).extend(bytes);
        Ok(())
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, PortError> {
        let bytes = lock(&self.bytes);
        let start = usize::try_from(offset).map_or(bytes.len(), |at| at.min(bytes.len()));
        let end = start.saturating_add(length).min(bytes.len());
        Ok(bytes[start..end].to_vec())
    }
}

/// Background work on the test's own tokio runtime.
#[derive(Debug, Default)]
pub struct FakeBackground {
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl FakeBackground {
    /// Nothing runs yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns when everything that was started has ended.
    ///
    /// # Panics
    ///
    /// When a task panicked.
    pub async fn idle(&self) {
        loop {
            let tasks = std::mem::take(&mut *lock(&self.tasks));
            if tasks.is_empty() {
                return;
            }
            for task in tasks {
                if let Err(error) = task.await {
                    panic!("background task: {error}");
                }
            }
        }
    }
}

impl Background for FakeBackground {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        lock(&self.tasks).push(tokio::spawn(task));
    }
}

/// Remembers what it was told. Writes `observe <event>` to the journal.
#[derive(Debug, Default)]
pub struct FakeObserver {
    journal: Journal,
    events: Mutex<Vec<RunEvent>>,
    stuck_on_output: bool,
}

impl FakeObserver {
    /// An observer that takes everything at once.
    pub fn new(journal: &Journal) -> Self {
        Self {
            journal: journal.clone(),
            ..Self::default()
        }
    }

    /// An observer that never comes back from the first output.
    pub fn stuck_on_output(journal: &Journal) -> Self {
        Self {
            stuck_on_output: true,
            ..Self::new(journal)
        }
    }

    /// Everything it was told.
    pub fn events(&self) -> Vec<RunEvent> {
        lock(&self.events).clone()
    }
}

#[async_trait]
impl RunObserver for FakeObserver {
    async fn observe(&self, event: RunEvent) {
        let (line, stuck) = match &event {
            RunEvent::Queued { .. } => ("observe queued", false),
            RunEvent::Starting => ("observe starting", false),
            RunEvent::Running => ("observe running", false),
            RunEvent::Output { .. } => ("observe output", self.stuck_on_output),
            RunEvent::Block(_) => ("observe block", false),
        };
        lock(&self.events).push(event);
        self.journal.push(line);
        if stuck {
            std::future::pending::<()>().await;
        }
    }
}
