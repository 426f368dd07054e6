//! How much of one client's work the server holds at a time, and who waits for room.
//!
//! Two loads are counted, since they end in different ways. What is *passing* ends by itself as
//! soon as the client reads: requests that are answered at once, and messages on their way out.
//! Without room for it nothing more is read. *Calls* may last, and a client must be able to cancel
//! one while it waits: without room for a call it is refused, and reading goes on.
//!
//! It knows nothing of messages, and drops none.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Passing messages that stop the reading: enough to keep a fast client busy.
pub(crate) const MAX_PASSING: usize = 256;

/// Bytes of passing messages that stop the reading: a few of the largest results.
pub(crate) const MAX_PASSING_BYTES: usize = 16 << 20;

/// Calls of one client that are worked on at once, far more than an installation runs and queues
/// by default (72).
pub(crate) const MAX_CALLS: usize = 1024;

/// Bytes of those calls: 32 of the largest programs with every character escaped once.
pub(crate) const MAX_CALL_BYTES: usize = 64 << 20;

/// Which of the two loads something belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Passing,
    Call,
}

/// What is held now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Loads {
    passing: Sum,
    calls: Sum,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    count: usize,
    bytes: usize,
}

impl Loads {
    fn of(&mut self, kind: Kind) -> &mut Sum {
        match kind {
            Kind::Passing => &mut self.passing,
            Kind::Call => &mut self.calls,
        }
    }

    /// Whether one more may come. It is not known yet how large it is, so the last one may exceed
    /// the bytes.
    fn have_room(&self, kind: Kind) -> bool {
        match kind {
            Kind::Passing => {
                self.passing.count < MAX_PASSING && self.passing.bytes < MAX_PASSING_BYTES
            }
            Kind::Call => self.calls.count < MAX_CALLS && self.calls.bytes < MAX_CALL_BYTES,
        }
    }
}

/// The loads of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window(Arc<watch::Sender<Loads>>);

impl Window {
    pub(crate) fn has_room(&self, kind: Kind) -> bool {
        self.0.borrow().have_room(kind)
    }

    /// Waits for room. Cancel-safe.
    pub(crate) async fn room(&self, kind: Kind) {
        // The sender is ours, so there is no error.
        let _ = self
            .0
            .subscribe()
            .wait_for(|loads| loads.have_room(kind))
            .await;
    }

    /// Counts something until the load is dropped, whether there is room or not.
    pub(crate) fn take(&self, kind: Kind, bytes: usize) -> Load {
        self.0.send_modify(|loads| {
            let sum = loads.of(kind);
            sum.count += 1;
            sum.bytes += bytes;
        });
        let window = self.clone();
        Load {
            window,
            kind,
            bytes,
        }
    }
}

/// Something that is counted.
pub(crate) struct Load {
    window: Window,
    kind: Kind,
    bytes: usize,
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes", self.kind, self.bytes)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.window.0.send_modify(|loads| {
            let sum = loads.of(self.kind);
            sum.count -= 1;
            sum.bytes -= self.bytes;
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn each_bound_of_each_kind_counts_alone() {
        for (kind, other, count, bytes) in [
            (Kind::Passing, Kind::Call, MAX_PASSING, MAX_PASSING_BYTES),
            (Kind::Call, Kind::Passing, MAX_CALLS, MAX_CALL_BYTES),
        ] {
            let window = Window::default();
            let mut many: Vec<_> = (1..count).map(|_| window.take(kind, 1)).collect();
            assert!(window.has_room(kind));
            many.push(window.take(kind, 1));
            assert!(!window.has_room(kind) && window.has_room(other));
            many.pop();
            assert!(window.has_room(kind));
            let _large = window.take(kind, bytes);
            many.clear();
            assert!(!window.has_room(kind) && window.has_room(other));
        }
    }

    #[tokio::test]
    async fn who_waits_goes_on_when_something_is_dropped() {
        let window = Window::default();
        let large = window.take(Kind::Passing, MAX_PASSING_BYTES);
        let mut waiting = Box::pin(window.room(Kind::Passing));
        assert!((&mut waiting).now_or_never().is_none());
        drop(large);
        waiting.await;
        assert_eq!(*window.0.borrow(), Loads::default());
    }
}
