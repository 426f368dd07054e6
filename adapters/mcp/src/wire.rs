//! The public JSON of a result and of a refusal. Names here are the contract with clients; the
//! command line prints the same with `--json`.
//!
//! It hides nothing of an outcome; the bounds of its texts are the domain's. Pictures are linked
//! for clients that can read resources, and contained for those that cannot.

use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mcp_forge_ports::vocabulary::{
    EffectiveLimits, ExecutionEnvironment, ExecutionOutcome, LimitsReport, OutputBlock,
    ProgramError, Refusal, ResourceLimits, RunState, RunStatus, RuntimeDescription, SandboxVerdict,
    Usage,
};
use serde_json::{Value, json};

use crate::uri;

/// Where programs run. Units as in a result; `limits` are those of a run that asks for none, and
/// `verdict` is that of the newest run.
pub(crate) fn environment(environment: &ExecutionEnvironment) -> Value {
    let runtime = &environment.runtime;
    let languages = environment
        .languages
        .iter()
        .map(|language| language.as_str());
    json!({
        "runtime": { "kind": runtime.kind, "version": runtime.version, "image": environment.image },
        "languages": languages.collect::<Vec<_>>(),
        "limits": requested(&environment.limits),
        "weak": runtime.weak,
        "verdict": environment.verdict.map(SandboxVerdict::as_str),
    })
}

/// The result of a run. Durations are whole milliseconds (`timeout_s`: seconds), sizes bytes,
/// `cpu_quota` µs per 100 ms; an effective limit that nothing enforces is `null`.
pub fn run_result(outcome: &ExecutionOutcome, pictures: Pictures) -> Value {
    let linked = pictures == Pictures::Linked;
    let uri = |uri: String| linked.then_some(uri);
    let mut picture = 0;
    let mut blocks = Vec::new();
    for block in &outcome.blocks {
        blocks.push(match block {
            OutputBlock::Image {
                picture: shown,
                text,
            } => {
                let data = (!linked).then(|| STANDARD.encode(&shown.data));
                let uri = uri(uri::picture(&outcome.run_id, picture));
                picture += 1;
                without_nulls(json!({
                    "type": "image",
                    "mime_type": shown.mime_type,
                    "size": shown.data.len(),
                    "uri": uri,
                    "data": data,
                    "text": text,
                }))
            }
            other => self::block(other),
        });
    }
    let files = outcome.files.iter().map(|file| {
        json!({
            "path": file.path,
            "size": file.size,
            "mime_type": file.mime_type,
            "uri": uri(uri::file(&outcome.run_id, &file.path)).filter(|_| file.kept),
        })
    });
    let log = outcome.log.map(|log| {
        json!({
            "bytes": log.bytes,
            "complete": log.complete,
            "uri": uri(uri::log(&outcome.run_id)),
        })
    });
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
        "blocks": blocks,
        "error": outcome.error.as_ref().map(program_error),
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "duration_ms": millis(outcome.duration),
        "files": files.collect::<Vec<_>>(),
        "files_omitted": outcome.files_omitted,
        "log": log,
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

/// A run that goes on, or has ended without an outcome.
pub fn run_status(status: &RunStatus) -> Value {
    let requested_ms = status
        .requested_at
        .duration_since(UNIX_EPOCH)
        .map_or(0, millis);
    let mut value = json!({
        "run_id": status.run_id,
        "correlation_id": status.correlation_id,
        "language": status.language.as_str(),
        "state": status.state.as_str(),
        "requested_at_ms": requested_ms,
        "age_ms": millis(status.age),
    });
    if let RunState::Queued { position } = status.state {
        value["position"] = json!(position);
    }
    if let Some(line) = &status.newest_line {
        value["newest_line"] = json!(line);
    }
    match &status.answer {
        Some(Ok(outcome)) => {
            value["success"] = json!(outcome.success());
            value["ended_by"] = json!(outcome.ended_by.as_str());
        }
        Some(Err(refusal)) => value["error"] = self::refusal(refusal)["error"].take(),
        None => {}
    }
    value
}

/// How pictures are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pictures {
    /// By the URI of a resource, as files and the log are.
    Linked,
    /// In base64.
    Contained,
}

/// An object without its members that are null.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(members) = &mut value {
        members.retain(|_, member| !member.is_null());
    }
    value
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
        OutputBlock::Message { text } => json!({ "type": "message", "text": text }),
        OutputBlock::Warning { text, call } => json!({
            "type": "warning",
            "text": text,
            "call": call,
        }),
        OutputBlock::Html { html, text } => {
            without_nulls(json!({ "type": "html", "html": html, "text": text }))
        }
        OutputBlock::Json { json, text } => {
            let mut block = without_nulls(json!({ "type": "json", "text": text }));
            block["json"] = json.clone();
            block
        }
        OutputBlock::Text { text } => json!({ "type": "text", "text": text }),
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

fn requested(limits: &ResourceLimits) -> Value {
    json!({
        "memory_bytes": limits.memory_bytes,
        "cpu_quota": limits.cpu_quota,
        "pids": limits.pids,
        "timeout_s": limits.timeout.as_secs(),
    })
}

fn limits(report: &LimitsReport) -> Value {
    let EffectiveLimits {
        memory_bytes: effective_memory,
        cpu_quota: effective_quota,
        pids: effective_pids,
        weak,
    } = &report.effective;
    json!({
        "requested": requested(&report.requested),
        "effective": {
            "memory_bytes": effective_memory,
            "cpu_quota": effective_quota,
            "pids": effective_pids,
            // The core keeps the time itself, so what was asked for is what holds.
            "timeout_s": report.requested.timeout.as_secs(),
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
