//! A root file system that is being made, in which no path leads out: every directory on the way is
//! looked up by the kernel as if the root were `/` (openat2(2), `RESOLVE_IN_ROOT`), because absolute
//! links within an image are usual and mean the image's own root.
//!
//! Owners are not kept and everything may be read by everybody: what is in an image is no secret from
//! the programs that it is for, who are nobody on this host.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, linkat, mkdirat, openat, openat2,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::Refused;

const DIRECTORY: u32 = 0o755;
const PROGRAM: u32 = 0o755;
const FILE: u32 = 0o644;

/// Deepest path, components: as much as a path of Linux can have, and more than any image needs.
const DEEPEST: usize = 256;

pub(crate) struct Tree {
    root: OwnedFd,
}

/// A path below the root: its directory, and its name there. Nothing for the root itself.
pub(crate) fn place(path: &Path) -> Result<Option<(PathBuf, OsString)>, Refused> {
    let mut plain = PathBuf::new();
    let mut depth = 0;
    for component in path.components() {
        match component {
            Component::Normal(name) => {
                plain.push(name);
                depth += 1;
            }
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Refused::new(path, "it leads upwards"));
            }
        }
    }
    if depth > DEEPEST || plain.as_os_str().len() > 4095 {
        return Err(Refused::new(path, "it is too deep"));
    }
    let Some(name) = plain.file_name().map(OsStr::to_owned) else {
        return Ok(None);
    };
    plain.pop();
    Ok(Some((plain, name)))
}

impl Tree {
    /// The tree at a directory of ours.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let root = openat(
            CWD,
            path,
            OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self { root })
    }

    fn look_up(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        loop {
            let found = openat2(
                &self.root,
                path,
                OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
                ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV,
            );
            // Something was renamed meanwhile, somewhere.
            if found.as_ref().err() != Some(&Errno::AGAIN) {
                return found;
            }
        }
    }

    /// A directory, made with those above it where it is not there.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.look_up(path) {
            Err(Errno::NOENT) => {}
            found => return Ok(found?),
        }
        let (above, name) = match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) => (self.directory(above)?, name),
            _ => return Err(Errno::NOENT.into()),
        };
        not_too_deep(&above)?;
        match mkdirat(&above, name, Mode::from_raw_mode(DIRECTORY)) {
            Ok(()) => {}
            // A link that leads nowhere, yet.
            Err(Errno::EXIST) => {
                let what = format!("{} is a link to nothing", path.display());
                return Err(io::Error::new(io::ErrorKind::NotFound, what));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(self.look_up(path)?)
    }

    /// Makes a directory; one that is there stays with what is in it.
    pub(crate) fn make_directory(&self, above: &Path, name: &OsStr) -> io::Result<()> {
        let above = self.directory(above)?;
        if kind(&above, name)? == Some(FileType::Directory) {
            return Ok(());
        }
        remove(&above, name)?;
        not_too_deep(&above)?;
        Ok(mkdirat(&above, name, Mode::from_raw_mode(DIRECTORY))?)
    }

    /// A new file, in the place of what was there.
    pub(crate) fn file(
        &self,
        above: &Path,
        name: &OsStr,
        program: bool,
    ) -> io::Result<std::fs::File> {
        let above = self.directory(above)?;
        remove(&above, name)?;
        let mode = Mode::from_raw_mode(if program { PROGRAM } else { FILE });
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&above, name, flags, mode)?.into())
    }

    /// A link to whatever, in the place of what was there.
    pub(crate) fn symbolic_link(
        &self,
        above: &Path,
        name: &OsStr,
        target: &Path,
    ) -> io::Result<()> {
        let above = self.directory(above)?;
        remove(&above, name)?;
        Ok(symlinkat(target, &above, name)?)
    }

    /// Another name of a file that is there.
    pub(crate) fn hard_link(
        &self,
        above: &Path,
        name: &OsStr,
        of: (&Path, &OsStr),
    ) -> io::Result<()> {
        let source = self.look_up(of.0)?;
        let above = self.directory(above)?;
        match kind(&source, of.1)? {
            Some(FileType::RegularFile | FileType::Symlink) => {}
            Some(_) => return Err(io::Error::other("a hard link to what is no file")),
            None => return Err(Errno::NOENT.into()),
        }
        let same = |a: &OwnedFd, b: &OwnedFd| -> io::Result<bool> {
            let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
            Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
        };
        // To itself it is there already.
        if of.1 == name && same(&source, &above)? {
            return Ok(());
        }
        remove(&above, name)?;
        Ok(linkat(&source, of.1, &above, name, AtFlags::empty())?)
    }

    /// Removes what a layer takes away; what is not there is removed.
    pub(crate) fn take_away(&self, above: &Path, name: &OsStr) -> io::Result<()> {
        match self.look_up(above) {
            Ok(above) => remove(&above, name),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The names in a directory; none when there is no such.
    pub(crate) fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        match self.look_up(path) {
            Ok(directory) => names(&directory),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Links make paths that are longer than any that is named; whatever removes such a tree would fail.
fn not_too_deep(directory: &OwnedFd) -> io::Result<()> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    match path.components().count() {
        0..DEEPEST => Ok(()),
        _ => Err(io::Error::other("it is too deep")),
    }
}

fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut all = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            all.push(name.to_owned());
        }
    }
    Ok(all)
}

fn kind(directory: impl AsFd, name: &OsStr) -> io::Result<Option<FileType>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes whatever has this name, and follows no link.
fn remove(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = openat(directory, name, flags, Mode::empty())?;
    for name in names(&below)? {
        remove(&below, &name)?;
    }
    Ok(unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}
