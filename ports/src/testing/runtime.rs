//! A container runtime that keeps sandboxes in a map. It runs nothing; its streams are silent and
//! end when the sandbox is killed.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::support::{Journal, lock};
use crate::driven::{ByteStream, ContainerRuntime};
use crate::vocabulary::{
    EffectiveLimits, ResourceLimits, RuntimeInfo, SandboxExit, SandboxId, SandboxSpec, SandboxUsage,
};
use crate::{PortError, PortErrorKind};

/// An operation of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuntimeCall {
    /// `info`
    Info,
    /// `create`
    Create,
    /// `start`
    Start,
    /// `wait`
    Wait,
    /// `usage`
    Usage,
    /// `kill`
    Kill,
    /// `remove`
    Remove,
}

impl RuntimeCall {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Create => "create",
            Self::Start => "start",
            Self::Wait => "wait",
            Self::Usage => "usage",
            Self::Kill => "kill",
            Self::Remove => "remove",
        }
    }
}

/// The effective limits of a host that enforces everything.
pub fn enforced_as_asked(limits: &ResourceLimits) -> EffectiveLimits {
    EffectiveLimits {
        memory_bytes: Some(limits.memory_bytes),
        cpu_quota: Some(limits.cpu_quota),
        pids: Some(limits.pids),
        weak: Vec::new(),
    }
}

#[derive(Debug)]
struct Sandbox {
    spec: SandboxSpec,
    started: bool,
    dead: CancellationToken,
}

/// A runtime in memory. Writes `<call> <id>` to the journal when a call begins and
/// `<call> <id> done` when it succeeded.
#[derive(Debug, Default)]
pub struct FakeRuntime {
    journal: Journal,
    sandboxes: Mutex<BTreeMap<String, Sandbox>>,
    specs: Mutex<Vec<SandboxSpec>>,
    failing: Mutex<HashMap<RuntimeCall, PortErrorKind>>,
    held: Mutex<HashMap<RuntimeCall, CancellationToken>>,
    effective: Mutex<Option<EffectiveLimits>>,
    usage: Mutex<SandboxUsage>,
    exit: Mutex<Option<SandboxExit>>,
}

impl FakeRuntime {
    /// A runtime that enforces everything and fails nowhere.
    pub fn new(journal: &Journal) -> Self {
        Self {
            journal: journal.clone(),
            ..Self::default()
        }
    }

    /// From now on, this call fails.
    pub fn fail(&self, call: RuntimeCall, kind: PortErrorKind) {
        lock(&self.failing).insert(call, kind);
    }

    /// From now on, this call waits for [`FakeRuntime::release`] before it does anything.
    pub fn hold(&self, call: RuntimeCall) {
        lock(&self.held).entry(call).or_default();
    }

    /// Lets the held calls go on.
    pub fn release(&self, call: RuntimeCall) {
        if let Some(gate) = lock(&self.held).remove(&call) {
            gate.cancel();
        }
    }

    /// What sandboxes made from now on have as their effective limits.
    pub fn set_effective(&self, effective: EffectiveLimits) {
        *lock(&self.effective) = Some(effective);
    }

    /// What `usage` tells.
    pub fn set_usage(&self, usage: SandboxUsage) {
        *lock(&self.usage) = usage;
    }

    /// What `wait` tells of a sandbox that is dead; killed by SIGKILL if nothing was set.
    pub fn set_exit(&self, exit: SandboxExit) {
        *lock(&self.exit) = Some(exit);
    }

    /// The first process of every sandbox ends, and so do the streams.
    pub fn end_all(&self) {
        for sandbox in lock(&self.sandboxes).values() {
            sandbox.dead.cancel();
        }
    }

    /// Somebody else kills and removes every sandbox.
    pub fn vanish_all(&self) {
        for (_, sandbox) in std::mem::take(&mut *lock(&self.sandboxes)) {
            sandbox.dead.cancel();
        }
    }

    /// Ids of the sandboxes that exist.
    pub fn existing(&self) -> Vec<String> {
        lock(&self.sandboxes).keys().cloned().collect()
    }

    /// Every specification that `create` was given, also where it failed.
    pub fn specs(&self) -> Vec<SandboxSpec> {
        lock(&self.specs).clone()
    }

    async fn enter(&self, call: RuntimeCall, id: &str) -> Result<(), PortError> {
        self.journal.push(format!("{} {id}", call.as_str()));
        let gate = lock(&self.held).get(&call).cloned();
        if let Some(gate) = gate {
            gate.cancelled().await;
        }
        match lock(&self.failing).get(&call) {
            Some(kind) => Err(PortError::new(
                *kind,
                format!("{} sandbox {id}: told to fail", call.as_str()),
            )),
            None => Ok(()),
        }
    }

    fn done(&self, call: RuntimeCall, id: &SandboxId) {
        self.journal.push(format!("{} {id} done", call.as_str()));
    }

    fn death_of(&self, id: &SandboxId) -> Result<CancellationToken, PortError> {
        lock(&self.sandboxes)
            .get(&id.0)
            .map(|sandbox| sandbox.dead.clone())
            .ok_or_else(|| PortError::new(PortErrorKind::NotFound, format!("no sandbox {id}")))
    }
}

#[async_trait]
impl ContainerRuntime for FakeRuntime {
    async fn info(&self) -> Result<RuntimeInfo, PortError> {
        self.enter(RuntimeCall::Info, "-").await?;
        Ok(RuntimeInfo {
            kind: "fake".to_owned(),
            version: "1".to_owned(),
            weak: Vec::new(),
            host_namespaces: super::guest::host_namespaces(),
        })
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<EffectiveLimits, PortError> {
        lock(&self.specs).push(spec.clone());
        self.enter(RuntimeCall::Create, &spec.id.0).await?;
        if !spec.id.is_name() {
            return Err(PortError::new(
                PortErrorKind::Unsupported,
                format!("{:?} is no name of a sandbox", spec.id.0),
            ));
        }
        {
            let mut sandboxes = lock(&self.sandboxes);
            if sandboxes.contains_key(&spec.id.0) {
                return Err(PortError::new(
                    PortErrorKind::AlreadyExists,
                    format!("sandbox {} exists", spec.id),
                ));
            }
            sandboxes.insert(
                spec.id.0.clone(),
                Sandbox {
                    spec: spec.clone(),
                    started: false,
                    dead: CancellationToken::new(),
                },
            );
        }
        self.done(RuntimeCall::Create, &spec.id);
        let effective = lock(&self.effective).clone();
        Ok(effective.unwrap_or_else(|| enforced_as_asked(&spec.limits)))
    }

    async fn start(&self, id: &SandboxId) -> Result<Box<dyn ByteStream>, PortError> {
        self.enter(RuntimeCall::Start, &id.0).await?;
        let dead = self.death_of(id)?;
        if dead.is_cancelled() {
            return Err(PortError::new(
                PortErrorKind::Unreachable,
                format!("sandbox {id} was killed"),
            ));
        }
        if let Some(sandbox) = lock(&self.sandboxes).get_mut(&id.0)
            && std::mem::replace(&mut sandbox.started, true)
        {
            return Err(PortError::new(
                PortErrorKind::AlreadyExists,
                format!("sandbox {id} was started before"),
            ));
        }
        self.done(RuntimeCall::Start, id);
        Ok(Box::new(SilentStream(Box::pin(dead.cancelled_owned()))))
    }

    async fn wait(&self, id: &SandboxId) -> Result<SandboxExit, PortError> {
        self.enter(RuntimeCall::Wait, &id.0).await?;
        self.death_of(id)?.cancelled().await;
        // One that was removed meanwhile.
        self.death_of(id)?;
        self.done(RuntimeCall::Wait, id);
        let exit = *lock(&self.exit);
        Ok(exit.unwrap_or(SandboxExit::Signaled(9)))
    }

    async fn usage(&self, id: &SandboxId) -> Result<SandboxUsage, PortError> {
        self.enter(RuntimeCall::Usage, &id.0).await?;
        self.death_of(id)?;
        self.done(RuntimeCall::Usage, id);
        Ok(*lock(&self.usage))
    }

    async fn kill(&self, id: &SandboxId) -> Result<(), PortError> {
        self.enter(RuntimeCall::Kill, &id.0).await?;
        if let Ok(dead) = self.death_of(id) {
            dead.cancel();
        }
        self.done(RuntimeCall::Kill, id);
        Ok(())
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), PortError> {
        self.enter(RuntimeCall::Remove, &id.0).await?;
        let gone = lock(&self.sandboxes).remove(&id.0);
        if let Some(Sandbox { spec, dead, .. }) = gone {
            debug_assert_eq!(&spec.id, id, "filed under its own id");
            dead.cancel();
        }
        self.done(RuntimeCall::Remove, id);
        Ok(())
    }
}

/// Takes every write, gives nothing, and ends with its sandbox.
struct SilentStream(Pin<Box<WaitForCancellationFutureOwned>>);

impl AsyncRead for SilentStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        _buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

impl AsyncWrite for SilentStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
