//! The operator's policy of execution as one checked value. It reads no configuration: the
//! composition root fills it in.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use mcp_forge_ports::vocabulary::{CollectLimits, Language};

use crate::decision::CheckedPolicy;
use crate::limits::{LimitPolicy, format_byte_size};
use crate::service::Retention;

const TEXT: RangeInclusive<u64> = 1..=(64 << 20);
const KEPT: RangeInclusive<u64> = 1024..=(64 << 20);
const STOP: RangeInclusive<u64> = 1024..=(1 << 40);
const COLLECTED: RangeInclusive<u64> = 1..=(1 << 30);
const FILES: RangeInclusive<u64> = 0..=1000;
const KEPT_RUNS: RangeInclusive<u64> = 1..=10_000;
const CONCURRENCY: RangeInclusive<u64> = 1..=1024;
const QUEUE: RangeInclusive<u64> = 0..=65_536;
const PATIENCE: RangeInclusive<u64> = 1..=600;

/// Longest time that something is kept of a run.
const LONGEST_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// Longest grace. A stop passes through at most 3.5 times the grace before it is answered, and
/// must be over within 2 s.
pub const MAX_GRACE: Duration = Duration::from_millis(500);

/// What may run, how much is kept of it, and how many run at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionPolicy {
    /// Limits of each run.
    pub limits: LimitPolicy,
    /// Longest program, bytes, up to 64 MiB.
    pub max_code_bytes: usize,
    /// Longest standard input, bytes, up to 64 MiB.
    pub max_stdin_bytes: usize,
    /// Standard output that is kept, bytes, 1 KiB to 64 MiB.
    pub stdout_limit: usize,
    /// Standard error that is kept, bytes, 1 KiB to 64 MiB.
    pub stderr_limit: usize,
    /// A run that has written more than this over everything is stopped, bytes; at least as much
    /// as is kept of both streams, up to 1 TiB.
    pub output_stop_bytes: u64,
    /// Time between the steps of a stop: interrupt, kill, kill from outside. Up to [`MAX_GRACE`].
    pub grace: Duration,
    /// Runs at once, 1 to 1024.
    pub concurrency: usize,
    /// Runs that may wait for one of those to end, up to 65536.
    pub queue: usize,
    /// Longest time to make and start a sandbox, 1 s to 600 s.
    pub startup_timeout: Duration,
    /// Longest time to remove a sandbox before its slot is given away all the same, 1 s to 600 s.
    pub cleanup_timeout: Duration,
    /// Files of one request, up to 1000.
    pub max_files: usize,
    /// Bytes of all those files together, up to 64 MiB.
    pub max_file_bytes: usize,
    /// What is brought back of the files of a workspace; nothing when `files` is 0.
    pub collect: CollectLimits,
    /// What is kept of runs that have ended.
    pub retention: Retention,
    /// Run also where the kernel does not enforce every limit.
    pub accept_unenforced: bool,
    /// Which sandboxes may be made at all.
    pub sandboxes: CheckedPolicy,
    /// Run only where every limit is enforced, whatever `accept_unenforced` says.
    pub require_strong: bool,
    /// Languages that this installation can run; at least one.
    pub languages: Vec<Language>,
    /// Name of the image in results; `host` for the host presentation.
    pub image: String,
}

impl Default for ExecutionPolicy {
    fn default() -> Self {
        Self {
            limits: LimitPolicy::default(),
            max_code_bytes: 1 << 20,
            max_stdin_bytes: 1 << 20,
            stdout_limit: 1 << 20,
            stderr_limit: 256 << 10,
            output_stop_bytes: 64 << 20,
            grace: Duration::from_millis(500),
            concurrency: 8,
            queue: 64,
            startup_timeout: Duration::from_secs(30),
            cleanup_timeout: Duration::from_secs(30),
            max_files: 100,
            max_file_bytes: 16 << 20,
            collect: CollectLimits {
                files: 256,
                file_bytes: 16 << 20,
                total_bytes: 64 << 20,
            },
            retention: Retention {
                time: Duration::from_secs(3600),
                runs: 100,
                bytes: 256 << 20,
            },
            accept_unenforced: false,
            sandboxes: CheckedPolicy::default(),
            require_strong: false,
            languages: vec![Language::Python, Language::R],
            image: "host".to_owned(),
        }
    }
}

impl ExecutionPolicy {
    /// Whether this policy makes sense, each value and all together.
    ///
    /// # Errors
    ///
    /// Every fault, those of [`LimitPolicy::check`] included.
    pub fn check(&self) -> Result<(), PolicyFaults> {
        let mut faults = self.limits.faults();
        for (field, value, range) in [
            ("max_code_bytes", self.max_code_bytes as u64, TEXT),
            ("max_stdin_bytes", self.max_stdin_bytes as u64, TEXT),
            ("max_file_bytes", self.max_file_bytes as u64, TEXT),
            ("collect.file_bytes", self.collect.file_bytes, COLLECTED),
            ("collect.total_bytes", self.collect.total_bytes, COLLECTED),
            ("retention.bytes", self.retention.bytes, STOP),
            ("stdout_limit", self.stdout_limit as u64, KEPT),
            ("stderr_limit", self.stderr_limit as u64, KEPT),
            ("output_stop_bytes", self.output_stop_bytes, STOP),
        ] {
            if !range.contains(&value) {
                faults.push(PolicyFault::size_outside(field, value, &range));
            }
        }
        for (field, value, range) in [
            ("concurrency", self.concurrency as u64, CONCURRENCY),
            ("queue", self.queue as u64, QUEUE),
            ("max_files", self.max_files as u64, FILES),
            ("collect.files", u64::from(self.collect.files), FILES),
            ("retention.runs", self.retention.runs as u64, KEPT_RUNS),
        ] {
            if !range.contains(&value) {
                faults.push(PolicyFault::outside(field, value, &range));
            }
        }
        for (field, value) in [
            ("startup_timeout", self.startup_timeout),
            ("cleanup_timeout", self.cleanup_timeout),
        ] {
            let (least, most) = (PATIENCE.start(), PATIENCE.end());
            if value < Duration::from_secs(*least) || value > Duration::from_secs(*most) {
                faults.push(PolicyFault {
                    field,
                    value: format!("{} s", value.as_secs_f64()),
                    allowed: format!("{least} to {most} s"),
                    compared: &[],
                });
            }
        }
        if self.retention.time < Duration::from_secs(1) || self.retention.time > LONGEST_KEPT {
            faults.push(PolicyFault {
                field: "retention.time",
                value: format!("{} s", self.retention.time.as_secs_f64()),
                allowed: format!("1 to {} s", LONGEST_KEPT.as_secs()),
                compared: &[],
            });
        }
        if self.grace.is_zero() || self.grace > MAX_GRACE {
            faults.push(PolicyFault {
                field: "grace",
                value: format!("{} ms", self.grace.as_millis()),
                allowed: format!("1 to {} ms", MAX_GRACE.as_millis()),
                compared: &[],
            });
        }
        let kept = self.stdout_limit.saturating_add(self.stderr_limit) as u64;
        if self.output_stop_bytes < kept {
            faults.push(PolicyFault {
                field: "output_stop_bytes",
                value: format_byte_size(self.output_stop_bytes),
                allowed: format!(
                    "at least stdout_limit and stderr_limit together, {}",
                    format_byte_size(kept)
                ),
                compared: &["stdout_limit", "stderr_limit"],
            });
        }
        if self.languages.is_empty() {
            faults.push(PolicyFault {
                field: "languages",
                value: "[]".to_owned(),
                allowed: "at least one of python, r".to_owned(),
                compared: &[],
            });
        }
        PolicyFaults::none_of(faults)
    }
}

/// One value of a policy that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, must be {allowed}")]
pub struct PolicyFault {
    /// Name of the field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// What it may be.
    pub allowed: String,
    /// The fields that it does not fit, where it is not wrong by itself.
    pub compared: &'static [&'static str],
}

impl PolicyFault {
    pub(crate) fn outside(field: &'static str, value: u64, range: &RangeInclusive<u64>) -> Self {
        Self {
            field,
            value: value.to_string(),
            allowed: format!("{} to {}", range.start(), range.end()),
            compared: &[],
        }
    }

    pub(crate) fn size_outside(
        field: &'static str,
        value: u64,
        range: &RangeInclusive<u64>,
    ) -> Self {
        let least = format_byte_size(*range.start());
        Self {
            field,
            value: format_byte_size(value),
            allowed: match *range.end() {
                u64::MAX => format!("at least {least}"),
                most => format!("{least} to {}", format_byte_size(most)),
            },
            compared: &[],
        }
    }
}

/// Everything that is wrong with a policy; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFaults(pub Vec<PolicyFault>);

impl PolicyFaults {
    pub(crate) fn none_of(faults: Vec<PolicyFault>) -> Result<(), Self> {
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Self(faults))
        }
    }
}

impl fmt::Display for PolicyFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyFaults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound() {
        assert_eq!(ExecutionPolicy::default().check(), Ok(()));
    }

    #[test]
    fn each_fault_is_found_and_nothing_else() {
        type Change = fn(&mut ExecutionPolicy);
        let cases: [(&str, Change); 14] = [
            ("max_code_bytes", |p| p.max_code_bytes = 0),
            ("max_stdin_bytes", |p| p.max_stdin_bytes = 1 << 30),
            ("stdout_limit", |p| p.stdout_limit = 1023),
            ("stderr_limit", |p| p.stderr_limit = 0),
            ("output_stop_bytes", |p| p.output_stop_bytes = u64::MAX),
            ("output_stop_bytes", |p| p.output_stop_bytes = 1 << 20),
            ("grace", |p| p.grace = Duration::ZERO),
            ("grace", |p| p.grace = Duration::from_millis(501)),
            ("concurrency", |p| p.concurrency = 0),
            ("queue", |p| p.queue = 65_537),
            ("startup_timeout", |p| p.startup_timeout = Duration::ZERO),
            ("cleanup_timeout", |p| {
                p.cleanup_timeout = Duration::from_secs(601)
            }),
            ("languages", |p| p.languages.clear()),
            ("pids", |p| p.limits.pids = 0),
        ];
        for (field, change) in cases {
            let mut policy = ExecutionPolicy::default();
            change(&mut policy);
            let faults = policy.check().unwrap_err();
            assert_eq!(faults.0.len(), 1, "{faults}");
            assert_eq!(faults.0[0].field, field);
        }
    }

    #[test]
    fn faults_are_told_one_a_line_with_value_and_range() {
        let policy = ExecutionPolicy {
            concurrency: 0,
            stderr_limit: 1,
            ..ExecutionPolicy::default()
        };
        assert_eq!(
            policy.check().unwrap_err().to_string(),
            "stderr_limit is 1, must be 1k to 64m\nconcurrency is 0, must be 1 to 1024"
        );
    }
}
