//! The public JSON of a result and of a refusal. Names here are the contract with clients; the
//! command line prints the same with `--json`.
//!
//! It adds nothing to an outcome and hides nothing of it; the bounds of its texts are the domain's.

use mcp_forge_ports::vocabulary::{
    EffectiveLimits, ExecutionOutcome, LimitsReport, OutputBlock, ProgramError, Refusal,
    ResourceLimits, RuntimeDescription, Usage,
};
use serde_json::{Value, json};

/// The result of a run. Durations are whole milliseconds (`timeout_s`: seconds), sizes bytes,
/// `cpu_quota` µs per 100 ms; an effective limit that nothing enforces is `null`.
pub fn run_result(outcome: &ExecutionOutcome) -> Value {
    json!({
        "success": outcome.success(),
        "ended_by": outcome.ended_by.as_str(),
        "language": outcome.language.as_str(),
        "session_id": null,
        "run_id": outcome.run_id,
        "correlation_id": outcome.correlation_id,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "stdout_truncated": outcome.stdout_truncated,
        "stderr_truncated": outcome.stderr_truncated,
        "stdout_not_utf8": outcome.stdout_not_utf8,
        "stderr_not_utf8": outcome.stderr_not_utf8,
        "result": outcome.result,
        "result_repr": outcome.result_repr,
        "blocks": outcome.blocks.iter().map(block).collect::<Vec<_>>(),
        "error": outcome.error.as_ref().map(program_error),
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "duration_ms": millis(outcome.duration),
        "files": [],
        "limits": limits(&outcome.limits),
        "usage": usage(&outcome.usage),
        "runtime": runtime(&outcome.runtime),
    })
}

/// A refused or failed request. `field` and `allowed` are there only when they are known.
pub fn refusal(refusal: &Refusal) -> Value {
    let mut error = json!({
        "kind": refusal.kind.as_str(),
        "message": refusal.message,
        "hint": refusal.hint,
    });
    for (name, value) in [("field", &refusal.field), ("allowed", &refusal.allowed)] {
        if let Some(value) = value {
            error[name] = json!(value);
        }
    }
    json!({ "error": error, "correlation_id": refusal.correlation_id })
}

fn block(block: &OutputBlock) -> Value {
    match block {
        OutputBlock::Stream { stream, text } => json!({
            "type": "stream",
            "stream": stream.as_str(),
            "text": text,
        }),
        OutputBlock::Value { json, repr } => json!({
            "type": "value",
            "json": json,
            "repr": repr,
        }),
        OutputBlock::Error(error) => {
            let mut block = program_error(error);
            block["type"] = json!("error");
            block
        }
        // A kind that the core knows and this version cannot show yet.
        _ => json!({ "type": "unknown" }),
    }
}

fn program_error(error: &ProgramError) -> Value {
    json!({
        "name": error.name,
        "message": error.message,
        "traceback": error.traceback,
    })
}

fn limits(report: &LimitsReport) -> Value {
    let ResourceLimits {
        memory_bytes,
        cpu_quota,
        pids,
        timeout,
        ..
    } = &report.requested;
    let EffectiveLimits {
        memory_bytes: effective_memory,
        cpu_quota: effective_quota,
        pids: effective_pids,
        weak,
    } = &report.effective;
    json!({
        "requested": {
            "memory_bytes": memory_bytes,
            "cpu_quota": cpu_quota,
            "pids": pids,
            "timeout_s": timeout.as_secs(),
        },
        "effective": {
            "memory_bytes": effective_memory,
            "cpu_quota": effective_quota,
            "pids": effective_pids,
            // The core keeps the time itself, so what was asked for is what holds.
            "timeout_s": timeout.as_secs(),
        },
        "enforced": report.enforced(),
        "weak": weak,
    })
}

fn usage(usage: &Usage) -> Value {
    json!({
        "cpu_ms": millis(usage.cpu),
        "peak_memory_bytes": usage.peak_memory_bytes,
    })
}

fn runtime(runtime: &RuntimeDescription) -> Value {
    json!({
        "kind": runtime.kind,
        "image": runtime.image,
        "image_digest": runtime.image_digest,
        "environment_digest": runtime.environment_digest,
    })
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
