//! The store: `index.json` with the names, `roots/ID` with the trees, `locks/ID` for who uses one.
//!
//! An image is there whole or not at all: it is unpacked beside the others and renamed. Whoever writes has the lock of the store;
//! readers need none, since the index is replaced at once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use mcp_forge_ports::driven::{ImageProgress, ImageStore};
use mcp_forge_ports::vocabulary::{Image, ImportedImage};
use mcp_forge_ports::{PortError, PortErrorKind};
use mcp_forge_presentation::{ETC_OWN, MAX_TOP};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::archive::{Files, Form, Layer, Layers, form, is_layout};
use crate::source::{Counted, Progress, is_hex, plain};
use crate::tree::Tree;
use crate::unpack::{Room, layer};
use crate::{Failure, Refused};

const INDEX: &str = "index.json";
const ROOTS: &str = "roots";
const LOCKS: &str = "locks";
const STAGING: &str = "staging-";

/// Longest index that is read, bytes.
const MAX_INDEX: u64 = 16 << 20;

/// What one image may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of its files, and of what is read for them.
    pub bytes: u64,
    /// Files and directories.
    pub entries: u64,
}

impl Default for Bounds {
    /// 16 GiB in 2 million files: more than any image in use, less than a disk.
    fn default() -> Self {
        Self {
            bytes: 16 << 30,
            entries: 2_000_000,
        }
    }
}

/// Images below a directory.
#[derive(Debug, Clone)]
pub struct DiskImages {
    directory: PathBuf,
    bounds: Bounds,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    images: Vec<Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    id: String,
    names: Vec<String>,
    bytes: u64,
    /// Seconds since 1970.
    imported: u64,
}

impl From<Entry> for Image {
    fn from(entry: Entry) -> Self {
        Self {
            id: entry.id,
            names: entry.names,
            bytes: entry.bytes,
            imported: UNIX_EPOCH + Duration::from_secs(entry.imported),
        }
    }
}

/// A lock of a file or directory, until it is dropped.
#[derive(Debug)]
struct Lock {
    file: File,
}

impl Lock {
    fn take(path: &Path, operation: FlockOperation) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        Self::of(file, operation)
    }

    fn of(file: File, operation: FlockOperation) -> io::Result<Self> {
        loop {
            match flock(&file, operation) {
                Err(Errno::INTR) => {}
                other => {
                    other?;
                    return Ok(Self { file });
                }
            }
        }
    }
}

/// A directory beside the images, for what becomes one. It is gone with this value, or, where the process was killed, with
/// the next import.
#[derive(Debug)]
pub struct Beside {
    directory: TempDir,
    _lock: Lock,
}

impl Beside {
    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl DiskImages {
    /// The images below `directory`, which is made with the first one.
    pub fn new(directory: PathBuf, bounds: Bounds) -> Self {
        Self { directory, bounds }
    }

    /// Below a store's directory, the directory with the root file systems, each under its image's id.
    pub fn roots(directory: &Path) -> PathBuf {
        directory.join(ROOTS)
    }

    /// Refuses a place that others may write to: what is there runs.
    fn check(&self) -> Result<(), Failure> {
        let user = rustix::process::geteuid().as_raw();
        for path in [&self.directory, &self.directory.join(ROOTS)] {
            let found = match fs::metadata(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found.map_err(Failure::at(path))?,
            };
            let why = if !found.is_dir() {
                "it is no directory"
            } else if found.uid() != user && found.uid() != 0 {
                "it belongs to another user"
            } else if found.mode() & 0o022 != 0 {
                "others may write to it"
            } else {
                continue;
            };
            return Err(Failure::Place {
                path: path.display().to_string(),
                why,
            });
        }
        Ok(())
    }

    fn index(&self) -> Result<Index, Failure> {
        self.check()?;
        let path = self.directory.join(INDEX);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Index::default()),
            file => file.map_err(Failure::at(&path))?,
        };
        let mut text = String::new();
        let read = file.take(MAX_INDEX).read_to_string(&mut text);
        read.map_err(Failure::at(&path))?;
        serde_json::from_str(&text).map_err(|error| Failure::Index {
            path: path.display().to_string(),
            error,
        })
    }

    fn write(&self, index: &Index) -> Result<(), Failure> {
        let path = self.directory.join(INDEX);
        let wrong = Failure::at(&path);
        let text = serde_json::to_string_pretty(index).map_err(|error| wrong(error.into()))?;
        let made = tempfile::Builder::new()
            .prefix(STAGING)
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(&self.directory);
        let mut file = made.map_err(&wrong)?;
        file.write_all(text.as_bytes()).map_err(&wrong)?;
        file.as_file().sync_all().map_err(&wrong)?;
        file.persist(&path).map_err(|error| wrong(error.error))?;
        Ok(())
    }

    fn make_directories(&self) -> Result<(), Failure> {
        self.check()?;
        for directory in [
            &self.directory,
            &self.directory.join(ROOTS),
            &self.directory.join(LOCKS),
        ] {
            fs::create_dir_all(directory).map_err(Failure::at(directory))?;
            // Who maps ids, as the embedded runtime of root does, is another user there.
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(directory, mode).map_err(Failure::at(directory))?;
        }
        Ok(())
    }

    fn beside_now(&self) -> Result<Beside, Failure> {
        self.make_directories()?;
        let wrong = Failure::at(&self.directory);
        loop {
            let directory = tempfile::Builder::new()
                .prefix(STAGING)
                .tempdir_in(&self.directory)
                .map_err(&wrong)?;
            let opened = File::open(directory.path()).map_err(&wrong)?;
            let id = opened.metadata().map_err(&wrong)?.ino();
            let lock = Lock::of(opened, FlockOperation::LockExclusive).map_err(&wrong)?;
            // Whoever clears up may have been there before the lock.
            match fs::metadata(directory.path()) {
                Ok(found) if found.ino() == id => {
                    return Ok(Beside {
                        directory,
                        _lock: lock,
                    });
                }
                _ => continue,
            }
        }
    }

    /// A directory on the disk of the images, for what is to become one.
    ///
    /// # Errors
    ///
    /// `Internal` when there is no room for it.
    pub async fn beside(&self) -> Result<Beside, PortError> {
        let store = self.clone();
        apart(move || {
            let made = store.beside_now();
            made.map_err(|failure| failure.port("cannot make room for an image".to_owned()))
        })
        .await
    }

    /// Nobody else writes from now on; what a writer left that was killed is removed.
    fn lock(&self) -> Result<Lock, Failure> {
        self.make_directories()?;
        let wrong = Failure::at(&self.directory);
        let path = self.directory.join("lock");
        let lock = Lock::take(&path, FlockOperation::LockExclusive).map_err(Failure::at(&path))?;
        for entry in fs::read_dir(&self.directory).map_err(&wrong)? {
            let entry = entry.map_err(&wrong)?;
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with(STAGING) {
                let removed = match entry.file_type().map_err(&wrong)?.is_dir() {
                    true => remove_unused(&path),
                    false => fs::remove_file(&path),
                };
                match removed {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Failure::at(&path)(error));
                    }
                    _ => {}
                }
            }
        }
        Ok(lock)
    }

    fn import_now(&self, source: &Path, progress: &Progress) -> Result<ImportedImage, Failure> {
        let _lock = self.lock()?;
        let staging = tempfile::Builder::new()
            .prefix(STAGING)
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(&self.directory)
            .map_err(Failure::at(&self.directory))?;
        let root = staging.path().join("root");
        let blobs = staging.path().join("blobs");
        for directory in [&root, &blobs] {
            fs::create_dir(directory).map_err(Failure::at(directory))?;
        }
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&root, mode).map_err(Failure::at(&root))?;
        let tree = Tree::open(&root).map_err(Failure::at(&root))?;
        let mut room = Room {
            bytes: self.bounds.bytes,
            entries: self.bounds.entries,
        };
        // What is read may be as much again as what is kept: headers and padding.
        let mut read = self.bounds.bytes.saturating_mul(2);
        let found = fs::metadata(source).map_err(Failure::source(source))?;
        let image = if found.is_dir() {
            if !is_layout(source) {
                return Err(Failure::Wrong(format!(
                    "{} is a directory and no OCI layout",
                    source.display()
                )));
            }
            Some(Files::of_directory(source))
        } else if !found.is_file() {
            let what = "it is no file and no directory; write a pipe to a file first";
            return Err(Failure::Wrong(what.to_owned()));
        } else {
            match form(source)? {
                Form::Tree => None,
                Form::Image => Some(Files::unpacked(source, &blobs, &mut read, progress)?),
            }
        };
        let mut index = self.index()?;
        let (id, name, skipped) = match image {
            None => {
                let opened = plain(source, progress)?;
                let mut counted = Counted::new(opened, &mut read);
                let skipped = layer(&tree, &mut counted, &mut room, false)?;
                (counted.digest().map_err(Failure::Read)?, None, skipped)
            }
            Some(files) => {
                let Layers { id, layers, name } = files.image()?;
                // Those that are there need not be unpacked again.
                let mut skipped = 0;
                if !index.images.iter().any(|entry| entry.id == id) {
                    for one in &layers {
                        skipped += self.unpack(&tree, one, &mut room, &mut read, progress)?;
                    }
                }
                (id, name, skipped)
            }
        };
        if let Some(entry) = index.images.iter().find(|entry| entry.id == id) {
            return Ok(ImportedImage {
                image: entry.clone().into(),
                name,
                skipped: 0,
            });
        }
        finish(&tree, &root)?;
        let place = self.root(&id);
        // What an index without it left.
        if fs::exists(&place).map_err(Failure::at(&place))? {
            fs::remove_dir_all(&place).map_err(Failure::at(&place))?;
        }
        fs::rename(&root, &place).map_err(Failure::at(&place))?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let entry = Entry {
            id,
            names: Vec::new(),
            bytes: self.bounds.bytes - room.bytes,
            imported: now.as_secs(),
        };
        index.images.push(entry.clone());
        self.write(&index)?;
        Ok(ImportedImage {
            image: entry.into(),
            name,
            skipped,
        })
    }

    fn unpack(
        &self,
        tree: &Tree,
        one: &Layer,
        room: &mut Room,
        read: &mut u64,
        progress: &Progress,
    ) -> Result<u64, Failure> {
        let mut counted = Counted::new(plain(&one.path, progress)?, read);
        let skipped = layer(tree, &mut counted, room, true)?;
        let is = counted.digest().map_err(Failure::Read)?;
        if is != one.digest {
            let what = format!(
                "a layer has the digest sha256:{is}, and should have sha256:{}",
                one.digest
            );
            return Err(Failure::Wrong(what));
        }
        Ok(skipped)
    }

    fn root(&self, id: &str) -> PathBuf {
        self.directory.join(ROOTS).join(id)
    }

    fn tag_now(&self, id: &str, name: &str) -> Result<Image, Failure> {
        let _lock = self.lock()?;
        let mut index = self.index()?;
        for entry in &mut index.images {
            entry.names.retain(|one| one != name);
        }
        let entry = index.images.iter_mut().find(|entry| entry.id == id);
        let entry = entry.ok_or_else(|| Failure::Wrong(format!("there is no image {id}")))?;
        entry.names.push(name.to_owned());
        let image = entry.clone().into();
        self.write(&index)?;
        Ok(image)
    }

    /// Nothing when it is in use.
    fn remove_now(&self, image: &str) -> Result<Option<()>, Failure> {
        let _lock = self.lock()?;
        let mut index = self.index()?;
        let Some(at) = position(&index, image) else {
            return Ok(Some(()));
        };
        let entry = &mut index.images[at];
        // Of several names one is taken away, and the image stays.
        if entry.names.len() > 1 && entry.names.iter().any(|name| name == image) {
            entry.names.retain(|name| name != image);
            return self.write(&index).map(Some);
        }
        let lock = self.directory.join(LOCKS).join(&entry.id);
        // Until it is gone: nobody may begin to use it meanwhile.
        let _unused = match Lock::take(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(taken) => taken,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(Failure::at(&lock)(error)),
        };
        let gone = index.images.remove(at);
        self.write(&index)?;
        let root = self.root(&gone.id);
        fs::remove_dir_all(&root).map_err(Failure::at(&root))?;
        fs::remove_file(&lock).map_err(Failure::at(&lock))?;
        Ok(Some(()))
    }
}

/// Removes a directory unless somebody has it locked.
fn remove_unused(path: &Path) -> io::Result<()> {
    match Lock::of(File::open(path)?, FlockOperation::NonBlockingLockExclusive) {
        Ok(_lock) => fs::remove_dir_all(path),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// A reference without its tag.
fn untagged(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

/// The image of a name, an id, the beginning of an id that no other has, or a repository with an id as its digest.
fn position(index: &Index, image: &str) -> Option<usize> {
    let named = |entry: &Entry| entry.names.iter().any(|name| name == image);
    if let Some(at) = index.images.iter().position(named) {
        return Some(at);
    }
    // One of this name once, by what it is.
    if let Some((repository, digits)) = image.split_once("@sha256:") {
        let repository = untagged(repository);
        return index.images.iter().position(|entry| {
            entry.id == digits && entry.names.iter().any(|name| untagged(name) == repository)
        });
    }
    let digits = image.strip_prefix("sha256:").unwrap_or(image);
    if digits.len() < 12 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut begun = index
        .images
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.id.starts_with(digits));
    match (begun.next(), begun.next()) {
        (Some((at, _)), None) => Some(at),
        _ => None,
    }
}

/// What every image has, whatever its layers say: the files of `/etc` that are the same in every sandbox, and `/usr`,
/// which is looked at in each of them.
fn finish(tree: &Tree, root: &Path) -> Result<(), Failure> {
    let wrong = |error: io::Error| Failure::at(root)(error);
    let etc = Path::new("etc");
    for directory in [etc, Path::new("usr")] {
        let made = tree.make_directory(Path::new(""), directory.as_os_str());
        made.map_err(wrong)?;
    }
    for (name, text) in ETC_OWN {
        let file = tree.file(etc, name.as_ref(), false);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(wrong)?;
    }
    let count = fs::read_dir(root).map_err(wrong)?.count();
    if count > MAX_TOP {
        let why =
            format!("it has {count} files and directories at its top, {MAX_TOP} are the most");
        return Err(Refused::new(Path::new("/"), &why).into());
    }
    Ok(())
}

/// Set when it is dropped.
struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does it where it may take long.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PortError> + Send + 'static,
) -> Result<T, PortError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            let what = "a task of the image store ended";
            Err(PortError::new(PortErrorKind::Internal, what).with_source(error))
        })
}

fn not_there(image: &str) -> PortError {
    PortError::new(
        PortErrorKind::NotFound,
        format!("there is no image {}", image.escape_debug()),
    )
    .with_hint("`mcp-forge images list` tells which there are, `mcp-forge images import` makes one")
}

#[async_trait]
impl ImageStore for DiskImages {
    async fn list(&self) -> Result<Vec<Image>, PortError> {
        let store = self.clone();
        apart(move || {
            let index = store.index();
            let index = index.map_err(|failure| failure.port("cannot list images".to_owned()))?;
            Ok(index.images.into_iter().map(Image::from).collect())
        })
        .await
    }

    async fn find(&self, image: &str) -> Result<Image, PortError> {
        let (store, image) = (self.clone(), image.to_owned());
        apart(move || {
            let index = store.index();
            let mut index =
                index.map_err(|failure| failure.port(format!("cannot look for image {image}")))?;
            let at = position(&index, &image).ok_or_else(|| not_there(&image))?;
            Ok(index.images.swap_remove(at).into())
        })
        .await
    }

    async fn import(
        &self,
        source: &Path,
        progress: ImageProgress,
    ) -> Result<ImportedImage, PortError> {
        let (store, source) = (self.clone(), source.to_owned());
        let progress = Progress {
            told: progress,
            given_up: Arc::default(),
        };
        // Whoever gives this future up ends the work.
        let _given_up = GivenUp(Arc::clone(&progress.given_up));
        apart(move || {
            let imported = store.import_now(&source, &progress);
            imported.map_err(|failure| failure.port(format!("cannot import {}", source.display())))
        })
        .await
    }

    async fn tag(&self, id: &str, name: &str) -> Result<Image, PortError> {
        let (store, id, name) = (self.clone(), id.to_owned(), name.to_owned());
        apart(move || {
            let tagged = store.tag_now(&id, &name);
            tagged.map_err(|failure| failure.port(format!("cannot name image {id}")))
        })
        .await
    }

    async fn remove(&self, image: &str) -> Result<(), PortError> {
        let (store, image) = (self.clone(), image.to_owned());
        apart(move || match store.remove_now(&image) {
            Ok(Some(())) => Ok(()),
            Ok(None) => {
                let what = format!("cannot remove image {image}: it is in use");
                Err(PortError::new(PortErrorKind::AlreadyExists, what)
                    .with_hint("end the server that uses it first"))
            }
            Err(failure) => Err(failure.port(format!("cannot remove image {image}"))),
        })
        .await
    }

    async fn hold(&self, id: &str) -> Result<Arc<dyn Send + Sync>, PortError> {
        let (store, id) = (self.clone(), id.to_owned());
        apart(move || {
            if !is_hex(&id) {
                return Err(not_there(&id));
            }
            let path = store.directory.join(LOCKS).join(&id);
            let wrong = |error| Failure::at(&path)(error).port(format!("cannot use image {id}"));
            // Or the lock would be made for nothing.
            while fs::exists(store.root(&id)).unwrap_or(false) {
                let lock = Lock::take(&path, FlockOperation::LockShared).map_err(wrong)?;
                // Who waited for a removal has a lock that nobody looks at any more.
                let taken = lock.file.metadata().map_err(wrong)?.ino();
                let looked_at = fs::metadata(&path).is_ok_and(|found| found.ino() == taken);
                if looked_at && fs::exists(store.root(&id)).unwrap_or(false) {
                    return Ok(Arc::new(lock) as Arc<dyn Send + Sync>);
                }
            }
            Err(not_there(&id))
        })
        .await
    }
}
