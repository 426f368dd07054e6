//! The readable form of a result, for the model: what the program wrote, and, when it did not
//! complete, a last line with the reason and the next step.
//!
//! It is a view of the structured content, which alone is complete and exact.

use mcp_forge_ports::vocabulary::{EndedBy, ExecutionOutcome, Refusal};

use crate::settings::ArgumentBounds;

/// The text of a run.
pub(crate) fn outcome(outcome: &ExecutionOutcome, bounds: &ArgumentBounds) -> String {
    let mut text = Sections::default();
    text.add("", &outcome.stdout);
    if outcome.stdout_truncated {
        text.add(
            "",
            "(The middle of the standard output was cut out: print less.)",
        );
    }
    if let Some(repr) = &outcome.result_repr {
        text.add(
            if repr.contains('\n') {
                "Result:\n"
            } else {
                "Result: "
            },
            repr,
        );
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
    if let Some(reason) = ending(outcome, bounds) {
        text.add("", &reason);
    } else if text.0.is_empty() {
        text.add(
            "",
            "(The program completed and wrote nothing. Print what you want to see.)",
        );
    }
    text.0
}

/// The text of a refusal.
pub(crate) fn refusal(refusal: &Refusal) -> String {
    let mut text = format!("{}: {}", refusal.kind.as_str(), refusal.message);
    if !refusal.hint.is_empty() {
        text.push_str("\nhint: ");
        text.push_str(&refusal.hint);
    }
    if let Some(allowed) = &refusal.allowed {
        text.push_str("\nallowed: ");
        text.push_str(allowed);
    }
    text.push_str("\ncorrelation id: ");
    text.push_str(&refusal.correlation_id);
    text
}

/// Sections that are not empty, each beginning on a line of its own.
#[derive(Default)]
struct Sections(String);

impl Sections {
    fn add(&mut self, heading: &str, body: &str) {
        if body.is_empty() {
            return;
        }
        if !self.0.is_empty() && !self.0.ends_with('\n') {
            self.0.push('\n');
        }
        self.0.push_str(heading);
        self.0.push_str(body);
    }
}

/// Why the program did not complete, and what to do next; none when it did.
fn ending(outcome: &ExecutionOutcome, bounds: &ArgumentBounds) -> Option<String> {
    let limits = &outcome.limits.requested;
    Some(match outcome.ended_by {
        EndedBy::Completed => return None,
        EndedBy::Error => failure(outcome),
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

fn failure(outcome: &ExecutionOutcome) -> String {
    let what = match (&outcome.error, outcome.exit_code) {
        (Some(error), _) => format!("Failed: {}.", error.name),
        (None, Some(status)) => format!("Failed: exit status {status}."),
        (None, None) => "Failed.".to_owned(),
    };
    format!("{what} Correct the program and run it again.")
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
