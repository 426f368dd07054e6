//! Who may run when: a number of slots, and a queue of bounded length in order of arrival. It
//! tells nobody anything and knows nothing of cancelling; dropping a place leaves the queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};

/// Bytes of all requests that wait. One alone may be larger.
const WAITING_BYTES: u64 = 64 << 20;

/// The right to run; given back when dropped.
pub(super) type Slot = OwnedSemaphorePermit;

#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    queued: Arc<watch::Sender<Queued>>,
    concurrency: usize,
    queue: usize,
}

/// The places that are taken, by number of arrival.
#[derive(Debug, Default)]
struct Queued {
    /// With the size of each request.
    places: BTreeMap<u64, u64>,
    next: u64,
}

impl Queued {
    fn has_room(&self, queue: usize, bytes: u64) -> bool {
        let waiting: u64 = self.places.values().sum();
        self.places.len() < queue
            && (self.places.is_empty() || waiting.saturating_add(bytes) <= WAITING_BYTES)
    }
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
            queued: Arc::new(watch::Sender::default()),
            concurrency,
            queue,
        }
    }

    /// Slots that nobody holds.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// Takes a slot or a place in the queue, without waiting, for a request of this size.
    pub(super) fn enter(&self, bytes: u64) -> Entry {
        // The semaphore hands a slot that is given back to the queue first, so a slot that is
        // free here was nobody's turn.
        if let Ok(slot) = Arc::clone(&self.free).try_acquire_owned() {
            return Entry::Now(slot);
        }
        let (mut number, mut waiting) = (None, 0);
        self.queued.send_modify(|queued| {
            waiting = queued.places.len();
            if queued.has_room(self.queue, bytes) {
                number = Some(queued.next);
                queued.places.insert(queued.next, bytes);
                queued.next += 1;
            }
        });
        let Some(number) = number else {
            return Entry::Full {
                running: self.concurrency,
                waiting,
            };
        };
        let place = Counted {
            queued: Arc::clone(&self.queued),
            number,
        };
        let mut turn = Arc::clone(&self.free).acquire_owned().boxed();
        // The first poll takes the place in the order of arrival.
        match (&mut turn).now_or_never() {
            Some(Ok(slot)) => Entry::Now(slot),
            Some(Err(_)) | None => Entry::Wait(Place {
                turn,
                changes: self.queued.subscribe(),
                place,
            }),
        }
    }
}

pub(super) struct Place {
    turn: BoxFuture<'static, Result<Slot, AcquireError>>,
    changes: watch::Receiver<Queued>,
    place: Counted,
}

impl Place {
    /// Which place in the queue it is, from 1.
    pub(super) fn position(&mut self) -> usize {
        let queued = self.changes.borrow_and_update();
        queued.places.range(..self.place.number).count() + 1
    }

    /// Returns when it is this place's turn, with its slot, or when the queue has changed.
    /// Cancel-safe.
    pub(super) async fn turn(&mut self) -> Option<Slot> {
        tokio::select! {
            biased;
            slot = &mut self.turn => slot.ok(),
            _ = self.changes.changed() => None,
        }
    }
}

#[derive(Debug)]
struct Counted {
    queued: Arc<watch::Sender<Queued>>,
    number: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.queued.send_modify(|queued| {
            queued.places.remove(&self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(slots: &Slots) -> Slot {
        match slots.enter(1) {
            Entry::Now(slot) => slot,
            _ => panic!("no slot"),
        }
    }

    fn place(slots: &Slots) -> Place {
        match slots.enter(1) {
            Entry::Wait(place) => place,
            _ => panic!("no place"),
        }
    }

    fn is_full(slots: &Slots) -> bool {
        matches!(slots.enter(1), Entry::Full { .. })
    }

    #[tokio::test]
    async fn slots_then_places_then_nothing() {
        let slots = Slots::new(2, 1);
        let (first, _second) = (now(&slots), now(&slots));
        let waiting = place(&slots);
        assert!(is_full(&slots));
        drop(waiting);
        let mut waiting = place(&slots);
        drop(first);
        let third = waiting.turn().await;
        assert!(third.is_some());
        drop(waiting);
        // The place is free again, the slot is not.
        let _waiting = place(&slots);
        assert!(is_full(&slots));
    }

    #[tokio::test]
    async fn turns_come_in_order_of_arrival() {
        let slots = Slots::new(1, 3);
        let running = now(&slots);
        let (mut first, mut second) = (place(&slots), place(&slots));
        assert_eq!((first.position(), second.position()), (1, 2));
        assert!(second.turn().now_or_never().is_none());
        drop(running);
        // Nobody overtakes, neither the second place nor a newcomer.
        assert!(second.turn().now_or_never().is_none());
        let third = place(&slots);
        assert_eq!(
            second.turn().now_or_never().map(|slot| slot.is_none()),
            Some(true)
        );
        let running = first.turn().await;
        assert!(running.is_some());
        drop(first);
        assert!(second.turn().await.is_none(), "the queue has changed");
        assert_eq!(second.position(), 1);
        drop(third);
        assert_eq!(second.position(), 1);
        drop(running);
        assert!(second.turn().await.is_some());
    }

    #[tokio::test]
    async fn what_waits_has_a_bounded_size() {
        let slots = Slots::new(1, 9);
        let _running = now(&slots);
        let wait = |bytes| match slots.enter(bytes) {
            Entry::Wait(place) => Some(place),
            _ => None,
        };
        let alone = wait(WAITING_BYTES + 1);
        assert!(alone.is_some() && wait(0).is_none());
        drop(alone);
        let _first = wait(WAITING_BYTES - 1).unwrap();
        assert!(wait(2).is_none());
        let _second = wait(1).unwrap();
        assert!(wait(u64::MAX).is_none());
    }

    #[test]
    fn without_a_queue_a_taken_slot_is_full() {
        let slots = Slots::new(1, 0);
        let _running = now(&slots);
        assert!(is_full(&slots));
    }
}
