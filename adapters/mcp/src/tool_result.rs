//! Results of tools: the public JSON as structured content, and the same as text.
//!
//! A failure that a model can act on is one of these, never a protocol error.

use mcp_forge_ports::vocabulary::{ExecutionOutcome, Refusal};
use rmcp::model::{CallToolResult, ContentBlock};

use crate::one_line::one_line;
use crate::settings::ArgumentBounds;
use crate::value::Fault;
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
    let mut result =
        CallToolResult::success(vec![ContentBlock::text(text::outcome(outcome, bounds))]);
    result.is_error = Some(!outcome.success());
    result.structured_content = Some(wire::run_result(outcome));
    result
}
