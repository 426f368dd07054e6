//! Results of tools: the public JSON as structured content, and the same as text.
//!
//! A failure that a model can act on is one of these, never a protocol error.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mcp_forge_ports::driving::Runs;
use mcp_forge_ports::vocabulary::{ExecutionOutcome, OutputBlock, Refusal, RunPart, RunStatus};
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

/// Saved pictures that a result contains.
const MAX_SAVED: usize = 5;

/// Bytes of them.
const MAX_SAVED_BYTES: u64 = 3 << 20;

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
pub(crate) async fn ended(
    outcome: &ExecutionOutcome,
    bounds: &ArgumentBounds,
    runs: &dyn Runs,
) -> CallToolResult {
    let mut content: Vec<_> = text::outcome(outcome, bounds)
        .into_iter()
        .map(|part| match part {
            Part::Text(text) => ContentBlock::text(text),
            Part::Picture(picture) => {
                let data = STANDARD.encode(&picture.data);
                ContentBlock::image(data, picture.mime_type.clone())
            }
        })
        .collect();
    let is_picture = |block: &OutputBlock| matches!(block, OutputBlock::Image { .. });
    // Who shows pictures and saves them would have them twice.
    if !outcome.blocks.iter().any(is_picture) {
        content.extend(saved_pictures(outcome, runs).await);
    }
    let mut result = CallToolResult::success(content);
    result.is_error = Some(!outcome.success());
    result.structured_content = Some(wire::run_result(outcome, Pictures::Linked));
    result
}

/// Pictures that a program saved in its workspace and did not show, as programs for a person do.
async fn saved_pictures(outcome: &ExecutionOutcome, runs: &dyn Runs) -> Vec<ContentBlock> {
    let (mut pictures, mut bytes) = (Vec::new(), 0);
    for file in outcome.files.iter().filter(|file| file.kept) {
        let Some(signature) = signature(&file.mime_type) else {
            continue;
        };
        if pictures.len() == MAX_SAVED || bytes + file.size > MAX_SAVED_BYTES {
            continue;
        }
        let part = RunPart::File(file.path.clone());
        let Ok(read) = runs.read(&outcome.run_id, part, 0..file.size).await else {
            continue;
        };
        if signature(&read.data) {
            bytes += file.size;
            let data = STANDARD.encode(&read.data);
            pictures.push(ContentBlock::image(data, file.mime_type.clone()));
        }
    }
    pictures
}

/// What a picture of this type begins with; none for a type that no model reads. A client may
/// refuse a whole result for one picture that is none.
fn signature(mime_type: &str) -> Option<fn(&[u8]) -> bool> {
    Some(match mime_type {
        "image/png" => |data| data.starts_with(b"\x89PNG\r\n\x1a\n"),
        "image/jpeg" => |data| data.starts_with(b"\xff\xd8\xff"),
        "image/gif" => |data| data.starts_with(b"GIF8"),
        "image/webp" => |data| data.starts_with(b"RIFF") && data.get(8..12) == Some(b"WEBP"),
        _ => return None,
    })
}

/// A run that goes on in the background.
pub(crate) fn launched(status: &RunStatus) -> CallToolResult {
    let next = "Use get_run with this run_id (and `wait`) for the result";
    let text = match status.answer {
        // The repetition of a call.
        Some(_) => format!("{}. {next}.", text::status(status)),
        None => format!(
            "In the background: {}. {next}, cancel_run to stop it.",
            text::status(status)
        ),
    };
    told(text, wire::run_status(status))
}

/// A run at one moment: its result once it has one.
pub(crate) async fn status(
    status: &RunStatus,
    bounds: &ArgumentBounds,
    runs: &dyn Runs,
) -> CallToolResult {
    match &status.answer {
        Some(Ok(outcome)) => ended(outcome, bounds, runs).await,
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
