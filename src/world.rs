//! The small ports: time, ids, background work.

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

/// An audit log whose failures do not stop work: the operator chose so. They are in the log.
pub(crate) struct Unaudited<A>(pub(crate) A);

#[async_trait]
impl<A: AuditLog> AuditLog for Unaudited<A> {
    async fn record(&self, event: AuditEvent) -> Result<(), PortError> {
        let kind = event.kind.as_str();
        if let Err(error) = self.0.record(event).await {
            tracing::error!("not audited: {kind}: {}", error.chain());
        }
        Ok(())
    }
}
