//! The argument `files`: what is to lie in the workspace before the program starts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mcp_forge_ports::vocabulary::InputFile;
use serde_json::{Map, Value};

use crate::uri::{self, Parsed};
use crate::value::{Fault, describe, echo};

const FIELD: &str = "files";

const ALLOWED: &str = "an array of {\"path\": …, \"text\": …}, {\"path\": …, \"base64\": …} or \
                       {\"path\": …, \"uri\": …}";

/// Where the contents of a file come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The argument holds them.
    Given(InputFile),
    /// A part of an earlier run.
    Part { path: String, part: Parsed },
}

/// Reads the argument. `null` counts as absent.
pub(crate) fn parse(value: Value) -> Result<Vec<Source>, Fault> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => items.into_iter().enumerate().map(one).collect(),
        other => {
            let message = format!("`files` must be an array, not {}", describe(&other));
            Err(fault(message, "put the file into an array".to_owned()))
        }
    }
}

fn one((index, item): (usize, Value)) -> Result<Source, Fault> {
    let Value::Object(mut members) = item else {
        let message = format!(
            "`files[{index}]` must be an object, not {}",
            describe(&item)
        );
        return Err(fault(
            message,
            "give each file a path and its contents".to_owned(),
        ));
    };
    let mut string = |name: &str| match members.remove(name).unwrap_or_default() {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        other => {
            let found = describe(&other);
            let message = format!("`files[{index}].{name}` must be a string, not {found}");
            Err(fault(message, format!("send `{name}` in quotes")))
        }
    };
    let path = string("path")?;
    let contents = [string("text")?, string("base64")?, string("uri")?];
    if let Some(name) = unknown(&members) {
        let message = format!("`files[{index}]` has the unknown member `{name}`");
        let meant = match name.as_str() {
            "content" | "contents" | "data" => "`text`",
            "name" | "filename" | "file" => "`path`",
            "url" => "`uri`",
            _ => return Err(fault(message, format!("leave `{name}` out"))),
        };
        return Err(fault(message, format!("did you mean {meant}?")));
    }
    // What a program calls it.
    let below = path.map(|path| match path.strip_prefix("/workspace/") {
        Some(below) => below.to_owned(),
        None => path,
    });
    let Some(path) = below else {
        let message = format!("`files[{index}].path` is missing");
        return Err(fault(
            message,
            "give a path such as \"data/a.csv\"".to_owned(),
        ));
    };
    match contents {
        [Some(text), None, None] => Ok(Source::Given(InputFile {
            path,
            data: text.into_bytes(),
        })),
        [None, Some(encoded), None] => match STANDARD.decode(encoded.as_bytes()) {
            Ok(data) => Ok(Source::Given(InputFile { path, data })),
            Err(error) => {
                let message = format!("`files[{index}].base64` is no base64: {error}");
                let hint = "use the standard alphabet with padding, or `text`".to_owned();
                Err(fault(message, hint))
            }
        },
        [None, None, Some(uri)] => match uri::parse(&uri) {
            Some(part) => Ok(Source::Part { path, part }),
            None => {
                let message = format!("`files[{index}].uri` is no part of a run: {:?}", echo(&uri));
                let hint = "use a `uri` of the files, pictures or log of a result".to_owned();
                Err(fault(message, hint))
            }
        },
        _ => {
            let message =
                format!("`files[{index}]` must have exactly one of `text`, `base64` and `uri`");
            Err(fault(
                message,
                "use `text` for text and `base64` for bytes".to_owned(),
            ))
        }
    }
}

fn unknown(members: &Map<String, Value>) -> Option<String> {
    members.keys().next().map(|name| echo(name))
}

pub(crate) fn fault(message: String, hint: String) -> Fault {
    Fault::invalid(FIELD, message, hint, ALLOWED)
}

#[cfg(test)]
mod tests {
    use mcp_forge_ports::vocabulary::RunPart;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_contents_is_read() {
        let files = parse(json!([
            {"path": "a", "text": "é"},
            {"path": "b", "base64": "/wA=", "text": null},
            {"path": "/workspace/c", "uri": "mcp://forge/runs/run-1/files/x%20y"},
        ]));
        let given = |path: &str, data: &[u8]| {
            Source::Given(InputFile {
                path: path.to_owned(),
                data: data.to_vec(),
            })
        };
        let part = Source::Part {
            path: "c".to_owned(),
            part: Parsed {
                run_id: "run-1".to_owned(),
                part: RunPart::File("x y".to_owned()),
                range: 0..u64::MAX,
            },
        };
        let expected = vec![given("a", "é".as_bytes()), given("b", b"\xff\0"), part];
        assert_eq!(files, Ok(expected));
        assert_eq!(parse(Value::Null), Ok(Vec::new()));
    }

    #[test]
    fn everything_else_is_refused_with_its_place() {
        for (wrong, told) in [
            (json!("a"), "must be an array, not the string \"a\""),
            (json!(["a"]), "`files[0]` must be an object"),
            (json!([{"text": "a"}]), "`files[0].path` is missing"),
            (
                json!([{"path": 1, "text": "a"}]),
                "`files[0].path` must be a string",
            ),
            (json!([{"path": "a"}]), "exactly one of"),
            (
                json!([{"path": "a", "text": "", "base64": ""}]),
                "exactly one of",
            ),
            (json!([{"path": "a", "base64": "?"}]), "is no base64"),
            (
                json!([{"path": "a", "uri": "file:///etc/passwd"}]),
                "is no part of a run",
            ),
            (
                json!([{"path": "a", "text": "", "mode": 1}]),
                "unknown member `mode`",
            ),
        ] {
            let fault = parse(wrong).unwrap_err();
            assert!(fault.message.contains(told), "{}", fault.message);
            assert_eq!(fault.field.as_deref(), Some("files"));
        }
    }
}
