//! The engine: what it is, and its containers.

use std::collections::HashMap;
use std::io;

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::models::SystemInfo;
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, CreateImageOptions, KillContainerOptions,
    ListContainersOptions, RemoveContainerOptions, WaitContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker as Client};
use futures::StreamExt;
use mcp_forge_engine::{
    Able, Base, Connect, Connected, End, Engine, EngineRuntime, LABEL_OWNER, Owner, Presentation,
    REPOSITORY, State, leftovers, own_namespaces, profile,
};
use mcp_forge_ports::driven::ByteStream;
use mcp_forge_ports::vocabulary::{RuntimeInfo, SandboxSpec};
use mcp_forge_ports::{PortError, PortErrorKind};

use crate::endpoint::Endpoint;
use crate::error::{failed, status};
use crate::request::Common;
use crate::stream::Attached;

/// Longest wait for an answer of the engine, seconds.
const ANSWER: u64 = 60;

/// Longest wait for a removal that the engine has accepted.
const REMOVAL: std::time::Duration = std::time::Duration::from_secs(20);

/// First version of the API whose engines make mounts below a read-only bind read-only.
const RECURSIVE: (usize, usize) = (1, 44);

/// Oldest version of the API that is spoken: that of Docker 20.10.
const OLDEST: (usize, usize) = (1, 41);

/// The mount's owner is an option.
const WORKSPACE: u32 = 0o700;

/// An engine that speaks the Docker Engine API.
pub type DockerRuntime = EngineRuntime<Docker>;

/// Where a Docker engine is, and what sandboxes on it get.
pub struct Docker {
    endpoint: Endpoint,
    instance: String,
}

/// Containers of a Docker engine.
pub struct Containers {
    docker: Client,
    common: Common,
}

impl Docker {
    /// The engine at `endpoint`.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            instance: uuid::Uuid::new_v4().simple().to_string(),
        }
    }

    fn shown(&self) -> String {
        let (socket, chosen_by) = (self.endpoint.socket.display(), &self.endpoint.chosen_by);
        format!("docker at {socket} ({chosen_by})")
    }

    /// Its version, unless it only speaks like Docker: Podman's API lacks what sandboxes need.
    async fn version_of(&self, docker: &Client) -> Result<String, PortError> {
        let attempt = |error| failed(format!("cannot reach {}", self.shown()), error);
        let told = docker.version().await.map_err(attempt)?;
        let parts = told.components.unwrap_or_default();
        if parts.iter().any(|part| part.name.contains("Podman")) {
            let what = format!("{} is a Podman", self.shown());
            return Err(PortError::new(PortErrorKind::Unsupported, what)
                .with_hint("choose the runtime podman, and name its socket in CONTAINER_HOST"));
        }
        Ok(told.version.unwrap_or_else(|| "unknown".to_owned()))
    }

    /// An engine that answers.
    async fn reach(&self) -> Result<Client, PortError> {
        let attempt = |error| failed(format!("cannot reach {}", self.shown()), error);
        let socket = self.endpoint.socket.display().to_string();
        if !self.endpoint.socket.exists() {
            // The library looks for the file itself, and loses why it is not there.
            return Err(attempt(io::Error::from(io::ErrorKind::NotFound).into()));
        }
        let docker = Client::connect_with_unix(&socket, ANSWER, API_DEFAULT_VERSION);
        docker
            .map_err(attempt)?
            .negotiate_version()
            .await
            .map_err(attempt)
    }
}

#[async_trait]
impl Connect for Docker {
    type Engine = Containers;

    const WORKSPACE: u32 = WORKSPACE;

    async fn version(&self) -> Result<String, PortError> {
        let docker = self.reach().await?;
        self.version_of(&docker).await
    }

    async fn connect(&self) -> Result<Connected<Containers>, PortError> {
        let docker = self.reach().await?;
        let shown = self.shown();
        let attempt = |error| failed(format!("cannot reach {shown}"), error);
        let own = self.version_of(&docker).await?;
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
        let seccomp = profile().map_err(|error| {
            PortError::new(
                PortErrorKind::Internal,
                "cannot make the list of system calls",
            )
            .with_source(error)
        })?;
        let able = able(&info, has("userns") || has("rootless"));
        let mut host_namespaces = own_namespaces();
        if !able.own_users {
            // It is told as a weakness.
            host_namespaces.remove("user");
        }
        let containers = Containers {
            common: Common {
                instance: self.instance.clone(),
                owner: Owner::own().encode(),
                seccomp,
                recursive_read_only: version >= RECURSIVE,
            },
            docker,
        };
        Ok(Connected {
            info: RuntimeInfo {
                kind: "docker".to_owned(),
                version: own,
                weak: able.weak(
                    "cgroup v2 and delegation mend that",
                    "`userns-remap` of dockerd, or a rootless engine, mends that",
                ),
                host_namespaces,
            },
            able,
            engine: containers,
        })
    }
}

/// What the engine says that it enforces here.
fn able(info: &SystemInfo, own_users: bool) -> Able {
    Able {
        memory: info.memory_limit == Some(true),
        swap: info.swap_limit == Some(true),
        cpu: info.cpu_cfs_quota == Some(true),
        pids: info.pids_limit == Some(true),
        own_users,
    }
}

#[async_trait]
impl Engine for Containers {
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
        let all = self
            .docker
            .list_containers(Some(options))
            .await
            .map_err(attempt)?;
        let all = all.iter().filter_map(|container| {
            let label = container.labels.as_ref()?.get(LABEL_OWNER)?;
            let created = container.created.unwrap_or(0).unsigned_abs();
            Some((container.id.as_deref()?, label.as_str(), created))
        });
        let mut failed = None;
        for id in leftovers(all) {
            match self.remove(&id).await {
                Ok(()) => tracing::warn!("removed container {id}, whose server is gone"),
                // The others may go.
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn give(&self, presentation: &Presentation) -> Result<String, PortError> {
        let image = presentation.image();
        match self.docker.inspect_image(&image).await {
            Ok(_) => return Ok(image),
            Err(error) if status(&error) == Some(404) => {}
            Err(error) => return Err(failed(format!("cannot look for image {image}"), error)),
        }
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(REPOSITORY.to_owned()),
            tag: Some(presentation.tag.clone()),
            ..CreateImageOptions::default()
        };
        let body = bollard::body_full(presentation.archive.clone().into());
        let mut told = std::pin::pin!(self.docker.create_image(Some(options), Some(body), None));
        while let Some(step) = told.next().await {
            step.map_err(|error| failed(format!("cannot import image {image}"), error))?;
        }
        Ok(image)
    }

    async fn create(&self, name: &str, spec: &SandboxSpec, base: &Base) -> Result<(), PortError> {
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            ..CreateContainerOptions::default()
        };
        let body = self.common.container(spec, base);
        let made = self.docker.create_container(Some(options), body).await;
        made.map(drop)
            .map_err(|error| failed(format!("cannot create {name}"), error))
    }

    async fn start(&self, name: &str) -> Result<Box<dyn ByteStream>, PortError> {
        let attempt = |error| failed(format!("cannot start {name}"), error);
        let options = AttachContainerOptions {
            stream: true,
            stdin: true,
            stdout: true,
            ..AttachContainerOptions::default()
        };
        // Before it runs, so that its first words are not missed.
        let attached = self.docker.attach_container(name, Some(options)).await;
        let attached = attached.map_err(attempt)?;
        let started = self.docker.start_container(name, None).await;
        started.map_err(attempt)?;
        Ok(Box::new(Attached::new(attached)))
    }

    async fn end(&self, name: &str) -> End {
        let options = WaitContainerOptions {
            condition: "not-running".to_owned(),
        };
        let mut waiting = std::pin::pin!(self.docker.wait_container(name, Some(options)));
        let code = match waiting.next().await {
            Some(Ok(told)) => told.status_code,
            Some(Err(Error::DockerContainerWaitError { code, .. })) => code,
            Some(Err(_)) | None => return End::Gone,
        };
        match self.state(name).await {
            Ok(state) => End::of_code(code, state.oom),
            Err(_) => End::Gone,
        }
    }

    async fn state(&self, name: &str) -> Result<State, PortError> {
        let found = self.docker.inspect_container(name, None).await;
        let found = found.map_err(|error| failed(format!("cannot inspect {name}"), error))?;
        let state = found.state.unwrap_or_default();
        Ok(State {
            id: found.id.unwrap_or_default(),
            process: state.pid.filter(|process| *process > 0),
            oom: state.oom_killed == Some(true),
        })
    }

    async fn kill(&self, name: &str) -> Result<(), PortError> {
        let options = KillContainerOptions {
            signal: "SIGKILL".to_owned(),
        };
        match self.docker.kill_container(name, Some(options)).await {
            Ok(()) => Ok(()),
            // It has ended, or is gone.
            Err(error) if matches!(status(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(failed(format!("cannot kill {name}"), error)),
        }
    }

    async fn remove(&self, name: &str) -> Result<(), PortError> {
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            ..RemoveContainerOptions::default()
        };
        let deadline = tokio::time::Instant::now() + REMOVAL;
        loop {
            match self
                .docker
                .remove_container(name, Some(options.clone()))
                .await
            {
                Ok(()) => return Ok(()),
                Err(error) if status(&error) == Some(404) => return Ok(()),
                // Somebody else removes it already, or it is just being started.
                Err(error)
                    if status(&error) == Some(409) && tokio::time::Instant::now() < deadline =>
                {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                Err(error) => return Err(failed(format!("cannot remove {name}"), error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_does_not_tell_it_does_not_enforce() {
        let info = SystemInfo {
            memory_limit: Some(true),
            swap_limit: Some(false),
            cpu_cfs_quota: None,
            pids_limit: Some(true),
            ..SystemInfo::default()
        };
        let expected = Able {
            memory: true,
            swap: false,
            cpu: false,
            pids: true,
            own_users: false,
        };
        assert_eq!(able(&info, false), expected);
    }
}
