//! Appends one line to a file that others may append to as well.
//!
//! On a local file system one `write` with `O_APPEND` would be enough to keep whole lines apart.
//! The advisory lock (`flock`) is there for what that does not give: a line that was written in
//! part (the disk ran full) can be taken back, which is safe only while nobody else appends; and
//! network file systems, where appending is not atomic. It excludes other logs of this process
//! too, since each has a descriptor of its own. Whoever ignores the lock can still append, but
//! should not. Nothing here waits longer than the deadline.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use crate::error::FileAuditError;

/// First pause between two attempts to get the lock; it doubles up to `MAX_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// The state of a file that is appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Size, bytes.
    pub(crate) size: u64,
    /// Whether the last line is whole; true for an empty file.
    pub(crate) whole: bool,
    /// Whether the file has still a name.
    pub(crate) named: bool,
}

/// What is needed of a file.
pub(crate) trait Target {
    /// Tries to get the lock; false when somebody else has it.
    fn try_lock(&mut self) -> io::Result<bool>;
    fn unlock(&mut self) -> io::Result<()>;
    fn tail(&mut self) -> io::Result<Tail>;
    /// One `write(2)` to the end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    fn truncate(&mut self, size: u64) -> io::Result<()>;
}

impl Target for File {
    fn try_lock(&mut self) -> io::Result<bool> {
        match File::try_lock(self) {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn unlock(&mut self) -> io::Result<()> {
        File::unlock(self)
    }

    fn tail(&mut self) -> io::Result<Tail> {
        let metadata = self.metadata()?;
        let size = metadata.size();
        let whole = match size.checked_sub(1) {
            Some(last) => {
                let mut byte = [0];
                self.read_exact_at(&mut byte, last)?;
                byte == *b"\n"
            }
            None => true,
        };
        let named = metadata.nlink() > 0;
        Ok(Tail { size, whole, named })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }
}

/// Appends `line`, which ends with a line break, or leaves the file as it was.
pub(crate) fn line(
    target: &mut impl Target,
    line: &[u8],
    deadline: Instant,
) -> Result<(), FileAuditError> {
    lock(target, deadline)?;
    let written = append(target, line);
    match target.unlock() {
        // The first error tells more.
        Ok(()) => written,
        Err(source) => written.and(Err(FileAuditError::Write { source })),
    }
}

fn lock(target: &mut impl Target, deadline: Instant) -> Result<(), FileAuditError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match target.try_lock() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(FileAuditError::Write { source }),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FileAuditError::Locked);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

fn append(target: &mut impl Target, line: &[u8]) -> Result<(), FileAuditError> {
    let before = target
        .tail()
        .map_err(|source| FileAuditError::Write { source })?;
    if !before.named {
        return Err(FileAuditError::Deleted);
    }
    let separated;
    let bytes = if before.whole {
        line
    } else {
        // Somebody died while writing. What is there stays, on a line of its own.
        separated = [b"\n", line].concat();
        &separated
    };
    write_all(target, bytes).map_err(|(source, written)| {
        if written == 0 {
            return FileAuditError::Write { source };
        }
        match target.truncate(before.size) {
            Ok(()) => FileAuditError::Write { source },
            Err(left) => FileAuditError::Torn { source, left },
        }
    })
}

/// One `write`, and more only if that one took a part. On failure also how much was written.
fn write_all(target: &mut impl Target, bytes: &[u8]) -> Result<(), (io::Error, usize)> {
    let mut written = 0;
    while written < bytes.len() {
        match target.write(&bytes[written..]) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), written)),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((error, written)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with room for so many bytes, written in pieces.
    struct Disk {
        content: Vec<u8>,
        room: usize,
        piece: usize,
        locked_by_other: bool,
        locked: bool,
        frozen: bool,
    }

    impl Disk {
        fn new(content: &[u8], room: usize, piece: usize) -> Self {
            Self {
                content: content.to_vec(),
                room,
                piece,
                locked_by_other: false,
                locked: false,
                frozen: false,
            }
        }

        fn append(&mut self, text: &str) -> Result<(), FileAuditError> {
            let result = line(self, text.as_bytes(), Instant::now());
            assert!(!self.locked, "the lock was kept");
            result
        }

        fn text(&self) -> &str {
            std::str::from_utf8(&self.content).unwrap()
        }
    }

    impl Target for Disk {
        fn try_lock(&mut self) -> io::Result<bool> {
            assert!(!self.locked);
            self.locked = !self.locked_by_other;
            Ok(self.locked)
        }

        fn unlock(&mut self) -> io::Result<()> {
            assert!(std::mem::take(&mut self.locked));
            Ok(())
        }

        fn tail(&mut self) -> io::Result<Tail> {
            Ok(Tail {
                size: self.content.len() as u64,
                whole: self.content.is_empty() || self.content.ends_with(b"\n"),
                named: true,
            })
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            assert!(self.locked);
            let count = bytes.len().min(self.piece).min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.content.extend_from_slice(&bytes[..count]);
            self.room -= count;
            Ok(count)
        }

        fn truncate(&mut self, size: u64) -> io::Result<()> {
            assert!(self.locked);
            if self.frozen {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            self.content.truncate(usize::try_from(size).unwrap());
            Ok(())
        }
    }

    #[test]
    fn a_line_that_is_taken_in_pieces_is_whole_in_the_end() {
        let mut disk = Disk::new(b"one\n", 100, 2);
        disk.append("second\n").unwrap();
        assert_eq!(disk.text(), "one\nsecond\n");
    }

    #[test]
    fn a_full_disk_leaves_the_file_as_it_was() {
        for room in 0..7 {
            let mut disk = Disk::new(b"one\n", room, 100);
            let error = disk.append("second\n").unwrap_err();
            assert!(matches!(error, FileAuditError::Write { .. }), "{error:?}");
            assert_eq!(disk.text(), "one\n");
            disk.room = 100;
            disk.append("third\n").unwrap();
            assert_eq!(disk.text(), "one\nthird\n");
        }
    }

    #[test]
    fn what_cannot_be_taken_back_is_told_and_the_next_line_stands_alone() {
        let mut disk = Disk::new(b"one\n", 3, 100);
        disk.frozen = true;
        let error = disk.append("second\n").unwrap_err();
        assert!(matches!(error, FileAuditError::Torn { .. }), "{error:?}");
        assert_eq!(disk.text(), "one\nsec");
        disk.room = 100;
        disk.append("third\n").unwrap();
        assert_eq!(disk.text(), "one\nsec\nthird\n");
    }

    #[test]
    fn a_full_disk_does_not_even_end_a_torn_line() {
        let mut disk = Disk::new(b"one\ntor", 1, 100);
        disk.append("second\n").unwrap_err();
        assert_eq!(disk.text(), "one\ntor");
    }

    #[test]
    fn a_lock_that_is_not_given_up_is_told_in_time() {
        let mut disk = Disk::new(b"", 100, 100);
        disk.locked_by_other = true;
        let started = Instant::now();
        let deadline = started + Duration::from_millis(60);
        let error = line(&mut disk, b"x\n", deadline).unwrap_err();
        assert!(matches!(error, FileAuditError::Locked), "{error:?}");
        assert!(started.elapsed() >= Duration::from_millis(60));
        assert_eq!(disk.text(), "");
    }
}
