//! The use case of running one program in a fresh sandbox.
//!
//! One run is one background task, so that its sandbox is removed also when nobody waits for the
//! answer any more. This module only starts that task: `run` is its course, `sandbox` what must
//! be cleaned up after it, `watch` what happens while the program runs, `conclude` what is told
//! of it, `slots` who may run when, `trail` the audit log.

mod conclude;
mod refusal;
mod run;
mod sandbox;
mod slots;
mod trail;
mod watch;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mcp_forge_ports::driven::{
    AuditLog, Background, Clock, ContainerRuntime, Guest, IdKind, IdSource,
};
use mcp_forge_ports::driving::{CodeExecution, RunObserver};
use mcp_forge_ports::vocabulary::{
    ExecutionOutcome, ExecutionRequest, Refusal, RefusalKind, RuntimeInfo,
};
use tokio::sync::{OnceCell, oneshot};
use tokio_util::sync::CancellationToken;

use crate::policy::{ExecutionPolicy, PolicyFaults};
use crate::request::check_correlation_id;
use crate::violation::Violation;

pub use refusal::refusal_kind;

use run::Run;
use slots::Slots;
use trail::Trail;

/// What a run needs from the world.
#[derive(Clone)]
pub struct RunPorts {
    /// Makes and removes sandboxes.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Speaks to the agent inside.
    pub guest: Arc<dyn Guest>,
    /// Takes the audit entries.
    pub audit: Arc<dyn AuditLog>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ids of runs and correlation ids.
    pub ids: Arc<dyn IdSource>,
    /// Carries the runs.
    pub background: Arc<dyn Background>,
}

impl fmt::Debug for RunPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunPorts").finish_non_exhaustive()
    }
}

/// Runs programs under one policy.
#[derive(Debug, Clone)]
pub struct RunService {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    ports: RunPorts,
    policy: ExecutionPolicy,
    slots: Slots,
    info: OnceCell<RuntimeInfo>,
}

impl RunService {
    /// A service with all its slots free. It calls no port yet.
    ///
    /// # Errors
    ///
    /// Every fault of the policy.
    pub fn new(ports: RunPorts, policy: ExecutionPolicy) -> Result<Self, PolicyFaults> {
        policy.check()?;
        let core = Core {
            slots: Slots::new(policy.concurrency, policy.queue),
            ports,
            policy,
            info: OnceCell::new(),
        };
        Ok(Self {
            core: Arc::new(core),
        })
    }

    /// The policy that it runs under.
    pub fn policy(&self) -> &ExecutionPolicy {
        &self.core.policy
    }
}

#[async_trait]
impl CodeExecution for RunService {
    async fn execute(
        &self,
        request: ExecutionRequest,
        observer: Arc<dyn RunObserver>,
        cancel: CancellationToken,
    ) -> Result<ExecutionOutcome, Refusal> {
        let RunPorts {
            ids, background, ..
        } = &self.core.ports;
        let run_id = ids.mint(IdKind::Run);
        // An unsound id is refused in the course of the run, under an id of ours.
        let correlation_id = request
            .correlation_id
            .clone()
            .filter(|id| check_correlation_id(id).is_ok())
            .unwrap_or_else(|| ids.mint(IdKind::Correlation));

        let cancel = cancel.child_token();
        let _cancelled_when_dropped = cancel.clone().drop_guard();
        let (sender, answer) = oneshot::channel();
        let trail = Trail::new(
            &self.core.ports,
            run_id,
            correlation_id.clone(),
            request.client.clone(),
        );
        let run = Run {
            core: Arc::clone(&self.core),
            request,
            trail: Arc::new(trail),
            observer,
            cancel,
        };
        background.spawn(Box::pin(run.drive(sender)));
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(Violation::general(
                RefusalKind::Internal,
                "the run ended without an answer",
                "mcp-forge may be shutting down; try again",
            )
            .into_refusal(correlation_id)),
        }
    }

    async fn refuse(&self, mut refusal: Refusal, client: Option<String>) -> Refusal {
        let ids = &self.core.ports.ids;
        if check_correlation_id(&refusal.correlation_id).is_err() {
            refusal.correlation_id = ids.mint(IdKind::Correlation);
        }
        let (run_id, id) = (ids.mint(IdKind::Run), refusal.correlation_id.clone());
        let trail = Trail::new(&self.core.ports, run_id, id, client);
        trail.note(trail.refused_early(&refusal)).await;
        refusal
    }
}

/// What `work` gives, or none when `deadline` comes first.
async fn bounded<T>(
    clock: &dyn Clock,
    deadline: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        result = work => Some(result),
        () = clock.sleep_until(deadline) => None,
    }
}

#[cfg(test)]
mod tests;
