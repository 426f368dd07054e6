//! Where the files of a log are, and which files are taken for it.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::error::FileAuditError;

/// Mode bits with which group or others may write.
const OTHERS_WRITE: u32 = 0o022;

/// What follows the name of the log in that of its head.
pub(crate) const HEAD: &str = ".head";

/// Digits of the number of the last entry in the name of a file that is full.
const DIGITS: usize = 20;

/// The directory of a log and the names in it. Files are opened through the directory, so that
/// what was checked of it is true of the one that they are in.
#[derive(Debug)]
pub(crate) struct Place {
    directory: OwnedFd,
    parent: PathBuf,
    name: OsString,
}

impl Place {
    /// That of the log at `path`; its directory is made if it is to be.
    pub(crate) fn of(path: &Path, make: bool) -> Result<Self, FileAuditError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(errno(Errno::ISDIR));
        };
        // The parent of a bare name is empty.
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        if make {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)
                .map_err(failed)?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty()).map_err(errno)?;
        Ok(Self {
            directory,
            parent: parent.to_owned(),
            name: name.to_owned(),
        })
    }

    pub(crate) fn log_name(&self) -> &OsStr {
        &self.name
    }

    pub(crate) fn head_name(&self) -> OsString {
        let mut name = self.name.clone();
        name.push(HEAD);
        name
    }

    /// The name of a file that is full, by the number of its last entry.
    pub(crate) fn full_name(&self, last: u64) -> OsString {
        let mut name = self.name.clone();
        name.push(format!(".{last:0DIGITS$}"));
        name
    }

    /// By what others than the owner may change the log.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let own = rustix::process::geteuid().as_raw();
        let mut remarks = Vec::new();
        for name in [self.log_name(), &self.head_name()] {
            let Ok(Some(stat)) = self.stat(name) else {
                continue;
            };
            let (name, mode) = (name.display(), stat.st_mode & 0o777);
            if mode & OTHERS_WRITE != 0 {
                remarks.push(format!("others may write {name} (mode {mode:04o})"));
            }
            if ![0, own].contains(&stat.st_uid) {
                remarks.push(format!("{name} belongs to user {}", stat.st_uid));
            }
            if stat.st_nlink > 1 {
                remarks.push(format!("{name} has other names (hard links)"));
            }
        }
        if let Err(error) = self.check_directory() {
            remarks.push(error.to_string());
        }
        remarks
    }

    /// Whoever writes the directory can put another file in the place of ours.
    pub(crate) fn check_directory(&self) -> Result<(), FileAuditError> {
        let stat = rustix::fs::fstat(&self.directory).map_err(errno)?;
        let mode = stat.st_mode & 0o7777;
        let sticky = mode & 0o1000 != 0;
        let own = rustix::process::geteuid().as_raw();
        if (mode & OTHERS_WRITE != 0 && !sticky) || ![0, own].contains(&stat.st_uid) {
            let owner = stat.st_uid;
            return Err(FileAuditError::Directory { owner, mode });
        }
        Ok(())
    }

    /// Opens a file to read and write, and makes it for the owner only.
    pub(crate) fn open(&self, name: &OsStr, flags: OFlags) -> Result<File, FileAuditError> {
        let file = self.open_with(name, flags | OFlags::RDWR | OFlags::CREATE)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.nlink() > 1 {
            return Err(FileAuditError::Linked);
        }
        let own = rustix::process::geteuid().as_raw();
        if metadata.uid() != own {
            let owner = metadata.uid();
            return Err(FileAuditError::Foreign { owner, own });
        }
        let mode = metadata.mode() & 0o777;
        if mode & OTHERS_WRITE != 0 {
            return Err(FileAuditError::Writable { mode });
        }
        if mode != 0o600 {
            // Others could read it.
            let mode = Permissions::from_mode(0o600);
            file.set_permissions(mode).map_err(failed)?;
        }
        Ok(file)
    }

    /// Opens a file to read it; nothing where there is none.
    pub(crate) fn read(&self, name: &OsStr) -> Result<Option<File>, FileAuditError> {
        match self.open_with(name, OFlags::RDONLY) {
            Err(FileAuditError::Open { source }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    fn open_with(&self, name: &OsStr, flags: OFlags) -> Result<File, FileAuditError> {
        // NONBLOCK, so that no pipe and no device holds up the start: it means nothing to a
        // regular file.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| match error {
                // A symbolic link, a socket.
                Errno::LOOP | Errno::NXIO => FileAuditError::NotRegular,
                error => errno(error),
            })?;
        let file = File::from(file);
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(FileAuditError::NotRegular);
        }
        Ok(file)
    }

    /// What a name leads to now.
    pub(crate) fn stat(&self, name: &OsStr) -> Result<Option<Stat>, FileAuditError> {
        match rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(errno(error)),
        }
    }

    /// Gives the log, which is full, the name of such.
    pub(crate) fn put_away(&self, last: u64) -> Result<(), FileAuditError> {
        // The number is taken when the head was lost.
        rustix::fs::renameat_with(
            &self.directory,
            &self.name,
            &self.directory,
            self.full_name(last),
            RenameFlags::NOREPLACE,
        )
        .map_err(|error| FileAuditError::Rotate {
            source: error.into(),
        })
    }

    pub(crate) fn remove_full(&self, last: u64) -> Result<(), FileAuditError> {
        rustix::fs::unlinkat(&self.directory, self.full_name(last), AtFlags::empty()).map_err(
            |error| FileAuditError::Rotate {
                source: error.into(),
            },
        )
    }

    /// The files that are full, by the number of their last entry, oldest first.
    pub(crate) fn full(&self) -> Result<Vec<u64>, FileAuditError> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.parent).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.as_encoded_bytes();
            let digits = name
                .strip_prefix(self.name.as_encoded_bytes())
                .and_then(|rest| rest.strip_prefix(b"."))
                .filter(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_digit));
            let number =
                digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

fn failed(source: io::Error) -> FileAuditError {
    FileAuditError::Open { source }
}

fn errno(error: Errno) -> FileAuditError {
    failed(error.into())
}
