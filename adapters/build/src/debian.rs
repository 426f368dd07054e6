//! Images of Debian packages, made by mmdebstrap: for hosts that reach no registry and have no engine.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use mcp_forge_ports::driven::{BuildLog, ImageBuilder};
use mcp_forge_ports::vocabulary::ImageRecipe;
use mcp_forge_ports::{PortError, PortErrorKind};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::lines::Lines;
use crate::not_for;

/// What does it, with bash.
const BOOTSTRAP: &str = include_str!("../../../images/containers/bootstrap");

/// The variables that it reads: where programs, packages and room for files are.
const VARIABLES: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "MIRROR",
    "SOURCE_DATE_EPOCH",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
];

/// How long a build that is given up may take to clear up.
const CLEARING: Duration = Duration::from_secs(15);

/// Builds images of Debian packages.
#[derive(Debug, Clone, Copy, Default)]
pub struct DebianBuilder;

/// The processes of a build. They end when this is dropped.
struct Group(Pid);

impl Drop for Group {
    /// First they are asked to, so that they remove what they mounted and wrote.
    fn drop(&mut self) {
        // Gone already: the usual case.
        if kill_process_group(self.0, Signal::TERM).is_err() {
            return;
        }
        let deadline = Instant::now() + CLEARING;
        while Instant::now() < deadline {
            // Nobody else waits for it any more.
            let _ = waitpid(Some(self.0), WaitOptions::NOHANG);
            if rustix::process::test_kill_process_group(self.0).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

#[async_trait]
impl ImageBuilder for DebianBuilder {
    async fn build(
        &self,
        recipe: &ImageRecipe,
        target: &Path,
        log: BuildLog,
    ) -> Result<(), PortError> {
        let ImageRecipe::Packages(set) = recipe else {
            return Err(not_for(
                "the builder of Debian packages",
                "a Containerfile",
                "build it with podman or docker",
            ));
        };
        let failed = |why: String| PortError::new(PortErrorKind::Unsupported, why);
        let mut command = Command::new("bash");
        command
            .args(["-c", BOOTSTRAP, "bootstrap", set])
            .arg(target)
            .env_clear()
            .envs(
                VARIABLES
                    .iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().map_err(|error| {
            failed("cannot start bash".to_owned())
                .with_source(error)
                .with_hint("install bash")
        })?;
        let process = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = process.map(Group);
        let mut lines = Lines::new(log);
        if let Some(mut printed) = child.stderr.take() {
            let mut buffer = [0; 8192];
            loop {
                match printed.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(read) => lines.add(&String::from_utf8_lossy(&buffer[..read])),
                }
            }
            lines.end();
        }
        let ended = child.wait().await;
        drop(group);
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(failed(format!(
                "the packages of {set:?} cannot be put together ({status})"
            ))
            .with_hint("see what it says above; images/containers/README.md has what it needs")),
            Err(error) => Err(failed("cannot wait for bash".to_owned()).with_source(error)),
        }
    }
}
