//! One entry as one line of JSON, within a bound.
//!
//! What clients and programs gave is data here: JSON escapes its line breaks and control
//! characters, so that no text can pass for a line of its own.

use mcp_forge_ports::vocabulary::AuditEvent;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::chain::SEAL_ROOM;
use crate::error::FileAuditError;
use crate::mask::mask;

/// Longest line with its line break, bytes. What does not fit is cut out of `details`.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// What every entry begins with.
pub(crate) const ENTRY: &[u8] = b"{\"time\":\"";

/// Longest line without its place in the chain.
pub(crate) const MAX_ENTRY_BYTES: usize = MAX_LINE_BYTES - SEAL_ROOM;

/// Room for the members of `details` that are kept in a line that is too long, bytes.
const KEPT_DETAILS: usize = 16 * 1024;

/// Longest member of `details` that is kept then, bytes.
const KEPT_MEMBER: usize = 1024;

/// Longest text that is kept when the line is too long without `details`, characters. Five texts
/// of six bytes a character (`\u0000`) and the details are below the bound.
const KEPT_TEXT: usize = 1024;

/// A line, with its members in the order of the file. Members without a value are `null`, so that
/// every line has the same.
#[derive(Serialize)]
struct Line<'a> {
    time: &'a str,
    event: &'static str,
    severity: &'static str,
    session: Option<&'a str>,
    client: Option<&'a str>,
    run_id: Option<&'a str>,
    correlation_id: &'a str,
    success: Option<bool>,
    details: &'a Map<String, Value>,
    error: Option<&'a str>,
}

/// The line of an entry, with its line break and without its place in the chain.
pub(crate) fn line(event: &AuditEvent) -> Result<Vec<u8>, FileAuditError> {
    let time =
        jiff::Timestamp::try_from(event.time).map_err(|source| FileAuditError::Time { source })?;
    // Cut to milliseconds, always three digits.
    let time = time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string();
    let mut line = Line {
        time: &time,
        event: event.kind.as_str(),
        severity: event.severity.as_str(),
        session: event.session.as_deref(),
        client: event.client.as_deref(),
        run_id: event.run_id.as_deref(),
        correlation_id: &event.correlation_id,
        success: event.success,
        details: &event.details,
        error: event.error.as_deref(),
    };
    let whole = encode(&line)?;
    if whole.len() <= MAX_ENTRY_BYTES {
        return Ok(whole);
    }

    let details = cut_details(&event.details)?;
    line.details = &details;
    let shorter = encode(&line)?;
    if shorter.len() <= MAX_ENTRY_BYTES {
        return Ok(shorter);
    }

    let correlation_id = cut_text(line.correlation_id);
    line.correlation_id = &correlation_id;
    let [session, client, run_id, error] =
        [line.session, line.client, line.run_id, line.error].map(|text| text.map(cut_text));
    line.session = session.as_deref();
    line.client = client.as_deref();
    line.run_id = run_id.as_deref();
    line.error = error.as_deref();
    encode(&line)
}

fn encode(line: &Line<'_>) -> Result<Vec<u8>, FileAuditError> {
    let mut bytes = mask(json(line)?);
    bytes.push(b'\n');
    Ok(bytes)
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, FileAuditError> {
    serde_json::to_vec(value).map_err(|source| FileAuditError::Encode { source })
}

/// The short members of `details` as far as there is room, and in `details_cut` how many are gone.
fn cut_details(details: &Map<String, Value>) -> Result<Map<String, Value>, FileAuditError> {
    let mut kept = Map::new();
    let mut room = KEPT_DETAILS;
    for (name, value) in details {
        // Name, value, colon and comma.
        let size = json(name)?.len() + json(value)?.len() + 2;
        if size <= KEPT_MEMBER && size <= room {
            room -= size;
            kept.insert(name.clone(), value.clone());
        }
    }
    let gone = details.len() - kept.len();
    kept.insert("details_cut".to_owned(), Value::from(gone));
    Ok(kept)
}

fn cut_text(text: &str) -> String {
    match text.char_indices().nth(KEPT_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
