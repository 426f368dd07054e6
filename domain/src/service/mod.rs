//! The use case of running one program in a fresh sandbox.
//!
//! One run is one background task, so that its sandbox is removed also when nobody waits for the
//! answer any more. This module only starts that task and answers what is asked about it: `run` is
//! its course, `sandbox` what must be cleaned up after it, `watch` what happens while the program
//! runs, `conclude` what is told of it, `registry` what is known of all runs, `slots` who may run
//! when, `trail` the audit log.

mod conclude;
mod refusal;
mod registry;
mod run;
mod sandbox;
mod slots;
mod trail;
mod watch;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mcp_forge_ports::driven::{
    AuditLog, Background, BlobStore, Clock, ContainerRuntime, Guest, IdKind, IdSource, ImageStore,
};
use mcp_forge_ports::driving::{CodeExecution, NoObserver, RunObserver, Runs};
use mcp_forge_ports::vocabulary::{
    ExecutionEnvironment, ExecutionOutcome, ExecutionRequest, Namespaces, Refusal, RefusalKind,
    RunBytes, RunPart, RunStatus, RuntimeInfo, SandboxVerdict,
};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::byte_size::quoted;
use crate::output::sha256_hex;
use crate::policy::{ExecutionPolicy, PolicyFaults};
use crate::request::{check_correlation_id, check_idempotency_key};
use crate::violation::Violation;

pub use refusal::refusal_kind;
pub use registry::Retention;

use registry::{Entry, Known, Registry, Waiter};
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
    /// Keeps the logs and files of runs.
    pub blobs: Arc<dyn BlobStore>,
    /// Keeps the images of the runtime, where there is a place for them.
    pub images: Option<Arc<dyn ImageStore>>,
    /// Carries the runs.
    pub background: Arc<dyn Background>,
}

impl fmt::Debug for RunPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunPorts").finish_non_exhaustive()
    }
}

/// Runs programs under one policy.
#[derive(Clone)]
pub struct RunService {
    core: Arc<Core>,
}

struct Core {
    ports: RunPorts,
    policy: ExecutionPolicy,
    slots: Slots,
    registry: Registry,
    info: OnceCell<RuntimeInfo>,
    /// That of the newest run.
    verdict: Mutex<Option<SandboxVerdict>>,
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
            registry: Registry::default(),
            ports,
            policy,
            info: OnceCell::new(),
            verdict: Mutex::new(None),
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

impl Core {
    fn verdict(&self) -> MutexGuard<'_, Option<SandboxVerdict>> {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What no sandbox may share. The runtime was asked before any sandbox is there.
    fn host_namespaces(&self) -> &Namespaces {
        static NONE: Namespaces = Namespaces::new();
        self.info.get().map_or(&NONE, |info| &info.host_namespaces)
    }
}

impl fmt::Debug for RunService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunService").finish_non_exhaustive()
    }
}

impl RunService {
    /// Cancels every run that goes on, those in the background too.
    pub fn cancel_all(&self) {
        for entry in self.core.registry.all() {
            entry.cancel.cancel();
        }
    }

    /// Forgets what has been kept for longer than the policy says.
    pub fn forget_old(&self) {
        let core = &self.core;
        core.registry
            .forget(core.ports.clock.monotonic(), core.policy.retention);
    }

    /// Starts a run, or finds the one that it is a repetition of.
    #[expect(clippy::result_large_err, reason = "as in the port")]
    fn start(
        &self,
        request: ExecutionRequest,
        observer: Arc<dyn RunObserver>,
    ) -> Result<(Arc<Entry>, Waiter), Refusal> {
        let core = &self.core;
        let RunPorts {
            ids,
            background,
            clock,
            ..
        } = &core.ports;
        let run_id = ids.mint(IdKind::Run);
        // An unsound id is refused in the course of the run, under an id of ours.
        let correlation_id = request
            .correlation_id
            .clone()
            .filter(|id| check_correlation_id(id).is_ok())
            .unwrap_or_else(|| ids.mint(IdKind::Correlation));
        let names = (run_id.clone(), correlation_id.clone());
        let entry = Entry::new(names, request.language, clock.now(), clock.monotonic());
        let entry = Arc::new(entry);
        let waiter = Waiter::new(&entry);
        let key = request.idempotency_key.clone();
        let key = key
            .filter(|key| check_idempotency_key(key).is_ok())
            .map(|key| (key, digest(&request)));
        self.forget_old();
        match core.registry.add(&entry, key) {
            Known::New => {}
            Known::Same(entry) => {
                let waiter = Waiter::new(&entry);
                return Ok((entry, waiter));
            }
            Known::Other => return Err(key_of_another().into_refusal(correlation_id)),
        }
        let client = request.client.clone();
        let trail = Trail::new(&core.ports, run_id, correlation_id, client);
        let run = Run {
            core: Arc::clone(core),
            request,
            trail: Arc::new(trail),
            observer,
            cancel: entry.cancel.clone(),
            entry: Arc::clone(&entry),
        };
        background.spawn(Box::pin(run.drive()));
        Ok((entry, waiter))
    }

    #[expect(clippy::result_large_err, reason = "as in the port")]
    fn entry(&self, run_id: &str) -> Result<Arc<Entry>, Refusal> {
        self.forget_old();
        self.core.registry.get(run_id).ok_or_else(|| {
            self.not_found(
                "run_id",
                format!("there is no run {}", quoted(run_id)),
                "`list_runs` names those that go on or are still kept",
            )
        })
    }

    fn not_found(&self, field: &'static str, message: String, hint: &str) -> Refusal {
        let violation = Violation {
            kind: RefusalKind::NotFound,
            field: Some(field),
            ..Violation::general(RefusalKind::NotFound, message, hint)
        };
        violation.into_refusal(self.core.ports.ids.mint(IdKind::Correlation))
    }

    fn status(&self, entry: &Entry) -> RunStatus {
        entry.status(self.core.ports.clock.monotonic())
    }
}

#[async_trait]
impl CodeExecution for RunService {
    async fn execute(
        &self,
        request: ExecutionRequest,
        observer: Arc<dyn RunObserver>,
        cancel: CancellationToken,
    ) -> Result<Arc<ExecutionOutcome>, Refusal> {
        let client = request.client.clone();
        let (entry, waiter) = match self.start(request, observer) {
            Ok(started) => started,
            Err(refusal) => return Err(self.refuse(refusal, client).await),
        };
        tokio::select! {
            biased;
            answer = entry.answer() => return answer,
            () = cancel.cancelled() => {}
        }
        // The run stops, unless somebody else waits for it too.
        drop(waiter);
        entry.answer().await
    }

    async fn launch(&self, request: ExecutionRequest) -> Result<RunStatus, Refusal> {
        let client = request.client.clone();
        let (entry, waiter) = match self.start(request, Arc::new(NoObserver)) {
            Ok(started) => started,
            Err(refusal) => return Err(self.refuse(refusal, client).await),
        };
        waiter.stays();
        if let Err(refusal) = entry.decided().await {
            self.core.registry.remove(&entry);
            return Err(refusal);
        }
        Ok(self.status(&entry))
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

    async fn environment(&self) -> Result<ExecutionEnvironment, Refusal> {
        let core = &self.core;
        let policy = &core.policy;
        let ask = core.info.get_or_try_init(|| core.ports.runtime.info());
        match ask.await {
            Ok(runtime) => Ok(ExecutionEnvironment {
                runtime: runtime.clone(),
                image: policy.image.clone(),
                languages: policy.languages.clone(),
                limits: policy.limits.defaults(),
                verdict: *core.verdict(),
            }),
            Err(error) => {
                let id = core.ports.ids.mint(IdKind::Correlation);
                Err(refusal::failed(&error).into_refusal(id))
            }
        }
    }
}

#[async_trait]
impl Runs for RunService {
    async fn get(&self, run_id: &str, wait: Duration) -> Result<RunStatus, Refusal> {
        let entry = self.entry(run_id)?;
        let clock = &*self.core.ports.clock;
        let deadline = clock.monotonic().saturating_add(wait);
        let _ = bounded(clock, deadline, entry.answer()).await;
        Ok(self.status(&entry))
    }

    async fn list(&self) -> Vec<RunStatus> {
        self.forget_old();
        let entries = self.core.registry.all();
        entries.iter().map(|entry| self.status(entry)).collect()
    }

    async fn cancel(&self, run_id: &str) -> Result<RunStatus, Refusal> {
        let entry = self.entry(run_id)?;
        entry.cancel.cancel();
        let _ = entry.answer().await;
        Ok(self.status(&entry))
    }

    async fn read(
        &self,
        run_id: &str,
        part: RunPart,
        range: Range<u64>,
    ) -> Result<RunBytes, Refusal> {
        let entry = self.entry(run_id)?;
        match entry.read(&part, range).await {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(error)) => {
                Err(refusal::failed(&error).into_refusal(entry.correlation_id.clone()))
            }
            None => Err(self.not_found(
                "uri",
                match part {
                    RunPart::Log => format!("nothing was written by the run {run_id}"),
                    RunPart::File(path) => {
                        format!("no file {} is kept of the run {run_id}", quoted(&path))
                    }
                    RunPart::Picture(number) => {
                        format!("there is no picture {number} of the run {run_id}")
                    }
                },
                "the result of the run names what there is",
            )),
        }
    }
}

fn key_of_another() -> Violation {
    Violation {
        kind: RefusalKind::InvalidArgument,
        field: Some("idempotency_key"),
        ..Violation::general(
            RefusalKind::InvalidArgument,
            "the idempotency key was used for another request",
            "send a fresh key with each new request, and the same one only to repeat it",
        )
    }
}

/// SHA-256 of everything that makes a run what it is.
fn digest(request: &ExecutionRequest) -> String {
    let arguments = format!(
        "{:?} {:?} {:?} {:?}",
        request.timeout, request.memory, request.cpu_quota, request.stdin
    );
    let files = request.files.iter();
    let files = files.flat_map(|file| [file.path.as_bytes(), &file.data]);
    let parts = [
        request.language.as_str().as_bytes(),
        request.code.as_bytes(),
        arguments.as_bytes(),
    ];
    let hashes: String = parts.into_iter().chain(files).map(sha256_hex).collect();
    sha256_hex(hashes.as_bytes())
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
