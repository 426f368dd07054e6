//! Appends one line to a file, as a whole or not at all.
//!
//! A line that was written in part (the disk ran full) is taken back, which is safe only under the
//! lock of the log: see `writer`.

use std::fs::File;
use std::io::{self, Write};

use crate::error::FileAuditError;

/// What is needed of a file.
pub(crate) trait Target {
    /// One `write(2)` to the end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    fn truncate(&mut self, size: u64) -> io::Result<()>;
}

impl Target for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }
}

/// Appends `line`, or leaves the file as it was: with so many bytes.
pub(crate) fn line(
    target: &mut impl Target,
    line: &[u8],
    before: u64,
) -> Result<(), FileAuditError> {
    write_all(target, line).map_err(|(source, written)| {
        if written == 0 {
            return FileAuditError::Write { source };
        }
        match target.truncate(before) {
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
        frozen: bool,
    }

    impl Disk {
        fn new(content: &[u8], room: usize, piece: usize) -> Self {
            Self {
                content: content.to_vec(),
                room,
                piece,
                frozen: false,
            }
        }

        fn append(&mut self, text: &str) -> Result<(), FileAuditError> {
            let before = self.content.len() as u64;
            line(self, text.as_bytes(), before)
        }

        fn text(&self) -> &str {
            std::str::from_utf8(&self.content).unwrap()
        }
    }

    impl Target for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.piece).min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.content.extend_from_slice(&bytes[..count]);
            self.room -= count;
            Ok(count)
        }

        fn truncate(&mut self, size: u64) -> io::Result<()> {
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
    fn what_cannot_be_taken_back_is_told() {
        let mut disk = Disk::new(b"one\n", 3, 100);
        disk.frozen = true;
        let error = disk.append("second\n").unwrap_err();
        assert!(matches!(error, FileAuditError::Torn { .. }), "{error:?}");
        assert_eq!(disk.text(), "one\nsec");
    }
}
