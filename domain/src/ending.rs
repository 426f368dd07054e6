//! How a run ended, from what was seen of it. A pure function: it asks nobody and stops nothing.

use std::borrow::Cow;

use mcp_forge_ports::vocabulary::{EndedBy, GuestExit, SandboxExit, SandboxUsage};

/// How the program ended, as far as mcp-forge could see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramEnd {
    /// The agent told it.
    Exited(GuestExit),
    /// The agent could not start it.
    NotStarted,
    /// The stream ended, or broke, without a word about the program.
    Lost,
}

/// How the run ended.
///
/// In this order: `stopped` is mcp-forge's own reason and wins; a kill for memory explains any
/// failure; then the signal, refused processes, and at last the program's own failure.
/// `raised` says that the runner reported an error.
pub fn classify(
    stopped: Option<EndedBy>,
    end: ProgramEnd,
    counted: SandboxUsage,
    raised: bool,
) -> EndedBy {
    if let Some(reason) = stopped {
        return reason;
    }
    let exit = match end {
        ProgramEnd::Exited(exit) => Some(exit.status),
        ProgramEnd::NotStarted | ProgramEnd::Lost => None,
    };
    if exit == Some(SandboxExit::Exited(0)) && !raised {
        return EndedBy::Completed;
    }
    if counted.oom_kills > 0 {
        return EndedBy::Oom;
    }
    match (end, exit) {
        (ProgramEnd::Lost, _) => EndedBy::RuntimeLost,
        (_, Some(SandboxExit::Signaled(_))) => EndedBy::Crashed,
        _ if counted.pids_refused > 0 => EndedBy::Pids,
        (ProgramEnd::NotStarted, _) => EndedBy::RuntimeLost,
        _ => EndedBy::Error,
    }
}

/// Name of a signal on Linux (x86-64, ARM64 and others of the common table), as in `kill -l`.
pub fn signal_name(signal: i32) -> Cow<'static, str> {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    /// First real-time signal that programs may use with glibc.
    const REAL_TIME: i32 = 34;
    const LAST: i32 = 64;

    let known = usize::try_from(signal)
        .ok()
        .and_then(|signal| signal.checked_sub(1))
        .and_then(|index| NAMES.get(index));
    match (known, signal) {
        (Some(name), _) => Cow::Borrowed(name),
        (None, REAL_TIME) => Cow::Borrowed("SIGRTMIN"),
        (None, REAL_TIME..=LAST) => Cow::Owned(format!("SIGRTMIN+{}", signal - REAL_TIME)),
        _ => Cow::Owned(format!("signal {signal}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn exited(status: SandboxExit) -> ProgramEnd {
        ProgramEnd::Exited(GuestExit {
            status,
            cpu: Duration::ZERO,
            max_rss_bytes: 0,
        })
    }

    fn counted(oom_kills: u64, pids_refused: u64) -> SandboxUsage {
        SandboxUsage {
            oom_kills,
            pids_refused,
            ..SandboxUsage::default()
        }
    }

    #[test]
    fn the_table_of_ends() {
        use EndedBy::{Completed, Crashed, Error, Oom, Pids, RuntimeLost};
        use SandboxExit::{Exited, Signaled};
        let lost = ProgramEnd::Lost;
        let not_started = ProgramEnd::NotStarted;
        for (end, oom, pids, raised, told) in [
            (exited(Exited(0)), 0, 0, false, Completed),
            // A program may survive the death of a child, or a refused thread.
            (exited(Exited(0)), 1, 0, false, Completed),
            (exited(Exited(0)), 0, 9, false, Completed),
            (exited(Exited(0)), 0, 0, true, Error),
            (exited(Exited(0)), 1, 0, true, Oom),
            (exited(Exited(1)), 0, 0, true, Error),
            (exited(Exited(3)), 0, 0, false, Error),
            (exited(Exited(1)), 1, 0, false, Oom),
            (exited(Exited(1)), 1, 9, true, Oom),
            (exited(Exited(1)), 0, 9, true, Pids),
            (exited(Signaled(11)), 0, 0, false, Crashed),
            (exited(Signaled(11)), 0, 9, false, Crashed),
            (exited(Signaled(9)), 0, 0, false, Crashed),
            (exited(Signaled(9)), 1, 0, false, Oom),
            (lost, 0, 0, false, RuntimeLost),
            (lost, 0, 9, true, RuntimeLost),
            (lost, 1, 0, false, Oom),
            (not_started, 1, 0, false, Oom),
            (not_started, 0, 1, false, Pids),
            (not_started, 0, 0, false, RuntimeLost),
        ] {
            assert_eq!(
                classify(None, end, counted(oom, pids), raised),
                told,
                "{end:?} oom {oom} pids {pids} raised {raised}"
            );
        }
    }

    #[test]
    fn our_own_reason_wins_over_everything() {
        for reason in [EndedBy::Timeout, EndedBy::Cancelled, EndedBy::OutputLimit] {
            for end in [
                exited(SandboxExit::Exited(0)),
                exited(SandboxExit::Exited(130)),
                exited(SandboxExit::Signaled(9)),
                ProgramEnd::NotStarted,
                ProgramEnd::Lost,
            ] {
                for usage in [counted(0, 0), counted(1, 1)] {
                    assert_eq!(classify(Some(reason), end, usage, true), reason);
                }
            }
        }
    }

    #[test]
    fn signals_have_their_linux_names() {
        for (signal, name) in [
            (1, "SIGHUP"),
            (2, "SIGINT"),
            (6, "SIGABRT"),
            (9, "SIGKILL"),
            (11, "SIGSEGV"),
            (15, "SIGTERM"),
            (25, "SIGXFSZ"),
            (31, "SIGSYS"),
            (32, "signal 32"),
            (34, "SIGRTMIN"),
            (64, "SIGRTMIN+30"),
            (65, "signal 65"),
            (0, "signal 0"),
            (-1, "signal -1"),
            (i32::MIN, "signal -2147483648"),
        ] {
            assert_eq!(signal_name(signal), name);
        }
    }
}
