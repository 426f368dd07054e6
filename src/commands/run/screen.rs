//! What a program writes, on its way to a person. A terminal obeys what it is told, so it is told
//! little: of control sequences (ECMA-48) only colours, styles and the erasing of a line pass. What
//! goes anywhere else passes as it is.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anstyle_parse::{Params, Parser, Perform};
use mcp_forge_ports::vocabulary::OutputStream;

/// Ends all styles (SGR 0).
const PLAIN: &[u8] = b"\x1b[0m";

/// Both streams of mcp-forge, as they are used.
#[derive(Debug)]
pub(super) struct Screen(Mutex<Ways>);

#[derive(Debug)]
struct Ways {
    out: Way,
    err: Way,
}

#[derive(Debug, Default)]
struct Way {
    /// Where it is a terminal.
    filter: Option<Box<Filter>>,
    /// The last line has no end yet.
    open: bool,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self::of(io::stdout().is_terminal(), io::stderr().is_terminal())
    }

    fn of(out_is_terminal: bool, err_is_terminal: bool) -> Self {
        let way = |is_terminal: bool| Way {
            filter: is_terminal.then(Box::default),
            open: false,
        };
        Self(Mutex::new(Ways {
            out: way(out_is_terminal),
            err: way(err_is_terminal),
        }))
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the program wrote, as it is to be written.
    pub(super) fn pass(&self, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
        self.ways().of(stream).pass(bytes)
    }

    /// Whole lines that are not of the stream, and so begin a line of their own.
    pub(super) fn lines(&self, stream: OutputStream, text: &str) -> Vec<u8> {
        let mut ways = self.ways();
        let mut lines = ways.start_line(stream);
        let way = ways.of(stream);
        lines.extend(way.pass(text.as_bytes()));
        if way.open {
            lines.extend(way.pass(b"\n"));
        }
        lines
    }

    /// Begins a line of its own.
    pub(super) fn start_line(&self, stream: OutputStream) -> Vec<u8> {
        self.ways().start_line(stream)
    }

    /// Ends what the program may have begun.
    pub(super) fn end(&self, stream: OutputStream) -> &'static [u8] {
        let mut ways = self.ways();
        let filter = ways.of(stream).filter.as_mut();
        match filter.is_some_and(|filter| std::mem::take(&mut filter.shown.styled)) {
            true => PLAIN,
            false => b"",
        }
    }
}

impl Ways {
    fn of(&mut self, stream: OutputStream) -> &mut Way {
        match stream {
            OutputStream::Stdout => &mut self.out,
            OutputStream::Stderr => &mut self.err,
        }
    }

    fn start_line(&mut self, stream: OutputStream) -> Vec<u8> {
        // Both on terminals are on the same one.
        let together = self.out.filter.is_some() && self.err.filter.is_some();
        let is_open = self.of(stream).open || together && (self.out.open || self.err.open);
        if !is_open {
            return Vec::new();
        }
        if together {
            (self.out.open, self.err.open) = (false, false);
        }
        self.of(stream).open = false;
        b"\n".to_vec()
    }
}

impl Way {
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let shown = match &mut self.filter {
            None => bytes.to_vec(),
            Some(filter) => filter.pass(bytes),
        };
        if let Some(last) = shown.last() {
            self.open = *last != b'\n';
        }
        shown
    }
}

#[derive(Debug, Default)]
struct Filter {
    parser: Parser,
    shown: Shown,
}

impl Filter {
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        for byte in bytes {
            self.parser.advance(&mut self.shown, *byte);
        }
        std::mem::take(&mut self.shown.bytes)
    }
}

/// What a terminal gets.
#[derive(Debug, Default)]
struct Shown {
    bytes: Vec<u8>,
    /// A style was set.
    styled: bool,
}

impl Perform for Shown {
    fn print(&mut self, character: char) {
        // The controls of ISO 6429 in their one-character forms, and DEL.
        if !character.is_control() {
            let mut buffer = [0; 4];
            let text = character.encode_utf8(&mut buffer);
            self.bytes.extend_from_slice(text.as_bytes());
        }
    }

    fn execute(&mut self, byte: u8) {
        if matches!(byte, b'\n' | b'\r' | b'\t' | b'\x08') {
            self.bytes.push(byte);
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: u8) {
        if ignore || !intermediates.is_empty() || !matches!(action, b'm' | b'K') {
            return;
        }
        let params: Vec<String> = params
            .iter()
            .map(|parts| {
                let parts: Vec<_> = parts.iter().map(u16::to_string).collect();
                parts.join(":")
            })
            .collect();
        self.styled |= action == b'm';
        self.bytes.extend_from_slice(b"\x1b[");
        self.bytes.extend_from_slice(params.join(";").as_bytes());
        self.bytes.push(action);
    }
}

#[cfg(test)]
mod tests {
    use OutputStream::{Stderr, Stdout};

    use super::*;

    fn shown(bytes: &[u8]) -> String {
        let screen = Screen::of(true, false);
        // Cut anywhere, it is the same.
        let parts = bytes.chunks(1).map(|byte| screen.pass(Stdout, byte));
        let parts: Vec<u8> = parts.flatten().collect();
        assert_eq!(parts, Screen::of(true, false).pass(Stdout, bytes));
        String::from_utf8(parts).unwrap()
    }

    #[test]
    fn a_terminal_gets_text_and_colours_and_nothing_that_changes_it() {
        for (written, expected) in [
            (&b"a\tb\r\n\x08"[..], "a\tb\r\n\x08"),
            ("é\u{1f600}".as_bytes(), "é\u{1f600}"),
            (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
            (b"\x1b[38:2:1:2:3mx\x1b[m", "\x1b[38:2:1:2:3mx\x1b[0m"),
            (b"50%\r\x1b[2K100%", "50%\r\x1b[2K100%"),
            // Title, clipboard, other screen, cursor, reports, reset, charset, private styles.
            (b"a\x1b]0;title\x07b", "ab"),
            (b"a\x1b]52;c;YQ==\x1b\\b", "ab"),
            (b"a\x1b[?1049hb\x1b[2J\x1b[1;1H\x1b[6n\x1b[c", "ab"),
            (b"a\x1bcb\x1b(0c\x1bP+q544e\x1b\\d\x1b_Ga=T\x1b\\e", "abcde"),
            (b"\x1b[>4;2mx\x1b[?4mx", "xx"),
            (b"\x07\x0e\x00\x7fx\xc2\x9b31mx\xc2\x85", "x31mx"),
            // No text at all.
            (b"a\xff\xfeb", "ab"),
        ] {
            assert_eq!(shown(written), expected, "{:?}", written.escape_ascii());
        }
    }

    #[test]
    fn elsewhere_all_passes_as_it_is() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(Screen::of(false, true).pass(Stdout, &bytes), bytes);
    }

    #[test]
    fn what_is_not_of_a_stream_begins_a_line() {
        let screen = Screen::of(false, false);
        assert_eq!(screen.lines(Stdout, "1"), b"1\n");
        screen.pass(Stdout, b"open");
        assert_eq!(screen.lines(Stderr, "error\n"), b"error\n");
        assert_eq!(screen.lines(Stdout, "2"), b"\n2\n");
        assert_eq!(screen.lines(Stdout, "3"), b"3\n");
        let terminal = Screen::of(true, true);
        terminal.pass(Stdout, b"open");
        assert_eq!(terminal.lines(Stderr, "error"), b"\nerror\n");
        assert_eq!(terminal.start_line(Stdout), b"");
    }

    #[test]
    fn a_style_does_not_outlast_the_program() {
        let screen = Screen::of(true, true);
        screen.pass(Stdout, b"\x1b[31mred");
        assert_eq!(screen.end(Stdout), PLAIN);
        assert_eq!(screen.end(Stdout), b"");
        assert_eq!(screen.end(Stderr), b"");
    }
}
