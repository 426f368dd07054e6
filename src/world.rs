//! The small ports: time, ids, background work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use futures::future::BoxFuture;
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::{AuditLog, Background, Clock, IdKind, IdSource};
use mcp_forge_ports::vocabulary::AuditEvent;
use tokio_util::task::TaskTracker;

/// The system's clocks.
#[derive(Debug)]
pub(crate) struct SystemClock {
    start: Instant,
}

impl SystemClock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    async fn sleep_until(&self, deadline: Duration) {
        // Too far away to be represented is never.
        match self.start.checked_add(deadline) {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }
}

/// Random (version 4) UUIDs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RandomIds;

impl IdSource for RandomIds {
    fn mint(&self, kind: IdKind) -> String {
        let id = uuid::Uuid::new_v4().simple();
        match kind {
            IdKind::Run => format!("run-{id}"),
            _ => id.to_string(),
        }
    }
}

/// Tasks that the program waits for before it ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks(TaskTracker);

impl Tasks {
    /// Waits until every task is done.
    pub(crate) async fn finish(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

impl Background for Tasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }
}

/// An audit log whose failures do not stop work: the operator chose so. They are in the log, and the
/// next entry that is written tells how many are missing before it.
pub(crate) struct Unaudited<A> {
    log: A,
    lost: AtomicU64,
}

/// The detail that tells of lost entries.
const LOST: &str = "not_audited_before";

impl<A> Unaudited<A> {
    pub(crate) fn new(log: A) -> Self {
        let lost = AtomicU64::new(0);
        Self { log, lost }
    }
}

#[async_trait]
impl<A: AuditLog> AuditLog for Unaudited<A> {
    async fn record(&self, mut event: AuditEvent) -> Result<(), PortError> {
        let kind = event.kind.as_str();
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            event.details.insert(LOST.to_owned(), lost.into());
        }
        if let Err(error) = self.log.record(event).await {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
            tracing::error!("not audited: {kind}: {}", error.chain());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use mcp_forge_ports::PortErrorKind;
    use mcp_forge_ports::vocabulary::{AuditKind, Severity};

    use super::*;

    /// Fails as often as it is told, and keeps what it took.
    struct Full(Mutex<u32>, Mutex<Vec<AuditEvent>>);

    #[async_trait]
    impl AuditLog for Full {
        async fn record(&self, event: AuditEvent) -> Result<(), PortError> {
            let mut left = self.0.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                return Err(PortError::new(PortErrorKind::LimitExceeded, "full"));
            }
            self.1.lock().unwrap().push(event);
            Ok(())
        }
    }

    #[tokio::test]
    async fn the_next_entry_tells_how_many_are_missing() {
        let event = || AuditEvent {
            time: SystemTime::UNIX_EPOCH,
            kind: AuditKind::ExecutionResult,
            severity: Severity::Info,
            run_id: None,
            session: None,
            client: None,
            correlation_id: "a".to_owned(),
            success: None,
            details: serde_json::Map::new(),
            error: None,
        };
        let log = Unaudited::new(Full(Mutex::new(0), Mutex::default()));
        log.record(event()).await.unwrap();
        *log.log.0.lock().unwrap() = 3;
        for _ in 0..5 {
            log.record(event()).await.unwrap();
        }
        let kept = log.log.1.lock().unwrap();
        let told: Vec<_> = kept.iter().map(|event| event.details.get(LOST)).collect();
        assert_eq!(told, [None, Some(&3.into()), None]);
    }
}
