//! The runtimes, and how each is made for a case.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use mcp_forge_docker::{Docker, DockerRuntime};
use mcp_forge_guest::{PLACED, StreamGuest};
use mcp_forge_libcontainer::LibcontainerRuntime;
use mcp_forge_podman::{Podman, PodmanRuntime};
use mcp_forge_ports::contract::{Outside, Subject};
use mcp_forge_ports::driven::ContainerRuntime;
use mcp_forge_ports::vocabulary::SandboxId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A runtime of the product.
pub(crate) struct Runtime {
    pub(crate) name: &'static str,
    /// Why this host has not got it; nothing when it has.
    pub(crate) missing: fn() -> Option<String>,
    pub(crate) make: fn() -> BoxFuture<'static, Made>,
}

/// A runtime for one case, and how it is ended.
pub(crate) struct Made {
    pub(crate) subject: Subject,
    pub(crate) end: End,
}

type End = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// Each one.
pub(crate) const RUNTIMES: [Runtime; 4] = [
    Runtime {
        name: "libcontainer",
        missing: || {
            let enforced =
                nix::unistd::geteuid().is_root() || std::env::var_os(DELEGATED).is_some();
            (!enforced).then(|| format!("an ordinary user's limits depend on the host; {DELEGATED} says that they are enforced"))
        },
        make: || libcontainer().boxed(),
    },
    Runtime {
        name: "podman as root",
        missing: || no_engine(PODMAN),
        make: || podman(PODMAN).boxed(),
    },
    Runtime {
        name: "podman rootless",
        missing: || no_engine(PODMAN_ROOTLESS),
        make: || podman(PODMAN_ROOTLESS).boxed(),
    },
    Runtime {
        name: "docker",
        missing: || no_engine(DOCKER),
        make: || docker().boxed(),
    },
];

/// Set where the embedded runtime has a delegated control group without being root.
const DELEGATED: &str = "MCP_FORGE_TEST_DELEGATED";

/// The addresses of the engines of the tests.
pub(crate) const DOCKER: &str = "MCP_FORGE_TEST_DOCKER";
pub(crate) const PODMAN: &str = "MCP_FORGE_TEST_PODMAN";
pub(crate) const PODMAN_ROOTLESS: &str = "MCP_FORGE_TEST_PODMAN_ROOTLESS";

fn no_engine(address: &str) -> Option<String> {
    let set = std::env::var_os(address).is_some();
    (!set).then(|| format!("{address} names no engine; see tests/engines"))
}

/// The runtime on the Docker engine of this address.
pub(crate) fn docker_at(address: &str) -> DockerRuntime {
    let set = |name: &str| (name == "DOCKER_HOST").then(|| address.into());
    let endpoint = mcp_forge_docker::Endpoint::find(set);
    let endpoint = endpoint.unwrap_or_else(|error| panic!("{error}"));
    DockerRuntime::new(Docker::new(endpoint), &PLACED, None)
}

/// The runtime on the Podman of this address.
pub(crate) fn podman_at(address: &str) -> PodmanRuntime {
    let set = |name: &str| (name == "CONTAINER_HOST").then(|| address.into());
    let endpoint = mcp_forge_podman::Endpoint::find(set, 0);
    let endpoint = endpoint.unwrap_or_else(|error| panic!("{error}"));
    // Beside the socket, where the engine can read.
    let cache = endpoint.socket.with_file_name("cache");
    PodmanRuntime::new(Podman::new(endpoint, cache), &PLACED, None)
}

async fn libcontainer() -> Made {
    let runtime = Arc::new(LibcontainerRuntime::new());
    let subject = Subject {
        runtime: Arc::clone(&runtime) as _,
        guest: Arc::new(StreamGuest),
        outside: Some(Arc::new(Killer)),
        runs_programs: true,
    };
    let end = move || async move { runtime.shut_down().await }.boxed();
    Made {
        subject,
        end: Box::new(end),
    }
}

fn address(variable: &str) -> String {
    std::env::var(variable).unwrap()
}

async fn docker() -> Made {
    let address = address(DOCKER);
    let runtime = Arc::new(docker_at(&address));
    let ended = Arc::clone(&runtime);
    let end = move || async move { ended.shut_down().await }.boxed();
    engine(runtime, ["docker", "-H"], address, Box::new(end))
}

async fn podman(variable: &str) -> Made {
    let address = address(variable);
    let runtime = Arc::new(podman_at(&address));
    let ended = Arc::clone(&runtime);
    let end = move || async move { ended.shut_down().await }.boxed();
    engine(runtime, ["podman", "--url"], address, Box::new(end))
}

fn engine(
    runtime: Arc<dyn ContainerRuntime>,
    command: [&'static str; 2],
    address: String,
    end: End,
) -> Made {
    let subject = Subject {
        runtime,
        guest: Arc::new(StreamGuest),
        outside: Some(Arc::new(CommandLine { command, address })),
        runs_programs: true,
    };
    Made { subject, end }
}

/// The engine's own command line.
struct CommandLine {
    command: [&'static str; 2],
    address: String,
}

#[async_trait]
impl Outside for CommandLine {
    async fn take_away(&self, id: &SandboxId) {
        let [program, option] = self.command;
        let removed = Command::new(program)
            .args([option, &self.address])
            .args(["rm", "--force", &format!("mcp-forge-{id}")])
            .output()
            .unwrap();
        assert!(removed.status.success(), "{removed:?}");
    }
}

/// Kills the agents of this process's sandboxes, as an administrator would. A case has one.
struct Killer;

#[async_trait]
impl Outside for Killer {
    async fn take_away(&self, id: &SandboxId) {
        for _ in 0..500 {
            if kill_agents() > 0 {
                return;
            }
            // It is started and may not be the agent yet.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no process of {id}");
    }
}

fn kill_agents() -> usize {
    let parents: BTreeMap<i32, i32> = processes().collect();
    let is_ours = |mut process: i32| {
        while let Some(parent) = parents.get(&process) {
            process = *parent;
            if process == std::process::id().cast_signed() {
                return true;
            }
        }
        false
    };
    let agents = parents.keys().filter(|process| {
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        words.starts_with(b"/run/forge/agent\0") && is_ours(**process)
    });
    agents
        .filter(|process| kill(Pid::from_raw(**process), Signal::SIGKILL).is_ok())
        .count()
}

/// Every process and its parent: proc(5).
fn processes() -> impl Iterator<Item = (i32, i32)> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            Some((process, parent))
        })
}
