//! Who may run when: a number of slots, and a queue of bounded length in order of arrival. It
//! tells nobody anything and knows nothing of cancelling; dropping a place leaves the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The right to run; given back when dropped.
pub(super) type Slot = OwnedSemaphorePermit;

#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    concurrency: usize,
    queue: usize,
}

pub(super) enum Entry {
    /// A slot was free.
    Now(Slot),
    /// There is a place in the queue.
    Wait(Place),
    /// All slots and all places are taken.
    Full { running: usize, waiting: usize },
}

impl Slots {
    pub(super) fn new(concurrency: usize, queue: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(concurrency)),
            waiting: Arc::default(),
            concurrency,
            queue,
        }
    }

    /// Slots that nobody holds.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// Takes a slot or a place in the queue, without waiting.
    pub(super) fn enter(&self) -> Entry {
        // The semaphore hands a slot that is given back to the queue first, so a slot that is
        // free here was nobody's turn.
        if let Ok(slot) = Arc::clone(&self.free).try_acquire_owned() {
            return Entry::Now(slot);
        }
        let joined = self
            .waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
                (waiting < self.queue).then_some(waiting + 1)
            });
        if let Err(waiting) = joined {
            return Entry::Full {
                running: self.concurrency,
                waiting,
            };
        }
        let counted = Counted(Arc::clone(&self.waiting));
        let mut turn = Arc::clone(&self.free).acquire_owned().boxed();
        // The first poll takes the place in the order of arrival.
        match (&mut turn).now_or_never() {
            Some(Ok(slot)) => Entry::Now(slot),
            Some(Err(_)) | None => Entry::Wait(Place {
                turn,
                _counted: counted,
            }),
        }
    }
}

pub(super) struct Place {
    turn: BoxFuture<'static, Result<Slot, AcquireError>>,
    _counted: Counted,
}

impl Place {
    /// Returns when it is this place's turn. None only if the slots were closed, which they never
    /// are.
    pub(super) async fn turn(self) -> Option<Slot> {
        let Self { turn, _counted } = self;
        turn.await.ok()
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(slots: &Slots) -> Slot {
        match slots.enter() {
            Entry::Now(slot) => slot,
            _ => panic!("no slot"),
        }
    }

    fn place(slots: &Slots) -> Place {
        match slots.enter() {
            Entry::Wait(place) => place,
            _ => panic!("no place"),
        }
    }

    fn is_full(slots: &Slots) -> bool {
        matches!(slots.enter(), Entry::Full { .. })
    }

    #[tokio::test]
    async fn slots_then_places_then_nothing() {
        let slots = Slots::new(2, 1);
        let (first, _second) = (now(&slots), now(&slots));
        let waiting = place(&slots);
        assert!(is_full(&slots));
        drop(waiting);
        let waiting = place(&slots);
        drop(first);
        let third = waiting.turn().await;
        assert!(third.is_some());
        // The place is free again, the slot is not.
        let _waiting = place(&slots);
        assert!(is_full(&slots));
    }

    #[tokio::test]
    async fn turns_come_in_order_of_arrival() {
        let slots = Slots::new(1, 3);
        let running = now(&slots);
        let (first, second) = (place(&slots), place(&slots));
        let mut second = Box::pin(second.turn());
        assert!((&mut second).now_or_never().is_none());
        drop(running);
        // Nobody overtakes, neither the second place nor a newcomer.
        assert!((&mut second).now_or_never().is_none());
        let _third = place(&slots);
        let running = first.turn().await;
        assert!(running.is_some());
        drop(running);
        assert!(second.await.is_some());
    }

    #[test]
    fn without_a_queue_a_taken_slot_is_full() {
        let slots = Slots::new(1, 0);
        let _running = now(&slots);
        assert!(is_full(&slots));
    }
}
