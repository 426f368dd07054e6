//! Where the engine listens, found as Docker's own command line finds it: `DOCKER_HOST`, then the
//! context (`DOCKER_CONTEXT`, `currentContext` in `config.json`), then the usual sockets.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Longest file of a context that is read, bytes.
const MAX_FILE: u64 = 1 << 20;

/// Where the engine of the system listens.
const SYSTEM: &str = "/var/run/docker.sock";

/// The address of an engine and who gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its socket.
    pub socket: PathBuf,
    /// `DOCKER_HOST`, `context NAME` or `default`.
    pub chosen_by: String,
}

/// Why there is no address.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Something else than a socket of this host.
    #[error(
        "{address:?} ({chosen_by}) is no socket of this host: the host presentation needs an engine \
         here; give unix:///PATH"
    )]
    NotLocal {
        /// As it was given.
        address: String,
        /// Who gave it.
        chosen_by: String,
    },
    /// A context that cannot be used.
    #[error("context {name:?} of docker: {why}; `docker context ls` tells which there are")]
    Context {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The part of `config.json` that is needed.
#[derive(Deserialize)]
struct Config {
    #[serde(rename = "currentContext")]
    current: Option<String>,
}

/// The part of a context's `meta.json` that is needed.
#[derive(Deserialize)]
struct Context {
    #[serde(rename = "Endpoints")]
    endpoints: Endpoints,
}

#[derive(Deserialize)]
struct Endpoints {
    docker: Address,
}

#[derive(Deserialize)]
struct Address {
    #[serde(rename = "Host")]
    host: String,
}

impl Endpoint {
    /// The engine that this environment names, whether it answers or not.
    ///
    /// # Errors
    ///
    /// An address of another host, or a context that cannot be read.
    pub fn find(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, EndpointError> {
        let set = |name: &str| {
            let value = variable(name)?.into_string().ok()?;
            (!value.is_empty()).then_some(value)
        };
        if let Some(address) = set("DOCKER_HOST") {
            return Self::parse(&address, "DOCKER_HOST".to_owned());
        }
        let config = set("DOCKER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(set("HOME")?).join(".docker")));
        let named = set("DOCKER_CONTEXT").or_else(|| {
            let config: Config = json(&config.as_ref()?.join("config.json")).ok()?;
            config.current
        });
        if let Some(name) = named.filter(|name| !name.is_empty() && name != "default") {
            let wrong = |why: String| EndpointError::Context {
                name: name.clone(),
                why,
            };
            let config = config.ok_or_else(|| wrong("HOME is not set".to_owned()))?;
            let directory: String = Sha256::digest(name.as_bytes())
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let meta = config
                .join("contexts/meta")
                .join(directory)
                .join("meta.json");
            let context: Context = json(&meta).map_err(|error| wrong(error.to_string()))?;
            let chosen_by = format!("context {name}");
            return Self::parse(&context.endpoints.docker.host, chosen_by);
        }
        let own = set("XDG_RUNTIME_DIR").map(|directory| Path::new(&directory).join("docker.sock"));
        let socket = match own {
            Some(own) if own.exists() && !Path::new(SYSTEM).exists() => own,
            _ => PathBuf::from(SYSTEM),
        };
        Ok(Self {
            socket,
            chosen_by: "default".to_owned(),
        })
    }

    fn parse(address: &str, chosen_by: String) -> Result<Self, EndpointError> {
        match address.strip_prefix("unix://") {
            Some(path) if Path::new(path).is_absolute() => Ok(Self {
                socket: PathBuf::from(path),
                chosen_by,
            }),
            _ => Err(EndpointError::NotLocal {
                address: address.chars().take(200).collect(),
                chosen_by,
            }),
        }
    }
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> io::Result<T> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Endpoint, String> {
        Endpoint::find(|name| {
            let set = variables.iter().find(|(of, _)| *of == name)?;
            Some(set.1.into())
        })
        .map_err(|error| error.to_string())
    }

    fn socket(path: &str, chosen_by: &str) -> Result<Endpoint, String> {
        Ok(Endpoint {
            socket: path.into(),
            chosen_by: chosen_by.to_owned(),
        })
    }

    #[test]
    fn the_first_that_names_one_counts() {
        let home = tempfile::tempdir().unwrap();
        let docker = home.path().join(".docker");
        let directory = "f2215117fb2b34ed9c4fab31d4d93ac9dd8b83f0cb5fdc5f5d6c7e5fd7da1bd5";
        let meta = docker.join("contexts/meta");
        fs::create_dir_all(meta.join(directory)).unwrap();
        let home = home.path().to_str().unwrap();
        assert_eq!(found(&[]), socket(SYSTEM, "default"));
        assert_eq!(
            found(&[("HOME", home), ("DOCKER_HOST", "")]),
            socket(SYSTEM, "default")
        );
        assert_eq!(
            found(&[("HOME", home), ("DOCKER_HOST", "unix:///a")]),
            socket("/a", "DOCKER_HOST")
        );
        fs::write(docker.join("config.json"), "{\"currentContext\": \"box\"}").unwrap();
        let told = found(&[("HOME", home)]).unwrap_err();
        assert!(
            told.starts_with("context \"box\" of docker: No such file"),
            "{told}"
        );
        let name: String = Sha256::digest(b"box")
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        fs::rename(meta.join(directory), meta.join(&name)).unwrap();
        let context = "{\"Name\": \"box\", \"Endpoints\": {\"docker\": {\"Host\": \"unix:///b\"}}}";
        fs::write(meta.join(&name).join("meta.json"), context).unwrap();
        assert_eq!(found(&[("HOME", home)]), socket("/b", "context box"));
        let default = [("HOME", home), ("DOCKER_CONTEXT", "default")];
        assert_eq!(found(&default), socket(SYSTEM, "default"));
    }

    #[test]
    fn other_hosts_are_refused() {
        for address in [
            "tcp://127.0.0.1:2375",
            "ssh://a@b",
            "unix://a",
            "/var/run/docker.sock",
        ] {
            let told = found(&[("DOCKER_HOST", address)]).unwrap_err();
            assert!(
                told.contains("(DOCKER_HOST) is no socket of this host"),
                "{told}"
            );
        }
    }
}
