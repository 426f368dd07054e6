//! The signals that ask a command to end: so it can still tell its result and close its audit log.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// A key at the terminal, a service manager or timeout(1), and the terminal that goes away.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Signals that ask for the end, as they come.
#[derive(Debug)]
pub(crate) struct Endings(mpsc::UnboundedReceiver<Signal>);

impl Endings {
    /// Catches them from now on, but for those that whoever started this wants to be ignored, as
    /// nohup(1) does.
    ///
    /// # Errors
    ///
    /// When a signal cannot be caught.
    pub(crate) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let (send, receive) = mpsc::unbounded_channel();
        for ending in ENDING {
            if ignored & (1 << (ending as u32 - 1)) != 0 {
                continue;
            }
            let mut caught = signal(SignalKind::from_raw(ending as i32))?;
            let send = send.clone();
            tokio::spawn(async move {
                while caught.recv().await.is_some() {
                    if send.send(ending).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self(receive))
    }

    /// Waits for the next one; for ever, when all are ignored.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

/// The exit status of a shell for what a signal ended.
pub(crate) fn status(signal: Signal) -> u8 {
    // Numbers of signals are below 65 on Linux.
    u8::try_from(128 + signal as i32).unwrap_or(u8::MAX)
}

/// The set of ignored signals, bit N-1 for signal N: `SigIgn` in proc_pid_status(5). Nothing is
/// ignored where /proc does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
