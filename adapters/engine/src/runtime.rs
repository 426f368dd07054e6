//! The life of sandboxes on an engine.
//!
//! What is asked of one sandbox is done one after the other, each in a task of its own: a caller
//! who gives up leaves nothing half made that nobody knows of.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mcp_forge_ports::driven::{ByteStream, ContainerRuntime};
use mcp_forge_ports::vocabulary::{
    EffectiveLimits, ResourceLimits, RuntimeInfo, SandboxExit, SandboxId, SandboxRoot, SandboxSpec,
    SandboxUsage,
};
use mcp_forge_ports::{PortError, PortErrorKind};
use mcp_forge_presentation::{NoRoot, Placed, root_of};
use tokio::sync::{Mutex as AsyncMutex, OnceCell, OwnedMutexGuard, watch};

use crate::counters::{self, Found, Groups};
use crate::{Base, Connect, Connected, End, Engine, Presentation};

/// Longest wait for a container whose end or removal the engine has accepted.
const END: Duration = Duration::from_secs(20);

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
    limits: ResourceLimits,
    phase: Arc<AsyncMutex<Phase>>,
    end: watch::Sender<Option<End>>,
    /// Known from the start on, where they can be seen.
    groups: OnceLock<Groups>,
}

/// What the engine was given.
struct Bases {
    placed: &'static [Placed],
    workspace: u32,
    roots: Option<PathBuf>,
    given: AsyncMutex<HashMap<SandboxRoot, Base>>,
}

impl Bases {
    /// What sandboxes of this root are made of; the engine is given it the first time.
    async fn get(&self, engine: &impl Engine, root: &SandboxRoot) -> Result<Base, PortError> {
        // Nobody gives the same twice at once.
        let mut given = self.given.lock().await;
        if let Some(base) = given.get(root) {
            return Ok(base.clone());
        }
        let presentation = self.presentation(root)?;
        let base = Base {
            image: engine.give(&presentation).await?,
            binds: presentation.binds,
        };
        given.insert(root.clone(), base.clone());
        Ok(base)
    }

    fn presentation(&self, root: &SandboxRoot) -> Result<Presentation, PortError> {
        let (placed, workspace) = (self.placed, self.workspace);
        let (made, what) = match root {
            SandboxRoot::Host => (
                Presentation::of_host(placed, workspace),
                "cannot make the host presentation".to_owned(),
            ),
            SandboxRoot::Image { id } => {
                let shown: String = id.escape_debug().take(80).collect();
                let root = root_of(self.roots.as_deref(), id).map_err(|why| {
                    let kind = match why {
                        NoRoot::NotThere => PortErrorKind::NotFound,
                        NoRoot::NoId | NoRoot::NoPlace => PortErrorKind::Unsupported,
                    };
                    PortError::new(kind, format!("image {shown}: {why}"))
                })?;
                (
                    Presentation::of_image(&root, placed, workspace),
                    format!("cannot present image {shown}"),
                )
            }
            _ => {
                let what = "a root file system of an unknown kind";
                return Err(PortError::new(PortErrorKind::Unsupported, what));
            }
        };
        made.map_err(|error| PortError::new(PortErrorKind::Internal, what).with_source(error))
    }

    /// Makes a container; an engine that has lost the image is given it again.
    async fn create(
        &self,
        engine: &impl Engine,
        name: &str,
        spec: &SandboxSpec,
    ) -> Result<(), PortError> {
        let base = self.get(engine, &spec.root).await?;
        match engine.create(name, spec, &base).await {
            Err(error) if error.kind == PortErrorKind::NotFound => {
                self.given.lock().await.remove(&spec.root);
                let base = self.get(engine, &spec.root).await?;
                engine.create(name, spec, &base).await
            }
            other => other,
        }
    }
}

/// Sandboxes as containers of the engine that `C` finds.
///
/// Nothing is asked of it before the first use, or [`EngineRuntime::warm_up`].
pub struct EngineRuntime<C: Connect> {
    connect: C,
    engine: OnceCell<Arc<Connected<C::Engine>>>,
    bases: Arc<Bases>,
    sandboxes: Arc<Mutex<HashMap<String, Arc<Sandbox>>>>,
}

impl<C: Connect> EngineRuntime<C> {
    /// A runtime on an engine. `placed` are the files that every sandbox gets below `/run/forge`; below
    /// `roots` are the root file systems of images, each under its id.
    pub fn new(connect: C, placed: &'static [Placed], roots: Option<PathBuf>) -> Self {
        Self {
            connect,
            engine: OnceCell::new(),
            bases: Arc::new(Bases {
                placed,
                workspace: C::WORKSPACE,
                roots,
                given: AsyncMutex::default(),
            }),
            sandboxes: Arc::default(),
        }
    }

    /// Connects and gives the engine what sandboxes need, as the first use would.
    ///
    /// # Errors
    ///
    /// Those of [`Connect::connect`], and what the engine refused.
    pub async fn warm_up(&self) -> Result<(), PortError> {
        let connected = self.engine().await?;
        let given = self.bases.get(&connected.engine, &SandboxRoot::Host).await;
        given.map(drop)
    }

    /// The version of the engine, of which nothing else is asked.
    ///
    /// # Errors
    ///
    /// Those of [`Connect::version`].
    pub async fn version(&self) -> Result<String, PortError> {
        self.connect.version().await
    }

    /// Removes what servers left that are gone, on an engine that has been used already.
    ///
    /// # Errors
    ///
    /// `Unreachable` while the engine is down, or what it refused.
    pub async fn clean_up(&self) -> Result<(), PortError> {
        match self.engine.get() {
            Some(connected) => connected.engine.reap().await,
            None => Ok(()),
        }
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

    async fn engine(&self) -> Result<Arc<Connected<C::Engine>>, PortError> {
        let connect = || async {
            let connected = self.connect.connect().await?;
            // What cannot be removed now keeps nobody from working.
            if let Err(error) = connected.engine.reap().await {
                tracing::warn!("leftovers stay for now: {}", error.chain());
            }
            Ok(Arc::new(connected))
        };
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

/// Reads back what the engine was asked to enforce, and remembers where that is.
async fn check_limits<E: Engine>(
    connected: &Connected<E>,
    sandbox: &Sandbox,
    name: &str,
) -> Result<(), PortError> {
    let state = match connected.engine.state(name).await {
        Ok(state) => state,
        // It was taken away: its end tells that.
        Err(error) if error.kind == PortErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(process) = state.process else {
        return Ok(());
    };
    match counters::find(process, &state.id) {
        Found::Groups(groups) => {
            if let Some(bounds) = groups.bounds() {
                connected.able.check(&sandbox.limits, &bounds, name)?;
            }
            let _ = sandbox.groups.set(groups);
            Ok(())
        }
        Found::Elsewhere if !connected.able.nothing() => {
            let what = format!(
                "{name}: the control group of process {process} is not that of the container"
            );
            Err(PortError::new(PortErrorKind::Unsupported, what).with_hint(
                "run the server on the engine's own host, and not in a container of its own",
            ))
        }
        Found::Elsewhere | Found::Ended => Ok(()),
    }
}

#[async_trait]
impl<C: Connect> ContainerRuntime for EngineRuntime<C> {
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
        let connected = self.engine().await?;
        let sandbox = Arc::new(Sandbox {
            limits: spec.limits.clone(),
            phase: Arc::new(AsyncMutex::new(Phase::New)),
            end: watch::Sender::new(None),
            groups: OnceLock::new(),
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
        let bases = Arc::clone(&self.bases);
        to_its_end(async move {
            let mut phase = phase;
            let name = name(&spec.id);
            if let Err(error) = bases.create(&connected.engine, &name, &spec).await {
                let mut all = sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
                all.remove(&spec.id.0);
                return Err(error);
            }
            *phase = Phase::Made;
            let weak = connected.info.weak.clone();
            Ok(connected.able.effective(&spec.limits, weak))
        })
        .await
    }

    async fn start(&self, id: &SandboxId) -> Result<Box<dyn ByteStream>, PortError> {
        let sandbox = self.sandbox("start", id)?;
        let connected = self.engine().await?;
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
            let name = name(&id);
            let stream = connected.engine.start(&name).await?;
            *phase = Phase::Started;
            let (watched, watching, watched_name) =
                (Arc::clone(&sandbox), Arc::clone(&connected), name.clone());
            tokio::spawn(async move {
                let end = watching.engine.end(&watched_name).await;
                watched.end.send_if_modified(|told| {
                    let first = told.is_none();
                    if first {
                        *told = Some(end);
                    }
                    first
                });
            });
            // Before anybody gives it a program.
            if let Err(error) = check_limits(&connected, &sandbox, &name).await {
                if let Err(error) = connected.engine.kill(&name).await {
                    tracing::warn!("{}", error.chain());
                }
                return Err(error);
            }
            Ok(stream)
        })
        .await
    }

    async fn wait(&self, id: &SandboxId) -> Result<SandboxExit, PortError> {
        let sandbox = self.sandbox("wait for", id)?;
        told(ended(&sandbox).await, "wait for", id)
    }

    async fn usage(&self, id: &SandboxId) -> Result<SandboxUsage, PortError> {
        let sandbox = self.sandbox("read the usage of", id)?;
        if let Some(counted) = sandbox.groups.get().and_then(Groups::usage) {
            return Ok(counted);
        }
        let oom = |oom| SandboxUsage {
            oom_kills: u64::from(oom),
            ..SandboxUsage::default()
        };
        let end = *sandbox.end.borrow();
        let end = match end {
            None => {
                let connected = self.engine().await?;
                let state = connected.engine.state(&name(id)).await?;
                if state.process.is_none() || sandbox.groups.get().is_none() {
                    return Ok(oom(state.oom));
                }
                // It has just ended: what is left of its counters comes with its end.
                let end = tokio::time::timeout(END, ended(&sandbox)).await;
                end.unwrap_or(End::Gone)
            }
            Some(end) => end,
        };
        match end {
            End::Exit { oom: killed, .. } => Ok(oom(killed)),
            End::Gone => Err(not_there("read the usage of", id)),
        }
    }

    async fn kill(&self, id: &SandboxId) -> Result<(), PortError> {
        let Ok(sandbox) = self.sandbox("kill", id) else {
            return Ok(());
        };
        let connected = self.engine().await?;
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
            connected.engine.kill(&name(&id)).await?;
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
        let connected = self.engine().await?;
        let (id, sandboxes) = (id.clone(), Arc::clone(&self.sandboxes));
        to_its_end(async move {
            let mut phase = sandbox.phase.lock().await;
            if matches!(*phase, Phase::New | Phase::Removed) {
                return Ok(());
            }
            connected.engine.remove(&name(&id)).await?;
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Able, State};

    /// An engine whose containers' first process is this one, which is in no group of theirs.
    #[derive(Clone, Default)]
    struct Elsewhere {
        able: bool,
        kills: Arc<AtomicUsize>,
        gives: Arc<AtomicUsize>,
        /// How often it has not got the image that it was given.
        lost: Arc<AtomicUsize>,
    }

    #[async_trait]
    impl Engine for Elsewhere {
        async fn reap(&self) -> Result<(), PortError> {
            Ok(())
        }

        async fn give(&self, presentation: &Presentation) -> Result<String, PortError> {
            self.gives.fetch_add(1, Ordering::Relaxed);
            Ok(presentation.image())
        }

        async fn create(&self, _: &str, _: &SandboxSpec, _: &Base) -> Result<(), PortError> {
            let one_less = |left: usize| left.checked_sub(1);
            match self
                .lost
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            {
                Ok(_) => Err(PortError::new(PortErrorKind::NotFound, "no such image")),
                Err(_) => Ok(()),
            }
        }

        async fn start(&self, _: &str) -> Result<Box<dyn ByteStream>, PortError> {
            Ok(Box::new(tokio::io::empty()))
        }

        async fn end(&self, _: &str) -> End {
            std::future::pending().await
        }

        async fn state(&self, _: &str) -> Result<State, PortError> {
            Ok(State {
                id: "0".repeat(64),
                process: Some(std::process::id().into()),
                oom: false,
            })
        }

        async fn kill(&self, _: &str) -> Result<(), PortError> {
            self.kills.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        async fn remove(&self, _: &str) -> Result<(), PortError> {
            Ok(())
        }
    }

    #[async_trait]
    impl Connect for Elsewhere {
        type Engine = Self;

        const WORKSPACE: u32 = 0o700;

        async fn connect(&self) -> Result<Connected<Self>, PortError> {
            let able = self.able;
            Ok(Connected {
                engine: self.clone(),
                info: RuntimeInfo {
                    kind: "fake".to_owned(),
                    version: "1".to_owned(),
                    weak: Vec::new(),
                    host_namespaces: crate::own_namespaces(),
                },
                able: Able {
                    memory: able,
                    swap: able,
                    cpu: able,
                    pids: able,
                    own_users: true,
                },
            })
        }

        async fn version(&self) -> Result<String, PortError> {
            Ok("1".to_owned())
        }
    }

    fn spec(root: SandboxRoot) -> SandboxSpec {
        SandboxSpec {
            id: SandboxId("one".to_owned()),
            root,
            limits: ResourceLimits {
                memory_bytes: 1 << 20,
                cpu_quota: 1000,
                pids: 1,
                descriptors: 16,
                tmp_bytes: 1,
                workspace_bytes: 1,
                timeout: Duration::from_secs(1),
            },
        }
    }

    async fn started(able: bool) -> (Result<(), String>, usize) {
        let engine = Elsewhere {
            able,
            ..Elsewhere::default()
        };
        let kills = Arc::clone(&engine.kills);
        let runtime = EngineRuntime::new(engine, &[], None);
        let spec = spec(SandboxRoot::Host);
        runtime.create(&spec).await.unwrap();
        let started = runtime.start(&spec.id).await.map(drop);
        (
            started.map_err(|error| error.context),
            kills.load(Ordering::Relaxed),
        )
    }

    #[tokio::test]
    async fn limits_that_cannot_be_read_back_end_the_sandbox() {
        let (told, kills) = started(true).await;
        let told = told.unwrap_err();
        assert!(
            told.starts_with("mcp-forge-one: the control group of process ")
                && told.ends_with(" is not that of the container"),
            "{told}"
        );
        assert_eq!(kills, 1);
        // Where none is promised none is looked for.
        assert_eq!(started(false).await, (Ok(()), 0));
    }

    #[tokio::test]
    async fn an_engine_that_lost_the_image_is_given_it_again_and_once() {
        let engine = Elsewhere::default();
        let (gives, lost) = (Arc::clone(&engine.gives), Arc::clone(&engine.lost));
        let runtime = EngineRuntime::new(engine, &[], None);
        let create = async |spec: &SandboxSpec| {
            let made = runtime.create(spec).await;
            runtime.remove(&spec.id).await.unwrap();
            made.map(drop).map_err(|error| error.kind)
        };
        let spec = spec(SandboxRoot::Host);
        runtime.warm_up().await.unwrap();
        assert_eq!(create(&spec).await, Ok(()));
        assert_eq!(gives.load(Ordering::Relaxed), 1);
        lost.store(1, Ordering::Relaxed);
        assert_eq!(create(&spec).await, Ok(()));
        assert_eq!(gives.load(Ordering::Relaxed), 2);
        lost.store(2, Ordering::Relaxed);
        assert_eq!(create(&spec).await, Err(PortErrorKind::NotFound));
        assert_eq!(create(&spec).await, Ok(()));
        assert_eq!(gives.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn an_image_that_is_not_there_is_told() {
        let roots = tempfile::tempdir().unwrap();
        let id = "0".repeat(64);
        let told = async |roots: Option<PathBuf>, id: &str| {
            let runtime = EngineRuntime::new(Elsewhere::default(), &[], roots);
            let spec = spec(SandboxRoot::Image { id: id.to_owned() });
            let made = runtime.create(&spec).await;
            made.map(drop).map_err(|error| (error.kind, error.context))
        };
        let place = || Some(roots.path().to_owned());
        let refused = |kind, id: &str, why: &str| Err((kind, format!("image {id}: {why}")));
        let (unsupported, not_found) = (PortErrorKind::Unsupported, PortErrorKind::NotFound);
        let expected = refused(unsupported, "../x", "it is no id");
        assert_eq!(told(place(), "../x").await, expected);
        let expected = refused(unsupported, &id, "there is no place for images");
        assert_eq!(told(None, &id).await, expected);
        let expected = refused(not_found, &id, "it is not there");
        assert_eq!(told(place(), &id).await, expected);
        std::fs::create_dir_all(roots.path().join(&id).join("etc")).unwrap();
        assert_eq!(told(place(), &id).await, Ok(()));
    }
}
