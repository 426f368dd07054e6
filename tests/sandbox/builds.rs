//! Images are built: of Debian packages, and by engines of a Containerfile.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::skip;
use crate::images::Place;

/// Processes of a build below this place.
fn builds(place: &Place) -> Vec<String> {
    let directory = place.images.path().display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let words = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let words = words.map(|words| String::from_utf8_lossy(&words).replace('\0', " "));
    words
        .filter(|words| words.contains("mmdebstrap") && words.contains(&directory))
        .collect()
}

fn staged(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.images.path()).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("staging-")).collect()
}

#[test]
fn an_image_is_built_of_debian_packages() {
    let Some(place) = Place::new("an image of Debian packages") else {
        return;
    };
    // Given up in the middle, nothing of it stays.
    let mut given_up = place.program(&["images", "build", "python", "--with", "debian"]);
    given_up
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = given_up.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while builds(&place).is_empty() {
        assert!(Instant::now() < until, "the build does not begin");
        std::thread::sleep(Duration::from_millis(50));
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("SIGINT: nothing was changed"), "{said}");
    assert_eq!(builds(&place), Vec::<String>::new());
    assert_eq!(staged(&place), Vec::<String>::new());

    let built = place.command(&["images", "build", "python", "--with", "debian"]);
    assert_eq!(built.code(), 0, "{}", built.stderr);
    assert_eq!(built.stdout, "docker.io/mcp-forge/python:latest\n");
    assert!(
        built
            .stderr
            .contains("building python with Debian packages"),
        "{}",
        built.stderr
    );
    let code = "import numpy, os; print(int(numpy.arange(4).sum()), os.path.exists('/etc/dpkg'))";
    let ran = place.command(&["run", "--image", "mcp-forge/python", "-c", code]);
    assert_eq!(
        (ran.code(), ran.stdout.as_str()),
        (0, "6 True\n"),
        "{}",
        ran.stderr
    );
    let audit = place.home.audit();
    let entry = audit
        .iter()
        .find(|entry| entry["event"] == "image.import")
        .unwrap();
    let from = &entry["details"]["from"];
    assert_eq!(from, "python built with Debian packages", "{entry:#}");
    assert_eq!(staged(&place), Vec::<String>::new());
    place.home.expect_nothing_left();
}

#[test]
fn an_engine_builds_a_containerfile() {
    for (kind, variable, socket) in [
        ("docker", "MCP_FORGE_TEST_DOCKER", "DOCKER_HOST"),
        ("podman", "MCP_FORGE_TEST_PODMAN", "CONTAINER_HOST"),
    ] {
        let Ok(address) = std::env::var(variable) else {
            skip(
                "builds by an engine",
                &format!("{variable} names no engine"),
            );
            continue;
        };
        let Some(place) = Place::new("images by an engine") else {
            return;
        };
        let build = |text: &str, words: &[&str]| {
            let file = place.home.file("Containerfile", text);
            let file = file.display().to_string();
            let mut all = vec![
                "images",
                "build",
                &file,
                "--with",
                kind,
                "--network",
                "none",
            ];
            all.extend(words);
            let mut program = place.program(&all);
            program.env(socket, &address);
            crate::home::finish(program, b"")
        };
        let text = "FROM scratch\nARG WHAT\nCOPY Containerfile /usr/share/$WHAT\n";
        let built = build(
            text,
            &["--name", "mcp-forge/own:1", "--build-arg", "WHAT=recipe"],
        );
        assert_eq!(built.code(), 0, "{}", built.stderr);
        assert_eq!(built.stdout, "docker.io/mcp-forge/own:1\n");
        let roots = fs::read_dir(place.images.path().join("roots")).unwrap();
        let root = roots.flatten().next().unwrap().path();
        let copied = fs::read_to_string(root.join("usr/share/recipe")).unwrap();
        assert_eq!(copied, text);

        let failed = build(
            "FROM scratch\nCOPY nothing /\n",
            &["--name", "mcp-forge/bad"],
        );
        assert_eq!(failed.code(), 125, "{}", failed.stdout);
        for said in ["COPY nothing", &format!("{kind}: the build failed: ")] {
            assert!(failed.stderr.contains(said), "{said}: {}", failed.stderr);
        }
        assert_eq!(staged(&place), Vec::<String>::new());
    }
}

#[test]
fn what_cannot_be_built_is_told() {
    let Some(place) = Place::new("refused builds") else {
        return;
    };
    let file = place.home.file("Containerfile", "FROM scratch\n");
    let file = file.display().to_string();
    let nowhere = [
        ("DOCKER_HOST", "unix:///nowhere"),
        ("CONTAINER_HOST", "unix:///nowhere"),
    ];
    for (words, said) in [
        (
            vec!["rust"],
            "rust is no Containerfile; give python, r, kernels or the path of one",
        ),
        (vec!["/"], "/ is no Containerfile"),
        (vec![&file], "has no name; give --name"),
        (vec![&file, "--name", "a b"], "\"a b\""),
        (
            vec!["r", "--build-arg", "x"],
            "--build-arg \"x\" is not NAME=VALUE",
        ),
        (
            vec!["r", "--build-arg", "=x"],
            "--build-arg \"=x\" is not NAME=VALUE",
        ),
        (
            vec![&file, "--name", "a/b", "--with", "debian"],
            "a Containerfile is built by podman or docker",
        ),
        (
            vec![&file, "--name", "a/b"],
            "not podman: cannot reach podman at /nowhere (CONTAINER_HOST)",
        ),
        (
            vec!["r", "--with", "debian", "--network", "none"],
            "--build-arg and --network are for podman and docker",
        ),
        (
            vec!["r", "--with", "docker"],
            "cannot build with docker: cannot reach docker at /nowhere",
        ),
        (
            vec!["r", "--runtime", "podman"],
            "cannot build with podman: cannot reach podman at /nowhere",
        ),
    ] {
        let mut all = vec!["images", "build"];
        all.extend(&words);
        let mut program = place.program(&all);
        program.envs(nowhere);
        let refused = crate::home::finish(program, b"");
        assert_eq!(refused.code(), 125, "{words:?}: {}", refused.stderr);
        assert!(
            refused.stderr.contains(said),
            "{words:?}: {}",
            refused.stderr
        );
        assert_eq!(refused.stdout, "");
    }
    assert_eq!(staged(&place), Vec::<String>::new());
}
