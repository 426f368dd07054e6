//! Looks over one JSON line byte by byte, without keeping or parsing it: who asks, how deeply it
//! nests, how many values it holds.
//!
//! So a message that is too long, too deep or too rich to be parsed can still be answered under
//! its own id instead of leaving the client waiting. It does not check that the line is JSON.

use rmcp::model::RequestId;

/// Longest member name or id that is kept, bytes.
pub(crate) const KEPT: usize = 256;

/// What is known of the line up to now.
#[derive(Debug, Default)]
pub(crate) struct LineScan {
    depth: usize,
    /// Deepest nesting of arrays and objects.
    pub(crate) deepest: usize,
    /// Number of values, more or less: separators and brackets outside of strings.
    pub(crate) values: usize,
    /// Number of bytes.
    pub(crate) bytes: usize,
    in_string: bool,
    escaped: bool,
    /// Whether the bytes of the top-level object now belong to a value.
    in_value: bool,
    name: Vec<u8>,
    value: Vec<u8>,
    has_id: bool,
    id: Option<RequestId>,
    has_method: bool,
    /// Whether the method is a string.
    names_method: bool,
    has_outcome: bool,
}

impl LineScan {
    /// Takes the next bytes of the line.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        for &byte in bytes {
            if self.in_string {
                self.keep(byte);
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => {
                    self.in_string = true;
                    self.keep(byte);
                }
                b'{' | b'[' => {
                    self.keep(byte);
                    self.depth += 1;
                    self.deepest = self.deepest.max(self.depth);
                    self.values += 1;
                }
                b'}' | b']' => {
                    if self.depth == 1 {
                        self.end_member();
                    }
                    self.depth = self.depth.saturating_sub(1);
                }
                b':' if self.depth == 1 => self.in_value = true,
                b',' => {
                    self.values += 1;
                    if self.depth == 1 {
                        self.end_member();
                    }
                }
                byte if byte.is_ascii_whitespace() => {}
                byte => self.keep(byte),
            }
        }
    }

    /// The id of the request that the line holds, or tries to hold; none if it is an answer.
    pub(crate) fn request_id(&self) -> Option<RequestId> {
        self.id.clone().filter(|_| !self.is_answer())
    }

    /// Whether the line has an id that no request can have.
    pub(crate) fn has_bad_id(&self) -> bool {
        self.has_id && self.id.is_none()
    }

    /// Whether the line is an answer, for all that is known: it must not be answered itself.
    pub(crate) fn is_answer(&self) -> bool {
        self.has_outcome && !self.has_method
    }

    /// Whether the line is a notification, for all that is known.
    pub(crate) fn is_notification(&self) -> bool {
        self.names_method && !self.has_id
    }

    /// Keeps a byte of a name or value of the top-level object.
    fn keep(&mut self, byte: u8) {
        if self.depth == 1 {
            let kept = if self.in_value {
                &mut self.value
            } else {
                &mut self.name
            };
            // One byte more than allowed marks it as too long.
            if kept.len() <= KEPT {
                kept.push(byte);
            }
        }
    }

    fn end_member(&mut self) {
        // A name may be written with escapes.
        match serde_json::from_slice::<String>(&self.name).as_deref() {
            Ok("id") => {
                self.has_id = true;
                self.id = (self.value.len() <= KEPT)
                    .then(|| serde_json::from_slice(&self.value).ok())
                    .flatten();
            }
            Ok("method") => {
                self.has_method = true;
                self.names_method = self.value.starts_with(b"\"");
            }
            Ok("result" | "error") => self.has_outcome = true,
            _ => {}
        }
        self.name.clear();
        self.value.clear();
        self.in_value = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn scan(line: &str) -> LineScan {
        let mut scan = LineScan::default();
        // In pieces, as a stream brings them.
        for piece in line.as_bytes().chunks(3) {
            scan.feed(piece);
        }
        scan
    }

    #[test]
    fn the_id_is_found_wherever_it_stands() {
        let number = Some(RequestId::Number(7));
        for line in [
            r#"{"id":7,"method":"m"}"#,
            r#" { "method" : "m" , "params" : {"id":1,"a":[{"id":2}]} , "id" : 7 } "#,
            r#"{"params":"\"id\":8,{","id":7,"method":"m"}"#,
            r#"{"params":"\\","id":7,"method":"m","x":"é\u00e9"}"#,
            r#"{"method":"m","id":7,"params":{"cut":["#,
            r#"{"\u0069d":7,"method":"m"}"#,
            r#"{"id":7}"#,
            r#"{"id":7,"method":"m","result":{}}"#,
        ] {
            assert_eq!(scan(line).request_id(), number, "{line}");
        }
        let text = Some(RequestId::String("a,b".into()));
        assert_eq!(scan(r#"{"id":"a,b","method":"m"}"#).request_id(), text);
    }

    #[test]
    fn what_is_no_request_has_no_id() {
        let long = format!(r#"{{"id":"{}","method":"m"}}"#, "x".repeat(KEPT + 1));
        for line in [
            r#"{"id":7,"result":{}}"#,
            r#"{"method":"m"}"#,
            r#"{"id":null,"method":"m"}"#,
            r#"{"id":{},"method":"m"}"#,
            r#"[{"id":7,"method":"m"}]"#,
            "}}}]]],,,:::\"",
            "",
            &long,
        ] {
            assert_eq!(scan(line).request_id(), None, "{line}");
        }
    }

    #[test]
    fn what_gets_no_answer_is_known() {
        for (line, is_answer, is_notification) in [
            (r#"{"id":7,"result":{}}"#, true, false),
            (r#"{"error":{"code":1}}"#, true, false),
            (r#"{"method":"m","params":{"id":1}}"#, false, true),
            (r#"{"\u006dethod":"m"}"#, false, true),
            (r#"{"method":"m","id":null}"#, false, false),
            (r#"{"method":7}"#, false, false),
            (r#"{"params":{"method":"m","result":1}}"#, false, false),
            (r#"[{"method":"m"},{"result":1}]"#, false, false),
            (r#"["method","result"]"#, false, false),
            ("{}", false, false),
        ] {
            let scan = scan(line);
            assert_eq!(scan.is_answer(), is_answer, "{line}");
            assert_eq!(scan.is_notification(), is_notification, "{line}");
        }
        assert!(scan(r#"{"method":"m","id":1.5}"#).has_bad_id());
        assert!(!scan(r#"{"method":"m","id":1}"#).has_bad_id());
        assert!(!scan(r#"{"method":"m"}"#).has_bad_id());
    }

    #[test]
    fn depth_and_values_are_counted_outside_of_strings() {
        let found = scan(r#"{"a":[[1,2],{"b":"[[[[,,,,"}]}"#);
        assert_eq!((found.deepest, found.values), (3, 6));
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut scan = LineScan::default();
            scan.feed(&bytes);
            prop_assert!(scan.name.len() <= KEPT + 1 && scan.value.len() <= KEPT + 1);
        }

        #[test]
        fn the_id_of_any_request_is_found(id in any::<i64>(), name in ".*", text in ".*") {
            let line = json!({"method": "m", "params": {name: text}, "id": id}).to_string();
            prop_assert_eq!(scan(&line).request_id(), Some(RequestId::Number(id)));
        }
    }
}
