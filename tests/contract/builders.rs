//! The contract of `ImageBuilder`, held against each engine.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use libtest_mimic::{Failed, Trial};
use mcp_forge_build::{BuildEngine, EngineBuilder};
use mcp_forge_ports::contract::{BuilderCase, BuilderSubject, builder_cases};
use nix::fcntl::{Flock, FlockArg};

use crate::engines::{KINDS, Kind, block_on, own_process};
use crate::parity::Outcomes;

/// On each engine, an image with a shell.
const BASE: &str = "localhost/mcp-forge-test/base:1";

/// Where engines have what is being built.
const BUILT: &str = "mcp-forge/build";

/// Each case on each engine.
pub(crate) fn trials(outcomes: &Arc<Mutex<Outcomes>>) -> Vec<Trial> {
    let on = |kind: Kind| {
        let cases = builder_cases().into_iter().map(move |case| {
            let name = format!("builder {}::{}", kind.name, case.name);
            crate::trial(name, case.name, kind.name, outcomes, move || {
                match kind.address()? {
                    Some(address) => hold(kind, &address, case).map(|()| None),
                    None => Ok(Some(format!("{} names no engine", kind.variable))),
                }
            })
        });
        let leftovers = format!("builder {}: leftovers_are_removed", kind.name);
        let leftovers = Trial::test(leftovers, move || match kind.address()? {
            Some(address) => leftovers_are_removed(kind, &address),
            None => Ok(()),
        });
        cases.chain([leftovers])
    };
    KINDS.into_iter().flat_map(on).collect()
}

/// An engine for one builder alone, with the base.
struct Own {
    _alone: Flock<File>,
    directory: tempfile::TempDir,
    socket: PathBuf,
}

impl Own {
    fn new(kind: Kind, address: &str) -> Result<Self, Failed> {
        let socket = PathBuf::from(address.trim_start_matches("unix://"));
        let lock = File::create(socket.with_extension("builders"))?;
        let alone = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        let own = Self {
            _alone: alone,
            directory: tempfile::tempdir()?,
            socket,
        };
        if kind.ask(address, &["images", "--quiet", BASE])?.is_empty() {
            let archive = own.directory.path().join("base.tar");
            base(&archive)?;
            kind.ask(address, &["import", &archive.display().to_string(), BASE])?;
            fs::remove_file(archive)?;
        }
        Ok(own)
    }

    fn builder(&self, kind: Kind, most: u64) -> EngineBuilder {
        let engine = match kind.command[0] {
            "podman" => BuildEngine::Podman,
            _ => BuildEngine::Docker,
        };
        EngineBuilder::new(engine, self.socket.clone(), most)
    }
}

/// A root file system with a shell: Debian's static busybox.
fn base(archive: &Path) -> Result<(), Failed> {
    let busybox = fs::read("/bin/busybox").map_err(|e| format!("install busybox-static: {e}"))?;
    let mut tar = tar::Builder::new(File::create(archive)?);
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(busybox.len() as u64);
    tar.append_data(&mut header, "bin/busybox", busybox.as_slice())?;
    for command in [
        "cat", "echo", "head", "ls", "mkdir", "printf", "sh", "sleep", "touch", "tr", "true", "yes",
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        tar.append_link(&mut header, format!("bin/{command}"), "busybox")?;
    }
    Ok(tar.finish()?)
}

fn hold(kind: Kind, address: &str, case: BuilderCase) -> Result<(), Failed> {
    let own = Own::new(kind, address)?;
    let before = left(kind, address)?;
    if !before.is_empty() {
        return Err(format!("the engine has {before:?} of other builds").into());
    }
    let at = address.to_owned();
    let subject = BuilderSubject {
        builder: Arc::new(own.builder(kind, 1 << 30)),
        small: Arc::new(own.builder(kind, 1 << 20)),
        base: BASE.to_owned(),
        directory: own.directory.path().to_owned(),
        read,
        left: Arc::new(move || left(kind, &at).unwrap_or_else(|error| vec![format!("{error:?}")])),
    };
    block_on(async {
        let held = tokio::spawn(async move { case.run(subject).await });
        held.await
            .map_err(|panicked| crate::message(panicked).into())
    })?
}

/// Images that are being built, and containers of builds.
fn left(kind: Kind, address: &str) -> Result<Vec<String>, Failed> {
    let images = ["images", "--format", "{{.Repository}}:{{.Tag}}"];
    let images = kind.ask(address, &images)?;
    let mut containers = vec![
        "ps",
        "--all",
        "--no-trunc",
        "--format",
        "{{.Image}} {{.Command}}",
    ];
    if kind.command[0] == "podman" {
        containers.push("--external");
    }
    let containers = kind.ask(address, &containers)?;
    let of_builds = containers
        .lines()
        .filter(|line| !line.contains("mcp-forge/sandbox"));
    let images = images.lines().filter(|line| line.contains(BUILT));
    Ok(images.chain(of_builds).map(str::to_owned).collect())
}

/// A file of the image in what `docker save` writes.
fn read(archive: &Path, path: &str) -> Option<Vec<u8>> {
    let mut outer = tar::Archive::new(File::open(archive).unwrap());
    for layer in outer.entries().unwrap() {
        let mut layer = layer.unwrap();
        let name = layer.path().unwrap().display().to_string();
        if !name.ends_with(".tar") || !layer.header().entry_type().is_file() {
            continue;
        }
        let mut bytes = Vec::new();
        layer.read_to_end(&mut bytes).unwrap();
        let mut inner = tar::Archive::new(bytes.as_slice());
        for file in inner.entries().unwrap() {
            let mut file = file.unwrap();
            let found = file.path().unwrap();
            if found.strip_prefix(".").unwrap_or(&found) == Path::new(path) {
                let mut contents = Vec::new();
                file.read_to_end(&mut contents).unwrap();
                return Some(contents);
            }
        }
    }
    None
}

/// What a killed build left is removed by the next one; what another one builds is not.
fn leftovers_are_removed(kind: Kind, address: &str) -> Result<(), Failed> {
    let own = Own::new(kind, address)?;
    let [boot, namespace, process, start] = own_process()?;
    for (tag, start) in [("killed", "1"), ("alive", start.as_str())] {
        let archive = own.directory.path().join("empty.tar");
        tar::Builder::new(File::create(&archive)?).finish()?;
        let label = format!("LABEL io.mcp-forge.owner={boot}/{namespace}/{process}/{start}");
        let name = format!("localhost/{BUILT}:{tag}");
        let archive = archive.display().to_string();
        kind.ask(address, &["import", "--change", &label, &archive, &name])?;
    }
    let subject = own.builder(kind, 1 << 30);
    let recipe = mcp_forge_ports::vocabulary::ImageRecipe::Containerfile {
        text: format!("FROM {BASE}\n"),
        arguments: Default::default(),
        network: None,
    };
    let target = own.directory.path().join("image.tar");
    let built = block_on(mcp_forge_ports::driven::ImageBuilder::build(
        &subject,
        &recipe,
        &target,
        Arc::new(|_: &str| {}),
    ))?;
    let left = left(kind, address)?;
    kind.ask(address, &["rmi", &format!("localhost/{BUILT}:alive")])?;
    built.map_err(|error| error.chain())?;
    match left.as_slice() {
        [one] if one.ends_with(":alive") => Ok(()),
        _ => Err(format!("left: {left:?}").into()),
    }
}
