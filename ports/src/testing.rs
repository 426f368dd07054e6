//! Mocks and working fakes of the ports, for tests only.

pub use crate::driven::{
    MockAuditLog, MockBackground, MockClock, MockContainerRuntime, MockGuest, MockGuestRun,
    MockIdSource,
};
pub use crate::driving::{MockCodeExecution, MockRunObserver};
