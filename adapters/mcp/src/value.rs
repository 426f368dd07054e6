//! Reads single argument values, and says what is wrong with one in words a model can act on.
//!
//! It knows types, not policy: whether a number is too large for the operator is not asked here.

use mcp_forge_ports::vocabulary::{Refusal, RefusalKind};
use serde_json::{Number, Value};

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

/// A client's text as it may stand in a message.
pub(crate) fn echo(text: &str) -> String {
    one_line(text, ECHOED_CHARS)
}

/// The type of a value with its article, and the value itself where it is short.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(value) => format!("the number {}", echo(&value.to_string())),
        Value::String(text) => format!("the string {:?}", echo(text)),
        Value::Array(items) => format!("an array of {} items", items.len()),
        Value::Object(members) => format!("an object of {} members", members.len()),
    }
}

/// A text argument. `null` counts as absent.
pub(crate) fn text(field: &str, value: Value, allowed: &str) -> Result<Option<String>, Fault> {
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
            let found = describe(&other);
            let message = format!("`{field}` must be a string, not {found}");
            Err(Fault::invalid(field, message, hint, allowed))
        }
    }
}

/// A whole number of at least 1. `null` counts as absent; `5.0` counts as 5, as JSON Schema has
/// it; what no `u64` can hold becomes the largest one, so that the domain names its own maximum.
pub(crate) fn whole(field: &str, value: &Value, allowed: &str) -> Result<Option<u64>, Fault> {
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
            let message = format!("`{field}` must be a whole number, not {found}");
            return Err(Fault::invalid(field, message, hint, allowed));
        }
    };
    let wrong = |what: &str, hint: String| {
        let message = format!(
            "`{field}` must be {what}, not {}",
            echo(&number.to_string())
        );
        Err(Fault::invalid(field, message, hint, allowed))
    };
    match classify(number) {
        Whole::Fits(0) | Whole::Negative => wrong(
            "at least 1",
            format!("leave `{field}` out to get the default"),
        ),
        Whole::Fits(number) => Ok(Some(number)),
        Whole::Fraction => wrong("a whole number", "round it to a whole number".to_owned()),
    }
}

/// A number that may be none of those that `whole` takes.
enum Whole {
    Fits(u64),
    Negative,
    Fraction,
}

fn classify(number: &Number) -> Whole {
    if let Some(number) = number.as_u64() {
        return Whole::Fits(number);
    }
    match number.as_f64() {
        Some(number) if number.fract() != 0.0 => Whole::Fraction,
        Some(number) if number < 0.0 => Whole::Negative,
        // The cast saturates.
        Some(number) => Whole::Fits(number as u64),
        None => Whole::Fits(u64::MAX),
    }
}

fn example(field: &str) -> u32 {
    if field == "cpu_quota" { 100_000 } else { 30 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(field: &str, value: Value) -> (String, String) {
        let fault = whole(field, &value, "1 to 300").unwrap_err();
        assert_eq!(fault.kind, RefusalKind::InvalidArgument);
        assert_eq!(fault.field.as_deref(), Some(field));
        assert_eq!(fault.allowed.as_deref(), Some("1 to 300"));
        (fault.message, fault.hint)
    }

    #[test]
    fn whole_numbers_are_taken_however_they_are_written() {
        for (value, expected) in [
            (json!(5), 5),
            (json!(5.0), 5),
            (json!(1e3), 1000),
            (json!(u64::MAX), u64::MAX),
            (json!(1e300), u64::MAX),
        ] {
            assert_eq!(whole("timeout", &value, ""), Ok(Some(expected)), "{value}");
        }
        assert_eq!(whole("timeout", &Value::Null, ""), Ok(None));
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
        assert_eq!(text("code", json!("x"), ""), Ok(Some("x".to_owned())));
        assert_eq!(text("stdin", Value::Null, ""), Ok(None));
        let fault = text("memory", json!(512), "").unwrap_err();
        assert_eq!(
            fault.message,
            "`memory` must be a string, not the number 512"
        );
        let fault = whole("timeout", &json!("z".repeat(100_000)), "").unwrap_err();
        assert!(fault.message.len() < 200, "{}", fault.message.len());
    }
}
