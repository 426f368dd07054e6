//! The other ways to run a program once: podman, docker, runc, and the bare interpreter.
//!
//! Podman, docker and runc get the limits that mcp-forge has by default, and no network.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::proof::{DIRECTORIES, Judge, PLAIN, Proof, program};

const PYTHON: &str = "/usr/bin/python3";
const MEMORY: u64 = 512 << 20;
const PIDS: u64 = 100;
const CPU_QUOTA: u64 = 50_000;
const CPU_PERIOD: u64 = 100_000;

/// Namespaces that must be new, for each kind of contestant. Engines leave the cgroup namespace
/// to the host where cgroups are of version 1.
pub(crate) const ENGINE_FRESH: [&str; 5] = ["pid", "mnt", "net", "ipc", "uts"];
pub(crate) const ALL_FRESH: [&str; 7] = ["pid", "mnt", "net", "ipc", "uts", "cgroup", "user"];

/// A name that no other run has.
pub(crate) fn nonce() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    format!("run-{}-{number}", std::process::id())
}

enum Engine {
    Podman {
        cache: PathBuf,
    },
    Docker {
        host: String,
    },
    Runc {
        rootfs: PathBuf,
        bundle: tempfile::TempDir,
        state: tempfile::TempDir,
    },
    Bare {
        directories: [tempfile::TempDir; 2],
    },
    /// `mcp-forge run`.
    Forge {
        program: PathBuf,
        state: PathBuf,
    },
}

/// Runs programs by starting a command for each.
pub(crate) struct OneShot {
    engine: Engine,
    judge: Judge,
    plain: bool,
}

/// What a host needs to have for a contestant to take part.
fn installed(program: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    ensure!(
        std::env::split_paths(&path)
            .chain(sbin)
            .any(|dir| dir.join(program).is_file()),
        "{program} is not installed"
    );
    Ok(())
}

impl OneShot {
    fn new(engine: Engine, fresh: &'static [&'static str]) -> Result<Self> {
        let judge = Judge::new(fresh)?;
        Ok(Self {
            engine,
            judge,
            plain: false,
        })
    }

    pub(crate) fn podman(cache: &Path) -> Result<Self> {
        podman(cache)?;
        Self::new(
            Engine::Podman {
                cache: cache.to_owned(),
            },
            &ENGINE_FRESH,
        )
    }

    pub(crate) fn docker(host: &str) -> Result<Self> {
        let engine = Engine::Docker {
            host: host.to_owned(),
        };
        let mut asked = docker(host);
        asked.args(["image", "inspect", IMAGE]);
        ensure!(
            asked.output().context("docker")?.status.success(),
            "no image {IMAGE} at {host}: run benches/prepare with DOCKER_HOST"
        );
        Self::new(engine, &ENGINE_FRESH)
    }

    pub(crate) fn runc(cache: &Path) -> Result<Self> {
        installed("runc")?;
        let rootfs = cache.join("bundle/rootfs");
        ensure!(rootfs.is_dir(), "no root file system: run benches/prepare");
        let engine = Engine::Runc {
            rootfs,
            bundle: tempfile::tempdir()?,
            state: tempfile::tempdir()?,
        };
        Self::new(engine, &ALL_FRESH)
    }

    pub(crate) fn bare() -> Result<Self> {
        ensure!(Path::new(PYTHON).is_file(), "no {PYTHON}");
        let directories = [tempfile::tempdir()?, tempfile::tempdir()?];
        Self::new(Engine::Bare { directories }, &[])
    }

    /// The bare interpreter without the proof: `print(42)` and nothing else.
    pub(crate) fn bare_plain() -> Result<Self> {
        Ok(Self {
            plain: true,
            ..Self::bare()?
        })
    }

    pub(crate) fn forge(program: &Path, state: &Path) -> Result<Self> {
        let engine = Engine::Forge {
            program: program.to_owned(),
            state: state.to_owned(),
        };
        Self::new(engine, &ALL_FRESH)
    }

    /// Runs the program once and checks its proof. `alone`: nobody else of its kind runs.
    pub(crate) fn run(&mut self, alone: bool) -> Result<Duration> {
        let nonce = nonce();
        let text = match &self.engine {
            _ if self.plain => PLAIN.to_owned(),
            Engine::Bare {
                directories: [a, b],
            } => program(&nonce, [utf8(a.path())?, utf8(b.path())?]),
            _ => program(&nonce, DIRECTORIES),
        };
        let mut command = self.command(&text, &nonce)?;
        command.stdin(Stdio::null());
        let begun = Instant::now();
        let output = command
            .output()
            .with_context(|| format!("{:?}", command.get_program()))?;
        let took = begun.elapsed();
        let stdout = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "{}; {}",
            output.status,
            last_line(&output.stderr)
        );
        if self.plain {
            ensure!(stdout == "42\n", "not the output: {stdout:?}");
            return Ok(took);
        }
        let proof = Proof::parse(&stdout)?;
        match self.engine {
            Engine::Bare { .. } => self.judge.check_control(&proof, &nonce)?,
            _ => self.judge.check(&proof, &nonce, alone)?,
        }
        Ok(took)
    }

    fn command(&self, text: &str, nonce: &str) -> Result<Command> {
        Ok(match &self.engine {
            Engine::Podman { cache } => {
                let mut command = podman(cache)?;
                engine_run(&mut command, text);
                command
            }
            Engine::Docker { host } => {
                let mut command = docker(host);
                engine_run(&mut command, text);
                command
            }
            Engine::Runc {
                rootfs,
                bundle,
                state,
            } => {
                let config = runc_config(rootfs, text, nonce);
                fs::write(bundle.path().join("config.json"), config.to_string())?;
                let mut command = clean("runc");
                command
                    .arg("--root")
                    .arg(state.path())
                    .args(["run", "--bundle"]);
                command.arg(bundle.path()).arg(nonce);
                command
            }
            Engine::Bare { .. } => {
                let mut command = clean(PYTHON);
                command.args(["-c", text]);
                command
            }
            Engine::Forge { program, state } => {
                let mut command = forge_command(program, state);
                command.args(["run", "-c", text]);
                command
            }
        })
    }
}

/// The image of `benches/prepare`.
const IMAGE: &str = "forge-bench";

/// Podman with the configuration and the store of `benches/prepare`.
pub(crate) fn podman(cache: &Path) -> Result<Command> {
    installed("podman")?;
    ensure!(
        cache.join("storage.conf").is_file(),
        "no image: run benches/prepare"
    );
    let mut command = clean("podman");
    command
        .env("CONTAINERS_CONF", cache.join("containers.conf"))
        .env("CONTAINERS_STORAGE_CONF", cache.join("storage.conf"));
    Ok(command)
}

pub(crate) fn docker(host: &str) -> Command {
    let mut command = clean("docker");
    command.env("DOCKER_HOST", host);
    command
}

/// Both command lines take the same arguments.
fn engine_run(command: &mut Command, text: &str) {
    command
        .args(["run", "--rm", "--network=none", "--cap-drop=all"])
        .args(["--security-opt=no-new-privileges"])
        .arg(format!("--memory={MEMORY}"))
        .arg(format!("--memory-swap={MEMORY}"))
        .arg(format!("--pids-limit={PIDS}"))
        .arg(format!("--cpu-period={CPU_PERIOD}"))
        .arg(format!("--cpu-quota={CPU_QUOTA}"))
        .args([IMAGE, PYTHON, "-c", text]);
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.trim()
        .lines()
        .next_back()
        .unwrap_or_default()
        .to_owned()
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

/// A command that inherits nothing of what this process was started with.
pub(crate) fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env(
            "PATH",
            "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        )
        .env(
            "HOME",
            std::env::var_os("HOME").unwrap_or_else(|| "/".into()),
        )
        .env("LANG", "C.UTF-8");
    command
}

/// mcp-forge with its own defaults; only its audit log is put into `state`.
pub(crate) fn forge_command(program: &Path, state: &Path) -> Command {
    let mut command = clean(program);
    command.env("XDG_STATE_HOME", state);
    command
}

/// All namespaces, a read-only root, private writable directories, no capability, and the limits.
fn runc_config(rootfs: &Path, text: &str, id: &str) -> serde_json::Value {
    let map = json!([{ "containerID": 0, "hostID": 100_000, "size": 65_536 }]);
    let tmpfs = |path: &str| {
        json!({
            "destination": path, "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=1777", "size=64m"],
        })
    };
    let namespaces = ["pid", "network", "ipc", "uts", "mount", "cgroup", "user"]
        .map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 1000, "gid": 1000 },
            "args": [PYTHON, "-c", text],
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/workspace"],
            "cwd": "/workspace",
            "capabilities": {},
            "noNewPrivileges": true,
        },
        "root": { "path": rootfs, "readonly": true },
        "hostname": "sandbox",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            {
                "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=64k"],
            },
            tmpfs("/tmp"),
            tmpfs("/workspace"),
        ],
        "linux": {
            "namespaces": namespaces,
            "uidMappings": map,
            "gidMappings": map,
            "cgroupsPath": format!("/forge-bench/{id}"),
            "resources": {
                "memory": { "limit": MEMORY, "swap": MEMORY },
                "pids": { "limit": PIDS },
                "cpu": { "quota": CPU_QUOTA, "period": CPU_PERIOD },
            },
        },
    })
}
