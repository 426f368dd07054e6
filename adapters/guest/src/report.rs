//! Reports of the runners: JSON that the program itself may have written.

use mcp_forge_ports::vocabulary::RunnerReport;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Report {
    Value {
        #[serde(default)]
        json: Option<serde_json::Value>,
        repr: String,
    },
    Error {
        name: String,
        message: String,
        traceback: String,
    },
}

/// Parses one report. serde_json bounds the nesting, the frame has bounded the length.
///
/// # Errors
///
/// What is no report.
pub(crate) fn parse(json: &[u8]) -> Result<RunnerReport, serde_json::Error> {
    // Text from a program may hold what is not UTF-8; it is replaced as in its streams.
    let text = String::from_utf8_lossy(json);
    Ok(match serde_json::from_str(&text)? {
        Report::Value { json, repr } => RunnerReport::Value { json, repr },
        Report::Error {
            name,
            message,
            traceback,
        } => RunnerReport::Error {
            name,
            message,
            traceback,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_and_nothing_else_is() {
        let value = parse(br#"{"type":"value","json":[1,null],"repr":"[1, None]"}"#).unwrap();
        assert_eq!(
            value,
            RunnerReport::Value {
                json: Some(serde_json::json!([1, null])),
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
        let deep = format!(
            r#"{{"type":"value","repr":"","json":{}1{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        for hostile in [
            &b""[..],
            b"{}",
            b"null",
            br#"{"type":"other"}"#,
            br#"{"type":"value","repr":1}"#,
            br#"{"type":"value","repr":"x","json":NaN}"#,
            deep.as_bytes(),
        ] {
            assert!(parse(hostile).is_err());
        }
    }
}
