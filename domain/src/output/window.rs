//! The head and the tail of a text that may be endless, within a limit. What lies between is
//! forgotten at once. It knows nothing of streams or bytes that are no text.

use std::collections::VecDeque;

/// Keeps all of a text while it fits, else its head and its tail, each about half of the limit.
#[derive(Debug)]
pub(super) struct Window {
    limit: usize,
    head: String,
    head_full: bool,
    tail: VecDeque<u8>,
    total: u64,
}

impl Window {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            head: String::new(),
            head_full: false,
            tail: VecDeque::new(),
            total: 0,
        }
    }

    /// Length of the whole text so far, bytes.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn push(&mut self, text: &str) {
        self.total += text.len() as u64;
        let mut rest = text;
        if !self.head_full {
            let room = self.limit / 2 - self.head.len();
            let (first, after) = text.split_at(text.floor_char_boundary(room));
            self.head.push_str(first);
            if after.is_empty() {
                return;
            }
            self.head_full = true;
            rest = after;
        }
        self.push_tail(rest);
    }

    fn push_tail(&mut self, text: &str) {
        let capacity = self.limit - self.head.len();
        if text.len() >= capacity {
            let from = text.ceil_char_boundary(text.len() - capacity);
            self.tail.clear();
            self.tail.extend(&text.as_bytes()[from..]);
            return;
        }
        let excess = (self.tail.len() + text.len()).saturating_sub(capacity);
        self.tail.drain(..excess);
        if excess > 0 {
            while self.tail.front().is_some_and(|byte| is_continuation(*byte)) {
                self.tail.pop_front();
            }
        }
        self.tail.extend(text.as_bytes());
    }

    pub(super) fn finish(self) -> Kept {
        let tail = Vec::from(self.tail);
        let kept = (self.head.len() + tail.len()) as u64;
        Kept {
            omitted: self.total - kept,
            total: self.total,
            head: self.head,
            // Only whole characters were ever put in or taken out.
            tail: String::from_utf8_lossy(&tail).into_owned(),
        }
    }
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// What was kept of a text.
#[derive(Debug)]
pub(super) struct Kept {
    head: String,
    tail: String,
    total: u64,
    omitted: u64,
}

impl Kept {
    /// Whether something was left out.
    pub(super) fn is_cut(&self) -> bool {
        self.omitted > 0
    }

    /// Head and tail, with a marker between if something was left out.
    pub(super) fn text(&self) -> String {
        self.slice(0, self.total)
    }

    /// The part of [`Kept::text`] that stems from this range of the whole text; the marker belongs
    /// to the range that holds the first byte that was left out. Both ends must be boundaries of
    /// characters in the whole text.
    pub(super) fn slice(&self, start: u64, end: u64) -> String {
        let end = end.min(self.total);
        let head_len = self.head.len() as u64;
        let tail_start = self.total - self.tail.len() as u64;
        let mut text = String::new();
        if start < head_len {
            text.push_str(part(&self.head, start, end.min(head_len)));
        }
        if self.omitted > 0 && start <= head_len && head_len < end {
            text.push_str(&marker(self.omitted));
        }
        if end > tail_start {
            text.push_str(part(
                &self.tail,
                start.max(tail_start) - tail_start,
                end - tail_start,
            ));
        }
        text
    }
}

fn part(text: &str, start: u64, end: u64) -> &str {
    let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    text.get(index(start)..index(end)).unwrap_or_default()
}

/// The line that stands for what was left out.
pub(super) fn marker(omitted: u64) -> String {
    format!("\n… [{omitted} bytes omitted] …\n")
}

/// A text within a limit: all of it, or its head and tail with the marker between.
pub(super) fn clip(text: String, limit: usize) -> String {
    if text.len() <= limit {
        return text;
    }
    let mut window = Window::new(limit);
    window.push(&text);
    window.finish().text()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(limit: usize, pieces: &[&str]) -> Kept {
        let mut window = Window::new(limit);
        for piece in pieces {
            window.push(piece);
        }
        window.finish()
    }

    #[test]
    fn what_fits_is_kept_whole() {
        for pieces in [
            &["0123456789"][..],
            &["01234", "56789"],
            &["0123456", "7", "89"],
        ] {
            let kept = kept(10, pieces);
            assert!(!kept.is_cut());
            assert_eq!(kept.text(), "0123456789");
        }
    }

    #[test]
    fn head_and_tail_remain_of_what_does_not_fit() {
        let kept = kept(10, &["0123456789", "abcdefghij", "xyz"]);
        assert!(kept.is_cut());
        assert_eq!(kept.text(), "01234\n… [13 bytes omitted] …\nijxyz");
    }

    #[test]
    fn cuts_fall_between_characters() {
        let kept = kept(10, &["€€€", "€€€€"]);
        assert_eq!(kept.text(), "€\n… [12 bytes omitted] …\n€€");
    }

    #[test]
    fn a_limit_of_nothing_keeps_nothing() {
        let kept = kept(0, &["a", "bc"]);
        assert_eq!(kept.text(), "\n… [3 bytes omitted] …\n");
    }

    #[test]
    fn memory_stays_bounded() {
        let mut window = Window::new(1000);
        for _ in 0..10_000 {
            window.push("0123456789€");
        }
        assert!(window.head.capacity() <= 1000);
        assert!(window.tail.capacity() <= 2000);
        assert_eq!(window.total(), 130_000);
    }

    proptest! {
        #[test]
        fn kept_is_whole_or_head_and_tail(pieces in proptest::collection::vec("[a€😀]{0,9}", 0..30), limit in 0..80_usize) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let whole = pieces.concat();
            let kept = kept(limit, &pieces);
            prop_assert_eq!(kept.is_cut(), whole.len() > limit);
            if kept.is_cut() {
                prop_assert!(whole.starts_with(&kept.head));
                prop_assert!(whole.ends_with(&kept.tail));
                let remaining = kept.head.len() + kept.tail.len();
                prop_assert!(remaining <= limit);
                // Less than one character is lost at each cut.
                prop_assert!(remaining + 3 + 3 >= limit);
                prop_assert_eq!(kept.omitted as usize, whole.len() - remaining);
            } else {
                prop_assert_eq!(kept.text(), whole);
            }
        }

        #[test]
        fn slices_together_are_the_text(pieces in proptest::collection::vec("[a€]{1,9}", 0..30), limit in 0..80_usize) {
            let borrowed: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let kept = kept(limit, &borrowed);
            let mut at = 0;
            let mut joined = String::new();
            for piece in &pieces {
                let end = at + piece.len() as u64;
                joined.push_str(&kept.slice(at, end));
                at = end;
            }
            prop_assert_eq!(joined, kept.text());
        }

        #[test]
        fn clipping_never_exceeds_limit_and_marker(text in "[a€]{0,60}", limit in 0..80_usize) {
            let clipped = clip(text.clone(), limit);
            if text.len() <= limit {
                prop_assert_eq!(clipped, text);
            } else {
                prop_assert!(clipped.len() <= limit + marker(text.len() as u64).len());
            }
        }
    }
}
