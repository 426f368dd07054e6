//! Numbers of a call's arguments as the client wrote them, cut where they are long: a parsed `1e2` or `10000000000000000000`
//! does not know any more how it looked.
//!
//! It reads nothing but numbers, and judges none.

use std::collections::HashMap;

use serde_json::value::RawValue;

use crate::value::echo;

/// Arguments by name, those that are numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WrittenNumbers(HashMap<String, String>);

impl WrittenNumbers {
    /// Those of the arguments `names` in a line that holds a `tools/call`.
    pub(crate) fn of_call(line: &[u8], names: &[&str]) -> Self {
        let arguments = std::str::from_utf8(line)
            .ok()
            .and_then(|line| member(line, "params"))
            .and_then(|params| member(params, "arguments"))
            .and_then(members)
            .unwrap_or_default();
        let numbers = names.iter().filter_map(|name| {
            let text = arguments.get(*name)?.get();
            text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
                .then(|| ((*name).to_owned(), echo(text)))
        });
        Self(numbers.collect())
    }

    /// The number of this argument.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

fn members(object: &str) -> Option<HashMap<String, &RawValue>> {
    serde_json::from_str(object).ok()
}

fn member<'line>(object: &'line str, name: &str) -> Option<&'line str> {
    members(object)?.remove(name).map(RawValue::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_as_they_were_written() {
        let line = br#"{"method":"tools/call","params":{"name":"n","arguments":
            {"a":1e2, "b" : -1.50 ,"c":"7","d":{"a":3},"\u0065":0010e0,"f":9999999999999999999999}},"id":1}"#;
        assert_eq!(
            WrittenNumbers::of_call(line, &["a"]),
            WrittenNumbers::default(),
            "not JSON"
        );
        let line = String::from_utf8_lossy(line).replace("0010e0", "10e0");
        let found = WrittenNumbers::of_call(line.as_bytes(), &["a", "b", "c", "d", "e", "f", "g"]);
        for (name, text) in [
            ("a", Some("1e2")),
            ("b", Some("-1.50")),
            ("c", None),
            ("d", None),
            ("e", Some("10e0")),
            ("f", Some("9999999999999999999999")),
            ("g", None),
        ] {
            assert_eq!(found.get(name), text, "{name}");
        }
    }

    #[test]
    fn what_is_no_call_has_none() {
        for line in [
            &b""[..],
            b"[]",
            br#"{"params":7}"#,
            br#"{"params":{"arguments":[1]}}"#,
            b"{\"params\":{\"arguments\":{\"a\":\"\xff\"}}}",
        ] {
            let found = WrittenNumbers::of_call(line, &["a"]);
            assert_eq!(found, WrittenNumbers::default());
        }
    }
}
