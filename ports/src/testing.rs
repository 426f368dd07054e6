//! Mocks and working fakes of the ports, for tests only.
//!
//! `MockX` (mockall) is for asserting that something was called, or was not; `FakeX` keeps state
//! and behaves. No fake looks at the real clock, starts a process or opens a file. All fakes of
//! one test may share a [`Journal`], which tells in what order things happened.

mod clock;
mod guest;
mod images;
mod runtime;
mod support;

pub use crate::driven::{
    MockAuditLog, MockBackground, MockBlob, MockBlobStore, MockClock, MockContainerRuntime,
    MockGuest, MockGuestRun, MockIdSource,
};
pub use crate::driving::{MockCodeExecution, MockRunObserver, MockRuns};
pub use clock::FakeClock;
pub use guest::{FakeGuest, GuestStep, host_namespaces, sound_hello};
pub use images::FakeImages;
pub use runtime::{FakeRuntime, RuntimeCall, enforced_as_asked};
pub use support::{FakeAudit, FakeBackground, FakeBlobs, FakeIds, FakeObserver, Journal};
