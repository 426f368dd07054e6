//! What only engines have: containers that outlive their server.

use std::process::Command;

use libtest_mimic::Failed;
use mcp_forge_docker::{DockerRuntime, Endpoint};
use mcp_forge_guest::PLACED;
use mcp_forge_ports::PortErrorKind;
use mcp_forge_ports::contract::Subject;
use mcp_forge_ports::driven::ContainerRuntime;

use crate::subjects::DOCKER;

fn docker(address: &str, arguments: &[&str]) -> Result<String, Failed> {
    let done = Command::new("docker")
        .args(["-H", address])
        .args(arguments)
        .output()?;
    if !done.status.success() {
        return Err(format!("docker {arguments:?}: {done:?}").into());
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// Containers of a server that is gone are removed by the next one, those of others are not.
pub(crate) fn leftovers_are_removed() -> Result<(), Failed> {
    let Some(address) = std::env::var(DOCKER).ok() else {
        return crate::missing("docker", format!("{DOCKER} names no engine")).map(drop);
    };
    let endpoint = || {
        let set = |name: &str| (name == "DOCKER_HOST").then(|| address.clone().into());
        Endpoint::find(set).map_err(|error| Failed::from(error.to_string()))
    };
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let warm_up = || -> Result<(), Failed> {
        let runtime = DockerRuntime::new(endpoint()?, &PLACED);
        tokio
            .block_on(runtime.warm_up())
            .map_err(|error| error.chain().into())
    };
    warm_up()?;
    let image = docker(&address, &["images", "--quiet", "mcp-forge/host"])?;
    let image = image.lines().next().unwrap_or_default().to_owned();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/pid")?);
    let (boot, own) = (boot.trim(), std::process::id());
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let start = stat.split(' ').nth(21).unwrap_or_default().to_owned();
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
        let id = docker(
            &address,
            &[
                "create",
                "--network",
                "none",
                "--label",
                &label,
                &image,
                "/x",
            ],
        )?;
        made.push((id, label, stays));
    }
    warm_up()?;
    let left = docker(&address, &["ps", "--all", "--no-trunc", "--quiet"])?;
    let mut wrong = Vec::new();
    for (id, label, stays) in made {
        let is_left = left.lines().any(|one| one == id);
        if is_left != stays {
            wrong.push(format!("{label}: left is {is_left}"));
        }
        if is_left {
            docker(&address, &["rm", &id])?;
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; ").into())
    }
}

/// An engine of its own, ended with the test.
struct Engine(tempfile::TempDir);

impl Engine {
    fn act(&self, action: &str) -> Result<String, Failed> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engines/docker");
        let done = Command::new(script)
            .arg(action)
            .arg(self.0.path().join("docker"))
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

/// An engine that ends takes its sandboxes along, which is told; when it is there again, so is the
/// runtime.
pub(crate) fn a_restart_is_survived() -> Result<(), Failed> {
    if std::env::var_os(DOCKER).is_none() {
        return crate::missing("docker", format!("{DOCKER} names no engine")).map(drop);
    }
    let directory = tempfile::Builder::new()
        .prefix("test-engine-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir_in("/var/tmp")?;
    let engine = Engine(directory);
    let address = engine.act("start")?;
    let endpoint = Endpoint::find(|name| (name == "DOCKER_HOST").then(|| address.clone().into()));
    let runtime = DockerRuntime::new(endpoint.map_err(|error| error.to_string())?, &PLACED);
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    tokio.block_on(async {
        let failed = |error: mcp_forge_ports::PortError| Failed::from(error.chain());
        let started = async || {
            let spec = Subject::spec();
            runtime.create(&spec).await.map_err(failed)?;
            let stream = runtime.start(&spec.id).await.map_err(failed)?;
            Ok::<_, Failed>((spec.id, stream))
        };
        let (lost, _stream) = started().await?;
        engine.act("restart")?;
        match runtime.wait(&lost).await {
            Err(error) if error.kind == PortErrorKind::NotFound => {}
            // It was ended by the engine.
            Ok(exit) if exit != mcp_forge_ports::vocabulary::SandboxExit::Exited(0) => {}
            told => return Err(format!("{told:?}").into()),
        }
        runtime.remove(&lost).await.map_err(failed)?;
        let (again, _stream) = started().await?;
        runtime.kill(&again).await.map_err(failed)?;
        runtime.remove(&again).await.map_err(failed)?;
        let left = docker(&address, &["ps", "--all", "--quiet"])?;
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("left: {left}").into())
        }
    })
}
