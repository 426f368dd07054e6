//! The readable form of a result, for the model: what the program wrote and showed, in order, and,
//! when it did not complete, a last line with the reason and the next step.
//!
//! It is a view of the structured content, which alone is complete and exact.

use mcp_forge_ports::vocabulary::{
    EndedBy, ExecutionOutcome, Language, OutputBlock, OutputStream, Picture, ProgramError, Refusal,
    ResourceLimits, RunState, RunStatus,
};

use crate::one_line::one_line;
use crate::settings::ArgumentBounds;
use crate::uri;

/// Pictures that a result contains; further ones are named.
const MAX_PICTURES: usize = 20;

/// Bytes of all those pictures.
const MAX_PICTURE_BYTES: usize = 6 << 20;

/// Files that are named.
const MAX_FILES: usize = 20;

/// Bytes of text that a model gets of a run: about 12,000 tokens. Half of them are its beginning,
/// half of them its end.
const MAX_TEXT: usize = 48 << 10;

/// A part of the readable form, in order.
pub(crate) enum Part<'a> {
    Text(String),
    Picture(&'a Picture),
}

/// The readable form of a run.
pub(crate) fn outcome<'a>(outcome: &'a ExecutionOutcome, bounds: &ArgumentBounds) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    let mut text = Sections::default();
    let (mut picture_number, mut picture_bytes) = (0, 0);
    let mut has_value = false;
    for (at, block) in outcome.blocks.iter().enumerate() {
        match block {
            OutputBlock::Stream {
                stream: OutputStream::Stdout,
                text: written,
            } => text.continue_with(written),
            OutputBlock::Value { repr, .. } => {
                has_value = true;
                text.add(value_heading(outcome, repr), repr);
            }
            OutputBlock::Image {
                picture,
                text: plain,
            } => {
                let bytes = picture_bytes + picture.data.len();
                let is_shown = picture_number < MAX_PICTURES
                    && bytes <= MAX_PICTURE_BYTES
                    // No model reads drawings as pictures.
                    && picture.mime_type != "image/svg+xml";
                if is_shown {
                    picture_bytes = bytes;
                    text.flush(&mut parts);
                    parts.push(Part::Picture(picture));
                    text.add("", &notes(plain.as_deref()));
                } else {
                    text.add(
                        "",
                        &link(outcome, picture, plain.as_deref(), picture_number),
                    );
                }
                picture_number += 1;
            }
            // Of a value, which follows in print.
            OutputBlock::Html { text: None, .. }
                if matches!(outcome.blocks.get(at + 1), Some(OutputBlock::Value { .. })) => {}
            OutputBlock::Html { html, text: None } => {
                let note = format!("(HTML of {} bytes, see the structured content)", html.len());
                text.add("", &note);
            }
            OutputBlock::Json { json, text: None } => text.add("", &json.to_string()),
            OutputBlock::Html {
                text: Some(plain), ..
            }
            | OutputBlock::Json {
                text: Some(plain), ..
            }
            | OutputBlock::Text { text: plain } => text.add("", plain),
            // Standard error and the exception come last.
            _ => {}
        }
    }
    if outcome.stdout_truncated {
        let log = uri::log(&outcome.run_id);
        let note =
            format!("(The middle of the standard output was cut out: print less, or read {log})");
        text.add("", &note);
    }
    if let Some(repr) = outcome.result_repr.as_ref().filter(|_| !has_value) {
        text.add(value_heading(outcome, repr), repr);
    }
    text.add("Standard error:\n", &outcome.stderr);
    if outcome.stderr_truncated {
        text.add("", "(The middle of the standard error was cut out.)");
    }
    if let Some(error) = &outcome.error
        && !outcome.stderr.contains(error.traceback.trim_end())
    {
        text.add("", &error.traceback);
    }
    text.add("", &files(outcome));
    if picture_number > 0 {
        text.add("", &pictures(outcome, picture_number));
    }
    if let Some(reason) = ending(outcome, bounds) {
        text.add("", &reason);
    } else if text.text.is_empty() && parts.is_empty() {
        text.add(
            "",
            "(The program completed and wrote nothing. Print what you want to see.)",
        );
    }
    text.flush(&mut parts);
    shorten(&mut parts, outcome);
    parts
}

/// Cuts the middle out of a text that is too long for a model.
fn shorten(parts: &mut Vec<Part<'_>>, outcome: &ExecutionOutcome) {
    let length = |part: &Part<'_>| match part {
        Part::Text(text) => text.len(),
        Part::Picture(_) => 0,
    };
    let total = parts.iter().map(length).sum::<usize>();
    if total <= MAX_TEXT {
        return;
    }
    let (mut at, mut is_told) = (0, false);
    for part in &mut *parts {
        let Part::Text(text) = part else { continue };
        // What of this part is before the cut, and what is after it.
        let head = text.floor_char_boundary((MAX_TEXT / 2).saturating_sub(at));
        let tail =
            text.ceil_char_boundary((total - MAX_TEXT / 2).saturating_sub(at).min(text.len()));
        at += text.len();
        if head >= tail {
            continue;
        }
        let note = match std::mem::replace(&mut is_told, true) {
            true => String::new(),
            false => left_out(total - MAX_TEXT, outcome),
        };
        text.replace_range(head..tail, &note);
    }
    parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
}

fn left_out(bytes: usize, outcome: &ExecutionOutcome) -> String {
    let log = match outcome.log {
        Some(_) => format!(" and in {}", uri::log(&outcome.run_id)),
        None => String::new(),
    };
    format!(
        "\n({} KiB are left out here: print less. More is in the structured content{log}.)\n",
        bytes.div_ceil(1024)
    )
}

/// Where the pictures are, for a later call that takes one as a file.
fn pictures(outcome: &ExecutionOutcome, count: usize) -> String {
    let first = uri::picture(&outcome.run_id, 0);
    match count {
        1 => format!("(The picture is the resource {first})"),
        _ => format!(
            "(The {count} pictures are the resources {first} to {})",
            count - 1
        ),
    }
}

/// R shows values as its prompt does, Python's last one is told apart from what was printed.
fn value_heading(outcome: &ExecutionOutcome, repr: &str) -> &'static str {
    match (outcome.language, repr.contains('\n')) {
        (Language::R, _) => "",
        (_, true) => "Result:\n",
        (_, false) => "Result: ",
    }
}

/// What the runner notes of a picture, in brackets after its own text: that it is smaller than it
/// was meant to be, say.
fn notes(plain: Option<&str>) -> String {
    let lines = plain.unwrap_or_default().lines().skip(1);
    let notes: Vec<_> = lines.filter(|line| line.starts_with('[')).collect();
    notes.join("\n")
}

fn link(
    outcome: &ExecutionOutcome,
    picture: &Picture,
    plain: Option<&str>,
    number: usize,
) -> String {
    format!(
        "(picture {}{}, {} bytes: {})",
        picture.mime_type,
        plain.map(|plain| format!(" {plain}")).unwrap_or_default(),
        picture.data.len(),
        uri::picture(&outcome.run_id, number)
    )
}

/// The names of the files, and how to read them.
fn files(outcome: &ExecutionOutcome) -> String {
    let count = outcome.files.len() as u64 + outcome.files_omitted;
    if count == 0 {
        return String::new();
    }
    let mut text = String::from("Files left in /workspace (resources, one can be an input again):");
    for file in outcome.files.iter().take(MAX_FILES) {
        let place = match file.kept {
            true => uri::file(&outcome.run_id, &file.path),
            false => "too large to be kept".to_owned(),
        };
        text.push_str(&format!(
            "\n  {} ({} bytes): {place}",
            one_line(&file.path, 200),
            file.size
        ));
    }
    let rest = count - outcome.files.len().min(MAX_FILES) as u64;
    if rest > 0 {
        text.push_str(&format!("\n  and {rest} more"));
    }
    text
}

/// The text of a run that goes on.
pub(crate) fn status(status: &RunStatus) -> String {
    let (id, language) = (&status.run_id, status.language);
    let age = status.age.as_secs();
    match (&status.answer, status.state) {
        (Some(Err(refusal)), _) => self::refusal(refusal),
        (Some(Ok(outcome)), _) => {
            let ended_by = outcome.ended_by.as_str();
            format!("run {id} ({language}) has ended after {age} s: {ended_by}")
        }
        (None, RunState::Queued { position }) => {
            format!("run {id} ({language}) has waited for {age} s, number {position} in the queue")
        }
        (None, RunState::Starting) => format!("run {id} ({language}) is starting"),
        (None, _) => {
            let line = status.newest_line.as_ref();
            let line = line.map(|line| format!(", last line: {line}"));
            let line = line.unwrap_or_default();
            format!("run {id} ({language}) has been going on for {age} s{line}")
        }
    }
}

/// The text of a refusal.
pub(crate) fn refusal(refusal: &Refusal) -> String {
    let mut text = format!("{}: {}", refusal.kind.as_str(), refusal.message);
    if !refusal.hint.is_empty() {
        text.push_str("\nhint: ");
        text.push_str(&refusal.hint);
    }
    if let Some(allowed) = refusal
        .allowed
        .as_ref()
        .filter(|allowed| !allowed.is_empty())
    {
        text.push_str("\nallowed: ");
        text.push_str(allowed);
    }
    text.push_str("\ncorrelation id: ");
    text.push_str(&refusal.correlation_id);
    text
}

/// Sections that are not empty, each beginning on a line of its own.
#[derive(Default)]
struct Sections {
    text: String,
    /// The last thing was a section, which is to end its line.
    ended: bool,
}

impl Sections {
    /// Adds what a stream wrote, as it was written.
    fn continue_with(&mut self, written: &str) {
        if self.ended {
            self.end_line();
        }
        self.text.push_str(written);
        self.ended = false;
    }

    fn add(&mut self, heading: &str, body: &str) {
        if body.is_empty() {
            return;
        }
        self.end_line();
        self.text.push_str(heading);
        self.text.push_str(body);
        self.ended = true;
    }

    fn end_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    fn flush(&mut self, parts: &mut Vec<Part<'_>>) {
        if !self.text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut self.text)));
        }
    }
}

/// Why the program did not complete, and what to do next; none when it did.
fn ending(outcome: &ExecutionOutcome, bounds: &ArgumentBounds) -> Option<String> {
    let limits = &outcome.limits.requested;
    Some(match outcome.ended_by {
        EndedBy::Completed => return None,
        EndedBy::Error => failure(outcome, limits),
        EndedBy::Timeout => {
            let seconds = limits.timeout.as_secs();
            let next = if seconds < bounds.max_timeout_s {
                format!(
                    "Raise `timeout` (max {} s) or split the work.",
                    bounds.max_timeout_s
                )
            } else {
                "This is the longest time allowed: split the work.".to_owned()
            };
            format!("Stopped: the time limit of {seconds} s was reached. {next}")
        }
        EndedBy::Cancelled => "Stopped: the call was cancelled.".to_owned(),
        EndedBy::Oom => format!(
            "Killed: the program needed more than its memory limit of {}. Raise `memory` \
             (max {}) or work on less data at a time.",
            size(limits.memory_bytes),
            bounds.max_memory
        ),
        EndedBy::Pids => format!(
            "Failed: the limit of {} processes and threads was reached. Start fewer of them.",
            limits.pids
        ),
        EndedBy::OutputLimit => "Stopped: the program wrote more output than is allowed. Print \
                                 a summary, or only the part that is needed."
            .to_owned(),
        EndedBy::Crashed => format!(
            "Crashed: {} ended the program. Look for the native code, or the endless recursion, \
             that does this, and avoid it.",
            outcome.signal.as_deref().unwrap_or("a signal")
        ),
        EndedBy::RuntimeLost => format!(
            "Lost: the sandbox vanished while the program ran. Try again; if it happens again, \
             give the operator this correlation id: {}",
            outcome.correlation_id
        ),
    })
}

fn failure(outcome: &ExecutionOutcome, limits: &ResourceLimits) -> String {
    let what = match (&outcome.error, outcome.exit_code) {
        (Some(error), _) => format!("Failed: {}.", error.name),
        (None, Some(status)) => format!("Failed: exit status {status}."),
        (None, None) => "Failed.".to_owned(),
    };
    let next = outcome
        .error
        .as_ref()
        .and_then(|error| remedy(error, limits));
    let next = next.unwrap_or_else(|| "Correct the program and run it again.".to_owned());
    format!("{what} {next}")
}

/// What helps against an error that comes of where the program runs, as far as its name or its
/// words tell.
fn remedy(error: &ProgramError, limits: &ResourceLimits) -> Option<String> {
    let (name, message) = (error.name.as_str(), error.message.as_str());
    Some(match name {
        "ModuleNotFoundError" | "packageNotFoundError" => {
            "Packages cannot be installed here, for there is no network: use those that there are."
                .to_owned()
        }
        "URLError"
        | "gaierror"
        | "ConnectionError"
        | "ConnectError"
        | "ConnectionRefusedError"
        | "NameResolutionError"
        | "ClientConnectorError" => {
            "There is no network here: give data to the program with `files`.".to_owned()
        }
        "FileNotFoundError" => "Only files of `files` are in the working directory, /workspace; \
                                the user's files are not here."
            .to_owned(),
        "OSError" if message.contains("[Errno 28]") => format!(
            "The space is limited: /workspace has {}, /tmp {}.",
            size(limits.workspace_bytes),
            size(limits.tmp_bytes)
        ),
        "OSError" if message.contains("[Errno 24]") => format!(
            "Close files: at most {} may be open at once in a process.",
            limits.descriptors
        ),
        "SyntaxError" if is_ipython(&error.traceback) => {
            "This is plain Python: leave out IPython's `!` and `%` lines.".to_owned()
        }
        _ => return None,
    })
}

/// Whether the line that a syntax error shows is a shell command or a magic of IPython.
fn is_ipython(traceback: &str) -> bool {
    let mut lines = traceback.lines().map(str::trim_start);
    lines.any(|line| line.starts_with(['!', '%']))
}

/// A size in the largest unit that divides it.
fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    UNITS
        .into_iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .map_or_else(
            || format!("{bytes} bytes"),
            |(unit, name)| format!("{} {name}", bytes / unit),
        )
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size(512 << 20), "512 MiB");
        assert_eq!(size(4 << 30), "4 GiB");
        assert_eq!(size((1 << 20) + 1024), "1025 KiB");
        assert_eq!(size(1025), "1025 bytes");
        assert_eq!(size(0), "0 bytes");
    }
}
