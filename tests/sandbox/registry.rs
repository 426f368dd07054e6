//! Images are pulled from a registry: the one of the distribution project, on loopback.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::home::Finished;
use crate::host::skip;
use crate::images::{Place, archive};

/// As `htpasswd -B` writes it: forge, whose password is secret.
const USERS: &str = "forge:$2b$04$.cpG.8sEzu89F7zFeqjfSOIUgCxw.CCoACNEHQ6.l3Sy5lvej5hVS\n";

/// A registry that lives as long as this value.
struct Registry {
    child: Child,
    address: String,
}

impl Registry {
    /// On the images of `place`; with `users` for those alone.
    fn start(place: &Place, users: Option<&str>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let root = place.images.path().join("registry");
        let mut configuration = json!({
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": root}},
            "http": {"addr": address, "secret": "none"},
        });
        if let Some(users) = users {
            let path = place.home.file("users", users);
            configuration["auth"] = json!({"htpasswd": {"realm": "forge", "path": path}});
        }
        let name = address.replace(':', "-");
        let file = place.home.file(&name, &configuration.to_string());
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < until, "the registry does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, address }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn docker(engine: &str, words: &[&str]) -> String {
    let told = Command::new("docker")
        .env("DOCKER_HOST", engine)
        .args(words)
        .output()
        .unwrap();
    assert!(told.status.success(), "{told:?}");
    String::from_utf8(told.stdout).unwrap()
}

/// The image as it is listed.
fn listed(place: &Place) -> serde_json::Value {
    let listed = place.command(&["images", "list", "--json"]);
    serde_json::from_str(&listed.stdout).unwrap()
}

#[test]
fn an_image_is_pulled() {
    const WHAT: &str = "pulling images";
    let Ok(engine) = std::env::var("MCP_FORGE_TEST_DOCKER") else {
        return skip(WHAT, "MCP_FORGE_TEST_DOCKER names no engine");
    };
    if !fs::exists("/usr/bin/docker-registry").unwrap() {
        return skip(WHAT, "docker-registry is not installed");
    }
    let Some(place) = Place::new(WHAT) else {
        return;
    };
    let registry = Registry::start(&place, None);
    let named = format!("{}/mcp-forge/python:one", registry.address);
    let tar = archive(&place, "one");
    docker(&engine, &["import", tar.to_str().unwrap(), &named]);
    let pushed = docker(&engine, &["push", &named]);
    docker(&engine, &["rmi", &named]);
    let digest = pushed
        .split_whitespace()
        .find(|word| word.starts_with("sha256:"))
        .unwrap();

    let pull = |words: &[&str]| place.command(&[&["images", "pull"], words].concat());
    let pulled = pull(&[&named]);
    assert_eq!(pulled.stdout, format!("{named}\n"), "{pulled:?}");
    let image = listed(&place);
    assert_eq!(image[0]["names"], json!([named]), "{image:#}");
    // The same one again, by its digest, and under a name that the policy knows.
    let pinned = format!("{}/mcp-forge/python@{digest}", registry.address);
    let name = "mcp-forge/python:pulled";
    let pulled = pull(&["--name", name, &pinned]);
    assert_eq!(
        pulled.stdout, "docker.io/mcp-forge/python:pulled\n",
        "{pulled:?}"
    );
    let image = listed(&place);
    assert_eq!(image.as_array().unwrap().len(), 1, "{image:#}");
    let ran = place.command(&[
        "run",
        "--json",
        "--image",
        name,
        "-c",
        "open('/opt/mark').read()",
    ]);
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["result"], "one", "{told:#}");
    assert_eq!(told["runtime"]["image_digest"], image[0]["id"]);

    let refused = |told: Finished, parts: &[&str]| {
        assert_eq!((told.code(), told.stdout.as_str()), (125, ""), "{told:?}");
        for part in parts {
            assert!(told.stderr.contains(part), "{part}: {told:?}");
        }
    };
    let wrong = format!(
        "{}/mcp-forge/python@sha256:{}",
        registry.address,
        "0".repeat(64)
    );
    refused(
        pull(&[&wrong]),
        &["404 Not Found: manifest unknown", "see how it is spelt"],
    );
    refused(pull(&["Not An Image"]), &["is no image reference"]);

    // One that wants to know who asks.
    let guarded = Registry::start(&place, Some(USERS));
    let named = format!("{}/mcp-forge/python:one", guarded.address);
    let login = format!("`podman login {}`", guarded.address);
    refused(pull(&[&named]), &["401 Unauthorized", &login]);
    let with = |secret: &str| {
        let auths = json!({"auths": {&guarded.address: {"auth": secret}}});
        let file = place.home.file("auth.json", &auths.to_string());
        let mut command = place.program(&["images", "pull", &named]);
        command.env("REGISTRY_AUTH_FILE", file);
        crate::home::finish(command, b"")
    };
    // forge:secret and forge:wrong
    let pulled = with("Zm9yZ2U6c2VjcmV0");
    assert_eq!(pulled.stdout, format!("{named}\n"), "{pulled:?}");
    refused(with("Zm9yZ2U6d3Jvbmc="), &["401 Unauthorized", &login]);

    drop((registry, guarded));
    refused(
        pull(&[&named]),
        &["Connection refused", "see whether this host reaches it"],
    );
    place.home.expect_nothing_left();
    let left = fs::read_dir(place.images.path()).unwrap();
    let staging = |name: &str| name.starts_with("staging-");
    let left = left.filter(|entry| staging(&entry.as_ref().unwrap().file_name().to_string_lossy()));
    assert_eq!(left.count(), 0);
}
