//! Tests of the run service, on fakes with a clock that only the test moves.

mod endings;
mod hostile;
mod lifecycle;
mod order;
mod refusals;
mod runs;
mod stops;

use std::future::Future;

use mcp_forge_ports::testing::{
    FakeAudit, FakeBackground, FakeBlobs, FakeClock, FakeGuest, FakeIds, FakeObserver, FakeRuntime,
    GuestStep, Journal,
};
use mcp_forge_ports::vocabulary::{AuditKind, Language};
use tokio::task::JoinHandle;

use super::*;

pub(super) const SECRET_CODE: &str = "print('the owl flies at midnight')";

/// A service and everything around it.
pub(super) struct World {
    pub(super) journal: Journal,
    pub(super) runtime: Arc<FakeRuntime>,
    pub(super) guest: Arc<FakeGuest>,
    pub(super) audit: Arc<FakeAudit>,
    pub(super) clock: Arc<FakeClock>,
    pub(super) observer: Arc<FakeObserver>,
    pub(super) background: Arc<FakeBackground>,
    pub(super) blobs: FakeBlobs,
    pub(super) service: RunService,
}

pub(super) type Answer = Result<Arc<ExecutionOutcome>, Refusal>;

impl World {
    /// Every run follows this script.
    pub(super) fn new(script: impl Into<Vec<GuestStep>>) -> Self {
        Self::with(script, |guest| guest, |_| {})
    }

    pub(super) fn with_policy(
        script: impl Into<Vec<GuestStep>>,
        change: impl FnOnce(&mut ExecutionPolicy),
    ) -> Self {
        Self::with(script, |guest| guest, change)
    }

    pub(super) fn with(
        script: impl Into<Vec<GuestStep>>,
        guest: impl FnOnce(FakeGuest) -> FakeGuest,
        change: impl FnOnce(&mut ExecutionPolicy),
    ) -> Self {
        let journal = Journal::new();
        let runtime = Arc::new(FakeRuntime::new(&journal));
        let guest = Arc::new(guest(FakeGuest::new(&journal, script)));
        let audit = Arc::new(FakeAudit::new(&journal));
        let clock = Arc::new(FakeClock::new());
        let background = Arc::new(FakeBackground::new());
        let blobs = FakeBlobs::new();
        let ports = RunPorts {
            runtime: runtime.clone(),
            guest: guest.clone(),
            audit: audit.clone(),
            clock: clock.clone(),
            ids: Arc::new(FakeIds::new()),
            blobs: Arc::new(blobs.clone()),
            images: None,
            background: background.clone(),
        };
        let mut policy = ExecutionPolicy::default();
        change(&mut policy);
        Self {
            observer: Arc::new(FakeObserver::new(&journal)),
            journal,
            runtime,
            guest,
            audit,
            clock,
            background,
            blobs,
            service: RunService::new(ports, policy).unwrap(),
        }
    }

    /// Runs to the answer, then until everything is cleaned up.
    pub(super) async fn run(&self, request: ExecutionRequest) -> Answer {
        let answer = self
            .start(request, &CancellationToken::new())
            .await
            .unwrap();
        self.idle().await;
        answer
    }

    /// Runs, and expects an outcome.
    pub(super) async fn outcome(&self) -> Arc<ExecutionOutcome> {
        self.run(python()).await.unwrap()
    }

    /// Starts a run and leaves it to the background of the test.
    pub(super) fn start(
        &self,
        request: ExecutionRequest,
        cancel: &CancellationToken,
    ) -> JoinHandle<Answer> {
        self.start_with(request, self.observer.clone(), cancel)
    }

    /// The same, watched by another observer.
    #[expect(clippy::disallowed_methods, reason = "the caller's own task")]
    pub(super) fn start_with(
        &self,
        request: ExecutionRequest,
        observer: Arc<dyn RunObserver>,
        cancel: &CancellationToken,
    ) -> JoinHandle<Answer> {
        let (service, cancel) = (self.service.clone(), cancel.clone());
        tokio::spawn(async move { service.execute(request, observer, cancel).await })
    }

    /// Waits until all clean-up is done, and checks that nothing is left.
    pub(super) async fn idle(&self) {
        self.background.idle().await;
        assert_eq!(self.runtime.existing(), [""; 0], "sandboxes left behind");
        let free = self.service.core.slots.free();
        assert_eq!(
            free,
            self.service.policy().concurrency,
            "slots not given back"
        );
    }

    /// Names of the audit entries.
    pub(super) fn audited(&self) -> Vec<&'static str> {
        self.audit.names()
    }

    /// The one entry of this kind.
    pub(super) fn entry(&self, kind: AuditKind) -> mcp_forge_ports::vocabulary::AuditEvent {
        let mut events = self.audit.of(kind);
        assert_eq!(events.len(), 1, "{kind:?}: {:?}", self.audited());
        events.remove(0)
    }

    pub(super) fn called(&self, line: &str) -> bool {
        self.journal.has(line)
    }
}

pub(super) fn python() -> ExecutionRequest {
    ExecutionRequest::new(Language::Python, SECRET_CODE)
}

/// A program that says `hello` and exits.
pub(super) fn good() -> Vec<GuestStep> {
    vec![
        GuestStep::hello(),
        GuestStep::stdout("hello\n"),
        GuestStep::exit(0),
    ]
}

/// A program that never ends by itself.
pub(super) fn endless() -> Vec<GuestStep> {
    vec![
        GuestStep::hello(),
        GuestStep::stdout("partial\n"),
        GuestStep::Until(CancellationToken::new()),
    ]
}

/// Fails a test that hangs, in real time.
pub(super) async fn within<T>(test: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), test)
        .await
        .expect("the test hangs")
}

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
