//! The course of one run: check, slot, audit, sandbox, program, answer, and only then removal.
//!
//! What happens while the program runs is in `watch`, what is told of it in `conclude`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use mcp_forge_ports::driven::{Clock, GuestRun};
use mcp_forge_ports::driving::RunObserver;
use mcp_forge_ports::vocabulary::{
    EffectiveLimits, EndedBy, ExecutionRequest, GuestJob, LimitsReport, Refusal, RefusalKind,
    ResourceLimits, RunEvent, RuntimeDescription, SandboxRoot, SandboxSpec, SandboxVerdict,
};
use mcp_forge_ports::{PortError, PortErrorKind};
use tokio_util::sync::CancellationToken;

use super::Core;
use super::conclude::Finished;
use super::refusal::{failed, unaudited};
use super::registry::{Answer, Entry as Registered};
use super::sandbox::{Lease, Sandbox, StartFault};
use super::slots::{Entry, Slot};
use super::trail::Trail;
use super::watch::{Watch, Watched};
use crate::limits::weaknesses;
use crate::output::{OutputCollector, OutputLimits};
use crate::request::{admit, check_image, decide};
use crate::violation::Violation;

/// Name of a program that has none.
const SOURCE_NAME: &str = "<code>";

/// One run.
pub(super) struct Run {
    pub(super) core: Arc<Core>,
    pub(super) request: ExecutionRequest,
    pub(super) trail: Arc<Trail>,
    pub(super) observer: Arc<dyn RunObserver>,
    pub(super) entry: Arc<Registered>,
    pub(super) cancel: CancellationToken,
}

/// What is known of a run, filled in as it goes.
pub(super) struct Facts {
    pub(super) limits: LimitsReport,
    pub(super) runtime: RuntimeDescription,
    /// When the sandbox was started, by the monotonic clock.
    pub(super) started_at: Option<Duration>,
}

/// Why a run got no program to watch.
enum Halt {
    Refused(Violation),
    Cancelled,
    /// The sandbox vanished.
    Gone,
}

impl Run {
    /// Runs, answers, cleans up.
    pub(super) async fn drive(self) {
        let mut unanswered = Unanswered(Some(&self));
        let sandbox = Sandbox::new(&self.core.ports, &self.trail);
        let mut lease = Lease::new(sandbox);
        let told = match AssertUnwindSafe(self.answer(&mut lease))
            .catch_unwind()
            .await
        {
            Ok(told) => told,
            // A defect in an adapter must not cost the clean-up.
            Err(_) => Err(self.refuse(defect()).await),
        };
        unanswered.0 = None;
        self.end(told);
        drop(unanswered);
        lease.give_back(self.core.policy.cleanup_timeout).await;
    }

    async fn answer(&self, lease: &mut Lease) -> Answer {
        match self.course(lease).await {
            Ok(finished) => {
                self.trail.note(finished.entry(&self.trail)).await;
                Ok(Arc::new(finished.outcome))
            }
            Err(violation) => Err(self.refuse(violation).await),
        }
    }

    fn end(&self, answer: Answer) {
        let now = self.clock().monotonic();
        let retention = self.core.policy.retention;
        self.core.registry.end(&self.entry, answer, now, retention);
    }

    async fn refuse(&self, violation: Violation) -> Refusal {
        let refusal = violation.into_refusal(self.trail.correlation_id());
        self.trail.note(self.trail.refused(&refusal)).await;
        refusal
    }

    async fn course(&self, lease: &mut Lease) -> Result<Finished, Violation> {
        let policy = &self.core.policy;
        let requested = admit(policy, &self.request)?;
        decide(policy, &self.request)?;
        let mut facts = Facts {
            limits: LimitsReport {
                requested,
                effective: EffectiveLimits::default(),
            },
            runtime: RuntimeDescription {
                kind: self
                    .core
                    .info
                    .get()
                    .map_or("unknown", |info| &info.kind)
                    .to_owned(),
                image: policy.image.clone(),
                ..RuntimeDescription::default()
            },
            started_at: None,
        };
        let output = OutputCollector::new(OutputLimits {
            stdout: policy.stdout_limit,
            stderr: policy.stderr_limit,
        });
        let watched = match self.prepare(&mut facts, lease).await {
            Ok((guest, started_at, startup_deadline)) => {
                let deadline = started_at + facts.limits.requested.timeout;
                Watch::new(
                    self,
                    &facts,
                    &lease.sandbox,
                    guest,
                    output,
                    deadline,
                    startup_deadline,
                )
                .until_end()
                .await
            }
            Err(Halt::Refused(violation)) => return Err(violation),
            Err(Halt::Cancelled) => {
                Watched::without_program(self, output, Some(EndedBy::Cancelled))
            }
            Err(Halt::Gone) => Watched::without_program(self, output, None),
        };
        self.conclude(facts, watched, &lease.sandbox).await
    }

    /// Everything up to a program that runs. Gives the guest, when the sandbox was started, and
    /// until when the agent has to report.
    async fn prepare(
        &self,
        facts: &mut Facts,
        lease: &mut Lease,
    ) -> Result<(Box<dyn GuestRun>, Duration, Duration), Halt> {
        lease.slot = Some(self.slot().await?);
        self.entry.starting();
        let until = self.clock().monotonic() + self.core.policy.startup_timeout;

        let entry = self.trail.request(&self.request, &facts.limits.requested);
        let recorded = self.step(lease, until, self.trail.record(entry)).await?;
        recorded.map_err(|error| Halt::Refused(unaudited(&error)))?;

        facts.runtime.kind = self.step(lease, until, self.runtime_kind()).await??;
        self.tell(RunEvent::Starting, until, true).await;
        let root = self.root(facts, lease, until).await?;
        let spec = self.spec(root, &facts.limits.requested, &lease.sandbox);
        let making = lease.sandbox.create(spec);
        facts.limits.effective = self.step(lease, until, making).await??;
        self.attest_limits(&facts.limits, lease, until).await?;

        let starting = lease.sandbox.start();
        let stream = self.step(lease, until, starting).await??;
        let started_at = self.clock().monotonic();
        facts.started_at = Some(started_at);

        let guest = Arc::clone(&self.core.ports.guest);
        let job = self.job();
        let giving = async move { guest.run(stream, job).await }.boxed();
        match self.step(lease, until, giving).await? {
            Ok(guest) => Ok((guest, started_at, until)),
            Err(error) => {
                tracing::warn!(
                    run_id = self.trail.run_id(),
                    error = error.chain(),
                    "no job given"
                );
                Err(match error.kind {
                    // The sandbox was started and is not there to take its job.
                    PortErrorKind::Unreachable | PortErrorKind::Protocol => Halt::Gone,
                    _ => Halt::Refused(failed(&error)),
                })
            }
        }
    }

    async fn slot(&self) -> Result<Slot, Halt> {
        if self.cancel.is_cancelled() {
            return Err(Halt::Cancelled);
        }
        let mut place = match self.core.slots.enter(size(&self.request)) {
            Entry::Now(slot) => return Ok(slot),
            Entry::Wait(place) => place,
            Entry::Full { running, waiting } => {
                return Err(Halt::Refused(Violation::general(
                    RefusalKind::Busy,
                    format!("{running} runs are going on and {waiting} are waiting"),
                    "try again when some of them have ended",
                )));
            }
        };
        let mut told = 0;
        loop {
            let position = place.position();
            if position != told {
                told = position;
                self.entry.queued(position);
                tokio::select! {
                    biased;
                    () = self.cancel.cancelled() => return Err(Halt::Cancelled),
                    () = self.observer.observe(RunEvent::Queued { position }) => {}
                    slot = place.turn() => match slot {
                        Some(slot) => return Ok(slot),
                        None => continue,
                    },
                }
            }
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(Halt::Cancelled),
                slot = place.turn() => if let Some(slot) = slot {
                    return Ok(slot);
                },
            }
        }
    }

    /// Does one step of the preparation. If the run is cancelled or the time is over meanwhile,
    /// the step is left to be finished by the clean-up.
    async fn step<T: Send + 'static>(
        &self,
        lease: &mut Lease,
        until: Duration,
        mut operation: BoxFuture<'static, T>,
    ) -> Result<T, Halt> {
        if self.cancel.is_cancelled() {
            return Err(Halt::Cancelled);
        }
        let halt = tokio::select! {
            biased;
            result = &mut operation => return Ok(result),
            () = self.cancel.cancelled() => Halt::Cancelled,
            () = self.clock().sleep_until(until) => Halt::Refused(Violation::general(
                RefusalKind::Unavailable,
                format!(
                    "the sandbox was not ready within {} s",
                    self.core.policy.startup_timeout.as_secs()
                ),
                "try again; if it happens often, the host is overloaded (`mcp-forge doctor`)",
            )),
        };
        lease.unfinished = Some(operation.map(drop).boxed());
        Err(halt)
    }

    fn runtime_kind(&self) -> BoxFuture<'static, Result<String, Violation>> {
        let core = Arc::clone(&self.core);
        async move {
            let info = core.info.get_or_try_init(|| core.ports.runtime.info());
            match info.await {
                Ok(info) => Ok(info.kind.clone()),
                Err(error) => Err(failed(&error)),
            }
        }
        .boxed()
    }

    /// Lets a sandbox whose limits are not all enforced go on only if the operator accepts it.
    async fn attest_limits(
        &self,
        limits: &LimitsReport,
        lease: &mut Lease,
        until: Duration,
    ) -> Result<(), Halt> {
        let weak = weaknesses(limits);
        if weak.is_empty() {
            return Ok(());
        }
        let policy = &self.core.policy;
        let accepted = policy.accept_unenforced && !policy.require_strong;
        let entry = self.trail.weak(accepted, &weak);
        let recorded = self.step(lease, until, self.trail.record(entry)).await?;
        if !accepted {
            return Err(Halt::Refused(Violation::general(
                RefusalKind::Unsupported,
                format!(
                    "this host does not enforce every limit: {}",
                    weak.join("; ")
                ),
                if policy.require_strong {
                    "the operator requires it (`security.require_strong_sandbox`) and can delegate \
                     a cgroup to mcp-forge (`mcp-forge doctor` tells how)"
                } else {
                    "the operator can delegate a cgroup to mcp-forge (`mcp-forge doctor` tells \
                     how), or accept it with `security.accept_unenforced_limits: true` \
                     (MCP_FORGE_SECURITY__ACCEPT_UNENFORCED_LIMITS=true)"
                },
            )));
        }
        *self.core.verdict() = Some(SandboxVerdict::Weak);
        recorded.map_err(|error| Halt::Refused(unaudited(&error)))
    }

    /// The files of the sandbox; an image is kept from being removed while the lease lasts.
    async fn root(
        &self,
        facts: &mut Facts,
        lease: &mut Lease,
        until: Duration,
    ) -> Result<SandboxRoot, Halt> {
        let Some(image) = &self.request.image else {
            return Ok(SandboxRoot::Host);
        };
        let name = check_image(image).map_err(Halt::Refused)?.to_string();
        let Some(images) = self.core.ports.images.clone() else {
            return Err(Halt::Refused(Violation::general(
                RefusalKind::Unsupported,
                "there is no place for images".to_owned(),
                "the operator can name one (`images.directory`)",
            )));
        };
        let wanted = name.clone();
        let looking = async move {
            let found = images.find(&wanted).await?;
            let held = images.hold(&found.id).await?;
            Ok((found.id, held))
        };
        let found: Result<_, PortError> = self.step(lease, until, looking.boxed()).await?;
        let (id, held) = found.map_err(|error| Halt::Refused(failed(&error)))?;
        lease.image = Some(held);
        facts.runtime.image = name;
        facts.runtime.image_digest = Some(format!("sha256:{id}"));
        Ok(SandboxRoot::Image { id })
    }

    fn spec(&self, root: SandboxRoot, limits: &ResourceLimits, sandbox: &Sandbox) -> SandboxSpec {
        SandboxSpec {
            id: sandbox.id.clone(),
            root,
            limits: limits.clone(),
        }
    }

    fn job(&self) -> GuestJob {
        let source_name = self.request.source_name.as_deref();
        GuestJob {
            language: self.request.language,
            code: self.request.code.clone(),
            source_name: source_name.unwrap_or(SOURCE_NAME).to_owned(),
            stdin: self.request.stdin.clone().map(String::into_bytes),
            files: self.request.files.clone(),
            collect: Some(self.core.policy.collect).filter(|collect| collect.files > 0),
        }
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.core.ports.clock
    }

    /// Tells the observer and waits for it, but not beyond `until`, and with `mind_cancel` not
    /// beyond a cancellation.
    pub(super) async fn tell(&self, event: RunEvent, until: Duration, mind_cancel: bool) {
        tokio::select! {
            biased;
            () = self.observer.observe(event) => {}
            () = self.cancel.cancelled(), if mind_cancel => {}
            () = self.clock().sleep_until(until) => {}
        }
    }
}

/// A run that has no answer yet: it gets one in any case, even if its task is dropped.
struct Unanswered<'a>(Option<&'a Run>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.0 {
            let violation = Violation::general(
                RefusalKind::Internal,
                "the run ended without an answer",
                "mcp-forge may be shutting down; try again",
            );
            run.end(Err(violation.into_refusal(run.trail.correlation_id())));
        }
    }
}

impl From<Violation> for Halt {
    fn from(violation: Violation) -> Self {
        Self::Refused(violation)
    }
}

impl From<StartFault> for Halt {
    fn from(fault: StartFault) -> Self {
        match fault {
            StartFault::Gone => Self::Gone,
            StartFault::Refused(violation) => Self::Refused(violation),
        }
    }
}

fn defect() -> Violation {
    Violation::general(
        RefusalKind::Internal,
        "a part of mcp-forge failed during the run",
        "this is a defect; the operator finds more under this correlation id in the log",
    )
}

/// About the memory of a request, bytes.
fn size(request: &ExecutionRequest) -> u64 {
    let files = request
        .files
        .iter()
        .map(|file| file.path.len() + file.data.len());
    let stdin = request.stdin.as_ref().map_or(0, String::len);
    (request.code.len() + stdin + files.sum::<usize>()) as u64
}
