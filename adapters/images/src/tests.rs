//! Archives of every form, and hostile ones.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mcp_forge_ports::driven::ImageStore;
use mcp_forge_ports::vocabulary::ImportedImage;
use mcp_forge_ports::{PortError, PortErrorKind};
use proptest::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::source::hex;
use crate::{Bounds, DiskImages};

/// A tar, entry by entry, as hostile as need be.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    /// Writes the name and the link as they are: the library would refuse some.
    fn entry(
        mut self,
        kind: EntryType,
        name: &str,
        link: &str,
        mode: u32,
        contents: &[u8],
    ) -> Self {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(contents.len() as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(contents);
        let padding = contents.len().next_multiple_of(512) - contents.len();
        self.0.extend(std::iter::repeat_n(0, padding));
        self
    }

    fn file(self, name: &str, contents: &str) -> Self {
        self.entry(EntryType::Regular, name, "", 0o600, contents.as_bytes())
    }

    fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", 0o700, b"")
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, 0o777, b"")
    }

    fn hard(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, 0o644, b"")
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

struct Place {
    home: tempfile::TempDir,
    store: DiskImages,
}

fn place() -> Place {
    bounded(Bounds::default())
}

fn bounded(bounds: Bounds) -> Place {
    let home = tempfile::tempdir().unwrap();
    let store = DiskImages::new(home.path().join("images"), bounds);
    Place { home, store }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().build();
    tokio.unwrap().block_on(work)
}

impl Place {
    fn given(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.home.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn import(&self, source: &Path) -> Result<ImportedImage, PortError> {
        run(self.store.import(source, Arc::new(|_, _| {})))
    }

    fn import_tar(&self, tar: Tar) -> Result<ImportedImage, PortError> {
        self.import(&self.given("given.tar", &tar.end()))
    }

    fn root(&self, imported: &ImportedImage) -> PathBuf {
        self.home
            .path()
            .join("images/roots")
            .join(&imported.image.id)
    }

    /// Refused, with nothing kept.
    fn refused(&self, tar: Tar) -> String {
        let error = self.import_tar(tar).unwrap_err();
        self.nothing_is_left();
        error.chain()
    }

    fn nothing_is_left(&self) {
        let images = self.home.path().join("images");
        let left = |path: &Path| -> Vec<String> {
            let all = fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name());
            let mut all: Vec<String> = all.map(|name| name.into_string().unwrap()).collect();
            all.sort();
            all
        };
        assert_eq!(left(&images), ["lock", "locks", "roots"]);
        assert!(left(&images.join("roots")).is_empty());
    }
}

fn sha(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_root_file_system_is_imported() {
    let place = place();
    let tar = Tar::default()
        .directory("./")
        .directory("./usr/")
        .entry(EntryType::Regular, "./usr/bin/python3", "", 0o4711, b"#!")
        .file("./usr/lib/secret", "x")
        .link("./bin", "/usr/bin")
        .file("./bin/through", "y")
        .hard("./usr/same", "./usr/bin/python3")
        .link("./etc/resolv.conf", "/run/elsewhere")
        .entry(EntryType::Char, "./dev/null", "", 0o666, b"")
        .entry(EntryType::Fifo, "./pipe", "", 0o666, b"")
        .end();
    let id = sha(&tar);
    for bytes in [tar.clone(), gzip(&tar)] {
        let imported = place.import(&place.given("root.tar", &bytes)).unwrap();
        assert_eq!(imported.image.id, id);
        let root = place.root(&imported);
        let mode = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().mode() & 0o7777;
        // No set-user-id, and nothing is a secret.
        assert_eq!(
            (mode("usr/bin/python3"), mode("usr/lib/secret"), mode("usr")),
            (0o755, 0o644, 0o755)
        );
        assert_eq!(
            fs::read_link(root.join("bin")).unwrap(),
            Path::new("/usr/bin")
        );
        assert_eq!(fs::read(root.join("usr/bin/through")).unwrap(), b"y");
        let inode = |path: &str| fs::metadata(root.join(path)).unwrap().ino();
        assert_eq!(inode("usr/same"), inode("usr/bin/python3"));
        // What the runtime puts its own in the place of.
        assert!(
            fs::symlink_metadata(root.join("etc/resolv.conf"))
                .unwrap()
                .is_file()
        );
        assert!(!root.join("pipe").exists() && !root.join("dev/null").exists());
    }
    assert_eq!(run(place.store.list()).unwrap().len(), 1);
}

#[test]
fn no_path_leads_out() {
    let place = place();
    let outside = place.home.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "mine").unwrap();
    let out = outside.to_str().unwrap();
    for (tar, why) in [
        (Tar::default().file("../x", "x"), "it leads upwards"),
        (Tar::default().file("usr/../../x", "x"), "it leads upwards"),
        (
            Tar::default().hard("x", "../outside/file"),
            "it leads upwards",
        ),
        (
            Tar::default().hard("x", &format!("{out}/file")),
            "No such file or directory",
        ),
        (Tar::default().hard("x", "/"), "a hard link to the root"),
        (
            Tar::default().directory("a").hard("x", "a"),
            "a hard link to what is no file",
        ),
        (
            Tar::default().link("a", "nowhere").file("a/x", "x"),
            "a is a link to nothing",
        ),
        (
            Tar::default().file("a", "x").file("a/x", "x"),
            "Not a directory",
        ),
        (
            Tar::default().link("a", "a").file("a/x", "x"),
            "Too many levels of symbolic links",
        ),
        (
            Tar::default()
                .link("a", "/proc/self/root")
                .directory("proc")
                .file("a/x", "x"),
            "a is a link to nothing",
        ),
    ] {
        let told = place.refused(tar);
        assert!(told.contains(why), "{told}");
    }
    // Links that lead out are of no use to who wants out: they mean the image's own root.
    let tar = Tar::default()
        .link("a", "/")
        .file("a/x", "x")
        .directory("b")
        .link("b/up", "../../../../../..")
        .file("b/up/y", "y")
        .directory(out)
        .link("c", out)
        .file("c/file", "theirs");
    let root = place.root(&place.import_tar(tar).unwrap());
    assert_eq!(fs::read(root.join("x")).unwrap(), b"x");
    assert_eq!(fs::read(root.join("y")).unwrap(), b"y");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"mine");
    assert_eq!(
        fs::read(root.join(out.trim_start_matches('/')).join("file")).unwrap(),
        b"theirs"
    );
    // A link in the place of a file is not written through, nor is one file through another's name.
    let tar = Tar::default()
        .link("f", &format!("{out}/file"))
        .file("f", "x")
        .file("g", "g")
        .hard("h", "g")
        .file("h", "h");
    let root = place.root(&place.import_tar(tar).unwrap());
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"mine");
    assert_eq!(
        (
            fs::read(root.join("g")).unwrap(),
            fs::read(root.join("h")).unwrap()
        ),
        (b"g".into(), b"h".into())
    );
}

#[test]
fn bombs_are_bounded() {
    let small = || {
        bounded(Bounds {
            bytes: 100_000,
            entries: 50,
        })
    };
    let zeros = "0".repeat(60_000);
    let told = small().refused(Tar::default().file("a", &zeros).file("b", &zeros));
    assert!(
        told.contains("\"b\" is refused: the image is too large"),
        "{told}"
    );
    let many = (0..60).fold(Tar::default(), |tar, n| tar.directory(&format!("d{n}")));
    assert!(small().refused(many).contains("there are too many files"));
    // What is not kept is read, too.
    let place = small();
    let mut all = Tar::default().file("a", "a").end();
    all.extend(vec![0; 4 << 20]);
    let told = place
        .import(&place.given("x.tar.gz", &gzip(&all)))
        .unwrap_err();
    assert!(
        told.chain().contains("too large once it is decompressed"),
        "{}",
        told.chain()
    );
    place.nothing_is_left();
    // Names of any length, in both formats.
    let long = "x".repeat(5000);
    let told = small().refused(
        Tar::default()
            .entry(EntryType::GNULongName, "n", "", 0, long.as_bytes())
            .file("a", "a"),
    );
    assert!(told.contains("its name is too long"), "{told}");
    let pax = vec![b'1'; 2 << 20];
    let place = self::place();
    let told = place.refused(
        Tar::default()
            .entry(EntryType::XHeader, "n", "", 0, &pax)
            .file("a", "a"),
    );
    assert!(told.contains("its name is too long"), "{told}");
    // Deeper than anybody can remove.
    let deep = (0..300).map(|_| "d").collect::<Vec<_>>().join("/");
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    builder
        .append_data(&mut header, &deep, std::io::empty())
        .unwrap();
    let deep = builder.into_inner().unwrap();
    assert!(
        place
            .import(&place.given("deep", &deep))
            .unwrap_err()
            .chain()
            .contains("it is too deep")
    );
    let step = "a/".repeat(40);
    let mut tar = Tar::default().directory(&step).link("l0", &step);
    for n in 0..20 {
        let below = format!("l{n}/{}", "b/".repeat(40));
        tar = tar.directory(&below).link(&format!("l{}", n + 1), &below);
    }
    assert!(place.refused(tar).contains("it is too deep"));
}

#[test]
fn what_is_no_archive_is_told() {
    let place = place();
    for (bytes, why) in [
        (b"".to_vec(), "it has no entries"),
        (b"hello".to_vec(), "cannot be read"),
        (vec![0; 4096], "it has no entries"),
        (b"\xfd7zXZ\0...".to_vec(), "it is compressed by xz"),
        (b"BZh91AY".to_vec(), "it is compressed by bzip2"),
        (b"PK\x03\x04...".to_vec(), "it is a zip"),
        // Cut between two entries, and in the middle of the compressed.
        (Tar::default().file("usr/a", "a").0, "its end is missing"),
        (
            gzip(&Tar::default().file("usr/a", "a").end())[..60].to_vec(),
            "it cannot be read",
        ),
        (
            Tar::default()
                .file(
                    "manifest.json",
                    r#"[{"Config": "a", "RepoTags": ["x:1"], "Layers": []}, {"Config": "b", "Layers": []}]"#,
                )
                .end(),
            "it holds 2 images (x:1), save one alone",
        ),
        (gzip(b"hello"), "cannot be read"),
        (
            Tar::default().file("usr/a", &"a".repeat(5000)).0[..2000].to_vec(),
            "",
        ),
        (
            Tar::default().file("manifest.json", "[]").end(),
            "it holds 0 images (), save one alone",
        ),
        (
            Tar::default().file("index.json", "{").end(),
            "index.json: EOF",
        ),
        (
            Tar::default()
                .entry(EntryType::GNUSparse, "usr/s", "", 0, b"")
                .end(),
            "it has no entries",
        ),
    ] {
        let told = place.import(&place.given("x", &bytes)).unwrap_err().chain();
        assert!(told.contains(why), "{told} {why}");
        place.nothing_is_left();
    }
    let told = place.import(place.home.path()).unwrap_err().chain();
    assert!(told.contains("is a directory and no OCI layout"), "{told}");
    let told = place.import(Path::new("/dev/zero")).unwrap_err().chain();
    assert!(told.contains("it is no file and no directory"), "{told}");
    // What it says is not repeated as it is.
    let told = place.given("x", format!("\x1b[2J\n{}", "x".repeat(4096)).as_bytes());
    let told = place.import(&told).unwrap_err().chain();
    assert!(!told.contains(['\x1b', '\n']) && told.len() < 400, "{told}");
    let told = place.import(Path::new("/nowhere/x")).unwrap_err();
    assert_eq!(
        told.hint.as_deref(),
        Some("see whether it is there and who may read it")
    );
    assert!(
        told.chain().contains("/nowhere/x: No such file"),
        "{}",
        told.chain()
    );
}

/// An OCI layout of these layers, changed by `change` before it is written.
fn layout(directory: &Path, layers: &[Vec<u8>], change: impl Fn(&mut serde_json::Value)) {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        fs::write(blobs.join(sha(bytes)), bytes).unwrap();
        json!({"digest": format!("sha256:{}", sha(bytes)), "size": bytes.len()})
    };
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let diffs: Vec<String> = layers
        .iter()
        .map(|layer| format!("sha256:{}", sha(layer)))
        .collect();
    let mut all = json!({
        "config": {"os": "linux", "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": diffs}},
        "name": "docker.io/library/x:1",
    });
    change(&mut all);
    let mut config = put(all["config"].to_string().as_bytes());
    config["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
    let of = |layer: &Vec<u8>| {
        let mut layer = put(&gzip(layer));
        layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip".into();
        layer
    };
    let layers: Vec<_> = layers.iter().map(of).collect();
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let mut manifest = put(manifest.to_string().as_bytes());
    manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json".into();
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": all["name"]});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(directory.join("index.json"), index.to_string()).unwrap();
    fs::write(
        directory.join("oci-layout"),
        "{\"imageLayoutVersion\": \"1.0.0\"}",
    )
    .unwrap();
}

fn two_layers() -> [Vec<u8>; 2] {
    let lower = Tar::default()
        .file("usr/a", "lower")
        .file("usr/b", "lower")
        .file("opt/c", "lower")
        .file("opt/d/e", "lower");
    let upper = Tar::default()
        .file("usr/a", "upper")
        .file("usr/.wh.b", "")
        .file("opt/f", "upper")
        .file("opt/.wh..wh..opq", "")
        .file("opt/.wh.f", "");
    [lower.end(), upper.end()]
}

#[test]
fn layers_are_laid_over_each_other() {
    let place = place();
    let directory = place.home.path().join("layout");
    layout(&directory, &two_layers(), |_| {});
    let imported = place.import(&directory).unwrap();
    assert_eq!(imported.name.as_deref(), Some("docker.io/library/x:1"));
    let root = place.root(&imported);
    assert_eq!(fs::read(root.join("usr/a")).unwrap(), b"upper");
    assert_eq!(fs::read(root.join("opt/f")).unwrap(), b"upper");
    for gone in ["usr/b", "opt/c", "opt/d", "usr/.wh.b", "opt/.wh..wh..opq"] {
        assert!(fs::symlink_metadata(root.join(gone)).is_err(), "{gone}");
    }
    // The same as an archive is the same image.
    let mut builder = Builder::new(Vec::new());
    builder.append_dir_all(".", &directory).unwrap();
    let archive = place.given("archive.tar", &builder.into_inner().unwrap());
    assert_eq!(place.import(&archive).unwrap().image, imported.image);
    assert_eq!(run(place.store.list()).unwrap().len(), 1);
}

#[test]
fn a_docker_archive_is_imported() {
    let place = place();
    let layers = two_layers();
    let config = json!({
        "os": "linux",
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "rootfs": {"type": "layers", "diff_ids": layers.each_ref().map(|layer| format!("sha256:{}", sha(layer)))},
    })
    .to_string();
    let (name, digest) = (format!("{}.json", sha(config.as_bytes())), sha(&layers[0]));
    let (file, link) = (
        format!("{digest}.tar"),
        format!("{}/layer.tar", "1".repeat(20)),
    );
    let manifest =
        json!([{"Config": name, "RepoTags": ["localhost/x:1"], "Layers": [link, "c/upper.tar"]}]);
    let tar = Tar::default()
        .entry(EntryType::Regular, &file, "", 0o644, &layers[0])
        .link(&link, &format!("../{file}"))
        // A name twice is the later one, and a hard link tells a name in the archive.
        .entry(EntryType::Regular, "b/upper.tar", "", 0o644, b"earlier")
        .entry(EntryType::Regular, "b/upper.tar", "", 0o644, &layers[1])
        .hard("c/upper.tar", "b/upper.tar")
        .file(&name, &config)
        .file("manifest.json", &manifest.to_string());
    let imported = place.import_tar(tar).unwrap();
    assert_eq!(imported.image.id, sha(config.as_bytes()));
    assert_eq!(imported.name.as_deref(), Some("localhost/x:1"));
    assert_eq!(
        fs::read(place.root(&imported).join("usr/a")).unwrap(),
        b"upper"
    );
}

#[test]
fn what_an_image_says_of_itself_is_checked() {
    let place = place();
    type Change = fn(&mut serde_json::Value);
    let changes: [(Change, &str); 4] = [
        (
            |all| {
                all["config"]["rootfs"]["diff_ids"][1] = format!("sha256:{}", "0".repeat(64)).into()
            },
            "and should have sha256:0000",
        ),
        (
            |all| all["config"]["rootfs"]["diff_ids"][1] = "sha256:../../x".into(),
            "",
        ),
        (
            |all| all["config"]["rootfs"]["diff_ids"] = json!([]),
            "2 layers and 0 digests",
        ),
        (
            |all| all["config"]["architecture"] = "s390x".into(),
            "it is of linux/s390x",
        ),
    ];
    for (change, why) in changes {
        let directory = tempfile::tempdir_in(place.home.path()).unwrap();
        layout(directory.path(), &two_layers(), change);
        let told = place.import(directory.path()).unwrap_err().chain();
        assert!(told.contains(why), "{told}");
        place.nothing_is_left();
    }
    // A blob that is another, and one that is a link to something else.
    let directory = place.home.path().join("layout");
    layout(&directory, &two_layers(), |_| {});
    let text = fs::read_to_string(directory.join("index.json")).unwrap();
    let digest = text.split("sha256:").nth(1).unwrap()[..64].to_owned();
    let blob = directory.join("blobs/sha256").join(digest);
    let whole = fs::read(&blob).unwrap();
    fs::write(&blob, [&whole[..], b" "].concat()).unwrap();
    let told = place.import(&directory).unwrap_err().chain();
    assert!(told.contains("has the digest sha256:"), "{told}");
    fs::remove_file(&blob).unwrap();
    symlink("/etc/passwd", &blob).unwrap();
    let told = place.import(&directory).unwrap_err().chain();
    assert!(
        told.contains("has the digest sha256:") && !told.contains("root"),
        "{told}"
    );
    place.nothing_is_left();
}

#[test]
fn a_place_that_others_may_write_to_is_refused() {
    let place = place();
    place.import_tar(Tar::default().file("usr/a", "1")).unwrap();
    let listed = || run(place.store.list()).map(|all| all.len());
    assert_eq!(listed().map_err(|error| error.chain()), Ok(1));
    let directory = place.home.path().join("images");
    for writable in [directory.clone(), directory.join("roots")] {
        let mode = |mode| fs::set_permissions(&writable, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o757);
        let told = listed().unwrap_err();
        assert_eq!(told.kind, PortErrorKind::Denied);
        let chain = told.chain();
        assert!(chain.ends_with("others may write to it"), "{chain}");
        let tar = Tar::default().file("usr/a", "2");
        assert!(place.import_tar(tar).is_err());
        mode(0o755);
        assert_eq!(listed().map_err(|error| error.chain()), Ok(1));
    }
}

#[test]
fn an_import_that_nobody_waits_for_ends() {
    let place = place();
    let tar = Tar::default().file("usr/a", &"a".repeat(1 << 20)).end();
    let source = place.given("x", &tar);
    let (begun, begins) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let progress = move |_, _| {
        if begun.send(()).is_ok() {
            let _ = gone.lock().unwrap().recv();
        }
    };
    let tokio = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    tokio.block_on(async {
        let mut import = std::pin::pin!(place.store.import(&source, Arc::new(progress)));
        assert!(poll_once(import.as_mut()).await.is_none());
        begins.recv().unwrap();
    });
    drop(go);
    // It waits for the work, which ends soon.
    drop(tokio);
    assert!(run(place.store.list()).unwrap().is_empty());
    place.nothing_is_left();
}

/// Looks once whether it is done.
async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn names_are_of_one_image() {
    let place = place();
    let one = place
        .import_tar(Tar::default().file("usr/a", "1"))
        .unwrap()
        .image;
    let other = place
        .import_tar(Tar::default().file("usr/a", "2"))
        .unwrap()
        .image;
    let store = &place.store;
    assert_eq!(
        run(store.tag(&one.id, "docker.io/library/x:1"))
            .unwrap()
            .names,
        ["docker.io/library/x:1"]
    );
    run(store.tag(&one.id, "docker.io/library/x:2")).unwrap();
    run(store.tag(&other.id, "docker.io/library/x:1")).unwrap();
    let found = |image: &str| {
        run(store.find(image))
            .map(|image| image.id)
            .map_err(|e| e.kind)
    };
    assert_eq!(found("docker.io/library/x:1"), Ok(other.id.clone()));
    assert_eq!(found("docker.io/library/x:2"), Ok(one.id.clone()));
    assert_eq!(found(&one.id[..12]), Ok(one.id.clone()));
    assert_eq!(found(&format!("sha256:{}", one.id)), Ok(one.id.clone()));
    // Only one that has the repository's name.
    let pinned = |name: &str, id: &str| found(&format!("{name}@sha256:{id}"));
    assert_eq!(pinned("docker.io/library/x", &one.id), Ok(one.id.clone()));
    assert_eq!(
        pinned("docker.io/library/x:9", &other.id),
        Ok(other.id.clone())
    );
    for (name, id) in [
        ("docker.io/library/y", one.id.as_str()),
        ("docker.io/library/x", &one.id[..63]),
        ("docker.io/library/x", ""),
    ] {
        assert_eq!(pinned(name, id), Err(PortErrorKind::NotFound));
    }
    for none in ["x", "", &one.id[..11], "docker.io/library/x:3", "../roots"] {
        assert_eq!(found(none), Err(PortErrorKind::NotFound), "{none}");
    }
    assert!(run(store.tag("0", "x")).is_err());
    // Of two names one goes, then the image.
    run(store.tag(&one.id, "docker.io/library/x:4")).unwrap();
    run(store.remove("docker.io/library/x:4")).unwrap();
    assert_eq!(found("docker.io/library/x:2"), Ok(one.id.clone()));
    run(store.remove("docker.io/library/x:2")).unwrap();
    run(store.remove("docker.io/library/x:2")).unwrap();
    run(store.remove(&other.id)).unwrap();
    place_is_empty(&place);
}

fn place_is_empty(place: &Place) {
    assert!(run(place.store.list()).unwrap().is_empty());
    let roots = place.home.path().join("images/roots");
    assert_eq!(fs::read_dir(roots).unwrap().count(), 0);
}

#[test]
fn an_image_in_use_stays() {
    let place = place();
    let image = place
        .import_tar(Tar::default().file("usr/a", "1"))
        .unwrap()
        .image;
    let held = run(place.store.hold(&image.id)).unwrap();
    let told = run(place.store.remove(&image.id)).unwrap_err();
    assert!(told.context.ends_with("it is in use"), "{told:?}");
    assert_eq!(run(place.store.list()).unwrap().len(), 1);
    drop(held);
    run(place.store.remove(&image.id)).unwrap();
    place_is_empty(&place);
    for none in [image.id.as_str(), "../x", "0"] {
        assert!(run(place.store.hold(none)).is_err());
    }
}

#[test]
fn what_a_killed_import_left_is_removed() {
    let place = place();
    place.import_tar(Tar::default().file("usr/a", "1")).unwrap();
    let images = place.home.path().join("images");
    let left = images.join("staging-x");
    fs::create_dir_all(left.join("root/usr")).unwrap();
    fs::write(images.join("staging-y"), "half").unwrap();
    let orphan = images
        .join("roots")
        .join(sha(&Tar::default().file("usr/a", "2").end()));
    fs::create_dir(&orphan).unwrap();
    let imported = place.import_tar(Tar::default().file("usr/a", "2")).unwrap();
    assert!(!left.exists() && !images.join("staging-y").exists());
    assert_eq!(fs::read(place.root(&imported).join("usr/a")).unwrap(), b"2");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&images), mode(&place.root(&imported))),
        (0o755, 0o755)
    );
}

proptest! {
    /// Whatever the bytes, nothing panics, nothing is written elsewhere and nothing is kept.
    #[test]
    fn any_bytes_are_an_image_or_an_error(
        entries in proptest::collection::vec(
            (0u8..=20, "[a/.]{0,12}", "[a/.]{0,12}", proptest::collection::vec(any::<u8>(), 0..40)),
            0..12,
        ),
        noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let place = bounded(Bounds { bytes: 10_000, entries: 100 });
        let witness = place.home.path().join("a");
        fs::write(&witness, "mine").unwrap();
        let kinds = b"01234567LKxgS\0VDMNXA ";
        let mut tar = entries.iter().fold(Tar::default(), |tar, (kind, name, link, contents)| {
            let kind = EntryType::new(kinds[usize::from(*kind)]);
            tar.entry(kind, name, link, 0o755, contents)
        }).end();
        for (at, byte) in noise {
            let at = at.index(tar.len());
            tar[at] = byte;
        }
        if place.import(&place.given("x", &tar)).is_err() {
            place.nothing_is_left();
        }
        prop_assert_eq!(fs::read(&witness).unwrap(), b"mine");
        let names = fs::read_dir(place.home.path()).unwrap().count();
        prop_assert_eq!(names, 3);
    }
}
