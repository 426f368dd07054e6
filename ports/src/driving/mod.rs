//! What a client may ask.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::vocabulary::{
    ExecutionEnvironment, ExecutionOutcome, ExecutionRequest, Refusal, RunBytes, RunEvent, RunPart,
    RunStatus,
};

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
    /// was made for it is removed. A request with the idempotency key of an earlier one waits for
    /// that one's answer; the run is cancelled when nobody waits for it any more.
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
    ) -> Result<Arc<ExecutionOutcome>, Refusal>;

    /// Starts one program and returns at once; [`Runs`] has the rest.
    ///
    /// # Errors
    ///
    /// `Busy` when no place is free. Other refusals are told by the status.
    async fn launch(&self, request: ExecutionRequest) -> Result<RunStatus, Refusal>;

    /// Takes note of a call that the adapter refused itself, because no [`ExecutionRequest`] could
    /// be made of it.
    ///
    /// `client` is who asked. Gives what the caller is to be told: the refusal, under its
    /// correlation id if that is sound and a fresh one otherwise.
    async fn refuse(&self, refusal: Refusal, client: Option<String>) -> Refusal;

    /// Where programs run, and how strong the sandboxes prove to be.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the runtime does not answer.
    async fn environment(&self) -> Result<ExecutionEnvironment, Refusal>;
}

/// The runs that go on, and those that ended lately.
#[cfg_attr(
    feature = "testing",
    allow(clippy::result_large_err, reason = "closures that mockall generates"),
    mockall::automock
)]
#[async_trait]
pub trait Runs: Send + Sync {
    /// A run, when it has ended or after `wait`, whichever comes first.
    ///
    /// # Errors
    ///
    /// `NotFound` for a run that does not exist or is not kept any more.
    async fn get(&self, run_id: &str, wait: Duration) -> Result<RunStatus, Refusal>;

    /// All of them, the newest first.
    async fn list(&self) -> Vec<RunStatus>;

    /// Cancels a run and returns when it has ended. One that has ended stays as it is.
    ///
    /// # Errors
    ///
    /// `NotFound` as for [`Runs::get`].
    async fn cancel(&self, run_id: &str) -> Result<RunStatus, Refusal>;

    /// Reads the bytes `range` of a part of a run, cut to what is there.
    ///
    /// # Errors
    ///
    /// `NotFound` for a run or part that does not exist or is not kept.
    async fn read(
        &self,
        run_id: &str,
        part: RunPart,
        range: Range<u64>,
    ) -> Result<RunBytes, Refusal>;
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
