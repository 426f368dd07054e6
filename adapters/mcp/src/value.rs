//! Reads single argument values, and says what is wrong with one in words a model can act on.
//!
//! It knows types, not policy: whether a number is too large for the operator the domain asks. Only
//! numbers that are not written as plain digits are compared here, since the domain could not repeat
//! them as they were written.

use std::ops::RangeInclusive;

use mcp_forge_ports::vocabulary::{Refusal, RefusalKind};
use serde_json::{Map, Number, Value};

use crate::one_line::one_line;

/// Longest piece of a client's own text that is repeated to it.
const ECHOED_CHARS: usize = 64;

/// Why the arguments of a call were not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: RefusalKind,
    pub(crate) message: String,
    pub(crate) hint: String,
    pub(crate) field: Option<String>,
    pub(crate) allowed: Option<String>,
}

impl Fault {
    /// An invalid value of the argument `field`.
    pub(crate) fn invalid(field: &str, message: String, hint: String, allowed: &str) -> Self {
        Self {
            kind: RefusalKind::InvalidArgument,
            message,
            hint,
            field: Some(field.to_owned()),
            allowed: Some(allowed.to_owned()),
        }
    }

    /// An argument that the tool does not have, and the one that may be meant.
    pub(crate) fn unknown(tool: &str, name: &str, meant: Option<&str>, known: &[&str]) -> Self {
        let shown = echo(name);
        let hint = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("leave `{shown}` out"),
        };
        let message = format!("`{shown}` is not an argument of {tool}");
        Self::invalid(&shown, message, hint, &known.join(", "))
    }

    /// The refusal that goes to the client.
    pub(crate) fn into_refusal(self, correlation_id: String) -> Refusal {
        Refusal {
            kind: self.kind,
            message: self.message,
            hint: self.hint,
            field: self.field,
            allowed: self.allowed,
            correlation_id,
        }
    }
}

/// The members of an object that was written as one.
pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// A client's text as it may stand in a message.
pub(crate) fn echo(text: &str) -> String {
    one_line(text, ECHOED_CHARS)
}

/// The type of a value with its article, and the value itself where it is short.
pub(crate) fn describe(value: &Value) -> String {
    described(value, None)
}

/// The same of a number that was written like this.
fn described(value: &Value, written: Option<&str>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(value) => {
            let value = written.map_or_else(|| echo(&value.to_string()), str::to_owned);
            format!("the number {value}")
        }
        Value::String(text) => format!("the string {:?}", echo(text)),
        Value::Array(items) => format!("an array of {} items", items.len()),
        Value::Object(members) => format!("an object of {} members", members.len()),
    }
}

/// A text argument. `null` counts as absent.
pub(crate) fn text(
    field: &str,
    value: Value,
    written: Option<&str>,
    allowed: &str,
) -> Result<Option<String>, Fault> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        other => {
            let hint = match &other {
                Value::Number(_) if field == "memory" => {
                    "send a size with its unit, such as \"512m\"".to_owned()
                }
                Value::Array(_) => format!("send `{field}` as one string with line breaks"),
                _ => format!("send `{field}` in quotes, as a JSON string"),
            };
            let found = described(&other, written);
            let message = format!("`{field}` must be a string, not {found}");
            Err(Fault::invalid(field, message, hint, allowed))
        }
    }
}

/// What a whole number may be.
pub(crate) struct Whole<'a> {
    /// Name of the argument.
    pub(crate) field: &'a str,
    pub(crate) range: RangeInclusive<u64>,
    /// The range in words.
    pub(crate) allowed: &'a str,
}

impl Whole<'_> {
    /// Reads it. `null` counts as absent; `5.0` counts as 5, as JSON Schema has it. `written` is
    /// the number as the client wrote it.
    pub(crate) fn read(&self, value: &Value, written: Option<&str>) -> Result<Option<u64>, Fault> {
        let Self { field, range, .. } = self;
        let number = match value {
            Value::Null => return Ok(None),
            Value::Number(number) => number,
            other => {
                let found = describe(other);
                let hint = match other {
                    Value::String(digits) if digits.trim().parse::<u64>().is_ok() => {
                        format!("send {} without quotes", digits.trim())
                    }
                    _ => format!("send `{field}` as a JSON number such as {}", example(field)),
                };
                return Err(self.invalid(format!("a whole number, not {found}"), hint));
            }
        };
        let parsed = number.to_string();
        let shown = written.map_or_else(|| echo(&parsed), str::to_owned);
        let read = match number.as_u64() {
            // The domain says what is wrong with it, if anything.
            Some(read) if read > 0 && shown == parsed => return Ok(Some(read)),
            Some(read) => read,
            None => match whole(number) {
                Some(read) => read,
                None => {
                    let hint = "round it to a whole number".to_owned();
                    return Err(self.invalid(format!("a whole number, not {shown}"), hint));
                }
            },
        };
        if read < *range.start() {
            let hint = format!("leave `{field}` out to get the default");
            return Err(self.invalid(format!("at least {}, not {shown}", range.start()), hint));
        }
        if read > *range.end() {
            let hint = format!("give `{field}` as: {}", self.allowed);
            let fault = self.invalid(format!("at most {}, not {shown}", range.end()), hint);
            return Err(Fault {
                kind: RefusalKind::LimitExceeded,
                ..fault
            });
        }
        Ok(Some(read))
    }

    fn invalid(&self, wanted: String, hint: String) -> Fault {
        let message = format!("`{}` must be {wanted}", self.field);
        Fault::invalid(self.field, message, hint, self.allowed)
    }
}

/// A number that is no `u64` as the nearest one; none for a fraction.
fn whole(number: &Number) -> Option<u64> {
    match number.as_f64() {
        Some(number) if number.fract() != 0.0 => None,
        // The cast saturates.
        Some(number) => Some(number as u64),
        None => Some(u64::MAX),
    }
}

fn example(field: &str) -> u32 {
    if field == "cpu_quota" { 100_000 } else { 30 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(field: &str, value: &Value, written: Option<&str>) -> Result<Option<u64>, Fault> {
        let allowed = "1 to 300";
        let range = 1..=300;
        Whole {
            field,
            range,
            allowed,
        }
        .read(value, written)
    }

    fn message(field: &str, value: Value) -> (String, String) {
        let fault = read(field, &value, None).unwrap_err();
        assert_eq!(fault.kind, RefusalKind::InvalidArgument);
        assert_eq!(fault.field.as_deref(), Some(field));
        assert_eq!(fault.allowed.as_deref(), Some("1 to 300"));
        (fault.message, fault.hint)
    }

    #[test]
    fn whole_numbers_are_taken_however_they_are_written() {
        for (value, written, expected) in [
            (json!(5), "5", 5),
            (json!(5.0), "5.0", 5),
            (json!(1e2), "1e2", 100),
            // What is wrong with plain digits the domain says.
            (json!(301), "301", 301),
            (json!(u64::MAX), "18446744073709551615", u64::MAX),
        ] {
            for written in [Some(written), None] {
                let read = read("timeout", &value, written);
                assert_eq!(read, Ok(Some(expected)), "{value}");
            }
        }
        assert_eq!(read("timeout", &Value::Null, None), Ok(None));
    }

    #[test]
    fn other_numbers_are_refused_as_they_were_written() {
        use RefusalKind::{InvalidArgument, LimitExceeded};
        for (written, kind, wanted) in [
            (
                "1000000000000000000000000000000",
                LimitExceeded,
                "at most 300",
            ),
            ("18446744073709551616", LimitExceeded, "at most 300"),
            ("1e30", LimitExceeded, "at most 300"),
            ("3.01e2", LimitExceeded, "at most 300"),
            ("1E+308", LimitExceeded, "at most 300"),
            ("1.50", InvalidArgument, "a whole number"),
            ("-25e-1", InvalidArgument, "a whole number"),
            ("0e5", InvalidArgument, "at least 1"),
            ("-0", InvalidArgument, "at least 1"),
            (
                "-1000000000000000000000000000000",
                InvalidArgument,
                "at least 1",
            ),
        ] {
            let value = serde_json::from_str(written).unwrap();
            let fault = read("timeout", &value, Some(written)).unwrap_err();
            let message = format!("`timeout` must be {wanted}, not {written}");
            assert_eq!((fault.kind, fault.message), (kind, message));
            assert_eq!(fault.allowed.as_deref(), Some("1 to 300"));
            assert!(!fault.hint.is_empty());
        }
    }

    #[test]
    fn other_numbers_are_refused_with_the_value() {
        for (value, expected) in [
            (json!(0), "`timeout` must be at least 1, not 0"),
            (json!(-0.0), "`timeout` must be at least 1, not -0.0"),
            (json!(-3), "`timeout` must be at least 1, not -3"),
            (
                json!(i64::MIN),
                "`timeout` must be at least 1, not -9223372036854775808",
            ),
            (json!(-5.0), "`timeout` must be at least 1, not -5.0"),
            (json!(2.5), "`timeout` must be a whole number, not 2.5"),
            (json!(-2.5), "`timeout` must be a whole number, not -2.5"),
        ] {
            assert_eq!(message("timeout", value).0, expected);
        }
    }

    #[test]
    fn other_types_are_named() {
        let (text, hint) = message("timeout", json!("30"));
        assert_eq!(
            text,
            "`timeout` must be a whole number, not the string \"30\""
        );
        assert_eq!(hint, "send 30 without quotes");
        let (text, hint) = message("cpu_quota", json!([1]));
        assert_eq!(
            text,
            "`cpu_quota` must be a whole number, not an array of 1 items"
        );
        assert_eq!(hint, "send `cpu_quota` as a JSON number such as 100000");
        assert!(
            message("timeout", json!(true))
                .0
                .ends_with("the boolean true")
        );
        assert!(
            message("timeout", json!({}))
                .0
                .ends_with("an object of 0 members")
        );
    }

    #[test]
    fn texts_are_texts_and_repeated_only_in_part() {
        assert_eq!(text("code", json!("x"), None, ""), Ok(Some("x".to_owned())));
        assert_eq!(text("stdin", Value::Null, None, ""), Ok(None));
        for (written, shown) in [(None, "512.0"), (Some("5.12e2"), "5.12e2")] {
            let fault = text("memory", json!(512.0), written, "").unwrap_err();
            let message = format!("`memory` must be a string, not the number {shown}");
            assert_eq!(fault.message, message);
        }
        let fault = read("timeout", &json!("z".repeat(100_000)), None).unwrap_err();
        assert!(fault.message.len() < 200, "{}", fault.message.len());
    }
}
