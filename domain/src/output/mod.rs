//! What is kept of the output of a run: both text streams with head and tail within their limits,
//! the reports of the runner, and the order in which all of it came.
//!
//! Memory is bounded by the limits however much comes. The content is not looked at: escape
//! sequences and carriage returns stay as they are.

mod decoder;
mod order;
mod report;
mod window;

use mcp_forge_ports::vocabulary::{OutputBlock, OutputStream, ProgramError, RunnerReport};
use sha2::{Digest, Sha256};

use decoder::Decoder;
use order::{Entry, Order, Piece};
use report::Reports;
use window::{Kept, Window};

/// How much is kept of each stream, bytes of text. The marker for what is left out comes on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimits {
    /// Of standard output.
    pub stdout: usize,
    /// Of standard error.
    pub stderr: usize,
}

/// Collects the output of one run.
#[derive(Debug)]
pub struct OutputCollector {
    stdout: StreamCollector,
    stderr: StreamCollector,
    order: Order,
    reports: Reports,
    received: u64,
}

impl OutputCollector {
    /// An empty collector.
    pub fn new(limits: OutputLimits) -> Self {
        Self {
            stdout: StreamCollector::new(limits.stdout),
            stderr: StreamCollector::new(limits.stderr),
            order: Order::default(),
            reports: Reports::default(),
            received: 0,
        }
    }

    /// Takes bytes as the program wrote them; a character may be split over several calls.
    pub fn write(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.received = self.received.saturating_add(bytes.len() as u64);
        let collector = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let (start, end) = collector.write(bytes);
        self.grew(stream, start, end);
    }

    /// Takes a report of the runner, cut to its bounds.
    pub fn report(&mut self, report: RunnerReport) {
        let (weight, block) = self.reports.take(report);
        self.received = self.received.saturating_add(weight);
        if let Some(block) = block {
            self.order.report(block);
        }
    }

    /// Bytes that came up to now, kept or not, reports included.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether nothing came up to now.
    pub fn is_empty(&self) -> bool {
        self.received == 0
    }

    /// Whether the runner reported an error.
    pub fn has_error(&self) -> bool {
        self.reports.has_error()
    }

    fn grew(&mut self, stream: OutputStream, start: u64, end: u64) {
        if end > start {
            self.order.text(Piece { stream, start, end });
        }
    }

    /// The output as it is told.
    pub fn finish(mut self) -> CollectedOutput {
        let (start, end) = self.stdout.close();
        self.grew(OutputStream::Stdout, start, end);
        let (start, end) = self.stderr.close();
        self.grew(OutputStream::Stderr, start, end);

        let (stdout, stdout_kept) = self.stdout.finish();
        let (stderr, stderr_kept) = self.stderr.finish();
        let mut blocks = Vec::new();
        for entry in self.order.finish() {
            match entry {
                Entry::Report(block) => blocks.push(block),
                Entry::Text(piece) => {
                    let kept = match piece.stream {
                        OutputStream::Stdout => &stdout_kept,
                        OutputStream::Stderr => &stderr_kept,
                    };
                    push_text(
                        &mut blocks,
                        piece.stream,
                        kept.slice(piece.start, piece.end),
                    );
                }
            }
        }
        let (value, error) = self.reports.finish();
        CollectedOutput {
            stdout,
            stderr,
            blocks,
            value,
            error,
        }
    }
}

/// Adds text unless it is empty, joined with a block of the same stream just before.
fn push_text(blocks: &mut Vec<OutputBlock>, stream: OutputStream, text: String) {
    if text.is_empty() {
        return;
    }
    match blocks.last_mut() {
        Some(OutputBlock::Stream {
            stream: before,
            text: joined,
        }) if *before == stream => joined.push_str(&text),
        _ => blocks.push(OutputBlock::Stream { stream, text }),
    }
}

/// The output of one run, as it is told.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedOutput {
    /// Standard output.
    pub stdout: CollectedStream,
    /// Standard error.
    pub stderr: CollectedStream,
    /// Everything in order. The text blocks of one stream, put together, are its text.
    pub blocks: Vec<OutputBlock>,
    /// The last value that was reported.
    pub value: Option<CollectedValue>,
    /// The last error that was reported.
    pub error: Option<ProgramError>,
}

/// A reported value.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedValue {
    /// For JSON, where JSON can carry it and it is not too long.
    pub json: Option<serde_json::Value>,
    /// In print.
    pub repr: String,
}

/// One stream, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedStream {
    /// Its text, within the limit and the marker.
    pub text: String,
    /// Something was left out.
    pub truncated: bool,
    /// Bytes that are no UTF-8 were replaced.
    pub not_utf8: bool,
    /// Bytes that the program wrote, all of them.
    pub bytes: u64,
    /// SHA-256 of all those bytes, hexadecimal.
    pub sha256: String,
}

#[derive(Debug)]
struct StreamCollector {
    decoder: Decoder,
    window: Window,
    hash: Sha256,
    bytes: u64,
}

impl StreamCollector {
    fn new(limit: usize) -> Self {
        Self {
            decoder: Decoder::default(),
            window: Window::new(limit),
            hash: Sha256::new(),
            bytes: 0,
        }
    }

    /// Takes bytes and tells from where to where the text grew.
    fn write(&mut self, bytes: &[u8]) -> (u64, u64) {
        let start = self.window.total();
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
        self.decoder.push(bytes, |text| self.window.push(text));
        (start, self.window.total())
    }

    fn close(&mut self) -> (u64, u64) {
        let start = self.window.total();
        self.decoder.finish(|text| self.window.push(text));
        (start, self.window.total())
    }

    fn finish(self) -> (CollectedStream, Kept) {
        let kept = self.window.finish();
        let told = CollectedStream {
            text: kept.text(),
            truncated: kept.is_cut(),
            not_utf8: self.decoder.replaced(),
            bytes: self.bytes,
            sha256: hex(&self.hash.finalize()),
        };
        (told, kept)
    }
}

/// SHA-256, hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
        .collect()
}

#[cfg(test)]
mod tests;
