//! What a terminal would show of a text, line by line: escape sequences are gone, a carriage
//! return or a backspace lets later text replace earlier text of its line. So a progress bar is
//! the one line it ends as.
//!
//! Only the last line, as long as it is open, is held, and of a very long line only its end:
//! a return goes back no further. Movements to other lines are not followed.

/// Characters of an open line that can still be replaced.
const OPEN: usize = 8192;

#[derive(Debug, Default)]
pub(super) struct Terminal {
    line: Vec<char>,
    /// Where in the open line the next character goes.
    cursor: usize,
    state: State,
}

/// Where in an escape sequence (ECMA-48) the text is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    /// In a control sequence, with its first parameter.
    Control(u8),
    /// In a control string (OSC, DCS, SOS, PM, APC).
    String,
    StringEscape,
}

impl Terminal {
    /// Takes text and hands out what cannot change any more.
    pub(super) fn push(&mut self, text: &str, mut take: impl FnMut(&str)) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            // Text without anything special needs no look at each character.
            if self.state == State::Text && self.cursor == self.line.len() {
                let plain = rest.bytes().position(is_special).unwrap_or(rest.len());
                let (plain, after) = rest.split_at(plain);
                if !plain.is_empty() {
                    self.plain(plain, &mut take);
                    rest = after;
                    continue;
                }
            }
            rest = &rest[first.len_utf8()..];
            self.character(first, &mut take);
        }
    }

    /// Adds text to the end of the open line: whole lines are over, and so is the beginning of a
    /// very long one.
    fn plain(&mut self, text: &str, take: &mut impl FnMut(&str)) {
        let mut over = text.rfind('\n').map_or(0, |at| at + 1);
        if self.line.len() + (text.len() - over) >= OPEN {
            over = text.len();
        }
        if over > 0 {
            self.end_line("", take);
            take(&text[..over]);
        }
        self.line.extend(text[over..].chars());
        self.cursor = self.line.len();
    }

    /// Something else comes, or nothing any more: what is shown of the open line stays.
    pub(super) fn settle(&mut self, mut take: impl FnMut(&str)) {
        if self.line.is_empty() {
            return;
        }
        // After a return, what follows does not belong behind this line.
        let returned = self.cursor < self.line.len();
        self.end_line(if returned { "\n" } else { "" }, &mut take);
    }

    fn character(&mut self, character: char, take: &mut impl FnMut(&str)) {
        match (self.state, character) {
            (_, '\u{1b}') => {
                self.state = match self.state {
                    State::String => State::StringEscape,
                    _ => State::Escape,
                };
            }
            (State::Text, _) => self.shown(character, take),
            // An unfinished sequence must not swallow the lines after it.
            (_, '\n') => {
                self.state = State::Text;
                self.shown(character, take);
            }
            (State::Escape, '[') => self.state = State::Control(0),
            (State::Escape, ']' | 'P' | 'X' | '^' | '_') => self.state = State::String,
            // Intermediate bytes, such as of a choice of character set.
            (State::Escape, ' '..='/') => {}
            (State::Escape | State::StringEscape, _) => self.state = State::Text,
            (State::Control(first), '0'..='9') => {
                let digit = u8::try_from(u32::from(character) - u32::from('0')).unwrap_or(0);
                self.state = State::Control(first.saturating_mul(10).saturating_add(digit));
            }
            (State::Control(_), ' '..='?') => {}
            (State::Control(first), 'K') => {
                self.state = State::Text;
                self.erase(first);
            }
            (State::Control(_), _) => self.state = State::Text,
            (State::String, '\u{7}') => self.state = State::Text,
            (State::String, _) => {}
        }
    }

    fn shown(&mut self, character: char, take: &mut impl FnMut(&str)) {
        match character {
            '\n' => {
                // The return of a line's end replaces nothing and stays.
                let end = if self.cursor == 0 && !self.line.is_empty() {
                    "\r\n"
                } else {
                    "\n"
                };
                self.end_line(end, take);
            }
            '\r' => self.cursor = 0,
            '\u{8}' => self.cursor = self.cursor.saturating_sub(1),
            '\u{7}' => {}
            _ => {
                match self.line.get_mut(self.cursor) {
                    Some(place) => *place = character,
                    None => self.line.push(character),
                }
                self.cursor += 1;
                if self.line.len() >= OPEN && self.cursor == self.line.len() {
                    self.end_line("", take);
                }
            }
        }
    }

    /// `EL`: from the cursor to the end of the line, or all of it.
    fn erase(&mut self, what: u8) {
        match what {
            0 => self.line.truncate(self.cursor),
            2 => {
                self.line.clear();
                self.cursor = 0;
            }
            _ => {}
        }
    }

    fn end_line(&mut self, end: &str, take: &mut impl FnMut(&str)) {
        let mut line: String = self.line.drain(..).collect();
        self.cursor = 0;
        line.push_str(end);
        if !line.is_empty() {
            take(&line);
        }
    }
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'\r' | 7 | 8 | 0x1b)
}

/// What a terminal would show of a whole text.
pub(super) fn shown(text: &str) -> String {
    let mut terminal = Terminal::default();
    let mut shown = String::new();
    terminal.push(text, |part| shown.push_str(part));
    terminal.settle(|part| shown.push_str(part));
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_text_stays_as_it_is() {
        for text in ["", "a", "a\n", "a\n\nb", "é\tü\n", "a\r\nb\r\n", "\r\n"] {
            assert_eq!(
                shown(text).replace("\r\n", "\n"),
                text.replace("\r\n", "\n")
            );
        }
        assert_eq!(shown("a\r\nb\r\n"), "a\r\nb\r\n");
    }

    #[test]
    fn a_progress_bar_is_its_last_state() {
        assert_eq!(shown("1%\r50%\r100%\ndone\n"), "100%\ndone\n");
        assert_eq!(shown("100%\r9%"), "9%0%\n");
        assert_eq!(shown("100%\r\x1b[K9%\n"), "9%\n");
        assert_eq!(shown("100%\x1b[2K\r9%\n"), "9%\n");
        assert_eq!(shown("ab\u{8}c\n"), "ac\n");
        assert_eq!(shown("\u{8}\u{8}a"), "a");
    }

    #[test]
    fn escape_sequences_are_gone() {
        for (written, seen) in [
            ("\x1b[31mred\x1b[0m\n", "red\n"),
            ("\x1b[38;5;208mx\x1b[m", "x"),
            ("\x1b]0;title\x07x", "x"),
            ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1b(Bx", "x"),
            ("\x1b7x\x1b8", "x"),
            ("\x1bPq\x1b\\x", "x"),
            // What never ends, ends with its line.
            ("\x1b]0;title\nnext\n", "\nnext\n"),
            ("\x1b[31\nnext", "\nnext"),
            ("a\x07b", "ab"),
        ] {
            assert_eq!(shown(written), seen, "{written:?}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_not_held() {
        let mut terminal = Terminal::default();
        let mut out = String::new();
        for _ in 0..100_000 {
            terminal.push("é", |part| out.push_str(part));
        }
        assert!(terminal.line.capacity() <= 2 * OPEN);
        terminal.settle(|part| out.push_str(part));
        assert_eq!(out, "é".repeat(100_000));
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(pieces in proptest::collection::vec("[ab\r\n\u{8}\u{1b}\\[\\]2K;é]{0,6}", 0..20)) {
            let mut terminal = Terminal::default();
            let mut out = String::new();
            for piece in &pieces {
                terminal.push(piece, |part| out.push_str(part));
            }
            terminal.settle(|part| out.push_str(part));
            prop_assert_eq!(out, shown(&pieces.concat()));
        }
    }
}
