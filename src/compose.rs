//! Puts the application together. The only place with `cfg(feature)`: a choice that was compiled out
//! is told as such, not as unknown.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use mcp_forge_audit_file::FileAuditLog;
use mcp_forge_domain::{ExecutionPolicy, RunPorts, RunService};
use mcp_forge_guest::StreamGuest;
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::ContainerRuntime;
use mcp_forge_spool::SpoolStore;

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
    ("podman", Availability::NotYet),
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
        all(feature = "runtime-libcontainer", feature = "runtime-docker"),
        allow(dead_code)
    )]
    CompiledOut(&'static str),
    NotYet,
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

/// The version of the Docker engine of this environment, if one answers.
///
/// # Errors
///
/// Why not, for a person.
#[cfg(feature = "runtime-docker")]
pub(crate) async fn docker_version() -> Result<String, String> {
    let endpoint = mcp_forge_docker::Endpoint::find(|name| std::env::var_os(name));
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    let runtime = mcp_forge_docker::DockerRuntime::new(endpoint, &mcp_forge_guest::PLACED);
    runtime.version().await.map_err(|error| error.to_string())
}

#[cfg(not(feature = "runtime-docker"))]
pub(crate) async fn docker_version() -> Result<String, String> {
    Err("this mcp-forge was compiled without runtime-docker".to_owned())
}

/// The chosen runtime behind its port, and who chose it.
pub(crate) struct Runtime {
    /// The port.
    pub(crate) port: Arc<dyn ContainerRuntime>,
    /// Its name.
    pub(crate) kind: &'static str,
    /// `--runtime`, `configuration` or `auto`.
    pub(crate) chosen_by: &'static str,
    adapter: Adapter,
}

/// The adapter behind the port: what is done to it at start and end is no business of the core.
#[derive(Clone)]
enum Adapter {
    #[cfg(feature = "runtime-libcontainer")]
    Libcontainer(Arc<mcp_forge_libcontainer::LibcontainerRuntime>),
    #[cfg(feature = "runtime-docker")]
    Docker(Arc<mcp_forge_docker::DockerRuntime>),
}

impl Runtime {
    /// Chooses by command line, then configuration, then `auto`.
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
        if asked == "auto" {
            let first = RUNTIMES
                .iter()
                .find(|(_, state)| *state == Availability::Built);
            let (kind, _) = first.context("this mcp-forge was compiled without any runtime")?;
            return Self::make(kind, "auto");
        }
        match RUNTIMES.iter().find(|(kind, _)| *kind == asked) {
            None => {
                let built = RUNTIMES
                    .iter()
                    .filter(|(_, state)| *state == Availability::Built);
                let names: String = built.map(|(kind, _)| format!("{kind}, ")).collect();
                bail!("unknown runtime {asked:?} ({by}), must be one of {names}auto")
            }
            Some((kind, Availability::Built)) => Self::make(kind, chosen_by),
            Some((kind, Availability::CompiledOut(feature))) => {
                bail!("runtime {kind} ({by}): this mcp-forge was compiled without {feature}")
            }
            Some((kind, Availability::NotYet)) => {
                bail!(
                    "runtime {kind} ({by}) is not supported by this version yet; use libcontainer or docker"
                )
            }
        }
    }

    #[cfg_attr(
        not(any(feature = "runtime-libcontainer", feature = "runtime-docker")),
        allow(unreachable_code, unused_variables)
    )]
    fn make(kind: &'static str, chosen_by: &'static str) -> anyhow::Result<Self> {
        let (port, adapter): (Arc<dyn ContainerRuntime>, Adapter) = match kind {
            #[cfg(feature = "runtime-libcontainer")]
            "libcontainer" => {
                let runtime = Arc::new(mcp_forge_libcontainer::LibcontainerRuntime::new());
                (Arc::clone(&runtime) as _, Adapter::Libcontainer(runtime))
            }
            #[cfg(feature = "runtime-docker")]
            "docker" => {
                let endpoint = mcp_forge_docker::Endpoint::find(|name| std::env::var_os(name));
                let endpoint = endpoint.context("runtime docker")?;
                let runtime = Arc::new(mcp_forge_docker::DockerRuntime::new(
                    endpoint,
                    &mcp_forge_guest::PLACED,
                ));
                (Arc::clone(&runtime) as _, Adapter::Docker(runtime))
            }
            _ => bail!("runtime {kind} is not in this mcp-forge"),
        };
        #[allow(
            unreachable_code,
            reason = "without any runtime there is none to be made"
        )]
        Ok(Self {
            port,
            kind,
            chosen_by,
            adapter,
        })
    }

    /// Starts what the first run would wait for.
    pub(crate) async fn warm_up(&self) -> Result<(), PortError> {
        match self.adapter {
            #[cfg(feature = "runtime-libcontainer")]
            Adapter::Libcontainer(ref runtime) => runtime.warm_up().await,
            #[cfg(feature = "runtime-docker")]
            Adapter::Docker(ref runtime) => runtime.warm_up().await,
        }
    }

    /// Ends its helpers; what still runs is killed.
    pub(crate) async fn shut_down(&self) {
        match self.adapter {
            #[cfg(feature = "runtime-libcontainer")]
            Adapter::Libcontainer(ref runtime) => runtime.shut_down().await,
            #[cfg(feature = "runtime-docker")]
            Adapter::Docker(ref runtime) => runtime.shut_down().await,
        }
    }
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
        let path = settings.audit_path()?;
        let audit = FileAuditLog::open(path, settings.audit_options()).map_err(|e| {
            let hint = e.hint.as_deref().unwrap_or("set audit.path");
            anyhow!("{}; {hint}", e.chain())
        })?;
        let tasks = Tasks::default();
        let policy = settings.policy()?;
        let ports = RunPorts {
            runtime: Arc::clone(&runtime.port),
            guest: Arc::new(StreamGuest),
            audit: if settings.runs_unaudited() {
                Arc::new(Unaudited::new(audit))
            } else {
                Arc::new(audit)
            },
            clock: Arc::new(SystemClock::new()),
            ids: Arc::new(RandomIds),
            blobs: Arc::new(SpoolStore::new(spool_directory())),
            background: Arc::new(tasks.clone()),
        };
        let execution = RunService::new(ports, policy.clone()).context("the execution policy")?;
        tracing::info!(
            runtime = runtime.kind,
            chosen_by = runtime.chosen_by,
            "ready"
        );
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
        assert!(refused("podman").contains("podman (--runtime) is not supported"));
        assert!(refused("warp").contains("unknown runtime \"warp\""));
        match Runtime::choose(None, &settings) {
            Ok(chosen) => assert_eq!((chosen.kind, chosen.chosen_by), ("libcontainer", "auto")),
            Err(e) if cfg!(feature = "runtime-libcontainer") => panic!("{e}"),
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
