//! The lines of a log that may hold anything: bounded in memory, whatever is between two breaks.

use std::io::{self, BufRead};

use sha2::{Digest, Sha256};

use crate::MAX_LINE_BYTES;
use crate::chain::Hash;

/// One line.
#[derive(Debug)]
pub(crate) struct Line {
    /// Without its line break; nothing of one that is longer than any entry.
    pub(crate) text: Vec<u8>,
    /// Size with its line break, bytes.
    pub(crate) size: u64,
    /// Whether it has its line break.
    pub(crate) ended: bool,
    /// Of the line without its break.
    pub(crate) hash: Hash,
}

/// The next line; nothing at the end.
pub(crate) fn next(reader: &mut impl BufRead) -> io::Result<Option<Line>> {
    let mut text = Vec::new();
    let mut size = 0;
    let mut hash = Sha256::new();
    let mut ended = false;
    while !ended {
        let read = match reader.fill_buf() {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if read.is_empty() {
            break;
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = &read[..end.unwrap_or(read.len())];
        hash.update(part);
        if size + part.len() as u64 <= MAX_LINE_BYTES as u64 {
            text.extend_from_slice(part);
        } else {
            text.clear();
        }
        ended = end.is_some();
        let used = part.len() + usize::from(ended);
        size += used as u64;
        reader.consume(used);
    }
    Ok((size > 0).then(|| Line {
        text,
        size,
        ended,
        hash: hash.into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_length_are_told_apart() {
        let huge = "x".repeat(MAX_LINE_BYTES + 1);
        let given = format!("one\n\n{huge}\nlast");
        for capacity in [1, 7, 1 << 20] {
            let mut reader = io::BufReader::with_capacity(capacity, given.as_bytes());
            let mut read = Vec::new();
            while let Some(line) = next(&mut reader).unwrap() {
                read.push((line.text.len(), line.size, line.ended, line.hash));
            }
            let expected = ["one", "", &huge, "last"].map(|text| {
                let ended = text != "last";
                let kept = if text == huge { 0 } else { text.len() };
                let size = (text.len() + usize::from(ended)) as u64;
                (kept, size, ended, Hash::of(text.as_bytes()))
            });
            assert_eq!(read, expected);
        }
    }
}
