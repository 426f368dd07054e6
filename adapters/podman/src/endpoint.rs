//! Where the engine listens, found as `podman --remote` finds it: `CONTAINER_HOST`, then the connection
//! that `CONTAINER_CONNECTION` names (`podman system connection`), then the socket of the user.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Longest file of connections that is read, bytes.
const MAX_FILE: u64 = 1 << 20;

/// The address of an engine and who gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its socket.
    pub socket: PathBuf,
    /// `CONTAINER_HOST`, `connection NAME` or `default`.
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
    /// A connection that is not there.
    #[error(
        "connection {name:?} of podman: {why}; `podman system connection list` tells which there are"
    )]
    Connection {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

/// `podman-connections.json`, since Podman 5.
#[derive(Default, Deserialize)]
struct Json {
    #[serde(rename = "Connection", default)]
    connection: JsonConnection,
}

#[derive(Default, Deserialize)]
struct JsonConnection {
    #[serde(rename = "Connections", default)]
    connections: BTreeMap<String, JsonAddress>,
}

#[derive(Deserialize)]
struct JsonAddress {
    #[serde(rename = "URI")]
    uri: String,
}

/// The part of `containers.conf` that is needed.
#[derive(Default, Deserialize)]
struct Conf {
    #[serde(default)]
    engine: ConfEngine,
}

#[derive(Default, Deserialize)]
struct ConfEngine {
    #[serde(default)]
    service_destinations: BTreeMap<String, ConfAddress>,
}

#[derive(Deserialize)]
struct ConfAddress {
    uri: String,
}

/// Where the configuration for all users is: containers.conf(5).
const OF_ALL: &str = "/etc/containers";

impl Endpoint {
    /// The engine that this environment of a user names, whether it answers or not.
    ///
    /// # Errors
    ///
    /// An address of another host, or a connection that cannot be read.
    pub fn find(
        variable: impl Fn(&str) -> Option<OsString>,
        user: u32,
    ) -> Result<Self, EndpointError> {
        let set = |name: &str| {
            let value = variable(name)?.into_string().ok()?;
            (!value.is_empty()).then_some(value)
        };
        if let Some(address) = set("CONTAINER_HOST") {
            return Self::parse(&address, "CONTAINER_HOST".to_owned());
        }
        if let Some(name) = set("CONTAINER_CONNECTION") {
            let config = set("XDG_CONFIG_HOME")
                .map(PathBuf::from)
                .or_else(|| Some(Path::new(&set("HOME")?).join(".config")))
                .map(|config| config.join("containers"));
            let mut files = Vec::new();
            if let Some(config) = &config {
                files.push(config.join("podman-connections.json"));
            }
            match (set("CONTAINERS_CONF"), config) {
                (Some(file), _) => files.push(file.into()),
                (None, own) => {
                    let places = own.into_iter().chain([PathBuf::from(OF_ALL)]);
                    files.extend(places.map(|place| place.join("containers.conf")));
                }
            }
            return match connection(&files, &name) {
                Ok(address) => Self::parse(&address, format!("connection {name}")),
                Err(why) => Err(EndpointError::Connection { name, why }),
            };
        }
        let runtime = match (user, set("XDG_RUNTIME_DIR")) {
            (0, _) => PathBuf::from("/run"),
            (_, Some(directory)) => PathBuf::from(directory),
            (user, None) => PathBuf::from(format!("/run/user/{user}")),
        };
        Ok(Self {
            socket: runtime.join("podman/podman.sock"),
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

/// The address of a connection: of the first file that has it. Those of Podman 5 are JSON.
fn connection(files: &[PathBuf], name: &str) -> Result<String, String> {
    for path in files {
        let shown = path.display();
        let text = match text(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("{shown}: {error}")),
        };
        let found = if path.extension().is_some_and(|kind| kind == "json") {
            let json: Json =
                serde_json::from_str(&text).map_err(|error| format!("{shown}: {error}"))?;
            let found = json.connection.connections.get(name);
            found.map(|found| found.uri.clone())
        } else {
            let conf: Conf =
                toml::from_str(&text).map_err(|error| format!("{shown}: {}", error.message()))?;
            let found = conf.engine.service_destinations.get(name);
            found.map(|found| found.uri.clone())
        };
        if let Some(address) = found {
            return Ok(address);
        }
    }
    let files: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    Err(format!("it is in none of {}", files.join(", ")))
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn found(variables: &[(&str, &str)], user: u32) -> Result<(String, String), String> {
        let variable = |name: &str| {
            let set = variables.iter().find(|(of, _)| *of == name)?;
            Some(set.1.into())
        };
        Endpoint::find(variable, user)
            .map(|found| (found.socket.display().to_string(), found.chosen_by))
            .map_err(|error| error.to_string())
    }

    fn socket(path: &str, chosen_by: &str) -> Result<(String, String), String> {
        Ok((path.to_owned(), chosen_by.to_owned()))
    }

    #[test]
    fn each_user_has_a_socket() {
        assert_eq!(found(&[], 0), socket("/run/podman/podman.sock", "default"));
        assert_eq!(
            found(&[], 7),
            socket("/run/user/7/podman/podman.sock", "default")
        );
        let runtime = [("XDG_RUNTIME_DIR", "/r"), ("CONTAINER_HOST", "")];
        assert_eq!(
            found(&runtime, 7),
            socket("/r/podman/podman.sock", "default")
        );
        assert_eq!(
            found(&runtime, 0),
            socket("/run/podman/podman.sock", "default")
        );
        let host = [
            ("CONTAINER_HOST", "unix:///a"),
            ("CONTAINER_CONNECTION", "b"),
        ];
        assert_eq!(found(&host, 7), socket("/a", "CONTAINER_HOST"));
    }

    #[test]
    fn connections_are_found_by_their_name() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(".config/containers");
        fs::create_dir_all(&directory).unwrap();
        let named = |name: &str| {
            let home = home.path().to_str().unwrap();
            found(&[("HOME", home), ("CONTAINER_CONNECTION", name)], 7)
        };
        let own = directory.display();
        let none = format!(
            "connection \"box\" of podman: it is in none of {own}/podman-connections.json, \
             {own}/containers.conf, /etc/containers/containers.conf; `podman system connection list` \
             tells which there are"
        );
        assert_eq!(named("box"), Err(none));
        let conf = "[engine.service_destinations.box]\nuri = \"unix:///conf\"\n";
        fs::write(directory.join("containers.conf"), conf).unwrap();
        assert_eq!(named("box"), socket("/conf", "connection box"));
        let json = r#"{"Connection": {"Default": "x", "Connections": {
            "box": {"URI": "unix:///json"}, "far": {"URI": "ssh://a@b/run/podman.sock"}}}}"#;
        fs::write(directory.join("podman-connections.json"), json).unwrap();
        assert_eq!(named("box"), socket("/json", "connection box"));
        assert!(
            named("far")
                .unwrap_err()
                .starts_with("\"ssh://a@b/run/podman.sock\" (connection far)")
        );
        let other = home.path().join("other.conf");
        fs::write(&other, conf.replace("box", "other")).unwrap();
        let variables = [
            ("HOME", home.path().to_str().unwrap()),
            ("CONTAINERS_CONF", other.to_str().unwrap()),
            ("CONTAINER_CONNECTION", "other"),
        ];
        assert_eq!(found(&variables, 0), socket("/conf", "connection other"));
        assert!(named("other").is_err());
        fs::write(directory.join("podman-connections.json"), "{").unwrap();
        assert!(
            named("box")
                .unwrap_err()
                .contains("podman-connections.json: EOF")
        );
    }

    #[test]
    fn other_hosts_are_refused() {
        for address in [
            "tcp://127.0.0.1:8080",
            "ssh://a@b/p",
            "unix://a",
            "/run/podman.sock",
        ] {
            let told = found(&[("CONTAINER_HOST", address)], 0).unwrap_err();
            assert!(
                told.contains("(CONTAINER_HOST) is no socket of this host"),
                "{told}"
            );
        }
    }
}
