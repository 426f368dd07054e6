//! Variables in the values of a file: `${NAME}`, and `${NAME:-default}` for one that is not set or
//! empty, as in a POSIX shell (2.6.2). A default may hold variables; the value of a variable is
//! taken as it is. `$${` stands for `${`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// Longest value, bytes.
const MAX_VALUE: usize = 64 << 10;

/// Defaults within defaults.
const MAX_DEPTH: usize = 16;

/// The text with its variables replaced.
///
/// # Errors
///
/// The variable that is missing or is not UTF-8, and what cannot be read.
pub(super) fn expand(
    text: &str,
    environment: &BTreeMap<OsString, OsString>,
) -> Result<String, String> {
    let mut out = String::new();
    expand_into(&mut out, text, environment, 0)?;
    Ok(out)
}

fn expand_into(
    out: &mut String,
    mut text: &str,
    environment: &BTreeMap<OsString, OsString>,
    depth: usize,
) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("more than {MAX_DEPTH} defaults within each other"));
    }
    while let Some(start) = text.find("${") {
        let before = &text[..start];
        let rest = &text[start + 2..];
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            text = rest;
        } else {
            out.push_str(before);
            let end = closing(rest).ok_or("a ${ without its }")?;
            one(out, &rest[..end], environment, depth)?;
            text = &rest[end + 1..];
        }
    }
    out.push_str(text);
    if out.len() > MAX_VALUE {
        return Err("longer than 64 KiB with its variables".to_owned());
    }
    Ok(())
}

/// Where the brace is that closes one that was opened before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'$' if bytes.peek().is_some_and(|(_, next)| *next == b'{') => open += 1,
            b'}' if open == 0 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn one(
    out: &mut String,
    inside: &str,
    environment: &BTreeMap<OsString, OsString>,
    depth: usize,
) -> Result<(), String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !text.is_empty()
            && !text.starts_with(|first: char| first.is_ascii_digit())
    };
    if !is_name(name) {
        let name = super::quoted(name);
        return Err(format!("{name} is no name of a variable"));
    }
    match (environment.get(OsStr::new(name)), default) {
        (None, Some(default)) => expand_into(out, default, environment, depth + 1),
        (Some(value), Some(default)) if value.is_empty() => {
            expand_into(out, default, environment, depth + 1)
        }
        (None, None) => Err(format!(
            "the variable {name} is not set; set it, or write ${{{name}:-default}}"
        )),
        (Some(value), _) => match value.to_str() {
            Some(value) => {
                out.push_str(value);
                Ok(())
            }
            None => Err(format!("the value of the variable {name} is not UTF-8")),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn told(text: &str) -> Result<String, String> {
        let environment = BTreeMap::from([
            ("DIR".into(), "/var/log".into()),
            ("EMPTY".into(), "".into()),
            ("TRAP".into(), "${DIR}".into()),
            ("BYTES".into(), OsString::from_vec(vec![0xff])),
            ("LONG".into(), "x".repeat(MAX_VALUE).into()),
        ]);
        expand(text, &environment)
    }

    #[test]
    fn variables_are_replaced_also_in_defaults() {
        for (text, expected) in [
            ("no variable, $DIR, 5$, {}", "no variable, $DIR, 5$, {}"),
            ("${DIR}/a", "/var/log/a"),
            ("${DIR}${DIR}", "/var/log/var/log"),
            ("${NONE:-x}", "x"),
            ("${EMPTY}", ""),
            ("${EMPTY:-x}", "x"),
            ("${NONE:-}", ""),
            ("${NONE:-${EMPTY:-${DIR}}/b}c", "/var/log/bc"),
            ("${NONE:-a:-b}", "a:-b"),
            ("$${DIR}", "${DIR}"),
            ("${TRAP}", "${DIR}"),
            ("${DIR:-${NONE}}", "/var/log"),
        ] {
            assert_eq!(told(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_replaced_is_told() {
        let deep = format!("{}{}", "${NONE:-".repeat(20), "}".repeat(20));
        for (text, expected) in [
            (
                "${NONE}",
                "the variable NONE is not set; set it, or write ${NONE:-default}",
            ),
            (
                "${EMPTY:-${NONE}}",
                "the variable NONE is not set; set it, or write ${NONE:-default}",
            ),
            ("${DIR", "a ${ without its }"),
            ("${}", "\"\" is no name of a variable"),
            ("${A B}", "\"A B\" is no name of a variable"),
            ("${1}", "\"1\" is no name of a variable"),
            ("${BYTES}", "the value of the variable BYTES is not UTF-8"),
            ("${LONG}x", "longer than 64 KiB with its variables"),
            (&deep, "more than 16 defaults within each other"),
        ] {
            assert_eq!(told(text).unwrap_err(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[$:{}A-Z\\-é]{0,60}") {
            drop(told(&text));
        }
    }
}
