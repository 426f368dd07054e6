//! What is kept of runs, as resources: logs, files, pictures.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mcp_forge_ports::vocabulary::{ExecutionOutcome, OutputBlock, RunBytes, RunPart, RunStatus};
use rmcp::model::{MetaObject, Resource, ResourceContents, ResourceTemplate};
use serde_json::json;

use crate::uri;

/// Bytes that one answer contains at most; the rest is read by range.
pub(crate) const MAX_READ: u64 = 4 << 20;

/// Resources that are listed at once.
const PAGE: usize = 500;

/// Bytes of their texts, about; one alone may have more.
const PAGE_BYTES: usize = 256 << 10;

/// What there is of these runs, the newest first, from the number `start` on, and with which
/// number it goes on.
pub(crate) fn page(runs: &[RunStatus], start: usize) -> (Vec<Resource>, Option<usize>) {
    let outcomes = runs.iter().filter_map(|run| match &run.answer {
        Some(Ok(outcome)) => Some(&**outcome),
        _ => None,
    });
    let (mut page, mut bytes) = (Vec::new(), 0);
    for (number, resource) in outcomes.flat_map(of_outcome).enumerate().skip(start) {
        // The name is in the title too, and escaped may be twice as long.
        bytes += resource.uri.len() + 4 * resource.name.len();
        if page.len() == PAGE || !page.is_empty() && bytes > PAGE_BYTES {
            return (page, Some(number));
        }
        page.push(resource);
    }
    (page, None)
}

/// Where programs run.
pub(crate) fn environment() -> Resource {
    Resource::new(uri::ENVIRONMENT, "environment")
        .with_title("Where programs run")
        .with_description("Runtime, languages, limits, and how strong the sandboxes prove to be.")
        .with_mime_type("application/json")
}

fn of_outcome(outcome: &ExecutionOutcome) -> impl Iterator<Item = Resource> {
    let run_id = &outcome.run_id;
    let log = outcome.log.map(|log| {
        Resource::new(uri::log(run_id), "log")
            .with_title(format!("Output of run {run_id}"))
            .with_mime_type("text/plain")
            .with_size(log.bytes)
    });
    let kept = outcome.files.iter().filter(|file| file.kept);
    let files = kept.map(move |file| {
        Resource::new(uri::file(run_id, &file.path), file.path.clone())
            .with_title(format!("{} of run {run_id}", file.path))
            .with_mime_type(file.mime_type.clone())
            .with_size(file.size)
    });
    let pictures = outcome.blocks.iter().filter_map(|block| match block {
        OutputBlock::Image { picture, .. } => Some(picture),
        _ => None,
    });
    let pictures = pictures.enumerate().map(move |(number, picture)| {
        Resource::new(uri::picture(run_id, number), format!("image {number}"))
            .with_title(format!("Picture {number} of run {run_id}"))
            .with_mime_type(picture.mime_type.clone())
            .with_size(picture.data.len() as u64)
    });
    log.into_iter().chain(files).chain(pictures)
}

/// The forms of their URIs.
pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let template = |rest: &str, name: &str, description: &str| {
        ResourceTemplate::new(format!("mcp://forge/runs/{{run_id}}/{rest}"), name)
            .with_description(description)
    };
    vec![
        template(
            "log{?offset,length}",
            "log",
            "Standard output and standard error of a run as they were written, in one. `offset` and \
             `length` are bytes.",
        )
        .with_mime_type("text/plain"),
        template(
            "files/{+path}{?offset,length}",
            "file",
            "A file that the run left in /workspace.",
        ),
        template(
            "images/{number}{?offset,length}",
            "image",
            "A picture that the run showed, from 0.",
        ),
    ]
}

/// The bytes that an answer to a read contains: text when they are, else base64. A character that
/// the range cuts is left to the neighbouring range.
pub(crate) fn contents(
    uri: &str,
    part: &RunPart,
    offset: u64,
    bytes: RunBytes,
) -> ResourceContents {
    let RunBytes {
        mime_type,
        total,
        data,
    } = bytes;
    let is_whole = data.len() as u64 == total;
    let (skipped, whole) =
        whole_characters(&data, offset > 0, offset + (data.len() as u64) < total);
    let text = std::str::from_utf8(whole).ok().filter(|text| match part {
        RunPart::Picture(_) => false,
        RunPart::Log => true,
        RunPart::File(_) => !text.contains('\0'),
    });
    // Without a whole character there is no text, and who reads on must get further.
    let text = text.filter(|text| !text.is_empty() || data.is_empty());
    let (start, length, contents) = match text {
        Some(text) => (
            offset + skipped as u64,
            text.len(),
            ResourceContents::text(text, uri),
        ),
        None => (
            offset,
            data.len(),
            ResourceContents::blob(STANDARD.encode(&data), uri),
        ),
    };
    let contents = contents.with_mime_type(mime_type);
    if is_whole {
        return contents;
    }
    let mut meta = MetaObject::new();
    for (name, value) in [
        ("offset", start),
        ("length", length as u64),
        ("total", total),
    ] {
        meta.insert(name.to_owned(), json!(value));
    }
    contents.with_meta(meta)
}

/// The bytes without the rest of a character that is cut at the beginning and without the part of
/// one that is cut at the end, and how many were left out at the beginning.
fn whole_characters(data: &[u8], cut_before: bool, cut_after: bool) -> (usize, &[u8]) {
    let is_continuation = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let skipped = match cut_before {
        true => data
            .iter()
            .take(3)
            .take_while(|byte| is_continuation(byte))
            .count(),
        false => 0,
    };
    let data = &data[skipped..];
    let last = data
        .utf8_chunks()
        .last()
        .map_or(&[][..], |chunk| chunk.invalid());
    let is_cut = cut_after && std::str::from_utf8(last).is_err_and(|e| e.error_len().is_none());
    let end = data.len() - if is_cut { last.len() } else { 0 };
    (skipped, &data[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(part: RunPart, offset: u64, data: &[u8], total: u64) -> serde_json::Value {
        let bytes = RunBytes {
            mime_type: "text/csv".to_owned(),
            total,
            data: data.to_vec(),
        };
        serde_json::to_value(contents("mcp://x", &part, offset, bytes)).unwrap()
    }

    #[test]
    fn text_is_text_and_everything_else_is_base64() {
        let file = || RunPart::File("a".to_owned());
        let whole = read(file(), 0, "é\n".as_bytes(), 3);
        assert_eq!(whole["text"], "é\n");
        assert_eq!(whole["mimeType"], "text/csv");
        assert!(whole.get("_meta").is_none());
        assert_eq!(read(file(), 0, b"\xff\0", 2)["blob"], "/wA=");
        assert_eq!(read(file(), 0, b"a\0", 2)["blob"], "YQA=");
        assert_eq!(read(RunPart::Log, 0, b"a\xffb", 3)["blob"], "Yf9i");
        assert_eq!(read(RunPart::Log, 0, b"a\0b", 3)["text"], "a\0b");
        // Nothing is cut here: the program wrote half a character.
        assert_eq!(read(file(), 0, b"a\xc3", 2)["blob"], "YcM=");
        assert_eq!(read(file(), 0, b"\x80a", 2)["blob"], "gGE=");
        assert_eq!(
            read(RunPart::Picture(0), 0, b"GIF89a", 6)["blob"],
            "R0lGODlh"
        );
    }

    #[test]
    fn a_range_holds_whole_characters_and_says_which_bytes() {
        let text = "aé€b".as_bytes();
        let part = read(RunPart::Log, 2, &text[2..5], 7);
        assert_eq!(part["blob"], "qeKC");
        assert_eq!(part["_meta"], json!({"offset": 2, "length": 3, "total": 7}));
        let part = read(RunPart::Log, 1, &text[1..4], 7);
        assert_eq!(part["text"], "é");
        assert_eq!(part["_meta"], json!({"offset": 1, "length": 2, "total": 7}));
    }
}
