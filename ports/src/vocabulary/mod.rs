//! Plain data that crosses the ports. No behaviour beyond parsing its own names.

mod audit;
mod execution;
mod language;
mod limits;
mod outcome;
mod runs;
mod sandbox;

pub use audit::{AuditEvent, AuditKind, Severity};
pub use execution::{ExecutionRequest, InputFile, Refusal, RefusalKind, RunEvent};
pub use language::{Language, UnknownLanguage};
pub use limits::{EffectiveLimits, LimitsReport, MIN_CPU_QUOTA, MIN_MEMORY, ResourceLimits};
pub use outcome::{
    EndedBy, ExecutionOutcome, OutputBlock, OutputFile, OutputStream, Picture, ProgramError,
    RunLog, RuntimeDescription, Usage,
};
pub use runs::{RunBytes, RunPart, RunState, RunStatus};
pub use sandbox::{
    CollectLimits, Display, ExecutionEnvironment, GuestEvent, GuestExit, GuestHello, GuestJob,
    GuestMount, Image, ImageRecipe, ImportedImage, Namespaces, RunnerReport, RuntimeInfo,
    SandboxExit, SandboxId, SandboxRoot, SandboxSpec, SandboxUsage, SandboxVerdict,
};
