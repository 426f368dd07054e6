//! What is kept of the runner's reports. They come from inside the sandbox, so number and size
//! are bounded; the last value and the last error are always kept.

use mcp_forge_ports::vocabulary::{Display, OutputBlock, ProgramError, RunnerReport};
use serde_json::Value;

use super::CollectedValue;
use super::picture::is_sound;
use super::terminal::shown;
use super::window::clip;

/// Longest printed form, traceback and HTML, bytes.
pub(super) const MAX_TEXT: usize = 1 << 20;
/// Longest message of an error, bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Longest name of an error's class and of a warning's call, bytes.
const MAX_NAME: usize = 1 << 10;
/// Most memory for one JSON value, about, bytes.
const MAX_JSON: usize = 8 << 20;
/// Reports that get a block.
pub(super) const MAX_BLOCKS: usize = 512;
/// Bytes in all those blocks together, pictures aside.
const MAX_TOTAL: usize = 8 << 20;
/// Pictures that are kept.
pub(super) const MAX_PICTURES: usize = 64;
/// Bytes of all pictures together.
const MAX_PICTURE_BYTES: usize = 16 << 20;
/// What a report counts for besides its bytes.
const OVERHEAD: u64 = 256;

#[derive(Debug, Default)]
pub(super) struct Reports {
    blocks: usize,
    total: usize,
    pictures: usize,
    picture_bytes: usize,
    left_out: u64,
    value: Option<CollectedValue>,
    error: Option<ProgramError>,
}

/// What becomes of a report.
#[derive(Debug, Default, PartialEq)]
pub struct Taken {
    /// Its block, if there was room.
    pub block: Option<OutputBlock>,
    /// What it adds to standard error.
    pub spoken: Option<String>,
}

/// What a report of this length counts for.
pub(super) fn weight(bytes: usize) -> u64 {
    bytes as u64 + OVERHEAD
}

impl Reports {
    pub(super) fn take(&mut self, report: RunnerReport) -> Taken {
        match report {
            RunnerReport::Value { json, repr } => {
                let value = CollectedValue {
                    // JSON has no head and tail: what is too large is told in print only.
                    json: json.filter(|json| json_size(json) <= MAX_JSON),
                    repr: clip(repr, MAX_TEXT),
                };
                self.value = Some(value.clone());
                let size = value.json.as_ref().map_or(0, json_size) + value.repr.len();
                let CollectedValue { json, repr } = value;
                self.keep(OutputBlock::Value { json, repr }, size)
            }
            RunnerReport::Error {
                name,
                message,
                traceback,
            } => {
                let error = ProgramError {
                    name: clip(shown(&name), MAX_NAME),
                    message: clip(shown(&message), MAX_MESSAGE),
                    traceback: clip(shown(&traceback), MAX_TEXT),
                };
                self.error = Some(error.clone());
                let size = error.name.len() + error.message.len() + error.traceback.len();
                self.keep(OutputBlock::Error(error), size)
            }
            RunnerReport::Message { text } => {
                let text = clip(shown(&text), MAX_TEXT);
                self.speak(OutputBlock::Message { text: text.clone() }, text)
            }
            RunnerReport::Warning { text, call } => {
                let text = clip(shown(&text), MAX_TEXT);
                let call = call.map(|call| clip(shown(&call), MAX_NAME));
                // As R prints it with `options(warn = 1)`.
                let spoken = match &call {
                    Some(call) => format!("Warning in {call} : {text}"),
                    None => format!("Warning: {text}"),
                };
                self.speak(OutputBlock::Warning { text, call }, spoken)
            }
            RunnerReport::Display(display) => self.display(display),
            // A kind that is newer than this.
            _ => Taken::default(),
        }
    }

    fn keep(&mut self, block: OutputBlock, size: usize) -> Taken {
        if self.blocks == MAX_BLOCKS || self.total + size > MAX_TOTAL {
            self.left_out += 1;
            return Taken::default();
        }
        self.blocks += 1;
        self.total += size;
        Taken {
            block: Some(block),
            spoken: None,
        }
    }

    fn speak(&mut self, block: OutputBlock, mut text: String) -> Taken {
        let left_out = self.left_out;
        let taken = self.keep(block, text.len());
        // It is part of standard error in any case.
        self.left_out = left_out;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Taken {
            spoken: Some(text),
            ..taken
        }
    }

    fn display(&mut self, display: Display) -> Taken {
        let text = display.text.map(|text| clip(text, MAX_TEXT));
        let size = text.as_ref().map_or(0, String::len);
        if let Some(picture) = display.picture.filter(is_sound) {
            let bytes = self.picture_bytes + picture.data.len();
            if self.pictures < MAX_PICTURES && bytes <= MAX_PICTURE_BYTES {
                let taken = self.keep(OutputBlock::Image { picture, text }, size);
                if taken.block.is_some() {
                    self.pictures += 1;
                    self.picture_bytes = bytes;
                }
                return taken;
            }
            self.left_out += 1;
            return Taken::default();
        }
        let json = display.json.filter(|json| json_size(json) <= MAX_JSON);
        match (display.html, json, text) {
            (Some(html), _, text) if html.len() <= MAX_TEXT => {
                let size = size + html.len();
                self.keep(OutputBlock::Html { html, text }, size)
            }
            (_, Some(json), text) => {
                let size = size + json_size(&json);
                self.keep(OutputBlock::Json { json, text }, size)
            }
            (_, _, Some(text)) => self.keep(OutputBlock::Text { text }, size),
            // Nothing of it can be shown.
            _ => {
                self.left_out += 1;
                Taken::default()
            }
        }
    }

    pub(super) fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// The last value, the last error, and a note when something was left out.
    pub(super) fn finish(
        self,
    ) -> (
        Option<CollectedValue>,
        Option<ProgramError>,
        Option<OutputBlock>,
    ) {
        let note = (self.left_out > 0).then(|| OutputBlock::Text {
            text: format!(
                "[{} more values or displays were left out: too many or too large]",
                self.left_out
            ),
        });
        (self.value, self.error, note)
    }
}

/// About the memory of a value, bytes; rather too much than too little. Arrays and objects have
/// room for as many again, and for four at least.
pub(crate) fn json_size(value: &Value) -> usize {
    const NODE: usize = size_of::<Value>();
    /// With its hash and its place in the index.
    const MEMBER: usize = NODE + size_of::<String>() + 3 * size_of::<usize>();
    NODE + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => {
            items.iter().map(json_size).sum::<usize>() + NODE * items.len().max(4)
        }
        Value::Object(members) if members.is_empty() => 0,
        Value::Object(members) => {
            let each = |(name, value): (&String, &Value)| name.len() + MEMBER + json_size(value);
            members.iter().map(each).sum::<usize>() + MEMBER * members.len().max(4)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use mcp_forge_ports::vocabulary::Picture;
    use serde_json::json;

    use super::*;

    fn value(json: Option<Value>, repr: &str) -> RunnerReport {
        RunnerReport::Value {
            json,
            repr: repr.to_owned(),
        }
    }

    fn gif(bytes: usize) -> Display {
        let mut data = b"GIF89a".to_vec();
        data.resize(bytes, 0);
        Display {
            picture: Some(Picture {
                mime_type: "image/gif".to_owned(),
                data: data.into(),
            }),
            text: Some("a picture".to_owned()),
            ..Display::default()
        }
    }

    #[test]
    fn a_value_beyond_the_bound_is_told_in_print_only() {
        let mut reports = Reports::default();
        let long = "x".repeat(MAX_JSON);
        let block = reports.take(value(Some(json!(long)), "short")).block;
        let told = OutputBlock::Value {
            json: None,
            repr: "short".into(),
        };
        assert_eq!(block, Some(told));

        let long = "y".repeat(MAX_TEXT + 1);
        let Some(OutputBlock::Value { json, repr }) =
            reports.take(value(Some(json!(1)), &long)).block
        else {
            panic!("no block");
        };
        assert_eq!(json, Some(json!(1)));
        assert!(repr.len() < MAX_TEXT + 50);
        assert!(repr.contains("bytes omitted"));
    }

    #[test]
    fn many_reports_keep_few_blocks_and_the_last_of_each() {
        let mut reports = Reports::default();
        let blocks = (0..10_000)
            .filter(|at| reports.take(value(Some(json!(at)), "")).block.is_some())
            .count();
        let error = RunnerReport::Error {
            name: "E".into(),
            message: "m".into(),
            traceback: "t".into(),
        };
        assert_eq!(reports.take(error).block, None);
        assert_eq!(blocks, MAX_BLOCKS);
        let (value, error, note) = reports.finish();
        assert_eq!(value.unwrap().json, Some(json!(9999)));
        assert_eq!(error.map(|error| error.name), Some("E".into()));
        let Some(OutputBlock::Text { text }) = note else {
            panic!("no note");
        };
        assert!(text.contains("9489 more"), "{text}");
    }

    #[test]
    fn large_reports_are_bounded_together() {
        let mut reports = Reports::default();
        let long = "x".repeat(MAX_TEXT);
        let kept = |reports: &mut Reports, report: RunnerReport| {
            (0..100)
                .filter(|_| reports.take(report.clone()).block.is_some())
                .count()
        };
        assert_eq!(kept(&mut reports, value(None, &long)), 8);
        let mut reports = Reports::default();
        let objects = json!(vec![json!({"": 0}); 4000]);
        assert_eq!(kept(&mut reports, value(Some(objects), "")), 2);
        let mut reports = Reports::default();
        let large = RunnerReport::Display(gif(4 << 20));
        assert_eq!(kept(&mut reports, large), 4);
        let mut reports = Reports::default();
        let small = RunnerReport::Display(gif(10));
        assert_eq!(kept(&mut reports, small), MAX_PICTURES);
    }

    #[test]
    fn a_display_is_its_richest_sound_form() {
        let mut reports = Reports::default();
        let mut show = |display: Display| reports.take(RunnerReport::Display(display)).block;
        let text = || Some("t".to_owned());
        assert!(matches!(
            show(gif(10)),
            Some(OutputBlock::Image { picture, text: Some(_) }) if picture.mime_type == "image/gif"
        ));
        let mut broken = gif(10);
        broken.picture = broken.picture.map(|picture| Picture {
            mime_type: "image/png".to_owned(),
            ..picture
        });
        broken.html = Some("<p>".to_owned());
        broken.json = Some(json!(1));
        assert_eq!(
            show(broken.clone()),
            Some(OutputBlock::Html {
                html: "<p>".to_owned(),
                text: Some("a picture".to_owned())
            })
        );
        broken.html = Some("x".repeat(MAX_TEXT + 1));
        assert!(matches!(show(broken), Some(OutputBlock::Json { .. })));
        let plain = Display {
            text: text(),
            ..Display::default()
        };
        assert_eq!(show(plain), Some(OutputBlock::Text { text: "t".into() }));
        assert_eq!(show(Display::default()), None);
        assert!(reports.finish().2.is_some());
    }

    #[test]
    fn messages_are_spoken_even_without_room_for_a_block() {
        let mut reports = Reports::default();
        let message = || RunnerReport::Message {
            text: "\x1b[1mm".into(),
        };
        let first = reports.take(message());
        assert_eq!(first.block, Some(OutputBlock::Message { text: "m".into() }));
        assert_eq!(first.spoken.as_deref(), Some("m\n"));
        let last = (0..1000).map(|_| reports.take(message())).last().unwrap();
        assert_eq!(last.block, None);
        assert_eq!(last.spoken.as_deref(), Some("m\n"));
        assert_eq!(reports.finish().2, None);

        let mut reports = Reports::default();
        let mut spoken = |call: Option<&str>| {
            let warning = RunnerReport::Warning {
                text: "w".to_owned(),
                call: call.map(str::to_owned),
            };
            reports.take(warning).spoken
        };
        assert_eq!(spoken(None).as_deref(), Some("Warning: w\n"));
        assert_eq!(
            spoken(Some("f(1)")).as_deref(),
            Some("Warning in f(1) : w\n")
        );
    }
}
