//! What one run holds and must give back: its sandbox and its slot. Making, starting and removing
//! are audited here; when they happen is decided in `run`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use mcp_forge_ports::driven::{ByteStream, Clock, ContainerRuntime};
use mcp_forge_ports::vocabulary::{EffectiveLimits, SandboxId, SandboxSpec};
use mcp_forge_ports::{PortError, PortErrorKind};

use super::refusal::{failed, unaudited};
use super::slots::Slot;
use super::trail::Trail;
use super::{RunPorts, bounded};
use crate::violation::Violation;

/// The sandbox of one run. Clones are the same sandbox.
#[derive(Clone)]
pub(super) struct Sandbox {
    pub(super) id: SandboxId,
    runtime: Arc<dyn ContainerRuntime>,
    clock: Arc<dyn Clock>,
    trail: Arc<Trail>,
    marks: Arc<Marks>,
}

/// How far it came. Shared, because making it may end after the run has turned away.
#[derive(Default)]
struct Marks {
    made: AtomicBool,
    started: AtomicBool,
}

/// Why a sandbox did not start.
pub(super) enum StartFault {
    /// It is not there any more.
    Gone,
    /// The run has to be refused.
    Refused(Violation),
}

impl Sandbox {
    pub(super) fn new(ports: &RunPorts, trail: &Arc<Trail>) -> Self {
        Self {
            id: SandboxId(trail.run_id().to_owned()),
            runtime: Arc::clone(&ports.runtime),
            clock: Arc::clone(&ports.clock),
            trail: Arc::clone(trail),
            marks: Arc::default(),
        }
    }

    /// Makes it. The entry in the audit log is written also if nobody waits for the end.
    pub(super) fn create(
        &self,
        spec: SandboxSpec,
    ) -> BoxFuture<'static, Result<EffectiveLimits, Violation>> {
        let this = self.clone();
        async move {
            // From now on something may be there, also if this future is dropped.
            this.marks.made.store(true, Ordering::Relaxed);
            let made = this.runtime.create(&spec).await;
            if let Err(error) = &made {
                // Then it is not ours to remove.
                let ours = error.kind != PortErrorKind::AlreadyExists;
                this.marks.made.store(ours, Ordering::Relaxed);
                warn("create", &this.id, error);
            }
            let entry = this.trail.created(&this.id, &made);
            let recorded = this.trail.record(entry).await;
            let effective = made.map_err(|error| failed(&error))?;
            recorded.map_err(|error| unaudited(&error))?;
            Ok(effective)
        }
        .boxed()
    }

    /// Starts it.
    pub(super) fn start(&self) -> BoxFuture<'static, Result<Box<dyn ByteStream>, StartFault>> {
        let this = self.clone();
        async move {
            let started = this.runtime.start(&this.id).await;
            this.marks.started.store(started.is_ok(), Ordering::Relaxed);
            let entry = this.trail.started(&this.id, started.as_ref().err());
            let recorded = this.trail.record(entry).await;
            let stream = started.map_err(|error| {
                warn("start", &this.id, &error);
                match error.kind {
                    PortErrorKind::NotFound => StartFault::Gone,
                    _ => StartFault::Refused(failed(&error)),
                }
            })?;
            recorded.map_err(|error| StartFault::Refused(unaudited(&error)))?;
            Ok(stream)
        }
        .boxed()
    }

    /// Kills everything in it, from outside, unless that takes too long.
    pub(super) async fn kill(&self, deadline: Duration) {
        match bounded(&*self.clock, deadline, self.runtime.kill(&self.id)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => warn("kill", &self.id, &error),
            None => tracing::warn!(sandbox = %self.id, "kill takes too long"),
        }
    }

    /// Removes it if it was ever made.
    async fn remove(&self, deadline: Duration) {
        if !self.marks.made.load(Ordering::Relaxed) {
            return;
        }
        let removed = bounded(&*self.clock, deadline, self.runtime.remove(&self.id))
            .await
            .unwrap_or_else(|| {
                Err(PortError::new(
                    PortErrorKind::TimedOut,
                    format!("remove sandbox {}: takes too long", self.id),
                ))
            });
        if let Err(error) = &removed {
            warn("remove", &self.id, error);
        } else if self.marks.started.load(Ordering::Relaxed) {
            self.trail.note(self.trail.stopped(&self.id)).await;
        }
        let entry = self.trail.removed(&self.id, removed.as_ref().err());
        self.trail.note(entry).await;
    }
}

fn warn(operation: &str, id: &SandboxId, error: &PortError) {
    tracing::warn!(operation, sandbox = %id, error = error.chain(), "sandbox operation failed");
}

/// Everything that a run holds.
pub(super) struct Lease {
    pub(super) sandbox: Sandbox,
    pub(super) slot: Option<Slot>,
    /// Keeps the image of the sandbox.
    pub(super) image: Option<Arc<dyn Send + Sync>>,
    /// An operation on the sandbox that had begun when the run turned away.
    pub(super) unfinished: Option<BoxFuture<'static, ()>>,
}

impl Lease {
    pub(super) fn new(sandbox: Sandbox) -> Self {
        Self {
            sandbox,
            slot: None,
            image: None,
            unfinished: None,
        }
    }

    /// Removes the sandbox, then gives the slot back, after `patience` for each step at the
    /// latest.
    pub(super) async fn give_back(self, patience: Duration) {
        let Self {
            sandbox,
            slot,
            image,
            unfinished,
        } = self;
        let clock = Arc::clone(&sandbox.clock);
        if let Some(operation) = unfinished {
            // Removing while it is being made could leave half of it behind.
            let deadline = clock.monotonic() + patience;
            if bounded(&*clock, deadline, operation).await.is_none() {
                tracing::warn!(sandbox = %sandbox.id, "an operation on it does not end");
            }
        }
        sandbox.remove(clock.monotonic() + patience).await;
        drop(image);
        drop(slot);
    }
}
