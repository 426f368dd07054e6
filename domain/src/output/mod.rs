//! What is kept of the output of a run: both text streams with head and tail within their limits,
//! the reports of the runner, and the order in which all of it came.
//!
//! Memory is bounded by the limits however much comes. Of the streams it keeps what a terminal
//! would show; the bytes themselves are only counted and hashed.

mod decoder;
pub(crate) mod files;
mod order;
mod picture;
mod report;
mod terminal;
mod window;

use std::ops::Range;

use mcp_forge_ports::vocabulary::{OutputBlock, OutputStream, ProgramError, RunnerReport};
use sha2::{Digest, Sha256};

use decoder::Decoder;
use order::{Entry, Order, Piece};
pub use report::Taken;
pub(crate) use report::json_size;
use report::{Reports, weight};
use terminal::Terminal;
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
        // What the other stream showed so far came before.
        self.settle(match stream {
            OutputStream::Stdout => OutputStream::Stderr,
            OutputStream::Stderr => OutputStream::Stdout,
        });
        let grown = self.collector(stream).write(bytes);
        self.grew(stream, grown);
    }

    /// Takes a report of the runner that was `bytes` long, cut to its bounds.
    pub fn report(&mut self, bytes: usize, report: Option<RunnerReport>) -> Taken {
        self.received = self.received.saturating_add(weight(bytes));
        let Some(report) = report else {
            return Taken::default();
        };
        let taken = self.reports.take(report);
        self.settle(OutputStream::Stdout);
        self.settle(OutputStream::Stderr);
        let spoken = taken.spoken.as_ref();
        let piece = spoken.map(|text| piece(OutputStream::Stderr, self.stderr.speak(text)));
        match (piece, taken.block.clone()) {
            (None, None) => {}
            (None, Some(block)) => self.order.report(block),
            (Some(piece), Some(block)) => self.order.spoken(piece, block),
            (Some(piece), None) => self.order.text(piece),
        }
        taken
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

    fn collector(&mut self, stream: OutputStream) -> &mut StreamCollector {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    fn settle(&mut self, stream: OutputStream) {
        let grown = self.collector(stream).settle();
        self.grew(stream, grown);
    }

    fn grew(&mut self, stream: OutputStream, grown: Range<u64>) {
        if !grown.is_empty() {
            self.order.text(piece(stream, grown));
        }
    }

    /// The output as it is told.
    pub fn finish(mut self) -> CollectedOutput {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let grown = self.collector(stream).close();
            self.grew(stream, grown);
        }

        let (stdout, stdout_kept) = self.stdout.finish();
        let (stderr, stderr_kept) = self.stderr.finish();
        let mut blocks = Vec::new();
        for entry in self.order.finish() {
            match entry {
                Entry::Report(block) | Entry::Spoken(_, block) => blocks.push(block),
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
        let (value, error, note) = self.reports.finish();
        blocks.extend(note);
        CollectedOutput {
            stdout,
            stderr,
            blocks,
            value,
            error,
        }
    }
}

fn piece(stream: OutputStream, grown: Range<u64>) -> Piece {
    Piece {
        stream,
        start: grown.start,
        end: grown.end,
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
    /// Everything in order. The text blocks of standard output, put together, are its text; so are
    /// those of standard error together with messages and warnings.
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
    terminal: Terminal,
    window: Window,
    hash: Sha256,
    bytes: u64,
}

impl StreamCollector {
    fn new(limit: usize) -> Self {
        Self {
            decoder: Decoder::default(),
            terminal: Terminal::default(),
            window: Window::new(limit),
            hash: Sha256::new(),
            bytes: 0,
        }
    }

    /// Takes bytes and tells from where to where the text grew, as do the others here.
    fn write(&mut self, bytes: &[u8]) -> Range<u64> {
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
        let start = self.window.total();
        self.decoder.push(bytes, |text| {
            self.terminal.push(text, |text| self.window.push(text));
        });
        start..self.window.total()
    }

    /// An open line will not be replaced any more.
    fn settle(&mut self) -> Range<u64> {
        let start = self.window.total();
        self.terminal.settle(|text| self.window.push(text));
        start..self.window.total()
    }

    /// Adds text that the program did not write here itself.
    fn speak(&mut self, text: &str) -> Range<u64> {
        let start = self.window.total();
        self.window.push(text);
        start..self.window.total()
    }

    fn close(&mut self) -> Range<u64> {
        let start = self.window.total();
        self.decoder
            .finish(|text| self.terminal.push(text, |text| self.window.push(text)));
        self.terminal.settle(|text| self.window.push(text));
        start..self.window.total()
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

/// Characters of a line that are told.
const LINE: usize = 200;

/// The last line with something in it of the newest bytes of an output, as a terminal shows it.
pub(crate) fn newest_line(tail: &[u8]) -> Option<String> {
    let shown = terminal::shown(&String::from_utf8_lossy(tail));
    let line = shown.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim_end().chars().take(LINE).collect())
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
