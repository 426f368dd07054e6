//! The program's workspace: files are placed before it starts, and what it made or changed is
//! brought back after its end.
//!
//! Nothing else runs in the sandbox at either time, and every step goes through a descriptor of the
//! directory it is in, without following links: whatever a program leaves there, only regular files
//! below the workspace are read.

use std::collections::{HashSet, VecDeque};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use mcp_forge_agent::{Collect, FromAgent, MAX_OUTPUT, MAX_PATH};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmod, fchmodat, fstat, fstatat};

pub(crate) const WORKSPACE: &str = "/workspace";

/// Entries of directories that are looked at.
const MAX_ENTRIES: usize = 100_000;

/// Depth of directories that are looked into.
const MAX_DEPTH: usize = 32;

/// Directories whose contents are nobody's result.
const CACHES: [&[u8]; 1] = [b"__pycache__"];

/// How a file was: what is still like this was not changed.
type State = (u64, u64, i64, i64, i64, i64, i64);

fn state(stat: &FileStat) -> State {
    (
        stat.st_dev,
        stat.st_ino,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec,
    )
}

/// The files that were placed, as they were then.
#[derive(Debug, Default)]
pub(crate) struct Placed(HashSet<State>);

/// Places the files; their paths were checked by the host.
///
/// # Errors
///
/// A text for the person: which file could not be placed, and why.
pub(crate) fn place(files: &[(String, Vec<u8>)]) -> Result<Placed, String> {
    let mut placed = HashSet::new();
    for (path, data) in files {
        let state = place_one(&Path::new(WORKSPACE).join(path), data);
        placed.insert(state.map_err(|e| format!("cannot place the file {path:?}: {e}"))?);
    }
    Ok(Placed(placed))
}

fn place_one(path: &Path, data: &[u8]) -> io::Result<State> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, data)?;
    Ok(state(&fstat(&File::open(path)?)?))
}

/// Sends the files that are there and were not placed as they are.
///
/// # Errors
///
/// Those of `send`. What cannot be read is left out.
pub(crate) fn collect(
    placed: &Placed,
    limits: Collect,
    send: &mut dyn FnMut(&FromAgent) -> io::Result<()>,
) -> io::Result<()> {
    let mut walk = Walk {
        placed,
        limits,
        named: 0,
        omitted: 0,
        entries: 0,
        sent: 0,
        send,
    };
    walk.all()?;
    let omitted = walk.omitted;
    send(&FromAgent::Collected { omitted })
}

struct Walk<'a> {
    placed: &'a Placed,
    limits: Collect,
    named: u32,
    omitted: u64,
    entries: usize,
    sent: u64,
    send: &'a mut dyn FnMut(&FromAgent) -> io::Result<()>,
}

impl Walk<'_> {
    /// Level by level, so that what lies on top is named first.
    fn all(&mut self) -> io::Result<()> {
        let mut directories = VecDeque::from([(Vec::new(), 0)]);
        while let Some((path, depth)) = directories.pop_front() {
            let Some(directory) = open_below(&path) else {
                continue;
            };
            for (name, is_directory) in self.entries(&directory) {
                let below = join(&path, name.as_bytes());
                if !is_directory {
                    self.file(&directory, &name, &below)?;
                } else if depth == MAX_DEPTH || below.len() > MAX_PATH {
                    // Nobody looks how many files there are.
                    self.omitted += 1;
                } else if !CACHES.contains(&name.as_bytes()) {
                    directories.push_back((below, depth + 1));
                }
            }
        }
        Ok(())
    }

    /// Names in a directory that may be files or directories, in order.
    fn entries(&mut self, directory: &OwnedFd) -> Vec<(CString, bool)> {
        let again = open_in(directory, c".", OFlag::O_DIRECTORY);
        let Some(mut listing) = again.and_then(|fd| Dir::from_fd(fd).ok()) else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for entry in listing.iter().flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.entries == MAX_ENTRIES {
                self.omitted += 1;
                break;
            }
            self.entries += 1;
            match entry.file_type() {
                Some(Type::Directory) => names.push((name.to_owned(), true)),
                Some(Type::File) => names.push((name.to_owned(), false)),
                _ => {}
            }
        }
        names.sort_unstable();
        names
    }

    fn file(&mut self, directory: &OwnedFd, name: &CString, path: &[u8]) -> io::Result<()> {
        let Ok(stat) = fstatat(directory, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        if self.placed.0.contains(&state(&stat)) {
            return Ok(());
        }
        // What is no UTF-8 gets longer when it is told.
        let told = String::from_utf8_lossy(path);
        if self.named == self.limits.files || told.len() > MAX_PATH {
            self.omitted += 1;
            return Ok(());
        }
        let Some(mut file) = open_in(directory, name, OFlag::O_NONBLOCK).map(File::from) else {
            self.omitted += 1;
            return Ok(());
        };
        let Some(size) = size_of_regular(&file) else {
            return Ok(());
        };
        self.named += 1;
        (self.send)(&FromAgent::File {
            path: told.into_owned(),
            size,
        })?;
        let room = self.limits.total_bytes - self.sent;
        if size <= self.limits.file_bytes.min(room) {
            self.sent += size;
            self.contents(&mut file, size)?;
        }
        Ok(())
    }

    fn contents(&mut self, file: &mut File, size: u64) -> io::Result<()> {
        let mut file = file.take(size);
        let mut chunk = vec![0; MAX_OUTPUT];
        loop {
            match file.read(&mut chunk) {
                // Short of its size, the host sees that it is not whole.
                Ok(0) => return Ok(()),
                Ok(count) => (self.send)(&FromAgent::FileData(chunk[..count].to_vec()))?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Ok(()),
            }
        }
    }
}

fn size_of_regular(file: &File) -> Option<u64> {
    let stat = fstat(file).ok()?;
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    (kind == SFlag::S_IFREG).then_some(stat.st_size.unsigned_abs())
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}

/// A directory by its path below the workspace, part by part.
fn open_below(path: &[u8]) -> Option<OwnedFd> {
    let here = File::open("/").ok()?.into();
    let mut directory = open_in(&here, c"workspace", OFlag::O_DIRECTORY)?;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        directory = open_in(&directory, &CString::new(name).ok()?, OFlag::O_DIRECTORY)?;
    }
    Some(directory)
}

/// Opens for reading and follows no link. What the program made unreadable is its own to read, and
/// what it made impassable to pass.
fn open_in(directory: &OwnedFd, name: &std::ffi::CStr, flags: OFlag) -> Option<OwnedFd> {
    let how = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
    let open = || openat(directory.as_fd(), name, how, Mode::empty());
    let opened = match open() {
        Err(Errno::EACCES) => {
            // Changes the target of a link at most, which could only be another file of its own.
            fchmodat(directory, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink).ok()?;
            open()
        }
        other => other,
    };
    let opened = opened.ok()?;
    if flags.contains(OFlag::O_DIRECTORY) {
        let mode = Mode::from_bits_truncate(fstat(&opened).ok()?.st_mode);
        if !mode.contains(Mode::S_IRWXU) {
            // Where it is somebody else's, what lies in it is not found.
            let _ = fchmod(&opened, Mode::S_IRWXU);
        }
    }
    Some(opened)
}
