//! From what was seen of a program to what is told of its run. It asks the runtime for what the
//! kernel has counted, makes sure that nothing runs on, and removes nothing.

use std::time::Duration;

use mcp_forge_ports::vocabulary::{
    AuditEvent, EndedBy, ExecutionOutcome, GuestExit, RefusalKind, SandboxExit, SandboxUsage,
    Severity, Usage,
};
use serde_json::json;

use super::bounded;
use super::run::{Facts, Run};
use super::sandbox::Sandbox;
use super::trail::Trail;
use super::watch::{Ending, Watched};
use crate::ending::{ProgramEnd, classify, signal_name};
use crate::output::CollectedStream;
use crate::violation::Violation;

/// How long the runtime may take to tell what the kernel has counted, unless a stop is under way.
const PATIENCE: Duration = Duration::from_secs(5);

/// A run with an outcome.
pub(super) struct Finished {
    pub(super) outcome: ExecutionOutcome,
    started: bool,
    stdout: CollectedStream,
    stderr: CollectedStream,
}

impl Finished {
    /// Its entry in the audit log.
    pub(super) fn entry(&self, trail: &Trail) -> AuditEvent {
        let Self {
            outcome,
            started,
            stdout,
            stderr,
        } = self;
        let severity = match outcome.ended_by {
            EndedBy::Completed | EndedBy::Error | EndedBy::Cancelled => Severity::Info,
            _ => Severity::Warning,
        };
        let details = json!({
            "ended_by": outcome.ended_by.as_str(),
            "started": started,
            "duration_ms": millis(outcome.duration),
            "exit_code": outcome.exit_code,
            "signal": outcome.signal,
            "stdout_bytes": stdout.bytes,
            "stdout_sha256": stdout.sha256,
            "stderr_bytes": stderr.bytes,
            "stderr_sha256": stderr.sha256,
            "cpu_ms": millis(outcome.usage.cpu),
            "peak_memory_bytes": outcome.usage.peak_memory_bytes,
        });
        trail.result(outcome.success(), severity, details)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Run {
    /// Tells how the run ended.
    pub(super) async fn conclude(
        &self,
        facts: Facts,
        watched: Watched,
        sandbox: &Sandbox,
    ) -> Result<Finished, Violation> {
        // After these, something may still be running.
        match &watched.ending {
            Ending::Broken(_) => sandbox.kill(self.in_a_grace()).await,
            Ending::Unattested(missing) => {
                sandbox.kill(self.in_a_grace()).await;
                self.report_violation(missing).await;
                return Err(unattested(missing));
            }
            Ending::Silent => {
                sandbox.kill(self.in_a_grace()).await;
                return Err(silent(self.core.policy.startup_timeout));
            }
            _ => {}
        }
        let usage = match facts.started_at {
            Some(_) => self.counted(watched.stopped, sandbox).await,
            None => SandboxUsage::default(),
        };
        let mut signal = None;
        let end = match &watched.ending {
            Ending::Exited(exit) => ProgramEnd::Exited(*exit),
            Ending::NotStarted(_) => ProgramEnd::NotStarted,
            Ending::StreamEnded if facts.started_at.is_none() => ProgramEnd::Lost,
            Ending::StreamEnded => {
                signal = self.settle(watched.stopped, usage, sandbox).await;
                ProgramEnd::Lost
            }
            Ending::Unstoppable | Ending::Unattested(_) | Ending::Silent => ProgramEnd::Lost,
            Ending::Broken(reason) => {
                // What the kernel or a stop cut off is nobody's attempt.
                if watched.stopped.is_none() && usage.oom_kills == 0 {
                    self.report_violation(std::slice::from_ref(reason)).await;
                }
                ProgramEnd::Lost
            }
        };
        let raised = watched.output.has_error();
        let ended_by = classify(watched.stopped, end, usage, raised);
        if let (Ending::NotStarted(reason), EndedBy::RuntimeLost) = (&watched.ending, ended_by) {
            return Err(not_started(reason));
        }
        if let ProgramEnd::Exited(exit) = end
            && let SandboxExit::Signaled(number) = exit.status
        {
            signal = Some(signal_name(number).into_owned());
        }
        Ok(self.finish(facts, watched, ended_by, end, signal, usage))
    }

    fn finish(
        &self,
        facts: Facts,
        watched: Watched,
        ended_by: EndedBy,
        end: ProgramEnd,
        signal: Option<String>,
        counted: SandboxUsage,
    ) -> Finished {
        let exit: Option<GuestExit> = match end {
            ProgramEnd::Exited(exit) => Some(exit),
            ProgramEnd::NotStarted | ProgramEnd::Lost => None,
        };
        let duration = facts.started_at.map_or(Duration::ZERO, |start| {
            watched.ended_at.saturating_sub(start)
        });
        let mut output = watched.output.finish();
        let (result, result_repr) = match output.value {
            Some(value) => (value.json, Some(value.repr)),
            None => (None, None),
        };
        let outcome = ExecutionOutcome {
            ended_by,
            language: self.request.language,
            run_id: self.trail.run_id().to_owned(),
            correlation_id: self.trail.correlation_id().to_owned(),
            stdout: std::mem::take(&mut output.stdout.text),
            stderr: std::mem::take(&mut output.stderr.text),
            stdout_truncated: output.stdout.truncated,
            stderr_truncated: output.stderr.truncated,
            stdout_not_utf8: output.stdout.not_utf8,
            stderr_not_utf8: output.stderr.not_utf8,
            result,
            result_repr,
            blocks: output.blocks,
            files: watched.files.files,
            files_omitted: watched.files.omitted,
            log: self.entry.run_log(),
            error: output.error,
            exit_code: match exit.map(|exit| exit.status) {
                Some(SandboxExit::Exited(code)) => Some(code),
                Some(SandboxExit::Signaled(_)) | None => None,
            },
            signal,
            duration,
            limits: facts.limits,
            usage: Usage {
                cpu: counted
                    .cpu
                    .or(exit.map(|exit| exit.cpu))
                    .unwrap_or_default(),
                peak_memory_bytes: counted
                    .peak_memory_bytes
                    .or(exit.map(|exit| exit.max_rss_bytes))
                    .unwrap_or_default(),
            },
            runtime: facts.runtime,
        };
        Finished {
            outcome,
            started: facts.started_at.is_some(),
            stdout: output.stdout,
            stderr: output.stderr,
        }
    }

    /// What the kernel has counted; nothing if the runtime does not tell it in time.
    async fn counted(&self, stopped: Option<EndedBy>, sandbox: &Sandbox) -> SandboxUsage {
        let deadline = match stopped {
            // The caller waits for the stop to be over.
            Some(_) => self.in_a_grace(),
            None => self.clock().monotonic() + PATIENCE,
        };
        let asked = self.core.ports.runtime.usage(&sandbox.id);
        match bounded(self.clock(), deadline, asked).await {
            Some(Ok(usage)) => return usage,
            Some(Err(error)) => {
                tracing::warn!(sandbox = %sandbox.id, error = error.chain(), "usage unknown");
            }
            None => tracing::warn!(sandbox = %sandbox.id, "usage takes too long"),
        }
        SandboxUsage::default()
    }

    /// After the stream ended: sees how the sandbox ended, or ends it. Gives the signal that did.
    async fn settle(
        &self,
        stopped: Option<EndedBy>,
        counted: SandboxUsage,
        sandbox: &Sandbox,
    ) -> Option<String> {
        if stopped.is_none() && counted.oom_kills == 0 {
            let waiting = self.core.ports.runtime.wait(&sandbox.id);
            match bounded(self.clock(), self.in_a_grace(), waiting).await {
                Some(Ok(SandboxExit::Signaled(number))) => {
                    return Some(signal_name(number).into_owned());
                }
                Some(_) => return None,
                None => {}
            }
        }
        sandbox.kill(self.in_a_grace()).await;
        None
    }

    async fn report_violation(&self, reasons: &[String]) {
        tracing::warn!(
            run_id = self.trail.run_id(),
            reasons = reasons.join("; "),
            "security violation"
        );
        self.trail.note(self.trail.violation(reasons)).await;
    }

    fn in_a_grace(&self) -> Duration {
        self.clock().monotonic() + self.core.policy.grace
    }
}

fn unattested(missing: &[String]) -> Violation {
    Violation::general(
        RefusalKind::Internal,
        format!(
            "the sandbox is weaker than it must be: {}",
            missing.join("; ")
        ),
        "the run was stopped; the operator has to look at this (`mcp-forge doctor`)",
    )
}

fn silent(startup_timeout: Duration) -> Violation {
    Violation::general(
        RefusalKind::Unavailable,
        format!(
            "the agent in the sandbox did not report within {} s",
            startup_timeout.as_secs()
        ),
        "try again; if it happens often, the host is overloaded (`mcp-forge doctor`)",
    )
}

fn not_started(reason: &str) -> Violation {
    Violation::general(
        RefusalKind::Unavailable,
        format!("the program could not be started: {reason}"),
        "`mcp-forge doctor` tells which interpreters are there",
    )
}
