//! The URIs of what is kept of a run: `mcp://forge/runs/{run_id}/...`.

use std::ops::Range;

use mcp_forge_ports::vocabulary::RunPart;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const RUNS: &str = "mcp://forge/runs/";

/// Where programs run.
pub(crate) const ENVIRONMENT: &str = "mcp://forge/environment/info";

/// What a path keeps: `/` and the unreserved characters (RFC 3986, 2.3).
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

pub(crate) fn log(run_id: &str) -> String {
    format!("{RUNS}{run_id}/log")
}

pub(crate) fn picture(run_id: &str, number: usize) -> String {
    format!("{RUNS}{run_id}/images/{number}")
}

pub(crate) fn file(run_id: &str, path: &str) -> String {
    format!("{RUNS}{run_id}/files/{}", utf8_percent_encode(path, PATH))
}

/// A URI taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) run_id: String,
    pub(crate) part: RunPart,
    /// The bytes that are asked for; all of them without a query.
    pub(crate) range: Range<u64>,
}

/// Takes a URI apart; none if it is not one of these.
pub(crate) fn parse(uri: &str) -> Option<Parsed> {
    let (path, query) = match uri.strip_prefix(RUNS)?.split_once('?') {
        Some((path, query)) => (path, query),
        None => (uri.strip_prefix(RUNS)?, ""),
    };
    let (run_id, part) = path.split_once('/')?;
    let part = match part.split_once('/') {
        None if part == "log" => RunPart::Log,
        Some(("images", number)) => RunPart::Picture(number.parse().ok()?),
        Some(("files", path)) => {
            let path = percent_decode_str(path).decode_utf8().ok()?;
            RunPart::File(path.into_owned())
        }
        _ => return None,
    };
    let (mut offset, mut length) = (0_u64, u64::MAX);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("offset", number) => offset = number.parse().ok()?,
            ("length", number) => length = number.parse().ok()?,
            _ => return None,
        }
    }
    Some(Parsed {
        run_id: run_id.to_owned(),
        part,
        range: offset..offset.saturating_add(length),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_and_ranges_are_read() {
        let part = |uri: &str| parse(uri).map(|parsed| (parsed.part, parsed.range));
        let base = "mcp://forge/runs/run-1";
        assert_eq!(part(&log("run-1")), Some((RunPart::Log, 0..u64::MAX)));
        assert_eq!(
            part(&format!("{base}/log?offset=5&length=10")),
            Some((RunPart::Log, 5..15))
        );
        assert_eq!(
            part(&picture("run-1", 2)),
            Some((RunPart::Picture(2), 0..u64::MAX))
        );
        for wrong in [
            "",
            "mcp://forge/runs/",
            "mcp://forge/runs/x",
            "mcp://forge/runs/x/log/y",
            "mcp://forge/runs/x/images/-1",
            "mcp://forge/runs/x/log?offset=-1",
            "mcp://forge/runs/x/log?limit=1",
            "mcp://forge/runs/x/files/%ff",
            "http://forge/runs/x/log",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_path_comes_back(path in ".*") {
            let parsed = parse(&file("run-1", &path)).unwrap();
            prop_assert_eq!(parsed.part, RunPart::File(path));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = parse(&format!("mcp://forge/runs/{text}"));
        }
    }
}
