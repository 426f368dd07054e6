//! A clock that moves only when a test says so. It does not look at real time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::driven::Clock;

/// A clock at rest. It starts 1000 s after its fixed moment, so that a mix-up of a duration and a
/// point in time shows.
#[derive(Debug)]
pub struct FakeClock {
    now: watch::Sender<Duration>,
    sleeping: watch::Sender<u64>,
    deadlines: Mutex<Vec<Duration>>,
}

impl Default for FakeClock {
    fn default() -> Self {
        Self {
            now: watch::Sender::new(Duration::from_secs(1000)),
            sleeping: watch::Sender::new(0),
            deadlines: Mutex::default(),
        }
    }
}

impl FakeClock {
    /// A clock at rest.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves time on and wakes whoever slept until then.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now += by);
    }

    /// Returns when somebody is sleeping until exactly `after` from now.
    pub async fn until_sleeping(&self, after: Duration) {
        let wanted = *self.now.borrow() + after;
        let mut changes = self.sleeping.subscribe();
        while !self.sleepers().contains(&wanted) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits for a sleeper until `after` from now, then moves time there.
    pub async fn pass(&self, after: Duration) {
        self.until_sleeping(after).await;
        self.advance(after);
    }

    /// Deadlines that somebody sleeps until at this moment.
    pub fn sleepers(&self) -> Vec<Duration> {
        self.deadlines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Duration>)) {
        change(
            &mut self
                .deadlines
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.sleeping.send_modify(|count| *count += 1);
    }
}

/// Takes a deadline off the list, also when the sleep is dropped half-way.
struct Sleep<'a>(&'a FakeClock, Duration);

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.0.change(|deadlines| {
            if let Some(at) = deadlines.iter().position(|deadline| *deadline == self.1) {
                deadlines.swap_remove(at);
            }
        });
    }
}

#[async_trait]
impl Clock for FakeClock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        *self.now.borrow()
    }

    async fn sleep_until(&self, deadline: Duration) {
        self.change(|deadlines| deadlines.push(deadline));
        let _sleep = Sleep(self, deadline);
        // The sender lives as long as the clock, so this ends only when the time has come.
        let _ = self
            .now
            .subscribe()
            .wait_for(|now| *now >= deadline)
            .await
            .map(|_| ());
    }
}
