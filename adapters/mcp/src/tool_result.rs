//! Results of tools: the public JSON as structured content, and the same as text.
//!
//! A failure that a model can act on is one of these, never a protocol error.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mcp_forge_ports::vocabulary::{ExecutionOutcome, Refusal, RunStatus};
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::Value;

use crate::one_line::one_line;
use crate::settings::ArgumentBounds;
use crate::text::Part;
use crate::value::Fault;
use crate::wire::Pictures;
use crate::{text, wire};

/// Longest correlation id that is repeated without the core having looked at it, characters.
const ECHOED_ID_CHARS: usize = 128;

/// The result of a call that a defect ended, so that the core gave it no id. A caller's id that
/// is no short printable text is not repeated.
pub(crate) fn rejected(fault: Fault, correlation_id: Option<String>) -> CallToolResult {
    let id = correlation_id
        .filter(|id| !id.is_empty() && one_line(id, ECHOED_ID_CHARS) == *id)
        .unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    refused(&fault.into_refusal(id))
}

/// The result of a call that was refused.
pub(crate) fn refused(refusal: &Refusal) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(text::refusal(refusal))]);
    result.structured_content = Some(wire::refusal(refusal));
    result
}

/// The result of a run, however it ended.
pub(crate) fn ended(outcome: &ExecutionOutcome, bounds: &ArgumentBounds) -> CallToolResult {
    let content = text::outcome(outcome, bounds)
        .into_iter()
        .map(|part| match part {
            Part::Text(text) => ContentBlock::text(text),
            Part::Picture(picture) => {
                let data = STANDARD.encode(&picture.data);
                ContentBlock::image(data, picture.mime_type.clone())
            }
        });
    let mut result = CallToolResult::success(content.collect());
    result.is_error = Some(!outcome.success());
    result.structured_content = Some(wire::run_result(outcome, Pictures::Linked));
    result
}

/// A run that goes on in the background.
pub(crate) fn launched(status: &RunStatus) -> CallToolResult {
    let text = format!(
        "Started in the background: {}. Use get_run with this run_id (and `wait`) for the result, \
         cancel_run to stop it.",
        text::status(status)
    );
    told(text, wire::run_status(status))
}

/// A run at one moment: its result once it has one.
pub(crate) fn status(status: &RunStatus, bounds: &ArgumentBounds) -> CallToolResult {
    match &status.answer {
        Some(Ok(outcome)) => ended(outcome, bounds),
        Some(Err(refusal)) => refused(refusal),
        None => told(text::status(status), wire::run_status(status)),
    }
}

/// Something that is neither a failure nor the result of a run.
pub(crate) fn told(text: String, structured: Value) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(structured);
    result
}
