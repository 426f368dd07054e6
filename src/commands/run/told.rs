//! What is told of a run when it is over: the value, the exception, how it ended, the exit status.

use std::io;

use mcp_forge_domain::ExecutionPolicy;
use mcp_forge_domain::limits::format_byte_size;
use mcp_forge_ports::vocabulary::{EndedBy, ExecutionOutcome, OutputStream, Refusal};
use nix::sys::signal::Signal;

use super::screen::Screen;
use crate::cli::Run;
use crate::commands::{FAILED, complain_bytes, print_bytes, say, signals};

/// From this exit status on, a program's own could be one of mcp-forge's.
const OURS: i32 = 124;

/// What the runner says first when the program reads and there is nothing.
const NO_STDIN: &str = "no standard input";

/// What the streams did not show: the value as at Python's prompt, the exception, an early end.
pub(super) fn tell(
    outcome: &ExecutionOutcome,
    policy: &ExecutionPolicy,
    arguments: &Run,
    ended: Option<&Signal>,
    screen: &Screen,
) -> io::Result<()> {
    if let Some(repr) = &outcome.result_repr {
        print_bytes(&screen.lines(OutputStream::Stdout, repr))?;
    }
    let styled = screen.end(OutputStream::Stdout);
    if !styled.is_empty() {
        print_bytes(styled)?;
    }
    let say = |text: &str| complain_bytes(&screen.lines(OutputStream::Stderr, text));
    if let Some(error) = &outcome.error {
        say(error.traceback.trim_end());
        if arguments.stdin.is_none() && error.message.starts_with(NO_STDIN) {
            say("  hint: give it a file with --stdin FILE, or mcp-forge's own with --stdin -");
        }
    }
    if let Some(ending) = ending(outcome, policy, ended) {
        say(&format!("mcp-forge: the program {ending}"));
    }
    complain_bytes(screen.end(OutputStream::Stderr));
    Ok(())
}

/// How a program ended that did not end by itself, or whose own status could pass for ours.
fn ending(
    outcome: &ExecutionOutcome,
    policy: &ExecutionPolicy,
    ended: Option<&Signal>,
) -> Option<String> {
    let limits = &outcome.limits.requested;
    Some(match outcome.ended_by {
        EndedBy::Completed => return None,
        EndedBy::Error => match outcome.exit_code {
            Some(code) if code >= OURS => format!("exited with status {code}"),
            _ => return None,
        },
        EndedBy::Timeout => format!(
            "was stopped: time limit of {} s reached ({})",
            limits.timeout.as_secs(),
            match policy.limits.max_timeout {
                most if most > limits.timeout => format!("--timeout, at most {}", most.as_secs()),
                _ => "setting execution.max_timeout".to_owned(),
            }
        ),
        EndedBy::Oom => format!(
            "was killed: memory limit of {} reached ({})",
            in_words(limits.memory_bytes),
            match policy.limits.max_memory {
                most if most > limits.memory_bytes => {
                    format!("--memory, at most {}", format_byte_size(most))
                }
                _ => "setting execution.max_memory".to_owned(),
            }
        ),
        EndedBy::Pids => format!(
            "failed: limit of {} processes and threads reached (setting execution.pids)",
            limits.pids
        ),
        EndedBy::OutputLimit => format!(
            "was stopped: it wrote more than {} (setting execution.output_stop)",
            in_words(policy.output_stop_bytes)
        ),
        EndedBy::Cancelled => match ended {
            Some(signal) => format!("was interrupted: mcp-forge got {signal}"),
            None => "was interrupted".to_owned(),
        },
        EndedBy::Crashed => match &outcome.signal {
            Some(signal) => format!("was killed by signal {signal}"),
            None => "was killed by a signal".to_owned(),
        },
        EndedBy::RuntimeLost => "was lost with its sandbox".to_owned(),
    })
}

/// A size as in `512 MiB`.
fn in_words(bytes: u64) -> String {
    let size = format_byte_size(bytes);
    match size.strip_suffix(['k', 'm', 'g', 't']) {
        Some(number) => format!("{number} {}iB", size[number.len()..].to_ascii_uppercase()),
        None => format!("{size} bytes"),
    }
}

pub(super) fn refuse(refusal: &Refusal) {
    say(&format!("mcp-forge: {}", refusal.message));
    let hint = match (refusal.field.as_deref(), &refusal.allowed) {
        (Some(field @ ("timeout" | "memory" | "cpu_quota")), Some(allowed)) => {
            &format!("give --{} as {allowed}", field.replace('_', "-"))
        }
        _ => &refusal.hint,
    };
    say(&format!("  hint: {hint}"));
}

/// Exit statuses as timeout(1) and shells give them.
pub(super) fn status(outcome: &ExecutionOutcome, ended: Option<&Signal>) -> u8 {
    let own = || outcome.exit_code.and_then(|code| u8::try_from(code).ok());
    match outcome.ended_by {
        EndedBy::Completed => 0,
        EndedBy::Timeout => 124,
        EndedBy::Oom => 137,
        EndedBy::Cancelled => signals::status(ended.copied().unwrap_or(Signal::SIGINT)),
        EndedBy::Crashed => own()
            .or_else(|| outcome.signal.as_deref().and_then(signal_status))
            .unwrap_or(1),
        EndedBy::RuntimeLost => FAILED,
        EndedBy::Error | EndedBy::Pids | EndedBy::OutputLimit => {
            own().filter(|code| *code != 0).unwrap_or(1)
        }
    }
}

/// 128 and the number of the signal.
fn signal_status(name: &str) -> Option<u8> {
    name.parse().ok().map(signals::status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        for (bytes, words) in [
            (512 << 20, "512 MiB"),
            (3 << 30, "3 GiB"),
            (1000, "1000 bytes"),
        ] {
            assert_eq!(in_words(bytes), words);
        }
    }

    #[test]
    fn signals_become_shell_statuses() {
        assert_eq!(signal_status("SIGSEGV"), Some(139));
        assert_eq!(signal_status("SIGKILL"), Some(137));
        assert_eq!(signal_status("nonsense"), None);
    }
}
