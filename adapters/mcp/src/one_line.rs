//! Makes one short printable line of text that a client or a sandbox sent.
//!
//! It hides nothing from the result itself, which carries the text as it was written.

/// Removes escape sequences, control characters and invisible direction marks, trims, and cuts to
/// `max_chars` characters (the last one is then an ellipsis).
pub(crate) fn one_line(text: &str, max_chars: usize) -> String {
    let mut line = String::new();
    let mut kept = 0;
    let mut chars = text.trim().chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            skip_escape(&mut chars);
            continue;
        }
        if is_hidden(c) {
            continue;
        }
        if kept == max_chars {
            line.pop();
            line.push('…');
            break;
        }
        line.push(c);
        kept += 1;
    }
    line.truncate(line.trim_end().len());
    line
}

/// Skips the rest of an ANSI escape sequence: CSI up to its final byte, OSC up to BEL or ESC,
/// otherwise one character.
fn skip_escape(chars: &mut std::str::Chars<'_>) {
    match chars.next() {
        Some('[') => {
            for c in chars.by_ref() {
                if ('\u{40}'..='\u{7e}').contains(&c) {
                    break;
                }
            }
        }
        Some(']') => {
            for c in chars.by_ref() {
                if c == '\u{7}' || c == '\u{1b}' {
                    break;
                }
            }
        }
        _ => {}
    }
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn plain_text_stays() {
        assert_eq!(one_line("  epoch 3/10 é ", 200), "epoch 3/10 é");
    }

    #[test]
    fn escapes_controls_and_direction_marks_go() {
        assert_eq!(one_line("\u{1b}[31mred\u{1b}[0m\u{7}\0!", 200), "red!");
        assert_eq!(one_line("\u{1b}]0;title\u{7}text", 200), "text");
        assert_eq!(one_line("a\u{202e}b\u{2066}c\u{200b}", 200), "abc");
        assert_eq!(one_line("\u{1b}", 200), "");
    }

    #[test]
    fn long_text_is_cut_by_characters() {
        assert_eq!(one_line("äöüßx", 4), "äöü…");
        assert_eq!(one_line("äöüß", 4), "äöüß");
        assert_eq!(one_line("ab", 0), "…");
    }
}
