//! The newest line of a text stream, without keeping the stream.
//!
//! It knows nothing of encodings beyond UTF-8, and does not say how many lines there were.

use crate::one_line::one_line;

/// Bytes kept: enough for one line of 200 characters of four bytes, and some.
const KEPT: usize = 1024;

/// The end of a stream of output.
#[derive(Debug, Default)]
pub(crate) struct NewestLine {
    tail: Vec<u8>,
}

impl NewestLine {
    /// Takes the next bytes of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if let Some(start) = bytes.len().checked_sub(KEPT) {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[start..]);
            return;
        }
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..surplus);
    }

    /// The newest line that shows something, cut to `max_chars`; a line that is not finished yet
    /// counts, and so does each state of a progress bar that rewrites its line.
    pub(crate) fn get(&self, max_chars: usize) -> Option<String> {
        self.tail
            .rsplit(|byte| matches!(byte, b'\n' | b'\r'))
            .map(|line| one_line(&String::from_utf8_lossy(line), max_chars))
            .find(|line| !line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(chunks: &[&[u8]]) -> Option<String> {
        let mut line = NewestLine::default();
        for chunk in chunks {
            line.push(chunk);
        }
        line.get(200)
    }

    #[test]
    fn the_last_line_that_shows_something_wins() {
        assert_eq!(newest(&[]), None);
        assert_eq!(newest(&[b"\n \n"]), None);
        assert_eq!(newest(&[b"one\ntwo\n\n"]).as_deref(), Some("two"));
        assert_eq!(newest(&[b"one\n", b"tw", b"o"]).as_deref(), Some("two"));
        assert_eq!(newest(&[b" 10%\r 20%\r"]).as_deref(), Some("20%"));
        assert_eq!(
            newest(&["é".as_bytes(), &[0xc3], &[0xa9]]).as_deref(),
            Some("éé")
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut line = NewestLine::default();
        for _ in 0..1000 {
            line.push(&[b'x'; 700]);
            assert!(line.tail.len() <= KEPT);
        }
        line.push(&[b'y'; 100_000]);
        assert!(line.tail.len() <= KEPT);
        assert_eq!(line.get(200).map(|l| l.chars().count()), Some(200));
    }
}
