//! The life of sandboxes on an engine.
//!
//! What is asked of one sandbox is done one after the other, each in a task of its own: a caller
//! who gives up leaves nothing half made that nobody knows of.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::models::SystemInfo;
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, CreateImageOptions, KillContainerOptions,
    ListContainersOptions, RemoveContainerOptions, WaitContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures::StreamExt;
use mcp_forge_ports::driven::{ByteStream, ContainerRuntime};
use mcp_forge_ports::vocabulary::{
    EffectiveLimits, Namespaces, RuntimeInfo, SandboxExit, SandboxId, SandboxRoot, SandboxSpec,
    SandboxUsage,
};
use mcp_forge_ports::{PortError, PortErrorKind};
use mcp_forge_presentation::Placed;
use tokio::sync::{Mutex as AsyncMutex, OnceCell, OwnedMutexGuard, watch};

use crate::endpoint::Endpoint;
use crate::error::{failed, status};
use crate::owner::Owner;
use crate::presentation::{Presentation, REPOSITORY};
use crate::request::{Common, LABEL_OWNER};
use crate::stream::Attached;
use crate::{counters, seccomp};

/// Longest wait for an answer of the engine, seconds.
const ANSWER: u64 = 60;

/// Longest wait for a container whose end or removal the engine has accepted.
const END: Duration = Duration::from_secs(20);

/// First version of the API whose engines make mounts below a read-only bind read-only.
const RECURSIVE: (usize, usize) = (1, 44);

/// The names that the core has for the limits.
const MEMORY: &str = "memory";
const CPU: &str = "cpu";
const PIDS: &str = "pids";

/// Oldest version of the API that is spoken: that of Docker 20.10.
const OLDEST: (usize, usize) = (1, 41);

/// An engine that answered, and what is the same for all its containers.
struct Engine {
    docker: Docker,
    info: RuntimeInfo,
    /// The limits that it cannot enforce.
    unbounded: Vec<&'static str>,
    common: Common,
}

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Exit {
        exit: SandboxExit,
        oom: bool,
    },
    /// It was removed, by us or by somebody else, or the engine lost it.
    Gone,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// The engine was not asked yet, or refused.
    New,
    Made,
    Started,
    Killed,
    Removed,
}

struct Sandbox {
    phase: Arc<AsyncMutex<Phase>>,
    end: watch::Sender<Option<End>>,
}

/// An engine that speaks the Docker Engine API.
///
/// Nothing is asked of it before the first use, or [`DockerRuntime::warm_up`].
pub struct DockerRuntime {
    endpoint: Endpoint,
    placed: &'static [Placed],
    instance: String,
    engine: Arc<OnceCell<Arc<Engine>>>,
    sandboxes: Arc<Mutex<HashMap<String, Arc<Sandbox>>>>,
}

impl DockerRuntime {
    /// A runtime on the engine at `endpoint`; `placed` are the files that every sandbox gets below
    /// `/run/forge`.
    pub fn new(endpoint: Endpoint, placed: &'static [Placed]) -> Self {
        Self {
            endpoint,
            placed,
            instance: uuid::Uuid::new_v4().simple().to_string(),
            engine: Arc::default(),
            sandboxes: Arc::default(),
        }
    }

    /// Asks the engine what it is and gives it the image of the host presentation.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Unsupported`, with the remedy.
    pub async fn warm_up(&self) -> Result<(), PortError> {
        self.engine().await.map(drop)
    }

    /// The version of the engine, of which nothing else is asked.
    ///
    /// # Errors
    ///
    /// `Unreachable` or `Denied`, with the remedy.
    pub async fn version(&self) -> Result<String, PortError> {
        let docker = reach(&self.endpoint).await?;
        let attempt = format!("cannot reach {}", shown(&self.endpoint));
        let told = docker
            .version()
            .await
            .map_err(|error| failed(attempt, error))?;
        Ok(told.version.unwrap_or_else(|| "unknown".to_owned()))
    }

    /// Removes every sandbox that is left.
    pub async fn shut_down(&self) {
        let ids: Vec<String> = self.all().keys().cloned().collect();
        let removals = ids.into_iter().map(|id| async move {
            if let Err(error) = self.remove(&SandboxId(id)).await {
                tracing::warn!("{}", error.chain());
            }
        });
        futures::future::join_all(removals).await;
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn sandbox(&self, verb: &str, id: &SandboxId) -> Result<Arc<Sandbox>, PortError> {
        let found = self.all().get(&id.0).cloned();
        found.ok_or_else(|| not_there(verb, id))
    }

    async fn engine(&self) -> Result<Arc<Engine>, PortError> {
        let connect = || Engine::connect(&self.endpoint, self.placed, &self.instance);
        self.engine.get_or_try_init(connect).await.cloned()
    }
}

fn not_there(verb: &str, id: &SandboxId) -> PortError {
    PortError::new(
        PortErrorKind::NotFound,
        format!("cannot {verb} {id}: no such container"),
    )
}

/// Name of a sandbox's container.
fn name(id: &SandboxId) -> String {
    format!("mcp-forge-{id}")
}

/// Does it to its end, whether the caller waits or not.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, PortError>> + Send + 'static,
) -> Result<T, PortError> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        Err(
            PortError::new(PortErrorKind::Internal, "a task of the runtime ended")
                .with_source(error),
        )
    })
}

fn shown(endpoint: &Endpoint) -> String {
    let (socket, chosen_by) = (endpoint.socket.display(), &endpoint.chosen_by);
    format!("docker at {socket} ({chosen_by})")
}

/// An engine that answers.
async fn reach(endpoint: &Endpoint) -> Result<Docker, PortError> {
    let shown = shown(endpoint);
    let attempt = |error| failed(format!("cannot reach {shown}"), error);
    let socket = endpoint.socket.display().to_string();
    if !endpoint.socket.exists() {
        // The library looks for the file itself, and loses why it is not there.
        return Err(attempt(io::Error::from(io::ErrorKind::NotFound).into()));
    }
    let docker = Docker::connect_with_unix(&socket, ANSWER, API_DEFAULT_VERSION);
    docker
        .map_err(attempt)?
        .negotiate_version()
        .await
        .map_err(attempt)
}

impl Engine {
    async fn connect(
        endpoint: &Endpoint,
        placed: &[Placed],
        instance: &str,
    ) -> Result<Arc<Self>, PortError> {
        let docker = reach(endpoint).await?;
        let shown = shown(endpoint);
        let attempt = |error| failed(format!("cannot reach {shown}"), error);
        let version = docker.client_version();
        let version = (version.major_version, version.minor_version);
        let unsupported = |what: String, hint: &str| {
            Err(
                PortError::new(PortErrorKind::Unsupported, format!("{shown}: {what}"))
                    .with_hint(hint),
            )
        };
        if version < OLDEST {
            let what = format!(
                "it speaks version {}.{} of the API, {}.{} is needed",
                version.0, version.1, OLDEST.0, OLDEST.1
            );
            return unsupported(what, "update the engine: Docker 20.10 or newer");
        }
        let info = docker.info().await.map_err(attempt)?;
        if info.os_type.as_deref().is_some_and(|os| os != "linux") {
            return unsupported(
                "its containers are not of Linux".to_owned(),
                "name another engine",
            );
        }
        let security = info.security_options.clone().unwrap_or_default();
        let has = |name: &str| {
            security
                .iter()
                .any(|option| option.starts_with(&format!("name={name}")))
        };
        if !has("seccomp") {
            let what = "it has no seccomp filters".to_owned();
            return unsupported(what, "a kernel and an engine with seccomp");
        }
        let internal = |error: io::Error| {
            PortError::new(PortErrorKind::Internal, "cannot make the host presentation")
                .with_source(error)
        };
        let presentation = Presentation::of_host(placed).map_err(internal)?;
        let seccomp = seccomp::profile().map_err(|error| internal(io::Error::other(error)))?;
        let own_users = has("userns") || has("rootless");
        let mut host_namespaces = own_namespaces();
        if !own_users {
            // It is told as a weakness.
            host_namespaces.remove("user");
        }
        let unbounded = unbounded(&info);
        let engine = Self {
            info: RuntimeInfo {
                kind: "docker".to_owned(),
                version: info
                    .server_version
                    .clone()
                    .unwrap_or_else(|| "unknown".to_owned()),
                weak: weak(&unbounded, own_users),
                host_namespaces,
            },
            common: Common {
                instance: instance.to_owned(),
                owner: Owner::own().encode(),
                image: presentation.image(),
                binds: presentation.binds.clone(),
                seccomp,
                recursive_read_only: version >= RECURSIVE,
            },
            unbounded,
            docker,
        };
        engine.give_image(presentation).await?;
        engine.reap().await?;
        Ok(Arc::new(engine))
    }

    /// Removes the containers of servers that are gone.
    async fn reap(&self) -> Result<(), PortError> {
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([(
                "label".to_owned(),
                vec![LABEL_OWNER.to_owned()],
            )])),
            ..ListContainersOptions::default()
        };
        let attempt = |error| failed("cannot list containers", error);
        let left = self
            .docker
            .list_containers(Some(options))
            .await
            .map_err(attempt)?;
        let own = Owner::own();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        for container in left {
            let label = container
                .labels
                .as_ref()
                .and_then(|labels| labels.get(LABEL_OWNER));
            let created = Duration::from_secs(container.created.unwrap_or(0).unsigned_abs());
            let age = now.saturating_sub(created);
            let owner = label.and_then(|label| Owner::decode(label));
            if let (Some(id), Some(owner)) = (container.id, owner)
                && owner.is_gone(&own, age)
            {
                tracing::warn!("removing container {id}, whose server is gone");
                self.remove(&id, &id).await?;
            }
        }
        Ok(())
    }

    /// Imports the image of the host presentation unless the engine has it.
    async fn give_image(&self, presentation: Presentation) -> Result<(), PortError> {
        let image = presentation.image();
        match self.docker.inspect_image(&image).await {
            Ok(_) => return Ok(()),
            Err(error) if status(&error) == Some(404) => {}
            Err(error) => return Err(failed(format!("cannot look for image {image}"), error)),
        }
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(REPOSITORY.to_owned()),
            tag: Some(presentation.tag),
            ..CreateImageOptions::default()
        };
        let body = bollard::body_full(presentation.archive.into());
        let mut told = std::pin::pin!(self.docker.create_image(Some(options), Some(body), None));
        while let Some(step) = told.next().await {
            step.map_err(|error| failed(format!("cannot import image {image}"), error))?;
        }
        Ok(())
    }

    /// Removes a container; one that is gone is removed.
    async fn remove(&self, container: &str, shown: &str) -> Result<(), PortError> {
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            ..RemoveContainerOptions::default()
        };
        let deadline = tokio::time::Instant::now() + END;
        loop {
            match self
                .docker
                .remove_container(container, Some(options.clone()))
                .await
            {
                Ok(()) => return Ok(()),
                Err(error) if status(&error) == Some(404) => return Ok(()),
                // Somebody else removes it already, or it is just being started.
                Err(error)
                    if status(&error) == Some(409) && tokio::time::Instant::now() < deadline =>
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(failed(format!("cannot remove {shown}"), error)),
            }
        }
    }

    /// Waits for the end of a container that was started.
    async fn end(&self, id: &SandboxId) -> End {
        let options = WaitContainerOptions {
            condition: "not-running".to_owned(),
        };
        let mut waiting = std::pin::pin!(self.docker.wait_container(&name(id), Some(options)));
        let code = match waiting.next().await {
            Some(Ok(told)) => told.status_code,
            Some(Err(Error::DockerContainerWaitError { code, .. })) => code,
            Some(Err(_)) | None => return End::Gone,
        };
        let code = i32::try_from(code).unwrap_or(i32::MAX);
        // As a shell tells it: the agent itself ends by 0 and 1.
        let exit = match code {
            129..=192 => SandboxExit::Signaled(code - 128),
            code => SandboxExit::Exited(code),
        };
        let Ok(state) = self.docker.inspect_container(&name(id), None).await else {
            return End::Gone;
        };
        let oom = state
            .state
            .and_then(|state| state.oom_killed)
            .unwrap_or(false);
        End::Exit { exit, oom }
    }
}

/// The limits that the engine says it cannot enforce here.
fn unbounded(info: &SystemInfo) -> Vec<&'static str> {
    [
        (info.memory_limit, MEMORY),
        (info.cpu_cfs_quota, CPU),
        (info.pids_limit, PIDS),
    ]
    .into_iter()
    .filter(|(able, _)| *able != Some(true))
    .map(|(_, limit)| limit)
    .collect()
}

/// The reasons, of limits under the names that the core has for them.
fn weak(unbounded: &[&str], own_users: bool) -> Vec<String> {
    let mut weak = Vec::new();
    if !unbounded.is_empty() {
        let limits = unbounded.join(", ");
        weak.push(format!(
            "{limits}: the engine has no control group for it (cgroup v2 and delegation mend that)"
        ));
    }
    if !own_users {
        weak.push(
            "user namespace: programs have a user of the host (`userns-remap` of dockerd, or a rootless \
             engine, mends that)"
                .to_owned(),
        );
    }
    weak
}

/// The namespaces of this process, which no sandbox may share: namespaces(7).
fn own_namespaces() -> Namespaces {
    let names = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];
    let inode =
        |name: &str| std::fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |ns| ns.ino());
    names.map(|name| (name.to_owned(), inode(name))).into()
}

/// What can be told of a sandbox that has ended.
fn told(end: End, verb: &str, id: &SandboxId) -> Result<SandboxExit, PortError> {
    match end {
        End::Exit { exit, .. } => Ok(exit),
        End::Gone => Err(not_there(verb, id)),
    }
}

async fn ended(sandbox: &Sandbox) -> End {
    let mut end = sandbox.end.subscribe();
    let end = end.wait_for(Option::is_some).await.map(|end| *end);
    end.ok().flatten().unwrap_or(End::Gone)
}

#[async_trait]
impl ContainerRuntime for DockerRuntime {
    async fn info(&self) -> Result<RuntimeInfo, PortError> {
        Ok(self.engine().await?.info.clone())
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<EffectiveLimits, PortError> {
        let id = &spec.id;
        let unsupported = |what: String| Err(PortError::new(PortErrorKind::Unsupported, what));
        if !id.is_name() {
            return unsupported(format!(
                "sandbox id \"{id}\" is not 1 to 64 of [A-Za-z0-9_-]"
            ));
        }
        let SandboxRoot::Host = spec.root else {
            return unsupported(format!("root {:?} is not supported", spec.root));
        };
        let engine = self.engine().await?;
        let sandbox = Arc::new(Sandbox {
            phase: Arc::new(AsyncMutex::new(Phase::New)),
            end: watch::Sender::new(None),
        });
        let exists = || {
            let what = format!("cannot create {id}: it exists already");
            PortError::new(PortErrorKind::AlreadyExists, what)
        };
        let phase: OwnedMutexGuard<Phase> = {
            let mut all = self.all();
            if all.contains_key(&id.0) {
                return Err(exists());
            }
            all.insert(id.0.clone(), Arc::clone(&sandbox));
            // Nobody else has it yet.
            Arc::clone(&sandbox.phase)
                .try_lock_owned()
                .map_err(|_| exists())?
        };
        let (spec, sandboxes) = (spec.clone(), Arc::clone(&self.sandboxes));
        to_its_end(async move {
            let mut phase = phase;
            let options = CreateContainerOptions {
                name: Some(name(&spec.id)),
                ..CreateContainerOptions::default()
            };
            let body = engine.common.container(&spec);
            match engine.docker.create_container(Some(options), body).await {
                Ok(_) => *phase = Phase::Made,
                Err(error) => {
                    let mut all = sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
                    all.remove(&spec.id.0);
                    let what = format!("cannot create {}", spec.id);
                    return Err(failed(what, error));
                }
            }
            let enforced = |limit, value| (!engine.unbounded.contains(&limit)).then_some(value);
            Ok(EffectiveLimits {
                memory_bytes: enforced(MEMORY, spec.limits.memory_bytes),
                cpu_quota: enforced(CPU, spec.limits.cpu_quota),
                pids: enforced(PIDS, spec.limits.pids),
                weak: engine.info.weak.clone(),
            })
        })
        .await
    }

    async fn start(&self, id: &SandboxId) -> Result<Box<dyn ByteStream>, PortError> {
        let sandbox = self.sandbox("start", id)?;
        let engine = self.engine().await?;
        let id = id.clone();
        to_its_end(async move {
            let mut phase = sandbox.phase.lock().await;
            let (kind, why) = match *phase {
                Phase::Made => (PortErrorKind::Internal, ""),
                Phase::Started => (PortErrorKind::AlreadyExists, "it was started before"),
                Phase::Killed => (PortErrorKind::Unreachable, "it was killed"),
                Phase::New | Phase::Removed => (PortErrorKind::NotFound, "no such container"),
            };
            if !why.is_empty() {
                return Err(PortError::new(kind, format!("cannot start {id}: {why}")));
            }
            let attempt = |error| failed(format!("cannot start {id}"), error);
            let options = AttachContainerOptions {
                stream: true,
                stdin: true,
                stdout: true,
                ..AttachContainerOptions::default()
            };
            // Before it runs, so that its first words are not missed.
            let attached = engine
                .docker
                .attach_container(&name(&id), Some(options))
                .await;
            let attached = attached.map_err(attempt)?;
            engine
                .docker
                .start_container(&name(&id), None)
                .await
                .map_err(attempt)?;
            *phase = Phase::Started;
            let (watched, engine, id) = (Arc::clone(&sandbox), Arc::clone(&engine), id.clone());
            tokio::spawn(async move {
                let end = engine.end(&id).await;
                watched.end.send_if_modified(|told| {
                    let first = told.is_none();
                    if first {
                        *told = Some(end);
                    }
                    first
                });
            });
            Ok(Box::new(Attached::new(attached)) as Box<dyn ByteStream>)
        })
        .await
    }

    async fn wait(&self, id: &SandboxId) -> Result<SandboxExit, PortError> {
        let sandbox = self.sandbox("wait for", id)?;
        told(ended(&sandbox).await, "wait for", id)
    }

    async fn usage(&self, id: &SandboxId) -> Result<SandboxUsage, PortError> {
        let sandbox = self.sandbox("read the usage of", id)?;
        let engine = self.engine().await?;
        let oom = |oom| SandboxUsage {
            oom_kills: u64::from(oom),
            ..SandboxUsage::default()
        };
        match *sandbox.end.borrow() {
            Some(End::Exit { oom: killed, .. }) => return Ok(oom(killed)),
            Some(End::Gone) => return Err(not_there("read the usage of", id)),
            None => {}
        }
        let found = engine.docker.inspect_container(&name(id), None).await;
        let found =
            found.map_err(|error| failed(format!("cannot read the usage of {id}"), error))?;
        let state = found.state.unwrap_or_default();
        let Some(process) = state.pid.filter(|process| *process > 0) else {
            return Ok(oom(state.oom_killed == Some(true)));
        };
        if let Some(counted) = counters::of(process) {
            return Ok(counted);
        }
        // It has just ended: what is left of its counters comes with its end.
        match tokio::time::timeout(END, ended(&sandbox)).await {
            Ok(End::Exit { oom: killed, .. }) => Ok(oom(killed)),
            _ => Err(not_there("read the usage of", id)),
        }
    }

    async fn kill(&self, id: &SandboxId) -> Result<(), PortError> {
        let Ok(sandbox) = self.sandbox("kill", id) else {
            return Ok(());
        };
        let engine = self.engine().await?;
        let id = id.clone();
        to_its_end(async move {
            let mut phase = sandbox.phase.lock().await;
            match *phase {
                Phase::New | Phase::Removed => return Ok(()),
                Phase::Made => {
                    *phase = Phase::Killed;
                    let exit = SandboxExit::Signaled(9);
                    sandbox
                        .end
                        .send_replace(Some(End::Exit { exit, oom: false }));
                    return Ok(());
                }
                Phase::Started | Phase::Killed => *phase = Phase::Killed,
            }
            let options = KillContainerOptions {
                signal: "SIGKILL".to_owned(),
            };
            match engine
                .docker
                .kill_container(&name(&id), Some(options))
                .await
            {
                Ok(()) => {}
                // It has ended, or is gone.
                Err(error) if matches!(status(&error), Some(404 | 409)) => {}
                Err(error) => return Err(failed(format!("cannot kill {id}"), error)),
            }
            // Process 1 of a namespace takes all others along: pid_namespaces(7).
            match tokio::time::timeout(END, ended(&sandbox)).await {
                Ok(_) => Ok(()),
                Err(_) => {
                    let what = format!("cannot kill {id}: its processes are still there");
                    Err(PortError::new(PortErrorKind::Internal, what))
                }
            }
        })
        .await
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), PortError> {
        let Ok(sandbox) = self.sandbox("remove", id) else {
            return Ok(());
        };
        let engine = self.engine().await?;
        let (id, sandboxes) = (id.clone(), Arc::clone(&self.sandboxes));
        to_its_end(async move {
            let mut phase = sandbox.phase.lock().await;
            if matches!(*phase, Phase::New | Phase::Removed) {
                return Ok(());
            }
            engine.remove(&name(&id), &id.0).await?;
            *phase = Phase::Removed;
            sandbox.end.send_replace(Some(End::Gone));
            sandboxes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&id.0);
            Ok(())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_cannot_enforce_is_named() {
        let able = SystemInfo {
            memory_limit: Some(true),
            cpu_cfs_quota: Some(true),
            pids_limit: Some(true),
            ..SystemInfo::default()
        };
        assert_eq!(weak(&unbounded(&able), true), Vec::<String>::new());
        let reasons = weak(&unbounded(&able), false);
        assert!(reasons[0].starts_with("user namespace: "), "{reasons:?}");
        let without = SystemInfo {
            cpu_cfs_quota: Some(false),
            pids_limit: None,
            ..able
        };
        assert_eq!(unbounded(&without), [CPU, PIDS]);
        let reasons = weak(&unbounded(&without), true);
        assert_eq!(reasons.len(), 1);
        assert!(reasons[0].starts_with("cpu, pids: "), "{reasons:?}");
    }
}
