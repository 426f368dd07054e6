//! Images: imported from an archive, used by runs on each runtime, removed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::client::Server;
use crate::home::{Finished, Home, finish};
use crate::host::skip;

/// A home with a place for images, where other users' ids can see it.
pub(crate) struct Place {
    pub(crate) home: Home,
    pub(crate) images: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let images = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in("/var/tmp")
            .unwrap();
        let home = Home::for_root(test)?;
        Some(Self { home, images })
    }

    /// `mcp-forge`, where every image may be used that the test imports.
    pub(crate) fn program(&self, words: &[&str]) -> Command {
        let policy = self
            .home
            .file("policy.toml", "images = [\"mcp-forge/*:*\"]\n");
        let mut command = self.home.command();
        command
            .args(words)
            .env("MCP_FORGE_SECURITY__POLICY", policy)
            .env("MCP_FORGE_IMAGES__DIRECTORY", self.images.path());
        command
    }

    pub(crate) fn command(&self, words: &[&str]) -> Finished {
        finish(self.program(words), b"")
    }
}

/// A root file system that holds this host's Python and what it loads, and two marks.
pub(crate) fn archive(place: &Place, mark: &str) -> PathBuf {
    let home = &place.home;
    let directory = place.images.path();
    let archive = directory.join(format!("{mark}.tar"));
    if archive.exists() {
        return archive;
    }
    let text = |program: &str, argument: &str| {
        let told = Command::new(program).arg(argument).output().unwrap();
        assert!(told.status.success(), "{told:?}");
        String::from_utf8(told.stdout).unwrap()
    };
    let python = fs::canonicalize("/usr/bin/python3").unwrap();
    let python = python.to_str().unwrap();
    let version = python.rsplit("python").next().unwrap();
    let stdlib = format!("/usr/lib/python{version}");
    let mut wanted = vec![python.to_owned(), stdlib.clone()];
    // The libraries of the program and of its extensions, as the dynamic linker finds them.
    let extensions = fs::read_dir(format!("{stdlib}/lib-dynload")).unwrap();
    let extensions = extensions.map(|entry| entry.unwrap().path().display().to_string());
    for program in extensions.chain([python.to_owned()]) {
        for line in text("ldd", &program).lines() {
            let words = line.split_whitespace().filter(|word| word.starts_with('/'));
            let real = words.map(|word| fs::canonicalize(word).unwrap().display().to_string());
            wanted.extend(real);
            // The names that they are asked for.
            let asked = line.split_whitespace().find(|word| word.starts_with('/'));
            wanted.extend(asked.map(|asked| match asked.strip_prefix("/lib") {
                Some(rest) => format!("/usr/lib{rest}"),
                None => asked.to_owned(),
            }));
        }
    }
    wanted.extend(["/usr/bin/python3", "/bin", "/lib", "/lib64"].map(str::to_owned));
    wanted.sort();
    wanted.dedup();
    let list = home.file(
        "list",
        &wanted
            .iter()
            .map(|path| format!("{}\n", &path[1..]))
            .collect::<String>(),
    );
    let own = directory.join(format!("{mark}.own"));
    fs::create_dir_all(own.join("opt")).unwrap();
    fs::create_dir_all(own.join("etc")).unwrap();
    fs::write(own.join("opt/mark"), mark).unwrap();
    symlink("/proc/1/root/etc/passwd", own.join("etc/passwd")).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--create", "--file"]).arg(&archive);
    tar.args([
        "--directory",
        "/",
        "--exclude=*/test",
        "--exclude=*/__pycache__",
        "--files-from",
    ])
    .arg(list);
    tar.arg("--directory").arg(&own).args(["opt", "etc"]);
    assert!(tar.status().unwrap().success());
    archive
}

const LOOK: &str = "
import os, pwd, sqlite3
[open('/opt/mark').read(), pwd.getpwuid(os.getuid()).pw_name, os.path.exists('/usr/bin/env'),
 os.path.exists('/var'), sorted(os.listdir('/')), os.access('/opt', os.W_OK), open('/workspace/x', 'w').write('x')]
";

#[test]
fn a_run_has_the_programs_of_its_image() {
    let Some(place) = Place::new("images") else {
        return;
    };
    let archive = archive(&place, "one");
    let archive = archive.to_str().unwrap();
    let imported = place.command(&[
        "images",
        "import",
        "--name",
        "mcp-forge/python:one",
        archive,
    ]);
    assert_eq!(
        imported.stdout, "docker.io/mcp-forge/python:one\n",
        "{imported:?}"
    );
    let listed = place.command(&["images", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(
        listed[0]["names"],
        json!(["docker.io/mcp-forge/python:one"]),
        "{listed:#}"
    );
    let id = listed[0]["id"].as_str().unwrap();
    let table = place.command(&["images", "list"]).stdout;
    assert!(table.starts_with(&id["sha256:".len()..][..12]), "{table}");

    let run = [
        "run",
        "--json",
        "--image",
        "mcp-forge/python:one",
        "-c",
        LOOK,
    ];
    let ran = place.command(&run);
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let top = [
        "bin",
        "dev",
        "etc",
        "lib",
        "lib64",
        "opt",
        "proc",
        "run",
        "sys",
        "tmp",
        "usr",
        "workspace",
    ];
    let expected = json!(["one", "forge", false, false, top, false, 1]);
    assert_eq!(told["result"], expected, "{told:#}");
    assert_eq!(told["runtime"]["image"], "docker.io/mcp-forge/python:one");
    assert_eq!(told["runtime"]["image_digest"], id);
    let audit = place.home.audit();
    let asked = audit
        .iter()
        .find(|entry| entry["details"]["image"] == "mcp-forge/python:one");
    assert!(asked.is_some(), "{audit:#?}");
    let made = audit.iter().find(|entry| entry["event"] == "image.import");
    let made = &made.unwrap_or_else(|| panic!("{audit:#?}"))["details"];
    let expected = json!({"image": id, "name": "docker.io/mcp-forge/python:one", "from": archive});
    assert_eq!(*made, expected);
    // By what it is.
    let pinned = format!("mcp-forge/python@{id}");
    let policy = format!("images = [\"{pinned}\"]\n");
    let policy = place.home.file("pinned.toml", &policy);
    let mut command = place.program(&["run", "--json", "--image", &pinned, "-c", "1"]);
    command.env("MCP_FORGE_SECURITY__POLICY", policy);
    let told: serde_json::Value = serde_json::from_str(&finish(command, b"").stdout).unwrap();
    assert_eq!(told["runtime"]["image_digest"], id, "{told:#}");
    // The host's own is not another one by that.
    let host = place.command(&[
        "run",
        "--json",
        "-c",
        "import os; os.path.exists('/usr/bin/env')",
    ]);
    let host: serde_json::Value = serde_json::from_str(&host.stdout).unwrap();
    assert_eq!(
        (&host["result"], &host["runtime"]["image"]),
        (&json!(true), &json!("host"))
    );
    place.home.expect_nothing_left();
}

/// The engines of the tests: the runtime, the variable that names one, and who tells its address here.
const ENGINES: [(&str, &str, &str); 3] = [
    ("podman", "CONTAINER_HOST", "MCP_FORGE_TEST_PODMAN"),
    ("podman", "CONTAINER_HOST", "MCP_FORGE_TEST_PODMAN_ROOTLESS"),
    ("docker", "DOCKER_HOST", "MCP_FORGE_TEST_DOCKER"),
];

#[test]
fn an_engine_uses_the_same_images() {
    let Some(place) = Place::new("images on engines") else {
        return;
    };
    let archive = archive(&place, "one");
    let name = "mcp-forge/python:one";
    let archive = archive.to_str().unwrap();
    let imported = place.command(&["images", "import", "--name", name, archive]);
    assert_eq!(imported.code(), 0, "{imported:?}");
    // Another user's engine reads it.
    let cache = place.images.path().join("cache");
    let run = |runtime: &[&str], engine: Option<(&str, String)>| {
        let mut words = vec!["run", "--json", "--image", name, "-c", LOOK];
        words.extend(runtime);
        let mut command = place.program(&words);
        command
            .env("XDG_CACHE_HOME", &cache)
            // A rootless one on control groups of version 1 enforces none.
            .env("MCP_FORGE_SECURITY__ACCEPT_UNENFORCED_LIMITS", "true")
            .envs(engine);
        let ran = finish(command, b"");
        let mut told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        // What engines put there.
        let top = told["result"][4].as_array_mut();
        let top = top.unwrap_or_else(|| panic!("{ran:?}"));
        top.retain(|name| !name.as_str().unwrap().starts_with('.'));
        (
            told["result"].take(),
            told["runtime"]["image_digest"].take(),
        )
    };
    let embedded = run(&[], None);
    for (runtime, variable, address) in ENGINES {
        let Ok(address) = std::env::var(address) else {
            skip("images on engines", &format!("{address} names no engine"));
            continue;
        };
        let on_engine = run(&["--runtime", runtime], Some((variable, address)));
        assert_eq!(on_engine, embedded, "{runtime}");
    }
    place.home.expect_nothing_left();
}

#[test]
fn an_image_must_be_there_and_allowed() {
    let Some(place) = Place::new("images that may not be used") else {
        return;
    };
    let refused = |image: &str, kind: &str, message: &str| {
        let ran = place.command(&["run", "--json", "--image", image, "-c", "1"]);
        let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(told["error"]["kind"], kind, "{told:#}");
        let said = told["error"]["message"].as_str().unwrap();
        assert!(said.contains(message), "{said}");
    };
    refused(
        "mcp-forge/none:1",
        "not_found",
        "there is no image docker.io/mcp-forge/none:1",
    );
    refused("Not An Image", "invalid_argument", "is no image reference");
    refused(
        "python:3",
        "policy_violation",
        "docker.io/library/python:3 is of no pattern in `images`",
    );
    for words in [
        &["images", "remove", "mcp-forge/none:1"][..],
        &["images", "import", "/nowhere"],
        &["images", "import", "--name", "Not A Name", "/etc/passwd"],
        &["images", "import", "/etc/passwd"],
    ] {
        let told = place.command(words);
        assert_eq!((told.code(), told.stdout.as_str()), (125, ""), "{told:?}");
        assert!(told.stderr.starts_with("mcp-forge: "), "{told:?}");
    }
    place.home.expect_nothing_left();
}

#[test]
fn an_image_in_use_is_not_removed() {
    let Some(place) = Place::new("removing images") else {
        return;
    };
    let import = |mark: &str| {
        let archive = archive(&place, mark);
        let told = place.command(&[
            "images",
            "import",
            "--name",
            "mcp-forge/python:x",
            archive.to_str().unwrap(),
        ]);
        assert_eq!(told.code(), 0, "{told:?}");
    };
    import("one");
    let mut server = Server::spawn(&place.home, place.program(&["serve"]));
    let mark = json!({"code": "open('/opt/mark').read()", "custom_image": "mcp-forge/python:x"});
    assert_eq!(server.call(mark.clone())["result"], "one");
    let code = "print('here', flush=True)\nimport time; time.sleep(600)";
    let running = server.begin_tool(
        "execute_python",
        json!({"code": code, "custom_image": "mcp-forge/python:x"}),
        json!({}),
    );
    server.expect_programs(1);
    let remove = ["images", "remove", "mcp-forge/python:x"];
    let told = place.command(&remove);
    assert!(
        told.stderr.contains("it is in use; end the server"),
        "{told:?}"
    );
    server.notify("notifications/cancelled", json!({"requestId": running}));
    server.expect_rest();
    assert_eq!(place.command(&remove).code(), 0);
    let audit = place.home.audit();
    let removed = audit
        .iter()
        .filter(|entry| entry["event"] == "image.remove");
    assert_eq!(removed.count(), 1, "{audit:#?}");
    let told = server.call(mark.clone());
    assert_eq!(told["error"]["kind"], "not_found", "{told:#}");
    // Another one of the same name, in the same server.
    import("two");
    assert_eq!(server.call(mark.clone())["result"], "two");
    // The first one again, whose files were presented before.
    import("one");
    assert_eq!(server.call(mark)["result"], "one");
    server.close();
    place.home.expect_nothing_left();
}
