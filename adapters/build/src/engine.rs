//! Containerfiles, on an engine: Docker Engine API 1.41, which Podman 4.0 speaks too.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use mcp_forge_engine::{LABEL_OWNER, Owner, leftovers};
use mcp_forge_ports::driven::{BuildLog, ImageBuilder};
use mcp_forge_ports::vocabulary::ImageRecipe;
use mcp_forge_ports::{PortError, PortErrorKind};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::json;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::client::{Answer, Fault, get, post};
use crate::lines::Lines;
use crate::not_for;

/// Longest wait for the removal of an image.
const REMOVAL: Duration = Duration::from_secs(30);

/// Where what is built is until it has been taken out.
const REPOSITORY: &str = "localhost/mcp-forge/build";

/// The one file of the context.
const CONTAINERFILE: &str = "Containerfile";

/// Builds on an engine, which keeps nothing of it but the image that it was based on and, of a build that failed, the
/// steps that had succeeded.
#[derive(Debug, Clone)]
pub struct EngineBuilder {
    engine: BuildEngine,
    socket: PathBuf,
    most: u64,
}

/// What an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildEngine {
    /// Podman. It ends a build that is given up when the command that runs has ended.
    Podman,
    /// An engine that speaks the Docker Engine API.
    Docker,
}

/// What an engine says while it builds.
#[derive(Deserialize)]
struct Step {
    stream: Option<String>,
    status: Option<String>,
    error: Option<String>,
}

/// The part of a list's entry that is needed.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    repo_tags: Option<Vec<String>>,
    labels: Option<HashMap<String, String>>,
    created: u64,
}

/// An image on the engine that is removed when this is dropped.
struct Built {
    socket: PathBuf,
    name: String,
    /// Whether that has been tried.
    tried: bool,
}

impl Built {
    fn new(socket: &Path, name: String) -> Self {
        Self {
            socket: socket.to_owned(),
            name,
            tried: false,
        }
    }

    fn remove(&mut self) -> io::Result<()> {
        self.tried = true;
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(REMOVAL))?;
        stream.set_write_timeout(Some(REMOVAL))?;
        let name = &self.name;
        write!(
            stream,
            "DELETE /images/{name}?force=true HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n"
        )?;
        let mut status = String::new();
        BufReader::new(stream.take(1024)).read_line(&mut status)?;
        match status.split(' ').nth(1) {
            Some("200" | "404") => Ok(()),
            _ => Err(io::Error::other(format!(
                "the engine says {:?}",
                status.trim()
            ))),
        }
    }
}

impl Drop for Built {
    /// In this thread: whoever gives a build up may end the program next.
    fn drop(&mut self) {
        if !self.tried
            && let Err(error) = self.remove()
        {
            tracing::warn!("image {} is left on the engine: {error}", self.name);
        }
    }
}

impl BuildEngine {
    fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }

    /// The request that builds. Podman takes it in its likeness of the Docker API, whose builds end when nobody waits for them;
    /// those of the libpod API do not. Networks are told as the libpod API tells them: Docker's words for them mean that of
    /// the host there.
    fn request(self, name: &str, arguments: &str, network: Option<&str>) -> String {
        let labels = json!({LABEL_OWNER: Owner::own().encode()}).to_string();
        let mut fields = vec![
            ("dockerfile", CONTAINERFILE.to_owned()),
            ("t", name.to_owned()),
            ("rm", "true".to_owned()),
            ("forcerm", "true".to_owned()),
            ("buildargs", arguments.to_owned()),
            ("labels", labels),
        ];
        match self {
            Self::Podman => {
                let (policy, namespace) = match network {
                    None => ("NetworkDefault", json!({"Name": "network", "Host": false})),
                    Some("none") => ("NetworkDisabled", json!({"Name": "network", "Host": false})),
                    Some("host") => ("NetworkEnabled", json!({"Name": "network", "Host": true})),
                    Some(name) => ("NetworkEnabled", json!({"Name": "network", "Path": name})),
                };
                fields.push(("networkmode", policy.to_owned()));
                let namespaces = json!([{"Name": "user", "Host": true}, namespace]);
                fields.push(("nsoptions", namespaces.to_string()));
            }
            Self::Docker => {
                fields.extend(network.map(|network| ("networkmode", network.to_owned())));
            }
        }
        let fields = fields
            .iter()
            .map(|(key, value)| format!("{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
        // Of no version: newer engines refuse old ones.
        format!("/build?{}", fields.collect::<Vec<_>>().join("&"))
    }
}

impl EngineBuilder {
    /// The engine that answers at `socket`; an archive of more than `most` bytes is refused.
    pub fn new(engine: BuildEngine, socket: PathBuf, most: u64) -> Self {
        Self {
            engine,
            socket,
            most,
        }
    }

    fn failed(&self, attempt: &str, fault: &Fault) -> PortError {
        let (kind, hint) = match fault {
            Fault::Refused(_) | Fault::Answer(_) => (
                PortErrorKind::Unsupported,
                "see what it says above; a base that cannot be pulled is given as a build argument, BASE, and `images build python \
                 --with debian` needs none",
            ),
            Fault::Socket(_) | Fault::Http(_) => (
                PortErrorKind::Unreachable,
                "see whether the engine runs (`mcp-forge doctor`)",
            ),
        };
        let said: String = fault.to_string().trim().escape_debug().take(500).collect();
        PortError::new(kind, format!("{}: {attempt}: {said}", self.engine.name())).with_hint(hint)
    }

    /// Removes what builds left whose process was killed.
    async fn clear(&self) -> Result<(), PortError> {
        let filters = json!({"label": [LABEL_OWNER]}).to_string();
        let filters = utf8_percent_encode(&filters, NON_ALPHANUMERIC);
        let found = async {
            let answer = get(&self.socket, &format!("/images/json?filters={filters}")).await?;
            answer.json::<Vec<Listed>>().await
        };
        let found = found
            .await
            .map_err(|fault| self.failed("cannot list images", &fault))?;
        let found = found.iter().filter_map(|image| {
            let label = image.labels.as_ref()?.get(LABEL_OWNER)?;
            let mut names = image.repo_tags.iter().flatten();
            let name = names.find(|name| name.starts_with(REPOSITORY))?;
            Some((name.as_str(), label.as_str(), image.created))
        });
        for name in leftovers(found) {
            tracing::warn!("removing image {name}, whose build was killed");
            self.remove(Built::new(&self.socket, name)).await?;
        }
        Ok(())
    }

    async fn remove(&self, mut built: Built) -> Result<(), PortError> {
        let what = format!("{}: cannot remove image {}", self.engine.name(), built.name);
        let removed = tokio::task::spawn_blocking(move || built.remove()).await;
        removed.map_err(io::Error::from).flatten().map_err(|error| {
            PortError::new(PortErrorKind::Internal, what)
                .with_source(error)
                .with_hint("remove it with the engine's own command")
        })
    }

    /// Tells what is printed.
    async fn follow(&self, mut answer: Answer, log: BuildLog) -> Result<(), Fault> {
        let mut lines = Lines::new(log);
        while let Some(line) = answer.line().await? {
            let step: Step =
                serde_json::from_slice(&line).map_err(|error| Fault::Answer(error.to_string()))?;
            if let Some(error) = step.error {
                lines.end();
                return Err(Fault::Refused(error));
            }
            for text in [step.stream, step.status.map(|status| status + "\n")]
                .into_iter()
                .flatten()
            {
                lines.add(&text);
            }
        }
        lines.end();
        Ok(())
    }

    async fn save(&self, name: &str, target: &Path) -> Result<(), PortError> {
        let write = |error: io::Error| {
            PortError::new(
                PortErrorKind::Internal,
                format!("cannot write {}", target.display()),
            )
            .with_source(error)
            .with_hint("see whether there is room (`images.directory` says where)")
        };
        let read = |fault| self.failed("cannot take the image out", &fault);
        let mut file = File::create_new(target).await.map_err(write)?;
        let mut archive = get(&self.socket, &format!("/images/{name}/get"))
            .await
            .map_err(read)?;
        let mut length = 0;
        while let Some(part) = archive.part().await.map_err(read)? {
            length += part.len() as u64;
            if length > self.most {
                let what = format!("the image has more than {} bytes", self.most);
                return Err(PortError::new(PortErrorKind::LimitExceeded, what)
                    .with_hint("images.max_size says how large one may be"));
            }
            file.write_all(&part).await.map_err(write)?;
        }
        file.flush().await.map_err(write)
    }
}

/// The context of a build: a Containerfile and nothing else.
fn context(text: &str) -> io::Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_data(&mut header, CONTAINERFILE, text.as_bytes())?;
    builder.into_inner()
}

#[async_trait]
impl ImageBuilder for EngineBuilder {
    async fn build(
        &self,
        recipe: &ImageRecipe,
        target: &Path,
        log: BuildLog,
    ) -> Result<(), PortError> {
        let ImageRecipe::Containerfile {
            text,
            arguments,
            network,
        } = recipe
        else {
            return Err(not_for(
                "an engine",
                "sets of packages",
                "build it with debian",
            ));
        };
        let context = context(text).map_err(|error| {
            PortError::new(
                PortErrorKind::Internal,
                "cannot make the context of the build",
            )
            .with_source(error)
        })?;
        self.clear().await?;
        let name = format!("{REPOSITORY}:{}", uuid::Uuid::new_v4().simple());
        let built = Built::new(&self.socket, name);
        let request = self.engine.request(
            &built.name,
            &json!(arguments).to_string(),
            network.as_deref(),
        );
        let followed = async {
            let answer = post(&self.socket, &request, context).await?;
            self.follow(answer, log).await
        };
        followed
            .await
            .map_err(|fault| self.failed("the build failed", &fault))?;
        self.save(&built.name, target).await?;
        self.remove(built).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_network_of_the_host_only_when_it_is_asked_for() {
        let request = |engine: BuildEngine, network| {
            let request = engine.request("a/b:1", "{\"A\":\"b c\"}", network);
            percent_encoding::percent_decode_str(&request)
                .decode_utf8()
                .unwrap()
                .into_owned()
        };
        let own = r#"nsoptions=[{"Name":"user","Host":true},{"Name":"network","Host":false}]"#;
        for (network, mode, namespaces) in [
            (None, "NetworkDefault", own),
            (Some("none"), "NetworkDisabled", own),
            (
                Some("host"),
                "NetworkEnabled",
                r#"{"Name":"network","Host":true}"#,
            ),
            (
                Some("lab"),
                "NetworkEnabled",
                r#"{"Name":"network","Path":"lab"}"#,
            ),
        ] {
            let podman = request(BuildEngine::Podman, network);
            assert!(
                podman.contains(&format!("&networkmode={mode}&")),
                "{podman}"
            );
            assert!(podman.contains(namespaces), "{podman}");
            let docker = request(BuildEngine::Docker, network);
            let told = docker.split_once("&networkmode=").map(|(_, mode)| mode);
            assert_eq!(told, network, "{docker}");
        }
        let plain = request(BuildEngine::Docker, None);
        let begin = "/build?dockerfile=Containerfile&t=a/b:1&rm=true&forcerm=true&buildargs={\"A\":\"b c\"}&labels=";
        assert!(plain.starts_with(begin), "{plain}");
    }

    #[test]
    fn the_context_is_the_containerfile() {
        let context = context("FROM scratch\n").unwrap();
        let mut archive = tar::Archive::new(context.as_slice());
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text)
            })
            .collect();
        assert_eq!(
            found,
            [(CONTAINERFILE.to_owned(), "FROM scratch\n".to_owned())]
        );
    }
}
