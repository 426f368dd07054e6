//! What a client may ask.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::vocabulary::{ExecutionOutcome, ExecutionRequest, Refusal, RunEvent};

/// Runs code in fresh sandboxes.
#[cfg_attr(
    feature = "testing",
    allow(clippy::result_large_err, reason = "closures that mockall generates"),
    mockall::automock
)]
#[async_trait]
pub trait CodeExecution: Send + Sync {
    /// Runs one program to its end.
    ///
    /// Dropping the returned future cancels the run, as `cancel` does; either way everything that
    /// was made for it is removed.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the request was not allowed or mcp-forge could not do its job. A
    /// failing program is an outcome.
    async fn execute(
        &self,
        request: ExecutionRequest,
        observer: Arc<dyn RunObserver>,
        cancel: CancellationToken,
    ) -> Result<ExecutionOutcome, Refusal>;

    /// Takes note of a call that the adapter refused itself, because no [`ExecutionRequest`] could
    /// be made of it.
    ///
    /// `client` is who asked. Gives what the caller is to be told: the refusal, under its
    /// correlation id if that is sound and a fresh one otherwise.
    async fn refuse(&self, refusal: Refusal, client: Option<String>) -> Refusal;
}

/// Is told what happens while a run goes on. The run waits for it, so a slow observer slows the
/// program down instead of filling memory.
#[cfg_attr(feature = "testing", mockall::automock)]
#[async_trait]
pub trait RunObserver: Send + Sync {
    /// Takes one event.
    async fn observe(&self, event: RunEvent);
}

/// An observer that does not care.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

#[async_trait]
impl RunObserver for NoObserver {
    async fn observe(&self, _event: RunEvent) {}
}
