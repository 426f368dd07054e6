//! What is kept of the runner's reports. They come from inside the sandbox, so number and size
//! are bounded; the last value and the last error are always kept.

use std::io;

use mcp_forge_ports::vocabulary::{OutputBlock, ProgramError, RunnerReport};

use super::CollectedValue;
use super::window::clip;

/// Longest printed form, traceback and JSON text, bytes.
pub(super) const MAX_TEXT: usize = 1 << 20;
/// Longest message of an error, bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Longest name of an error's class, bytes.
const MAX_NAME: usize = 1 << 10;
/// Reports that get a block.
pub(super) const MAX_BLOCKS: usize = 64;
/// Bytes in all those blocks together.
const MAX_TOTAL: u64 = 4 << 20;
/// What a report counts for even if it is empty, bytes.
const OVERHEAD: u64 = 64;

#[derive(Debug, Default)]
pub(super) struct Reports {
    blocks: usize,
    total: u64,
    value: Option<CollectedValue>,
    error: Option<ProgramError>,
}

impl Reports {
    /// Takes a report. Gives the bytes that came and the block for it, if there is still room.
    pub(super) fn take(&mut self, report: RunnerReport) -> (u64, Option<OutputBlock>) {
        let (came, kept, block) = match report {
            RunnerReport::Value { json, repr } => {
                let size = json.as_ref().map(|json| json_len(json, MAX_TEXT));
                let came = repr.len() + size.unwrap_or(Some(0)).unwrap_or(MAX_TEXT);
                // JSON has no head and tail: a value that is too long is told in print only.
                let json = json.filter(|_| size.flatten().is_some());
                let repr = clip(repr, MAX_TEXT);
                let kept = repr.len() + size.flatten().unwrap_or(0);
                self.value = Some(CollectedValue {
                    json: json.clone(),
                    repr: repr.clone(),
                });
                (came, kept, Some(OutputBlock::Value { json, repr }))
            }
            RunnerReport::Error {
                name,
                message,
                traceback,
            } => {
                let came = name.len() + message.len() + traceback.len();
                let error = ProgramError {
                    name: clip(name, MAX_NAME),
                    message: clip(message, MAX_MESSAGE),
                    traceback: clip(traceback, MAX_TEXT),
                };
                let kept = error.name.len() + error.message.len() + error.traceback.len();
                self.error = Some(error.clone());
                (came, kept, Some(OutputBlock::Error(error)))
            }
            _ => (0, 0, None),
        };
        let total = self.total + kept as u64;
        let fits = self.blocks < MAX_BLOCKS && total <= MAX_TOTAL;
        if fits && block.is_some() {
            self.blocks += 1;
            self.total = total;
        }
        (came as u64 + OVERHEAD, block.filter(|_| fits))
    }

    pub(super) fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// The last value and the last error.
    pub(super) fn finish(self) -> (Option<CollectedValue>, Option<ProgramError>) {
        (self.value, self.error)
    }
}

/// Length of the JSON text, unless it is more than `limit`. Nothing is stored.
fn json_len(value: &serde_json::Value, limit: usize) -> Option<usize> {
    struct Count {
        len: usize,
        limit: usize,
    }
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.len += bytes.len();
            if self.len > self.limit {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count { len: 0, limit };
    serde_json::to_writer(&mut count, value)
        .ok()
        .map(|()| count.len)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(json: Option<serde_json::Value>, repr: &str) -> RunnerReport {
        RunnerReport::Value {
            json,
            repr: repr.to_owned(),
        }
    }

    #[test]
    fn json_is_measured_without_being_written() {
        for json in [json!(null), json!([1, 2.5, "é\n"]), json!({"a": {"b": []}})] {
            let len = json.to_string().len();
            assert_eq!(json_len(&json, len), Some(len));
            assert_eq!(json_len(&json, len - 1), None);
        }
    }

    #[test]
    fn a_value_beyond_the_bound_is_told_in_print_only() {
        let mut reports = Reports::default();
        let long = "x".repeat(MAX_TEXT);
        let (came, block) = reports.take(value(Some(json!(long)), "short"));
        assert!(came > MAX_TEXT as u64);
        let told = OutputBlock::Value {
            json: None,
            repr: "short".into(),
        };
        assert_eq!(block, Some(told));

        let (_, block) = reports.take(value(Some(json!(1)), &"y".repeat(MAX_TEXT + 1)));
        let Some(OutputBlock::Value { json, repr }) = block else {
            panic!("no block");
        };
        assert_eq!(json, Some(json!(1)));
        assert!(repr.len() < MAX_TEXT + 50);
        assert!(repr.contains("bytes omitted"));
    }

    #[test]
    fn many_reports_keep_few_blocks_and_the_last_of_each() {
        let mut reports = Reports::default();
        let mut blocks = 0;
        for at in 0..10_000 {
            let (came, block) = reports.take(value(Some(json!(at)), ""));
            assert!(came >= OVERHEAD);
            blocks += usize::from(block.is_some());
        }
        let (_, block) = reports.take(RunnerReport::Error {
            name: "E".into(),
            message: "m".into(),
            traceback: "t".into(),
        });
        assert_eq!(block, None);
        assert_eq!(blocks, MAX_BLOCKS);
        let (value, error) = reports.finish();
        assert_eq!(value.unwrap().json, Some(json!(9999)));
        assert_eq!(error.map(|error| error.name), Some("E".into()));
    }

    #[test]
    fn large_reports_are_bounded_together() {
        let mut reports = Reports::default();
        let long = "x".repeat(MAX_TEXT);
        let blocks = (0..10)
            .filter(|_| reports.take(value(None, &long)).1.is_some())
            .count();
        assert_eq!(blocks, 4);
        assert!(reports.total <= MAX_TOTAL);
    }
}
