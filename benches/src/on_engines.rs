//! mcp-forge on an engine, beside the engine's own command line (goal G7).

use std::cell::RefCell;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::Plan;
use crate::engines::{ENGINE_FRESH, OneShot, docker, podman};
use crate::forge::Forge;
use crate::noop::millis;
use crate::round::{Entrant, Pace, Row, rounds};
use crate::runs::one_shot;
use crate::stats::Shuffler;

/// The label of every container of mcp-forge.
const OURS: &str = "label=io.mcp-forge.owner";
/// Longest wait for an engine to answer, and for the last container to be removed.
const PATIENCE: Duration = Duration::from_secs(20);

/// What mcp-forge can run on, as `runtime.kind` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Runtime {
    Libcontainer,
    Podman,
    Docker,
}

impl Runtime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Libcontainer => "libcontainer",
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }

    pub(crate) fn forge(self) -> String {
        format!("mcp-forge on {}", self.name())
    }

    pub(crate) fn command(self) -> String {
        format!("{} run --rm", self.name())
    }
}

/// A runtime that answers.
pub(crate) struct Engine {
    pub(crate) runtime: Runtime,
    /// Its address; none for the embedded runtime.
    address: Option<String>,
    service: Option<(Child, tempfile::TempDir)>,
}

impl Engine {
    /// The engine that `DOCKER_HOST` or `CONTAINER_HOST` names; without `CONTAINER_HOST` a service
    /// of Podman on the store of `benches/prepare`, for as long as this value lives.
    pub(crate) fn find(runtime: Runtime, cache: &Path) -> Result<Self> {
        let (address, service) = match runtime {
            Runtime::Libcontainer => (None, None),
            Runtime::Docker => (
                Some(std::env::var("DOCKER_HOST").context("DOCKER_HOST names no engine")?),
                None,
            ),
            Runtime::Podman => match std::env::var("CONTAINER_HOST") {
                Ok(address) => (Some(address), None),
                Err(_) => {
                    let directory = tempfile::tempdir()?;
                    let address = format!("unix://{}", directory.path().join("s").display());
                    let child = podman(cache)?
                        .args(["system", "service", "--time=0", &address])
                        .stdin(Stdio::null())
                        .stdout(Stdio::null())
                        .stderr(Stdio::null())
                        .spawn()?;
                    (Some(address), Some((child, directory)))
                }
            },
        };
        let engine = Self {
            runtime,
            address,
            service,
        };
        let until = Instant::now() + PATIENCE;
        while let Err(error) = engine.containers() {
            if Instant::now() > until {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(engine)
    }

    /// What mcp-forge is started with.
    pub(crate) fn settings(&self) -> Vec<(&str, &str)> {
        let mut settings = vec![("MCP_FORGE_RUNTIME__KIND", self.runtime.name())];
        let variable = match self.runtime {
            Runtime::Docker => "DOCKER_HOST",
            _ => "CONTAINER_HOST",
        };
        settings.extend(self.address.as_deref().map(|address| (variable, address)));
        settings
    }

    /// How many containers of mcp-forge it has, in whatever state.
    pub(crate) fn containers(&self) -> Result<usize> {
        let Some(address) = &self.address else {
            return Ok(0);
        };
        let mut command = match self.runtime {
            Runtime::Docker => docker(address),
            _ => {
                let mut command = crate::engines::clean("podman");
                command.args(["--url", address]);
                command
            }
        };
        let command: &mut Command = command.args(["ps", "--all", "--quiet", "--filter", OURS]);
        let output = command.output().context("the engine's command line")?;
        ensure!(
            output.status.success(),
            "{} at {address} does not answer: {}",
            self.runtime.name(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).lines().count())
    }

    /// Waits until no container of mcp-forge is left, for as long as is bearable. Gives how many are.
    pub(crate) fn left(&self) -> Result<usize> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = self.containers()?;
            if left == 0 || Instant::now() > until {
                return Ok(left);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.service {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) struct OnEngines {
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn measure(plan: &Plan, shuffler: &mut Shuffler) -> Result<OnEngines> {
    let found: Vec<_> = [Runtime::Podman, Runtime::Docker]
        .map(|runtime| (runtime, Engine::find(runtime, &plan.cache)))
        .into();
    let state = tempfile::tempdir()?;
    let mut servers = Vec::new();
    for (_, engine) in &found {
        servers.push(match engine {
            Ok(engine) => {
                let settings = engine.settings();
                Forge::start_with(&plan.forge, state.path(), &settings, &ENGINE_FRESH)
                    .map(RefCell::new)
                    .map_err(|error| format!("{error:#}"))
            }
            Err(error) => Err(format!("{error:#}")),
        });
    }
    if servers.iter().all(Result::is_err) {
        let reasons: Vec<_> = servers.into_iter().filter_map(Result::err).collect();
        bail!("{}", reasons.join("; "));
    }
    let mut entrants = Vec::new();
    for ((runtime, engine), server) in found.iter().zip(&servers) {
        match server {
            Ok(server) => {
                entrants.push(Entrant::new(&runtime.forge(), || {
                    Ok(vec![millis(server.borrow_mut().run()?)])
                }));
                let own = match engine {
                    Ok(Engine {
                        runtime: Runtime::Docker,
                        address: Some(address),
                        ..
                    }) => OneShot::docker(address),
                    _ => OneShot::podman(&plan.cache),
                };
                entrants.push(one_shot(&runtime.command(), own));
            }
            Err(reason) => entrants.push(Entrant::absent(&runtime.forge(), reason)),
        }
    }
    let pace = Pace {
        warm_up: 2,
        rounds: plan.rounds,
        settle: plan.settle,
    };
    let rows = rounds("engines", &[("time", "ms")], entrants, pace, shuffler);
    let mut notes = Vec::new();
    for ((runtime, engine), server) in found.iter().zip(servers) {
        let (Ok(engine), Ok(server)) = (engine, server) else {
            continue;
        };
        let server = server.into_inner();
        let judged = server.judged();
        server.client.close()?;
        notes.push(format!(
            "{}: {judged} runs, each fresh by the proof; {} containers were left after the end of the server.",
            runtime.forge(),
            engine.left()?
        ));
    }
    Ok(OnEngines { rows, notes })
}
