//! Limits of a run: the operator's defaults and maxima, and what a request makes of them.
//!
//! A request above a maximum is refused, never lowered. Whether the kernel enforces a limit is
//! not known here; that is compared after a sandbox was made.

use std::ops::RangeInclusive;
use std::time::Duration;

use mcp_forge_ports::vocabulary::{ExecutionRequest, LimitsReport, ResourceLimits};
pub use mcp_forge_ports::vocabulary::{MIN_CPU_QUOTA, MIN_MEMORY};

use crate::byte_size::quoted;
pub use crate::byte_size::{ByteSizeError, format_byte_size, parse_byte_size};
use crate::policy::{PolicyFault, PolicyFaults};
use crate::violation::Violation;

/// Ten whole CPUs, µs per 100 ms.
pub const MAX_CPU_QUOTA: u64 = 1_000_000;

/// The longest time limit that an operator can allow: a week.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

const PIDS: RangeInclusive<u64> = 8..=32_768;
const DESCRIPTORS: RangeInclusive<u64> = 16..=1_048_576;
const TMPFS: RangeInclusive<u64> = (1 << 20)..=(1 << 40);

/// The operator's defaults and maxima.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitPolicy {
    /// Time limit of a request that names none. Whole seconds, 1 s to a week.
    pub default_timeout: Duration,
    /// Longest time limit that a request may name.
    pub max_timeout: Duration,
    /// Memory of a request that names none, bytes, at least [`MIN_MEMORY`].
    pub default_memory: u64,
    /// Most memory that a request may name, bytes.
    pub max_memory: u64,
    /// CPU quota of a request that names none, µs per 100 ms,
    /// [`MIN_CPU_QUOTA`] to [`MAX_CPU_QUOTA`].
    pub default_cpu_quota: u64,
    /// Largest CPU quota that a request may name.
    pub max_cpu_quota: u64,
    /// Processes and threads of every sandbox, 8 to 32768.
    pub pids: u64,
    /// Open descriptors of each process, 16 to 1048576.
    pub descriptors: u64,
    /// Size of `/tmp`, bytes, 1 MiB to 1 TiB.
    pub tmp_bytes: u64,
    /// Size of `/workspace`, bytes, 1 MiB to 1 TiB.
    pub workspace_bytes: u64,
}

impl Default for LimitPolicy {
    fn default() -> Self {
        Self {
            default_timeout: Duration::from_secs(300),
            max_timeout: Duration::from_secs(1800),
            default_memory: 512 << 20,
            max_memory: 2 << 30,
            default_cpu_quota: 50_000,
            max_cpu_quota: 100_000,
            pids: 100,
            descriptors: 256,
            tmp_bytes: 64 << 20,
            workspace_bytes: 1 << 30,
        }
    }
}

impl LimitPolicy {
    /// Whether these limits make sense, each and together.
    ///
    /// # Errors
    ///
    /// Every fault, not only the first.
    pub fn check(&self) -> Result<(), PolicyFaults> {
        PolicyFaults::none_of(self.faults())
    }

    pub(crate) fn faults(&self) -> Vec<PolicyFault> {
        let mut faults = Vec::new();
        let mut number = |field, value, range: RangeInclusive<u64>| {
            if !range.contains(&value) {
                faults.push(PolicyFault::outside(field, value, &range));
            }
        };
        number(
            "default_cpu_quota",
            self.default_cpu_quota,
            MIN_CPU_QUOTA..=MAX_CPU_QUOTA,
        );
        number(
            "max_cpu_quota",
            self.max_cpu_quota,
            MIN_CPU_QUOTA..=MAX_CPU_QUOTA,
        );
        number("pids", self.pids, PIDS);
        number("descriptors", self.descriptors, DESCRIPTORS);

        let mut size = |field, value, range: RangeInclusive<u64>| {
            if !range.contains(&value) {
                faults.push(PolicyFault::size_outside(field, value, &range));
            }
        };
        size("default_memory", self.default_memory, MIN_MEMORY..=u64::MAX);
        size("max_memory", self.max_memory, MIN_MEMORY..=u64::MAX);
        size("tmp_bytes", self.tmp_bytes, TMPFS);
        size("workspace_bytes", self.workspace_bytes, TMPFS);

        for (field, value) in [
            ("default_timeout", self.default_timeout),
            ("max_timeout", self.max_timeout),
        ] {
            if value.subsec_nanos() != 0 || value.is_zero() || value > MAX_TIMEOUT {
                faults.push(PolicyFault {
                    field,
                    value: format!("{} s", value.as_secs_f64()),
                    allowed: format!("1 to {} whole seconds", MAX_TIMEOUT.as_secs()),
                    compared: &[],
                });
            }
        }
        for (field, compared, max, default, wanted) in [
            (
                "max_timeout",
                &["default_timeout"],
                format!("{} s", self.max_timeout.as_secs()),
                format!("{} s", self.default_timeout.as_secs()),
                self.max_timeout >= self.default_timeout,
            ),
            (
                "max_memory",
                &["default_memory"],
                format_byte_size(self.max_memory),
                format_byte_size(self.default_memory),
                self.max_memory >= self.default_memory,
            ),
            (
                "max_cpu_quota",
                &["default_cpu_quota"],
                self.max_cpu_quota.to_string(),
                self.default_cpu_quota.to_string(),
                self.max_cpu_quota >= self.default_cpu_quota,
            ),
        ] {
            if !wanted {
                faults.push(PolicyFault {
                    field,
                    value: max,
                    allowed: format!("at least the default ({}), {default}", compared[0]),
                    compared,
                });
            }
        }
        faults
    }

    /// The limits of a run whose request names none.
    pub fn defaults(&self) -> ResourceLimits {
        ResourceLimits {
            memory_bytes: self.default_memory,
            cpu_quota: self.default_cpu_quota,
            pids: self.pids,
            descriptors: self.descriptors,
            tmp_bytes: self.tmp_bytes,
            workspace_bytes: self.workspace_bytes,
            timeout: self.default_timeout,
        }
    }

    /// The limits of one run: what the request names, within the maxima, and the defaults.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for `timeout`, `memory` or `cpu_quota` that is malformed, zero or too
    /// small to run anything, `limit_exceeded` for one above its maximum.
    pub fn resolve(&self, request: &ExecutionRequest) -> Result<ResourceLimits, Violation> {
        Ok(ResourceLimits {
            memory_bytes: self.memory(request.memory.as_deref())?,
            cpu_quota: self.cpu_quota(request.cpu_quota)?,
            timeout: self.timeout(request.timeout)?,
            ..self.defaults()
        })
    }

    fn timeout(&self, asked: Option<u64>) -> Result<Duration, Violation> {
        let max = self.max_timeout.as_secs();
        let allowed = || format!("1 to {max} seconds");
        match asked {
            None => Ok(self.default_timeout),
            Some(0) => Err(Violation::invalid(
                "timeout",
                "timeout of 0 s leaves no time to run".to_owned(),
                allowed(),
            )),
            Some(asked) if asked > max => Err(Violation::above(
                "timeout",
                format!("timeout of {asked} s exceeds the maximum of {max} s"),
                allowed(),
            )),
            Some(asked) => Ok(Duration::from_secs(asked)),
        }
    }

    fn memory(&self, asked: Option<&str>) -> Result<u64, Violation> {
        let Some(asked) = asked else {
            return Ok(self.default_memory);
        };
        let max = format_byte_size(self.max_memory);
        let allowed = || format!("{} to {max}, such as 512m", format_byte_size(MIN_MEMORY));
        let above = || {
            Violation::above(
                "memory",
                format!("memory of {} exceeds the maximum of {max}", quoted(asked)),
                allowed(),
            )
        };
        match parse_byte_size(asked) {
            Ok(bytes) if bytes > self.max_memory => Err(above()),
            Err(ByteSizeError::TooLarge { .. }) => Err(above()),
            Ok(bytes) if bytes < MIN_MEMORY => Err(Violation::invalid(
                "memory",
                format!(
                    "memory of {} is too little to start an interpreter",
                    quoted(asked)
                ),
                allowed(),
            )),
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(Violation::invalid(
                "memory",
                format!("memory: {error}"),
                allowed(),
            )),
        }
    }

    fn cpu_quota(&self, asked: Option<u64>) -> Result<u64, Violation> {
        let max = self.max_cpu_quota;
        let allowed = || format!("{MIN_CPU_QUOTA} to {max} µs per 100 ms");
        match asked {
            None => Ok(self.default_cpu_quota),
            Some(asked) if asked < MIN_CPU_QUOTA => Err(Violation::invalid(
                "cpu_quota",
                format!("CPU quota of {asked} µs per 100 ms is less than the kernel can give"),
                allowed(),
            )),
            Some(asked) if asked > max => Err(Violation::above(
                "cpu_quota",
                format!("CPU quota of {asked} µs per 100 ms exceeds the maximum of {max}"),
                allowed(),
            )),
            Some(asked) => Ok(asked),
        }
    }
}

/// One line for each limit that is not enforced as asked for, the runtime's own reasons included.
/// Empty exactly when [`LimitsReport::enforced`].
pub fn weaknesses(report: &LimitsReport) -> Vec<String> {
    let LimitsReport {
        requested,
        effective,
    } = report;
    type Show = fn(u64) -> String;
    let limits: [(_, _, _, Show); 3] = [
        (
            "memory",
            effective.memory_bytes,
            requested.memory_bytes,
            format_byte_size,
        ),
        ("cpu", effective.cpu_quota, requested.cpu_quota, |quota| {
            quota.to_string()
        }),
        ("pids", effective.pids, requested.pids, |pids| {
            pids.to_string()
        }),
    ];
    let effective_reasons = &effective.weak;
    let mut lines = Vec::new();
    for (name, effective, asked, show) in limits {
        match effective {
            // Where the runtime tells the reason, that is enough.
            None if effective_reasons.iter().any(|reason| names(reason, name)) => {}
            None => lines.push(format!("{name}: nothing enforces it")),
            Some(value) if value > asked => lines.push(format!(
                "{name}: {} is enforced where {} was asked for",
                show(value),
                show(asked)
            )),
            Some(_) => {}
        }
    }
    lines.extend(effective_reasons.iter().cloned());
    lines
}

/// Whether a runtime's reason, `memory, cpu: no delegation`, is about this limit.
fn names(reason: &str, limit: &str) -> bool {
    let subjects = reason.split(':').next().unwrap_or_default();
    subjects.split(',').any(|subject| subject.trim() == limit)
}

#[cfg(test)]
mod tests {
    use mcp_forge_ports::vocabulary::{EffectiveLimits, Language, RefusalKind};
    use proptest::prelude::*;

    use super::*;

    fn request() -> ExecutionRequest {
        ExecutionRequest::new(Language::Python, "1")
    }

    fn with(change: impl FnOnce(&mut ExecutionRequest)) -> Result<ResourceLimits, Violation> {
        let mut request = request();
        change(&mut request);
        LimitPolicy::default().resolve(&request)
    }

    #[test]
    fn defaults_are_the_documented_ones_and_sound() {
        let policy = LimitPolicy::default();
        assert_eq!(policy.check(), Ok(()));
        assert_eq!(
            policy.resolve(&request()),
            Ok(ResourceLimits {
                memory_bytes: 512 << 20,
                cpu_quota: 50_000,
                pids: 100,
                descriptors: 256,
                tmp_bytes: 64 << 20,
                workspace_bytes: 1 << 30,
                timeout: Duration::from_secs(300),
            })
        );
    }

    #[test]
    fn values_up_to_the_maximum_are_taken_as_they_are() {
        assert_eq!(
            with(|r| r.timeout = Some(1800)).map(|l| l.timeout),
            Ok(Duration::from_secs(1800))
        );
        assert_eq!(
            with(|r| r.timeout = Some(1)).map(|l| l.timeout),
            Ok(Duration::from_secs(1))
        );
        assert_eq!(
            with(|r| r.memory = Some("2g".into())).map(|l| l.memory_bytes),
            Ok(2 << 30)
        );
        assert_eq!(
            with(|r| r.memory = Some("16m".into())).map(|l| l.memory_bytes),
            Ok(16 << 20)
        );
        assert_eq!(
            with(|r| r.cpu_quota = Some(100_000)).map(|l| l.cpu_quota),
            Ok(100_000)
        );
        assert_eq!(
            with(|r| r.cpu_quota = Some(1000)).map(|l| l.cpu_quota),
            Ok(1000)
        );
    }

    #[test]
    fn what_is_beyond_is_refused_with_kind_field_value_and_range() {
        use RefusalKind::{InvalidArgument, LimitExceeded};
        type Change = fn(&mut ExecutionRequest);
        let cases: [(Change, RefusalKind, &str, &str, &str); 11] = [
            (
                |r| r.timeout = Some(0),
                InvalidArgument,
                "timeout",
                "0 s",
                "1 to 1800 seconds",
            ),
            (
                |r| r.timeout = Some(1801),
                LimitExceeded,
                "timeout",
                "1801",
                "1 to 1800 seconds",
            ),
            (
                |r| r.timeout = Some(u64::MAX),
                LimitExceeded,
                "timeout",
                "18446744073709551615",
                "1 to 1800",
            ),
            (
                |r| r.memory = Some("0".into()),
                InvalidArgument,
                "memory",
                "\"0\"",
                "16m to 2g",
            ),
            (
                |r| r.memory = Some("-1".into()),
                InvalidArgument,
                "memory",
                "\"-1\"",
                "16m to 2g",
            ),
            (
                |r| r.memory = Some("lots".into()),
                InvalidArgument,
                "memory",
                "\"lots\"",
                "16m to 2g",
            ),
            (
                |r| r.memory = Some("15m".into()),
                InvalidArgument,
                "memory",
                "\"15m\"",
                "16m to 2g",
            ),
            (
                |r| r.memory = Some("2049m".into()),
                LimitExceeded,
                "memory",
                "\"2049m\"",
                "16m to 2g",
            ),
            (
                |r| r.memory = Some("99999999t".into()),
                LimitExceeded,
                "memory",
                "\"99999999t\"",
                "16m to 2g",
            ),
            (
                |r| r.cpu_quota = Some(999),
                InvalidArgument,
                "cpu_quota",
                "999",
                "1000 to 100000",
            ),
            (
                |r| r.cpu_quota = Some(100_001),
                LimitExceeded,
                "cpu_quota",
                "100001",
                "1000 to 100000",
            ),
        ];
        for (change, kind, field, value, allowed) in cases {
            let violation = with(change).unwrap_err();
            assert_eq!(violation.kind, kind, "{violation:?}");
            assert_eq!(violation.field, Some(field), "{violation:?}");
            assert!(violation.message.contains(value), "{violation:?}");
            assert!(
                violation.allowed.as_deref().unwrap().contains(allowed),
                "{violation:?}"
            );
        }
    }

    #[test]
    fn every_fault_of_a_policy_is_told_at_once() {
        let policy = LimitPolicy {
            default_timeout: Duration::from_millis(1500),
            max_timeout: Duration::ZERO,
            default_memory: 1 << 20,
            max_memory: 1,
            default_cpu_quota: 0,
            max_cpu_quota: 1_000_001,
            pids: 1,
            descriptors: 3,
            tmp_bytes: 0,
            workspace_bytes: u64::MAX,
        };
        let faults = policy.check().unwrap_err().0;
        let mut fields: Vec<_> = faults.iter().map(|fault| fault.field).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "default_cpu_quota",
                "default_memory",
                "default_timeout",
                "descriptors",
                "max_cpu_quota",
                "max_memory",
                "max_memory",
                "max_timeout",
                "max_timeout",
                "pids",
                "tmp_bytes",
                "workspace_bytes",
            ]
        );
    }

    #[test]
    fn a_maximum_below_its_default_is_a_fault() {
        let sound = LimitPolicy::default();
        for (policy, field) in [
            (
                LimitPolicy {
                    max_timeout: Duration::from_secs(299),
                    ..sound.clone()
                },
                "max_timeout",
            ),
            (
                LimitPolicy {
                    max_memory: 511 << 20,
                    ..sound.clone()
                },
                "max_memory",
            ),
            (
                LimitPolicy {
                    max_cpu_quota: 49_999,
                    ..sound.clone()
                },
                "max_cpu_quota",
            ),
        ] {
            let faults = policy.check().unwrap_err().0;
            assert_eq!(faults.len(), 1);
            assert_eq!(faults[0].field, field);
            assert!(
                faults[0].allowed.starts_with("at least the default"),
                "{faults:?}"
            );
        }
    }

    #[test]
    fn each_weak_limit_is_named() {
        let requested = with(|_| ()).unwrap();
        let report = |effective| LimitsReport {
            requested: requested.clone(),
            effective,
        };
        let sound = EffectiveLimits {
            memory_bytes: Some(512 << 20),
            cpu_quota: Some(40_000),
            pids: Some(100),
            weak: vec![],
        };
        assert!(report(sound.clone()).enforced());
        assert!(weaknesses(&report(sound.clone())).is_empty());

        let weak = report(EffectiveLimits {
            memory_bytes: Some(1 << 30),
            cpu_quota: None,
            weak: vec!["swap: no cgroup".into()],
            ..sound
        });
        assert!(!weak.enforced());
        assert_eq!(
            weaknesses(&weak),
            [
                "memory: 1g is enforced where 512m was asked for",
                "cpu: nothing enforces it",
                "swap: no cgroup",
            ]
        );
    }

    proptest! {
        #[test]
        fn nothing_above_a_maximum_gets_through(
            timeout in proptest::option::of(any::<u64>()),
            memory in proptest::option::of("[0-9]{1,12}[kmg]?"),
            cpu_quota in proptest::option::of(any::<u64>()),
        ) {
            let policy = LimitPolicy::default();
            let request = ExecutionRequest { timeout, memory, cpu_quota, ..request() };
            if let Ok(limits) = policy.resolve(&request) {
                prop_assert!(limits.timeout <= policy.max_timeout);
                prop_assert!((MIN_MEMORY..=policy.max_memory).contains(&limits.memory_bytes));
                prop_assert!((MIN_CPU_QUOTA..=policy.max_cpu_quota).contains(&limits.cpu_quota));
                // Never lowered: what was named is what was given.
                prop_assert!(timeout.is_none_or(|asked| limits.timeout.as_secs() == asked));
                prop_assert!(cpu_quota.is_none_or(|asked| limits.cpu_quota == asked));
            }
        }

        #[test]
        fn weaknesses_and_enforced_agree(
            memory_bytes in proptest::option::of(any::<u64>()),
            cpu_quota in proptest::option::of(0..100_000_u64),
            pids in proptest::option::of(0..200_u64),
            weak in proptest::collection::vec(".{1,8}", 0..2),
        ) {
            let report = LimitsReport {
                requested: with(|_| ()).unwrap(),
                effective: EffectiveLimits { memory_bytes, cpu_quota, pids, weak },
            };
            prop_assert_eq!(weaknesses(&report).is_empty(), report.enforced());
        }
    }
}
