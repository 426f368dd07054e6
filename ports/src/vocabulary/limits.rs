//! Resource limits of one sandbox: as asked for, and as the kernel enforces them.

use std::time::Duration;

/// Less memory than this and no interpreter starts, bytes.
pub const MIN_MEMORY: u64 = 16 << 20;

/// The kernel takes no smaller CPU quota (1 ms), µs per 100 ms.
pub const MIN_CPU_QUOTA: u64 = 1000;

/// The limits that a runtime must put on a sandbox. Resolved and bounded by the domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResourceLimits {
    /// Memory with swap, bytes (cgroup `memory.max` and no swap beyond it).
    pub memory_bytes: u64,
    /// CPU time in µs per period of 100 ms (cgroup `cpu.max`).
    pub cpu_quota: u64,
    /// Processes and threads together (cgroup `pids.max`), the agent included.
    pub pids: u64,
    /// Open descriptors of one process (`RLIMIT_NOFILE`).
    pub descriptors: u64,
    /// Size of `/tmp`, bytes.
    pub tmp_bytes: u64,
    /// Size of `/workspace`, bytes.
    pub workspace_bytes: u64,
    /// Wall-clock time of the run; the domain keeps it, not the runtime.
    pub timeout: Duration,
}

/// What the kernel enforces for a sandbox, read back after the limits were set.
/// `None` means that nothing enforces that limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EffectiveLimits {
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// CPU time, µs per 100 ms.
    pub cpu_quota: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// One line for each barrier that is weaker than asked for, naming it and the reason.
    pub weak: Vec<String>,
}

/// Requested and effective limits of one run, for the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsReport {
    /// As resolved from request and policy.
    pub requested: ResourceLimits,
    /// As read back.
    pub effective: EffectiveLimits,
}

impl LimitsReport {
    /// Whether memory, CPU and pids are all enforced at, or below, what was asked for.
    pub fn enforced(&self) -> bool {
        let holds = |effective: Option<u64>, asked: u64| effective.is_some_and(|e| e <= asked);
        holds(self.effective.memory_bytes, self.requested.memory_bytes)
            && holds(self.effective.cpu_quota, self.requested.cpu_quota)
            && holds(self.effective.pids, self.requested.pids)
            && self.effective.weak.is_empty()
    }
}
