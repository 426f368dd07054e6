//! The engine: what it is, and its containers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use mcp_forge_engine::{
    Able, Base, Connect, Connected, End, Engine, EngineRuntime, LABEL_OWNER, Owner, Presentation,
    REPOSITORY, State, leftovers, own_namespaces, profile,
};
use mcp_forge_ports::driven::ByteStream;
use mcp_forge_ports::vocabulary::{RuntimeInfo, SandboxSpec};
use mcp_forge_ports::{PortError, PortErrorKind};
use mcp_forge_presentation::USER;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::Instant;

use crate::client::{Body, Client, Fault};
use crate::endpoint::Endpoint;
use crate::request::Common;
use crate::stream::Attached;

/// Oldest version of the libpod API that is spoken.
const OLDEST: u32 = 4;

/// Longest wait for a removal that the engine has accepted, and for an engine that starts again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the engine is believed that a container has not ended.
const GLANCE: Duration = Duration::from_secs(5);

/// How often the engine looks whether a container has ended.
const LOOK: &str = "20ms";

/// Mode of the directory under /workspace: its mount belongs to root, since libpod takes no owner.
const WORKSPACE: u32 = 0o777;

/// The ids of containers of an engine of root: the last of those that systemd's `UIDS-GIDS` page
/// documents as used by nobody, and that the embedded runtime leaves.
const OF_ROOT: (u32, u32) = (2_147_287_040, 65_536);

/// Podman, rootless or as root.
pub type PodmanRuntime = EngineRuntime<Podman>;

/// Where Podman is, and what sandboxes on it get.
pub struct Podman {
    endpoint: Endpoint,
    cache: PathBuf,
    instance: String,
}

/// Containers of Podman.
pub struct Containers {
    client: Client,
    common: Common,
}

/// The part of `info` that is needed.
#[derive(Deserialize)]
struct Info {
    host: Host,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Host {
    os: String,
    cgroup_version: String,
    #[serde(default)]
    cgroup_controllers: Option<Vec<String>>,
    #[serde(default)]
    id_mappings: IdMappings,
    security: Security,
}

#[derive(Default, Deserialize)]
struct IdMappings {
    #[serde(default)]
    uidmap: Option<Vec<IdMapping>>,
    #[serde(default)]
    gidmap: Option<Vec<IdMapping>>,
}

#[derive(Deserialize)]
struct IdMapping {
    container_id: u32,
    size: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Security {
    rootless: bool,
    seccomp_enabled: bool,
}

/// The part of a container's description that is needed.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    state: InspectedState,
}

#[derive(Deserialize)]
struct InspectedState {
    #[serde(rename = "Pid")]
    pid: i64,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
    #[serde(rename = "ExitCode")]
    exit_code: i64,
}

/// The part of a list's entry that is needed.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default)]
    labels: Option<HashMap<String, String>>,
    created: String,
}

/// What is of no interest.
#[derive(Deserialize)]
struct Ignored {}

impl Podman {
    /// The engine at `endpoint`. `cache` is a directory that only the user of this process writes to and the engine can read: it
    /// gets the list of system calls.
    pub fn new(endpoint: Endpoint, cache: PathBuf) -> Self {
        Self {
            endpoint,
            cache,
            instance: uuid::Uuid::new_v4().simple().to_string(),
        }
    }

    fn shown(&self) -> String {
        let (socket, chosen_by) = (self.endpoint.socket.display(), &self.endpoint.chosen_by);
        format!("podman at {socket} ({chosen_by})")
    }

    /// An engine that answers, and its version.
    async fn reach(&self) -> Result<(Client, String), PortError> {
        let client = Client {
            socket: self.endpoint.socket.clone(),
        };
        let told = client.ping().await;
        let told = told.map_err(|fault| fault.of(format!("cannot reach {}", self.shown())))?;
        let Some(version) = told else {
            let what = format!("{} is no Podman", self.shown());
            return Err(PortError::new(PortErrorKind::Unsupported, what).with_hint(
                "name its socket in CONTAINER_HOST; for a Docker engine choose the runtime docker",
            ));
        };
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.parse().ok());
        if major.is_none_or(|major: u32| major < OLDEST) {
            let shown: String = version.chars().take(40).collect();
            let what = format!(
                "{}: it is version {shown}, {OLDEST}.0 is needed",
                self.shown()
            );
            return Err(PortError::new(PortErrorKind::Unsupported, what)
                .with_hint("update Podman to 4.0 or newer"));
        }
        Ok((client, version))
    }
}

impl Host {
    fn able(&self) -> Able {
        let has = |controller: &str| {
            let all = self.cgroup_controllers.as_ref();
            all.is_some_and(|all| all.iter().any(|one| one == controller))
        };
        let swap = self.cgroup_version == "v2"
            || Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
        Able {
            memory: has("memory"),
            swap,
            cpu: has("cpu"),
            pids: has("pids"),
            own_users: true,
        }
    }

    /// The ids that containers get: none of the engine's own user.
    fn ids(&self) -> Option<(u32, u32)> {
        if !self.security.rootless {
            return Some(OF_ROOT);
        }
        let given = |maps: &Option<Vec<IdMapping>>| -> u32 {
            let maps = maps.iter().flatten().filter(|map| map.container_id > 0);
            maps.fold(0, |sum, map| sum.saturating_add(map.size))
        };
        let count = given(&self.id_mappings.uidmap).min(given(&self.id_mappings.gidmap));
        (count > USER).then_some((1, count.min(65_536)))
    }
}

#[async_trait]
impl Connect for Podman {
    type Engine = Containers;

    const WORKSPACE: u32 = WORKSPACE;

    async fn version(&self) -> Result<String, PortError> {
        self.reach().await.map(|(_, version)| version)
    }

    async fn connect(&self) -> Result<Connected<Containers>, PortError> {
        let (client, version) = self.reach().await?;
        let shown = self.shown();
        let info: Info = client
            .json(Method::GET, "info", Body::None)
            .await
            .map_err(|fault| fault.of(format!("cannot ask {shown} what it is")))?;
        let host = info.host;
        let unsupported = |what: &str, hint: &str| {
            PortError::new(PortErrorKind::Unsupported, format!("{shown}: {what}")).with_hint(hint)
        };
        if host.os != "linux" {
            return Err(unsupported(
                "its containers are not of Linux",
                "name another engine",
            ));
        }
        if !host.security.seccomp_enabled {
            let what = "it has no seccomp filters";
            return Err(unsupported(what, "a kernel and an engine with seccomp"));
        }
        let ids = host.ids().ok_or_else(|| {
            unsupported(
                "its user has no range of at least 1001 subordinate ids",
                "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER, then as \
                 that user: podman system migrate",
            )
        })?;
        let seccomp = profile().map_err(|error| {
            PortError::new(
                PortErrorKind::Internal,
                "cannot make the list of system calls",
            )
            .with_source(error)
        })?;
        let seccomp = crate::profile::file(&self.cache, &seccomp).map_err(|error| {
            let what = format!(
                "cannot write the list of system calls to {}",
                self.cache.display()
            );
            PortError::new(PortErrorKind::Internal, what)
                .with_source(error)
                .with_hint("set XDG_CACHE_HOME to a directory that can be written to")
        })?;
        let able = host.able();
        let containers = Containers {
            client,
            common: Common {
                instance: self.instance.clone(),
                owner: Owner::own().encode(),
                seccomp: seccomp.display().to_string(),
                able,
                ids,
            },
        };
        let remedy = match host.cgroup_version.as_str() {
            "v2" => "systemd's `Delegate=memory pids cpu` for user@.service mends that",
            _ => {
                "rootless Podman has none on cgroup v1; boot with `systemd.unified_cgroup_hierarchy=1`"
            }
        };
        Ok(Connected {
            info: RuntimeInfo {
                kind: "podman".to_owned(),
                version,
                weak: able.weak(remedy, ""),
                host_namespaces: own_namespaces(),
            },
            able,
            engine: containers,
        })
    }
}

impl Containers {
    async fn inspect(&self, name: &str) -> Result<Inspected, PortError> {
        let path = format!("containers/{name}/json");
        let found = self.client.json(Method::GET, &path, Body::None).await;
        found.map_err(|fault| fault.of(format!("cannot inspect {name}")))
    }
}

#[async_trait]
impl Engine for Containers {
    async fn reap(&self) -> Result<(), PortError> {
        let filters = format!("{{\"label\":[\"{LABEL_OWNER}\"]}}");
        let filters = utf8_percent_encode(&filters, NON_ALPHANUMERIC);
        let path = format!("containers/json?all=true&filters={filters}");
        let all: Option<Vec<Listed>> = self
            .client
            .json(Method::GET, &path, Body::None)
            .await
            .map_err(|fault| fault.of("cannot list containers"))?;
        let all = all.unwrap_or_default();
        let all = all.iter().filter_map(|container| {
            let label = container.labels.as_ref()?.get(LABEL_OWNER)?;
            let created: jiff::Timestamp = container.created.parse().ok()?;
            let created = created.as_second().max(0).unsigned_abs();
            Some((container.id.as_str(), label.as_str(), created))
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
        let image = format!("localhost/{}", presentation.image());
        let path = format!("images/{image}/exists");
        match self.client.done(Method::GET, &path).await {
            Ok(()) => return Ok(image),
            Err(fault) if fault.status() == Some(404) => {}
            Err(fault) => return Err(fault.of(format!("cannot look for image {image}"))),
        }
        let reference = format!("{REPOSITORY}:{}", presentation.tag);
        let reference = utf8_percent_encode(&reference, NON_ALPHANUMERIC);
        let path = format!("images/import?reference={reference}");
        let body = Body::Tar(presentation.archive.clone());
        let given = self.client.json::<Ignored>(Method::POST, &path, body).await;
        given.map_err(|fault| fault.of(format!("cannot import image {image}")))?;
        Ok(image)
    }

    async fn create(&self, name: &str, spec: &SandboxSpec, base: &Base) -> Result<(), PortError> {
        let body = Body::Json(self.common.container(name, spec, base).to_string());
        self.client
            .json::<Ignored>(Method::POST, "containers/create", body)
            .await
            .map(drop)
            .map_err(|fault| fault.of(format!("cannot create {name}")))
    }

    async fn start(&self, name: &str) -> Result<Box<dyn ByteStream>, PortError> {
        let attempt = |fault: Fault| fault.of(format!("cannot start {name}"));
        let path =
            format!("containers/{name}/attach?stream=true&stdin=true&stdout=true&stderr=false");
        // Before it runs, so that its first words are not missed.
        let attached = self.client.upgrade(&path).await.map_err(attempt)?;
        let path = format!("containers/{name}/start");
        self.client
            .done(Method::POST, &path)
            .await
            .map_err(attempt)?;
        Ok(Box::new(Attached::new(attached)))
    }

    async fn end(&self, name: &str) -> End {
        let path =
            format!("containers/{name}/wait?condition=stopped&condition=exited&interval={LOOK}");
        let mut lost = None;
        let code: i64 = loop {
            let waiting = self.client.patient_json(Method::POST, &path, Body::None);
            let Ok(told) = tokio::time::timeout(GLANCE, waiting).await else {
                // An engine that cannot clear up after its containers waits for ever.
                match self.inspect(name).await {
                    Ok(found) if found.state.pid <= 0 => break found.state.exit_code,
                    Err(error) if error.kind == PortErrorKind::NotFound => return End::Gone,
                    _ => continue,
                }
            };
            match told {
                Ok(code) => break code,
                // Containers live on while the engine starts again.
                Err(Fault::Socket(_) | Fault::Http(_)) => {
                    let since = *lost.get_or_insert_with(Instant::now);
                    if since.elapsed() > PATIENCE {
                        return End::Gone;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(_) => return End::Gone,
            }
        };
        match self.state(name).await {
            Ok(state) => End::of_code(code, state.oom),
            Err(_) => End::Gone,
        }
    }

    async fn state(&self, name: &str) -> Result<State, PortError> {
        let found = self.inspect(name).await?;
        Ok(State {
            id: found.id,
            process: (found.state.pid > 0).then_some(found.state.pid),
            oom: found.state.oom_killed,
        })
    }

    async fn kill(&self, name: &str) -> Result<(), PortError> {
        let path = format!("containers/{name}/kill?signal=SIGKILL");
        match self.client.done(Method::POST, &path).await {
            Ok(()) => Ok(()),
            Err(fault) if fault.status() == Some(404) => Ok(()),
            Err(fault) => match self.state(name).await {
                // It has ended, which is told as many kinds of failures.
                Ok(state) if state.process.is_none() => Ok(()),
                Err(error) if error.kind == PortErrorKind::NotFound => Ok(()),
                _ => Err(fault.of(format!("cannot kill {name}"))),
            },
        }
    }

    async fn remove(&self, name: &str) -> Result<(), PortError> {
        let path = format!("containers/{name}?force=true&v=true&timeout=0");
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.client.done(Method::DELETE, &path).await {
                Ok(()) => return Ok(()),
                Err(fault) if fault.status() == Some(404) => return Ok(()),
                // Somebody else removes it already, it is just being started, or the engine starts again.
                Err(
                    Fault::Refused {
                        status: 409 | 500, ..
                    }
                    | Fault::Socket(_)
                    | Fault::Http(_),
                ) if Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(fault) => return Err(fault.of(format!("cannot remove {name}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(rootless: bool, controllers: &str, ids: &str) -> Host {
        let text = format!(
            "{{\"os\": \"linux\", \"cgroupVersion\": \"v2\", \"cgroupControllers\": {controllers}, \
             \"idMappings\": {{\"uidmap\": {ids}, \"gidmap\": {ids}}}, \
             \"security\": {{\"rootless\": {rootless}, \"seccompEnabled\": true}}}}"
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn ids_are_never_those_of_the_engine() {
        let ids = |rootless, ids: &str| host(rootless, "null", ids).ids();
        assert_eq!(ids(false, "null"), Some(OF_ROOT));
        let own = "{\"container_id\": 0, \"host_id\": 1000, \"size\": 1}";
        let given = |size: u32| {
            let ranges =
                format!("[{own}, {{\"container_id\": 1, \"host_id\": 100000, \"size\": {size}}}]");
            ids(true, &ranges)
        };
        assert_eq!(given(65_536), Some((1, 65_536)));
        assert_eq!(given(1_000_000), Some((1, 65_536)));
        assert_eq!(given(1001), Some((1, 1001)));
        assert_eq!(given(1000), None);
        assert_eq!(ids(true, &format!("[{own}]")), None);
    }

    #[test]
    fn only_controllers_that_are_there_enforce() {
        let able = |controllers| host(true, controllers, "null").able();
        let found = able("[\"memory\", \"pids\"]");
        assert_eq!((found.memory, found.cpu, found.pids), (true, false, true));
        let found = able("null");
        assert_eq!((found.memory, found.cpu, found.pids), (false, false, false));
    }
}
