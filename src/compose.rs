//! Puts the application together. The only place with `cfg(feature)`: a choice that was compiled out
//! is told as such, not as unknown.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use async_trait::async_trait;
use mcp_forge_audit_file::FileAuditLog;
use mcp_forge_build::{BuildEngine, DebianBuilder, EngineBuilder};
use mcp_forge_domain::{ExecutionPolicy, RunPorts, RunService};
use mcp_forge_guest::StreamGuest;
use mcp_forge_images::{Bounds, DiskImages};
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::{AuditLog, ContainerRuntime, ImageBuilder};
use mcp_forge_spool::SpoolStore;

use crate::automatic::{Automatic, Candidate, Choice};
use crate::cli::{Command, Serve, Transport};
use crate::settings::Settings;
use crate::world::{RandomIds, SystemClock, Tasks, Unaudited};

/// Names of the runtimes, in the order in which `auto` tries them, and whether each is there.
const RUNTIMES: [(&str, Availability); 3] = [
    (
        "libcontainer",
        if cfg!(feature = "runtime-libcontainer") {
            Availability::Built
        } else {
            Availability::CompiledOut("runtime-libcontainer")
        },
    ),
    (
        "podman",
        if cfg!(feature = "runtime-podman") {
            Availability::Built
        } else {
            Availability::CompiledOut("runtime-podman")
        },
    ),
    (
        "docker",
        if cfg!(feature = "runtime-docker") {
            Availability::Built
        } else {
            Availability::CompiledOut("runtime-docker")
        },
    ),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Availability {
    Built,
    #[cfg_attr(
        all(
            feature = "runtime-libcontainer",
            feature = "runtime-podman",
            feature = "runtime-docker"
        ),
        allow(dead_code)
    )]
    CompiledOut(&'static str),
}

/// Runs this process as a helper when it was started as one.
pub(crate) fn helper(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    #[cfg(feature = "runtime-libcontainer")]
    if arguments
        .nth(1)
        .is_some_and(|a| a == mcp_forge_libcontainer::HELPER_ARGUMENT)
    {
        // Errors only, since libcontainer warns of what is meant to be.
        tracing_subscriber::fmt()
            .with_env_filter("error")
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
        let status = mcp_forge_libcontainer::helper_main(&mcp_forge_guest::PLACED);
        return Some(u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from));
    }
    #[cfg(not(feature = "runtime-libcontainer"))]
    let _ = arguments.next();
    None
}

/// Whether the program was started without standard output. Only the adapter with `unsafe` can
/// tell: without it nobody does.
pub(crate) fn stdout_was_closed() -> bool {
    #[cfg(feature = "runtime-libcontainer")]
    return mcp_forge_libcontainer::stdout_was_closed();
    #[cfg(not(feature = "runtime-libcontainer"))]
    false
}

/// Whether the transport that a command is to use is there.
///
/// # Errors
///
/// A transport that was compiled out, by the name of its feature.
pub(crate) fn check_transport(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(Serve {
            transport: Transport::Stdio,
        }) if !cfg!(feature = "transport-stdio") => {
            bail!("transport stdio: this mcp-forge was compiled without transport-stdio")
        }
        _ => Ok(()),
    }
}

/// Names of the engines.
pub(crate) const ENGINES: [&str; 2] = ["podman", "docker"];

/// The version of an engine of this environment, if it answers.
///
/// # Errors
///
/// Why not, for a person.
pub(crate) async fn engine_version(
    kind: &'static str,
    settings: &Settings,
) -> Result<String, String> {
    let adapter = Adapter::make(kind, settings).map_err(|error| format!("{error:#}"))?;
    match adapter {
        #[cfg(feature = "runtime-podman")]
        Adapter::Podman(runtime) => runtime.version().await.map_err(|e| e.to_string()),
        #[cfg(feature = "runtime-docker")]
        Adapter::Docker(runtime) => runtime.version().await.map_err(|e| e.to_string()),
        #[cfg(feature = "runtime-libcontainer")]
        Adapter::Libcontainer(_) => Err(format!("{kind} is no engine")),
    }
}

/// The chosen runtime behind its port, and who chose it.
pub(crate) struct Runtime {
    /// The port.
    pub(crate) port: Arc<dyn ContainerRuntime>,
    /// `--runtime`, `configuration` or `auto`.
    pub(crate) chosen_by: &'static str,
    adapter: Arc<Automatic<Adapter>>,
}

/// The adapter behind the port: what is done to it at start and end is no business of the core.
#[derive(Clone)]
enum Adapter {
    #[cfg(feature = "runtime-libcontainer")]
    Libcontainer(Arc<mcp_forge_libcontainer::LibcontainerRuntime>),
    #[cfg(feature = "runtime-podman")]
    Podman(Arc<mcp_forge_podman::PodmanRuntime>),
    #[cfg(feature = "runtime-docker")]
    Docker(Arc<mcp_forge_docker::DockerRuntime>),
}

impl Adapter {
    fn make(kind: &'static str, settings: &Settings) -> anyhow::Result<Self> {
        // Without a place for them there are no images, and no other harm.
        let roots = settings.images_path().ok();
        let roots = roots.map(|images| DiskImages::roots(&images));
        match kind {
            #[cfg(feature = "runtime-libcontainer")]
            "libcontainer" => {
                use mcp_forge_libcontainer::LibcontainerRuntime;
                let runtime = match roots {
                    Some(roots) => LibcontainerRuntime::with_images(roots),
                    None => LibcontainerRuntime::new(),
                };
                Ok(Self::Libcontainer(Arc::new(runtime)))
            }
            #[cfg(feature = "runtime-podman")]
            "podman" => {
                use mcp_forge_podman::{Endpoint, Podman, PodmanRuntime};
                let user = nix::unistd::geteuid().as_raw();
                let endpoint = Endpoint::find(|name| std::env::var_os(name), user);
                let endpoint = endpoint.context("runtime podman")?;
                let cache = cache_directory().context("runtime podman")?;
                let podman = Podman::new(endpoint, cache);
                let runtime = PodmanRuntime::new(podman, &mcp_forge_guest::PLACED, roots);
                Ok(Self::Podman(Arc::new(runtime)))
            }
            #[cfg(feature = "runtime-docker")]
            "docker" => {
                use mcp_forge_docker::{Docker, DockerRuntime, Endpoint};
                let endpoint = Endpoint::find(|name| std::env::var_os(name));
                let endpoint = endpoint.context("runtime docker")?;
                let docker = Docker::new(endpoint);
                let runtime = DockerRuntime::new(docker, &mcp_forge_guest::PLACED, roots);
                Ok(Self::Docker(Arc::new(runtime)))
            }
            _ => {
                let _ = roots;
                bail!("this mcp-forge was compiled without runtime-{kind}")
            }
        }
    }

    /// Removes what servers left that are gone. Of the embedded runtime nothing stays but for a crash of two processes at once,
    /// which the next start looks after.
    async fn clean_up(&self) -> Result<(), PortError> {
        match *self {
            #[cfg(feature = "runtime-libcontainer")]
            Self::Libcontainer(_) => Ok(()),
            #[cfg(feature = "runtime-podman")]
            Self::Podman(ref runtime) => runtime.clean_up().await,
            #[cfg(feature = "runtime-docker")]
            Self::Docker(ref runtime) => runtime.clean_up().await,
        }
    }

    /// Ends its helpers; what still runs is killed.
    async fn shut_down(&self) {
        match *self {
            #[cfg(feature = "runtime-libcontainer")]
            Self::Libcontainer(ref runtime) => runtime.shut_down().await,
            #[cfg(feature = "runtime-podman")]
            Self::Podman(ref runtime) => runtime.shut_down().await,
            #[cfg(feature = "runtime-docker")]
            Self::Docker(ref runtime) => runtime.shut_down().await,
        }
    }
}

#[async_trait]
impl Candidate for Adapter {
    fn kind(&self) -> &'static str {
        match *self {
            #[cfg(feature = "runtime-libcontainer")]
            Self::Libcontainer(_) => "libcontainer",
            #[cfg(feature = "runtime-podman")]
            Self::Podman(_) => "podman",
            #[cfg(feature = "runtime-docker")]
            Self::Docker(_) => "docker",
        }
    }

    async fn warm_up(&self) -> Result<(), PortError> {
        match *self {
            #[cfg(feature = "runtime-libcontainer")]
            Self::Libcontainer(ref runtime) => runtime.warm_up().await,
            #[cfg(feature = "runtime-podman")]
            Self::Podman(ref runtime) => runtime.warm_up().await,
            #[cfg(feature = "runtime-docker")]
            Self::Docker(ref runtime) => runtime.warm_up().await,
        }
    }

    fn port(&self) -> Arc<dyn ContainerRuntime> {
        match *self {
            #[cfg(feature = "runtime-libcontainer")]
            Self::Libcontainer(ref runtime) => Arc::clone(runtime) as _,
            #[cfg(feature = "runtime-podman")]
            Self::Podman(ref runtime) => Arc::clone(runtime) as _,
            #[cfg(feature = "runtime-docker")]
            Self::Docker(ref runtime) => Arc::clone(runtime) as _,
        }
    }
}

impl Runtime {
    /// Chooses by command line, then configuration, then `auto`, which takes one of all at its first
    /// use.
    ///
    /// # Errors
    ///
    /// An unknown or missing runtime, by name.
    pub(crate) fn choose(flag: Option<&str>, settings: &Settings) -> anyhow::Result<Self> {
        let (asked, chosen_by, by) = match (flag, settings.runtime()) {
            (Some(kind), _) => (kind, "--runtime", "--runtime".to_owned()),
            (None, Some((kind, set))) => (kind, "configuration", format!("runtime.kind in {set}")),
            (None, None) => ("auto", "auto", String::new()),
        };
        let built = RUNTIMES
            .iter()
            .filter(|(_, state)| *state == Availability::Built);
        let (adapters, chosen_by) = if asked == "auto" {
            let made =
                built.map(|(kind, _)| Adapter::make(kind, settings).map_err(|e| format!("{e:#}")));
            let made: Vec<_> = made.collect();
            if made.is_empty() {
                bail!("this mcp-forge was compiled without any runtime");
            }
            (made, "auto")
        } else {
            match RUNTIMES.iter().find(|(kind, _)| *kind == asked) {
                None => {
                    let names: String = built.map(|(kind, _)| format!("{kind}, ")).collect();
                    bail!("unknown runtime {asked:?} ({by}), must be one of {names}auto")
                }
                Some((kind, Availability::Built)) => {
                    (vec![Ok(Adapter::make(kind, settings)?)], chosen_by)
                }
                Some((kind, Availability::CompiledOut(feature))) => {
                    bail!("runtime {kind} ({by}): this mcp-forge was compiled without {feature}")
                }
            }
        };
        let accepts_weak = settings.policy()?.accept_unenforced;
        let adapter = Arc::new(Automatic::new(adapters, accepts_weak));
        let mut chosen = Self {
            port: Arc::clone(&adapter) as _,
            chosen_by,
            adapter,
        };
        if let Some(one) = chosen.explicit().map(Candidate::port) {
            chosen.port = one;
        }
        Ok(chosen)
    }

    /// The one that somebody asked for.
    fn explicit(&self) -> Option<&Adapter> {
        let first = self.adapter.candidates().next();
        first.filter(|_| self.chosen_by != "auto")
    }

    /// Starts what the first run would wait for.
    pub(crate) async fn warm_up(&self) -> Result<(), PortError> {
        if let Some(one) = self.explicit() {
            return one.warm_up().await;
        }
        let (chosen, choice) = self.adapter.chosen().await?;
        tracing::info!(runtime = chosen.kind(), passed = ?choice.passed, "auto has chosen");
        Ok(())
    }

    /// Its name and who chose it, for a person; of `auto`, what it takes here and why.
    pub(crate) async fn explain(&self) -> String {
        if let Some(one) = self.explicit() {
            return format!("{} ({})", one.kind(), self.chosen_by);
        }
        match self.adapter.chosen().await {
            Ok((chosen, Choice { passed, .. })) if passed.is_empty() => {
                format!("{} (auto)", chosen.kind())
            }
            Ok((chosen, Choice { passed, .. })) => {
                format!("{} (auto, not {})", chosen.kind(), passed.join(", not "))
            }
            Err(_) => {
                let candidates = self.adapter.candidates();
                let kinds: Vec<&str> = candidates.map(Candidate::kind).collect();
                format!("none (auto, of {})", kinds.join(", "))
            }
        }
    }

    /// Looks for what servers left that are gone, for ever. A failure is told once, until it works again.
    pub(crate) async fn keep_clean(&self, interval: Duration) {
        let mut failing = BTreeSet::new();
        loop {
            tokio::time::sleep(interval).await;
            for adapter in self.adapter.candidates() {
                let kind = adapter.kind();
                match adapter.clean_up().await {
                    Ok(()) => drop(failing.remove(kind)),
                    Err(error) if failing.insert(kind) => {
                        tracing::warn!(kind, "leftovers stay for now: {}", error.chain());
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// Ends its helpers; what still runs is killed.
    pub(crate) async fn shut_down(&self) {
        for adapter in self.adapter.candidates() {
            adapter.shut_down().await;
        }
    }
}

/// The images that sandboxes may be made of.
///
/// # Errors
///
/// When there is no place for them.
pub(crate) fn image_store(settings: &Settings) -> anyhow::Result<DiskImages> {
    let bounds = Bounds {
        bytes: settings.image_bytes(),
        ..Bounds::default()
    };
    Ok(DiskImages::new(settings.images_path()?, bounds))
}

/// Who builds images.
pub(crate) struct Builder {
    pub(crate) port: Box<dyn ImageBuilder>,
    /// Whether it builds Containerfiles, or else sets of packages.
    pub(crate) engine: bool,
    /// Its name for a person, and why it is not another one.
    pub(crate) name: String,
}

/// The builder that is asked for, else the engine of the runtime, the first engine that answers, or, without one, Debian's
/// packages.
///
/// # Errors
///
/// When the one that is asked for is not there.
pub(crate) async fn image_builder(
    asked: Option<&str>,
    runtime: Option<&str>,
    settings: &Settings,
) -> anyhow::Result<Builder> {
    let runtime = runtime.or(settings.runtime().map(|(kind, _)| kind));
    let asked = asked.or(runtime.filter(|kind| ENGINES.contains(kind)));
    let mut passed = String::new();
    for kind in ENGINES {
        if asked.is_some_and(|asked| asked != kind) {
            continue;
        }
        match engine_version(kind, settings).await {
            Ok(version) => {
                let socket = engine_socket(kind)?;
                let engine = match kind {
                    "podman" => BuildEngine::Podman,
                    _ => BuildEngine::Docker,
                };
                let most = settings.image_bytes();
                return Ok(Builder {
                    port: Box::new(EngineBuilder::new(engine, socket, most)),
                    engine: true,
                    name: format!("{kind} {version}"),
                });
            }
            Err(why) if asked.is_some() => bail!("cannot build with {kind}: {why}"),
            Err(why) => passed.push_str(&format!("; not {kind}: {why}")),
        }
    }
    Ok(Builder {
        port: Box::new(DebianBuilder),
        engine: false,
        name: format!("Debian packages{passed}"),
    })
}

/// Where an engine answers.
fn engine_socket(kind: &str) -> anyhow::Result<PathBuf> {
    match kind {
        #[cfg(feature = "runtime-podman")]
        "podman" => {
            let user = nix::unistd::geteuid().as_raw();
            Ok(mcp_forge_podman::Endpoint::find(|name| std::env::var_os(name), user)?.socket)
        }
        #[cfg(feature = "runtime-docker")]
        "docker" => Ok(mcp_forge_docker::Endpoint::find(|name| std::env::var_os(name))?.socket),
        _ => bail!("this mcp-forge was compiled without runtime-{kind}"),
    }
}

/// The audit log, which is written from now on.
///
/// # Errors
///
/// Why it cannot be, with the remedy.
pub(crate) fn audit_log(settings: &Settings) -> anyhow::Result<Arc<dyn AuditLog>> {
    let path = settings.audit_path()?;
    let log = FileAuditLog::open(path, settings.audit_options()).map_err(|e| {
        let hint = e.hint.as_deref().unwrap_or("set audit.path");
        anyhow!("{}; {hint}", e.chain())
    })?;
    Ok(match settings.runs_unaudited() {
        true => Arc::new(Unaudited::new(log)),
        false => Arc::new(log),
    })
}

/// The application: the driving port and what must be shut down after it.
pub(crate) struct Application {
    pub(crate) execution: Arc<RunService>,
    pub(crate) policy: ExecutionPolicy,
    pub(crate) runtime: Arc<Runtime>,
    tasks: Tasks,
}

impl Application {
    /// Builds everything; nothing is started yet.
    ///
    /// # Errors
    ///
    /// What the configuration or this host does not allow.
    pub(crate) fn new(flag: Option<&str>, settings: &Settings) -> anyhow::Result<Self> {
        let runtime = Arc::new(Runtime::choose(flag, settings)?);
        let audit = audit_log(settings)?;
        let tasks = Tasks::default();
        let policy = settings.policy()?;
        let ports = RunPorts {
            runtime: Arc::clone(&runtime.port),
            guest: Arc::new(StreamGuest),
            audit,
            clock: Arc::new(SystemClock::new()),
            ids: Arc::new(RandomIds),
            images: image_store(settings).ok().map(|store| Arc::new(store) as _),
            blobs: Arc::new(SpoolStore::new(spool_directory())),
            background: Arc::new(tasks.clone()),
        };
        let execution = RunService::new(ports, policy.clone()).context("the execution policy")?;
        tracing::info!(chosen_by = runtime.chosen_by, "ready");
        Ok(Self {
            execution: Arc::new(execution),
            policy,
            runtime,
            tasks,
        })
    }

    /// Stops what runs, waits for it and removes everything that was made.
    pub(crate) async fn shut_down(&self) {
        self.execution.cancel_all();
        self.tasks.finish().await;
        self.runtime.shut_down().await;
    }
}

/// Where files are kept that can be made anew: below `XDG_CACHE_HOME`, else `~/.cache`, of root
/// `/var/cache` (XDG Base Directory, Filesystem Hierarchy Standard 5.5).
#[cfg(feature = "runtime-podman")]
fn cache_directory() -> anyhow::Result<PathBuf> {
    let set = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from)?;
        path.is_absolute().then_some(path)
    };
    let root = || {
        nix::unistd::geteuid()
            .is_root()
            .then(|| "/var/cache".into())
    };
    let home = || set("HOME").map(|home| home.join(".cache"));
    set("XDG_CACHE_HOME")
        .or_else(root)
        .or_else(home)
        .map(|cache: PathBuf| cache.join("mcp-forge"))
        .context("there is no directory for caches: set XDG_CACHE_HOME or HOME")
}

/// Where the logs and files of runs go that are too large for memory: `TMPDIR`, else the place for
/// large temporary files (Filesystem Hierarchy Standard, 5.15).
pub(crate) fn spool_directory() -> PathBuf {
    std::env::var_os("TMPDIR")
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_choice_never_falls_back() {
        let settings = Settings::default();
        let refused = |kind| {
            let error = Runtime::choose(Some(kind), &settings)
                .err()
                .map(|e| e.to_string());
            error.unwrap_or_default()
        };
        assert!(refused("warp").contains("unknown runtime \"warp\""));
        match Runtime::choose(None, &settings) {
            Ok(chosen) => {
                let candidates = chosen.adapter.candidates();
                let kinds: Vec<&str> = candidates.map(Candidate::kind).collect();
                let built = RUNTIMES
                    .iter()
                    .filter(|(_, state)| *state == Availability::Built);
                let built: Vec<&str> = built.map(|(kind, _)| *kind).collect();
                assert_eq!((kinds, chosen.chosen_by), (built, "auto"));
            }
            Err(e)
                if RUNTIMES
                    .iter()
                    .any(|(_, state)| *state == Availability::Built) =>
            {
                panic!("{e}")
            }
            Err(e) => assert!(e.to_string().contains("compiled without any runtime")),
        }
    }

    #[test]
    fn a_transport_that_was_compiled_out_is_told_by_its_feature() {
        let transport = Transport::Stdio;
        let told = check_transport(&Command::Serve(Serve { transport }));
        let expected = (!cfg!(feature = "transport-stdio"))
            .then_some("transport stdio: this mcp-forge was compiled without transport-stdio");
        assert_eq!(told.err().map(|e| e.to_string()).as_deref(), expected);
    }
}
