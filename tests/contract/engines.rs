//! What only engines have: containers that outlive their server.

use std::future::Future;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use mcp_forge_docker::{Connect, EngineRuntime};
use mcp_forge_ports::contract::Subject;
use mcp_forge_ports::driven::ContainerRuntime;
use mcp_forge_ports::{PortError, PortErrorKind};

use crate::subjects::{DOCKER, PODMAN, PODMAN_ROOTLESS, docker_at, podman_at};

/// An engine and how it is made, for one test.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The variable with the address of the engine of the tests.
    pub(crate) variable: &'static str,
    /// Its command line, to which the address follows.
    pub(crate) command: [&'static str; 2],
    /// The script that starts one, and its last argument.
    script: [&'static str; 2],
}

pub(crate) const KINDS: [Kind; 3] = [
    Kind {
        name: "docker",
        variable: DOCKER,
        command: ["docker", "-H"],
        script: ["docker", "root"],
    },
    Kind {
        name: "podman as root",
        variable: PODMAN,
        command: ["podman", "--url"],
        script: ["podman", "root"],
    },
    Kind {
        name: "podman rootless",
        variable: PODMAN_ROOTLESS,
        command: ["podman", "--url"],
        script: ["podman", "rootless"],
    },
];

/// Both tests on each engine.
pub(crate) fn trials() -> Vec<Trial> {
    let of = |kind: Kind| {
        let leftovers = move || match (kind.address()?, kind.command[0]) {
            (Some(address), "docker") => leftovers_are_removed(kind, &address, docker_at),
            (Some(address), _) => leftovers_are_removed(kind, &address, podman_at),
            (None, _) => Ok(()),
        };
        let restart = move || match (kind.address()?, kind.command[0]) {
            (Some(_), "docker") => a_restart_is_survived(kind, docker_at),
            (Some(_), _) => a_restart_is_survived(kind, podman_at),
            (None, _) => Ok(()),
        };
        [
            Trial::test(format!("{}: leftovers_are_removed", kind.name), leftovers),
            Trial::test(format!("{}: a_restart_is_survived", kind.name), restart),
        ]
    };
    KINDS.into_iter().flat_map(of).collect()
}

impl Kind {
    /// Nothing where the host has none and needs none.
    pub(crate) fn address(&self) -> Result<Option<String>, Failed> {
        let address = std::env::var(self.variable).ok();
        if address.is_none() {
            let why = format!("{} names no engine", self.variable);
            crate::missing(self.name, why)?;
        }
        Ok(address)
    }

    pub(crate) fn ask(&self, address: &str, arguments: &[&str]) -> Result<String, Failed> {
        let [program, option] = self.command;
        let done = Command::new(program)
            .args([option, address])
            .args(arguments)
            .output()?;
        if !done.status.success() {
            return Err(format!("{program} {arguments:?}: {done:?}").into());
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failed> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(tokio.block_on(work))
}

/// Containers of a server that is gone are removed by the next one, and by one that looks again; those of others are not.
fn leftovers_are_removed<C: Connect>(
    kind: Kind,
    address: &str,
    make: impl Fn(&str) -> EngineRuntime<C>,
) -> Result<(), Failed> {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let told = |done: Result<(), PortError>| done.map_err(|error| Failed::from(error.chain()));
    let runtime = make(address);
    // It asks no engine that nobody has used.
    told(tokio.block_on(runtime.clean_up()))?;
    told(tokio.block_on(runtime.warm_up()))?;
    leftovers_are_removed_by(kind, address, || {
        told(tokio.block_on(make(address).warm_up()))
    })?;
    leftovers_are_removed_by(kind, address, || told(tokio.block_on(runtime.clean_up())))
}

/// What labels tell of this process: boot, namespace of ids, id, start.
pub(crate) fn own_process() -> Result<[String; 4], Failed> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/pid")?);
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    Ok([
        boot.trim().to_owned(),
        namespace.to_string(),
        std::process::id().to_string(),
        stat.split(' ').nth(21).unwrap_or_default().to_owned(),
    ])
}

fn leftovers_are_removed_by(
    kind: Kind,
    address: &str,
    clean_up: impl FnOnce() -> Result<(), Failed>,
) -> Result<(), Failed> {
    let docker = |arguments: &[&str]| kind.ask(address, arguments);
    let image = docker(&["images", "--quiet", "mcp-forge/sandbox"])?;
    let image = image.lines().next().unwrap_or_default().to_owned();
    let [boot, namespace, own, start] = own_process()?;
    let mut made = Vec::new();
    for (label, stays) in [
        (
            format!("io.mcp-forge.owner={boot}/{namespace}/{own}/{start}"),
            true,
        ),
        (
            format!("io.mcp-forge.owner={boot}/{namespace}/{own}/1"),
            false,
        ),
        (
            format!("io.mcp-forge.owner=another-boot/{namespace}/{own}/{start}"),
            false,
        ),
        (format!("io.mcp-forge.owner={boot}/1/{own}/{start}"), true),
        ("io.mcp-forge.owner=nonsense".to_owned(), true),
        ("of.somebody=else".to_owned(), true),
    ] {
        let id = docker(&[
            "create",
            "--network",
            "none",
            "--label",
            &label,
            &image,
            "/x",
        ])?;
        made.push((id, label, stays));
    }
    clean_up()?;
    let left = docker(&["ps", "--all", "--no-trunc", "--quiet"])?;
    let mut wrong = Vec::new();
    for (id, label, stays) in made {
        let is_left = left.lines().any(|one| one == id);
        if is_left != stays {
            wrong.push(format!("{label}: left is {is_left}"));
        }
        if is_left {
            docker(&["rm", &id])?;
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; ").into())
    }
}

/// An engine of its own, ended with the test.
struct Engine {
    kind: Kind,
    directory: tempfile::TempDir,
}

impl Engine {
    fn act(&self, action: &str) -> Result<String, Failed> {
        let [script, argument] = self.kind.script;
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engines");
        let done = Command::new(format!("{scripts}/{script}"))
            .arg(action)
            .arg(self.directory.path().join("engine"))
            .arg(argument)
            .output()?;
        if !done.status.success() {
            return Err(format!("{action}: {done:?}").into());
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.act("stop");
    }
}

/// An engine that ends takes its sandboxes along, or leaves them behind without their stream: either
/// is told. When it is there again, so is the runtime, and nothing is left.
fn a_restart_is_survived<C: Connect>(
    kind: Kind,
    make: impl Fn(&str) -> EngineRuntime<C>,
) -> Result<(), Failed> {
    let directory = tempfile::Builder::new()
        .prefix("test-engine-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir_in("/var/tmp")?;
    let engine = Engine { kind, directory };
    let address = engine.act("start")?;
    let runtime = make(&address);
    block_on(async {
        let failed = |error: mcp_forge_ports::PortError| Failed::from(error.chain());
        let started = async || {
            let spec = Subject::spec();
            runtime.create(&spec).await.map_err(failed)?;
            let stream = runtime.start(&spec.id).await.map_err(failed)?;
            Ok::<_, Failed>((spec.id, stream))
        };
        let (lost, _stream) = started().await?;
        engine.act("restart")?;
        runtime.kill(&lost).await.map_err(failed)?;
        match runtime.wait(&lost).await {
            Err(error) if error.kind == PortErrorKind::NotFound => {}
            // It was ended by the engine or by us, or the agent by the end of its stream.
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
        runtime.remove(&lost).await.map_err(failed)?;
        let (again, _stream) = started().await?;
        runtime.kill(&again).await.map_err(failed)?;
        runtime.remove(&again).await.map_err(failed)?;
        let left = kind.ask(&address, &["ps", "--all", "--quiet"])?;
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("left: {left}").into())
        }
    })?
}
