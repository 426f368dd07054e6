//! The ways in which terminals take pictures. kitty and iTerm2 take a file as it is, in base64, and
//! decode it themselves; for sixels it is decoded here.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mcp_forge_ports::vocabulary::Picture;

use super::sixel;

/// Base64 in one escape sequence of kitty's, bytes ("Remote client", its protocol's documentation).
const KITTY_CHUNK: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Terminal graphics protocol of kitty; Ghostty has it too.
    Kitty,
    /// Inline images of iTerm2; WezTerm has them too.
    Iterm2,
    /// Sixels, of the VT340.
    Sixel,
}

impl Protocol {
    /// That of the terminal by what it tells in the environment. A multiplexer between draws
    /// nothing, and an unknown terminal would print base64.
    pub(super) fn of_terminal(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let term = set("TERM")?;
        let multiplexed = ["TMUX", "STY", "ZELLIJ"]
            .map(set)
            .iter()
            .any(Option::is_some);
        if multiplexed || term.starts_with("screen") || term.starts_with("tmux") {
            return None;
        }
        match term.as_str() {
            "xterm-kitty" | "xterm-ghostty" => return Some(Self::Kitty),
            "foot" | "foot-extra" | "foot-direct" | "mlterm" | "contour" => {
                return Some(Self::Sixel);
            }
            _ => {}
        }
        // Those that follow pass from a terminal to one that is started in it.
        match set("TERM_PROGRAM").as_deref() {
            Some("ghostty") => Some(Self::Kitty),
            Some("iTerm.app" | "WezTerm") => Some(Self::Iterm2),
            Some(_) => None,
            None if set("KITTY_WINDOW_ID").is_some() => Some(Self::Kitty),
            // Passed on by ssh.
            None if set("LC_TERMINAL").as_deref() == Some("iTerm2") => Some(Self::Iterm2),
            None => None,
        }
    }

    /// What draws the picture, unless it is of a type that terminals with this protocol need not
    /// know, or broken.
    pub(super) fn encode(self, picture: &Picture) -> Option<Vec<u8>> {
        match (self, picture.mime_type.as_str()) {
            (Self::Kitty, "image/png") => Some(kitty(&picture.data)),
            (Self::Iterm2, "image/png" | "image/jpeg" | "image/gif" | "image/webp") => {
                Some(iterm2(&picture.data))
            }
            (Self::Sixel, "image/png") => sixel::encode(&picture.data),
            _ => None,
        }
    }
}

/// Transmits and displays a PNG, in chunks; the terminal is asked for no answer, which would be
/// read by the shell.
fn kitty(png: &[u8]) -> Vec<u8> {
    let base64 = STANDARD.encode(png);
    let mut drawing = Vec::with_capacity(base64.len() + base64.len() / KITTY_CHUNK * 16 + 64);
    let mut chunks = base64.as_bytes().chunks(KITTY_CHUNK).peekable();
    let mut keys = "a=T,f=100,";
    while let Some(chunk) = chunks.next() {
        let more = u8::from(chunks.peek().is_some());
        drawing.extend(format!("\x1b_G{keys}q=2,m={more};").bytes());
        drawing.extend(chunk);
        drawing.extend(b"\x1b\\");
        keys = "";
    }
    drawing
}

fn iterm2(file: &[u8]) -> Vec<u8> {
    let (size, base64) = (file.len(), STANDARD.encode(file));
    format!("\x1b]1337;File=inline=1;size={size}:{base64}\x07").into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn terminal(variables: &[(&str, &str)]) -> Option<Protocol> {
        Protocol::of_terminal(|name| {
            let found = variables.iter().find(|(set, _)| *set == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn terminals_are_known_by_their_environment() {
        use Protocol::{Iterm2, Kitty, Sixel};
        let xterm = ("TERM", "xterm-256color");
        for (variables, protocol) in [
            (&[("TERM", "xterm-kitty")][..], Some(Kitty)),
            (&[("TERM", "xterm-ghostty")], Some(Kitty)),
            (&[xterm, ("KITTY_WINDOW_ID", "1")], Some(Kitty)),
            (&[xterm, ("TERM_PROGRAM", "ghostty")], Some(Kitty)),
            (&[xterm, ("TERM_PROGRAM", "iTerm.app")], Some(Iterm2)),
            (&[xterm, ("TERM_PROGRAM", "WezTerm")], Some(Iterm2)),
            (&[xterm, ("LC_TERMINAL", "iTerm2")], Some(Iterm2)),
            (&[("TERM", "foot")], Some(Sixel)),
            (&[("TERM", "mlterm")], Some(Sixel)),
            (&[("TERM", "contour")], Some(Sixel)),
            (&[xterm], None),
            (&[("TERM", "dumb")], None),
            (&[], None),
            // Started in another one.
            (&[("TERM", "foot"), ("KITTY_WINDOW_ID", "1")], Some(Sixel)),
            (
                &[xterm, ("TERM_PROGRAM", "vscode"), ("KITTY_WINDOW_ID", "1")],
                None,
            ),
            (
                &[
                    xterm,
                    ("KITTY_WINDOW_ID", "1"),
                    ("TMUX", "/tmp/tmux-0/default,1,0"),
                ],
                None,
            ),
            (
                &[("TERM", "tmux-256color"), ("LC_TERMINAL", "iTerm2")],
                None,
            ),
            (&[("TERM", "screen"), ("KITTY_WINDOW_ID", "1")], None),
        ] {
            assert_eq!(terminal(variables), protocol, "{variables:?}");
        }
    }

    #[test]
    fn kitty_takes_chunks() {
        assert_eq!(kitty(b"abc"), b"\x1b_Ga=T,f=100,q=2,m=0;YWJj\x1b\\");
        let zeros = |count| "A".repeat(count);
        let whole = format!("\x1b_Ga=T,f=100,q=2,m=0;{}\x1b\\", zeros(4096));
        assert_eq!(kitty(&[0; 3072]), whole.as_bytes());
        let two = format!(
            "\x1b_Ga=T,f=100,q=2,m=1;{}\x1b\\\x1b_Gq=2,m=0;AA==\x1b\\",
            zeros(4096)
        );
        assert_eq!(kitty(&[0; 3073]), two.as_bytes());
        let three = kitty(&[0; 6145]);
        assert!(three.ends_with(b"\x1b_Gq=2,m=0;AA==\x1b\\"));
        assert_eq!(three.iter().filter(|byte| **byte == b'\x1b').count(), 6);
    }

    #[test]
    fn iterm2_takes_a_file() {
        let drawing = b"\x1b]1337;File=inline=1;size=4:YWJjZA==\x07";
        assert_eq!(iterm2(b"abcd"), drawing);
    }

    #[test]
    fn what_a_terminal_need_not_know_is_not_drawn() {
        use Protocol::{Iterm2, Kitty, Sixel};
        for (protocol, types) in [
            (Kitty, &["image/jpeg", "image/svg+xml"][..]),
            (Iterm2, &["image/svg+xml"]),
            // The picture is broken besides.
            (Sixel, &["image/png", "image/gif", "image/svg+xml"]),
        ] {
            for mime_type in types {
                let picture = Picture {
                    mime_type: (*mime_type).to_owned(),
                    data: (*b"\x89PNG\r\n\x1a\n\x1b]0;title\x07").into(),
                };
                assert_eq!(protocol.encode(&picture), None, "{protocol:?} {mime_type}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_drawn_is_the_file(data in proptest::collection::vec(any::<u8>(), 1..20_000)) {
            let drawing = String::from_utf8(kitty(&data)).unwrap();
            let mut base64 = String::new();
            for sequence in drawing.split_terminator("\x1b\\") {
                let (keys, chunk) = sequence.split_once(';').unwrap();
                prop_assert!(keys.starts_with("\x1b_G") && chunk.len() <= 4096);
                base64.push_str(chunk);
            }
            prop_assert_eq!(STANDARD.decode(base64).unwrap(), &data[..]);
            let drawing = String::from_utf8(iterm2(&data)).unwrap();
            let base64 = drawing.split_once(':').unwrap().1.strip_suffix('\x07').unwrap();
            prop_assert_eq!(STANDARD.decode(base64).unwrap(), &data[..]);
        }
    }
}
