//! Reports of the runners: JSON that the program itself may have written.
//!
//! What is read of it is bounded by more than its length: a short text can be a large tree. JSON
//! that is passed on stays text until its nodes are counted.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mcp_forge_ports::vocabulary::{Display, Picture, RunnerReport};
use serde::Deserialize;
use serde::de::Error;
use serde_json::value::RawValue;
use serde_json::{Result, Value};

/// Longest JSON text that is passed on, bytes.
const MAX_JSON: usize = 1 << 20;

/// Values in it, each of them at most about 600 bytes of memory (an object of one member).
const MAX_NODES: usize = 50_000;

/// All that any report has.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    json: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    repr: Option<String>,
    name: Option<String>,
    message: Option<String>,
    traceback: Option<String>,
    text: Option<String>,
    call: Option<String>,
}

/// The forms of a display that are passed on, by MIME type.
#[derive(Deserialize)]
struct Data<'a> {
    #[serde(rename = "text/plain")]
    text: Option<String>,
    #[serde(rename = "text/html")]
    html: Option<String>,
    #[serde(borrow, rename = "application/json")]
    json: Option<&'a RawValue>,
    #[serde(borrow, rename = "image/png")]
    png: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "image/jpeg")]
    jpeg: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "image/gif")]
    gif: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "image/webp")]
    webp: Option<Cow<'a, str>>,
    #[serde(rename = "image/svg+xml")]
    svg: Option<String>,
}

/// Parses one report; the frame has bounded its length.
///
/// # Errors
///
/// What is no report.
pub(crate) fn parse(json: &[u8]) -> Result<RunnerReport> {
    // Text from a program may hold what is not UTF-8; it is replaced as in its streams.
    let text = String::from_utf8_lossy(json);
    let fields: Fields<'_> = serde_json::from_str(&text)?;
    Ok(match &*fields.kind {
        "value" => RunnerReport::Value {
            json: bounded(fields.json),
            repr: must(fields.repr, "repr")?,
        },
        "error" => RunnerReport::Error {
            name: must(fields.name, "name")?,
            message: must(fields.message, "message")?,
            traceback: must(fields.traceback, "traceback")?,
        },
        "message" => RunnerReport::Message {
            text: must(fields.text, "text")?,
        },
        "warning" => RunnerReport::Warning {
            text: must(fields.text, "text")?,
            call: fields.call,
        },
        "display" => RunnerReport::Display(display(must(fields.data, "data")?)?),
        other => return Err(serde_json::Error::custom(format!("report of type {other}"))),
    })
}

fn must<T>(field: Option<T>, name: &'static str) -> Result<T> {
    field.ok_or_else(|| serde_json::Error::missing_field(name))
}

fn display(data: &RawValue) -> Result<Display> {
    let data: Data<'_> = serde_json::from_str(data.get())?;
    let encoded = [
        ("image/png", data.png),
        ("image/jpeg", data.jpeg),
        ("image/webp", data.webp),
        ("image/gif", data.gif),
    ];
    let decoded = encoded.into_iter().find_map(|(mime_type, text)| {
        let bytes = STANDARD.decode(text?.as_bytes()).ok()?;
        Some((mime_type, bytes))
    });
    let picture = decoded.or_else(|| Some(("image/svg+xml", data.svg?.into_bytes())));
    Ok(Display {
        text: data.text,
        picture: picture.map(|(mime_type, data)| Picture {
            mime_type: mime_type.to_owned(),
            data: data.into(),
        }),
        html: data.html,
        json: bounded(data.json),
    })
}

/// The value of a JSON text that is neither too long nor too large nor too deep.
fn bounded(json: Option<&RawValue>) -> Option<Value> {
    let text = json?.get();
    if text.len() > MAX_JSON || nodes(text) > MAX_NODES {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// How many values there are in a JSON text, names of members included.
fn nodes(text: &str) -> usize {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' | b',' | b':' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reports_are_read_and_nothing_else_is() {
        let value = parse(br#"{"type":"value","json":[1,null],"repr":"[1, None]"}"#).unwrap();
        assert_eq!(
            value,
            RunnerReport::Value {
                json: Some(json!([1, null])),
                repr: "[1, None]".to_owned()
            }
        );
        assert_eq!(
            parse(br#"{"type":"value","repr":"x"}"#).unwrap(),
            RunnerReport::Value {
                json: None,
                repr: "x".to_owned()
            }
        );
        assert_eq!(
            parse(br#"{"type":"warning","text":"w","call":"f(1)"}"#).unwrap(),
            RunnerReport::Warning {
                text: "w".to_owned(),
                call: Some("f(1)".to_owned())
            }
        );
        for hostile in [
            &b""[..],
            b"{}",
            b"null",
            br#"{"type":"other"}"#,
            br#"{"type":"value","repr":1}"#,
            br#"{"type":"value","json":1}"#,
            br#"{"type":"value","repr":"x","json":NaN}"#,
            br#"{"type":"value","repr":"x","repr":"y"}"#,
            br#"{"type":"message","repr":"x"}"#,
            br#"{"type":"display","data":[]}"#,
            br#"{"type":"display"}"#,
        ] {
            assert!(parse(hostile).is_err());
        }
    }

    #[test]
    fn json_that_would_be_large_in_memory_stays_text() {
        let value = |json: &str| {
            let report = format!(r#"{{"type":"value","repr":"r","json":{json}}}"#);
            match parse(report.as_bytes()) {
                Ok(RunnerReport::Value { json, repr }) => {
                    assert_eq!(repr, "r");
                    json.is_some()
                }
                other => panic!("{other:?}"),
            }
        };
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        assert!(value(&list("1", MAX_NODES - 1)));
        for hostile in [
            list("1", MAX_NODES),
            list("[]", MAX_NODES / 2 + 1),
            list(r#"{"":0}"#, MAX_NODES / 3 + 1),
            format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)),
            // Deeper than serde_json goes.
            format!("{}1{}", "[".repeat(200), "]".repeat(200)),
            format!(r#""{}""#, "x".repeat(MAX_JSON)),
        ] {
            assert!(!value(&hostile));
        }
        // Brackets in a string are no nodes.
        assert!(value(&format!(r#""\"{}""#, "[,{:".repeat(MAX_NODES))));
    }

    #[test]
    fn a_display_has_the_forms_that_can_be_shown() {
        let parsed = |data: Value| {
            let report = json!({"type": "display", "data": data}).to_string();
            match parse(report.as_bytes()) {
                Ok(RunnerReport::Display(display)) => display,
                other => panic!("{other:?}"),
            }
        };
        let shown = parsed(json!({
            "text/plain": "<Figure>",
            "text/html": "<p>",
            "image/png": "iVBORw0KGgo=",
            "image/svg+xml": "<svg/>",
            "application/x-other": {"a": [1]},
        }));
        let picture = shown.picture.unwrap();
        assert_eq!(picture.mime_type, "image/png");
        assert_eq!(*picture.data, *b"\x89PNG\r\n\x1a\n");
        assert_eq!(shown.text.as_deref(), Some("<Figure>"));
        assert_eq!(shown.html.as_deref(), Some("<p>"));
        // What is no base64 is no picture, and the next form is taken.
        let shown = parsed(json!({"image/png": "!", "image/svg+xml": "<svg/>"}));
        assert_eq!(shown.picture.unwrap().mime_type, "image/svg+xml");
        assert_eq!(parsed(json!({})), Display::default());
        let json = parsed(json!({"application/json": {"a": 1}})).json;
        assert_eq!(json, Some(json!({"a": 1})));
    }
}
