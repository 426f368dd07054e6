//! The files that a program left in its workspace, as the agent tells them. Names, number and
//! sizes come from inside the sandbox, so all of them are bounded.

use std::collections::BTreeSet;

use mcp_forge_ports::vocabulary::{CollectLimits, OutputFile};

/// Longest path, bytes (`PATH_MAX` of Linux).
pub(crate) const MAX_PATH: usize = 4096;

/// Longest part of a path, bytes (`NAME_MAX`).
pub(crate) const MAX_NAME: usize = 255;

/// Bytes at the beginning of a file that tell whether it is text.
const PROBE: usize = 4096;

/// A file, and where its contents are among those of all files.
#[derive(Debug)]
pub(crate) struct StoredFile {
    pub(crate) file: OutputFile,
    pub(crate) offset: u64,
}

/// Takes the files one after the other; their contents go to the caller's store in order.
#[derive(Debug)]
pub(crate) struct FileCollector {
    limits: CollectLimits,
    done: Vec<StoredFile>,
    paths: BTreeSet<String>,
    current: Option<Current>,
    stored: u64,
    omitted: u64,
    complete: bool,
}

#[derive(Debug)]
struct Current {
    path: String,
    size: u64,
    offset: u64,
    came: u64,
    probe: Vec<u8>,
}

impl FileCollector {
    pub(crate) fn new(limits: CollectLimits) -> Self {
        Self {
            limits,
            done: Vec::new(),
            paths: BTreeSet::new(),
            current: None,
            stored: 0,
            omitted: 0,
            complete: false,
        }
    }

    /// The next file.
    pub(crate) fn file(&mut self, path: String, size: u64) {
        self.close();
        let full = self.paths.len() >= self.limits.files as usize;
        if full || !is_sound(&path) || !self.paths.insert(path.clone()) {
            self.omitted = self.omitted.saturating_add(1);
            return;
        }
        self.current = Some(Current {
            path,
            size,
            offset: self.stored,
            came: 0,
            probe: Vec::new(),
        });
    }

    /// Contents of the last file; says whether they are to be stored.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> bool {
        let Some(current) = &mut self.current else {
            return false;
        };
        let length = bytes.len() as u64;
        let came = current.came.saturating_add(length);
        let most = current.size.min(self.limits.file_bytes);
        if came > most || self.stored + length > self.limits.total_bytes {
            return false;
        }
        let missing = PROBE - current.probe.len();
        current
            .probe
            .extend_from_slice(&bytes[..bytes.len().min(missing)]);
        current.came = came;
        self.stored += length;
        true
    }

    /// What was to be stored last could not be: nothing is from now on.
    pub(crate) fn lost(&mut self) {
        self.limits.total_bytes = 0;
        if let Some(current) = &mut self.current {
            current.came = 0;
            current.size = current.size.max(1);
        }
    }

    /// All have come but for this many that the agent did not name.
    pub(crate) fn complete(&mut self, omitted: u64) {
        self.complete = true;
        self.omitted = self.omitted.saturating_add(omitted);
    }

    fn close(&mut self) {
        let Some(current) = self.current.take() else {
            return;
        };
        let file = OutputFile {
            mime_type: mime_type(&current.path, &current.probe),
            kept: current.came == current.size,
            path: current.path,
            size: current.size,
        };
        self.done.push(StoredFile {
            file,
            offset: current.offset,
        });
    }

    /// The files in order of their paths, each with the place of its contents, and how many were
    /// left out: at least one where not all came.
    pub(crate) fn finish(mut self) -> (Vec<StoredFile>, u64) {
        self.close();
        self.done
            .sort_by(|one, other| one.file.path.cmp(&other.file.path));
        (self.done, self.omitted.max(u64::from(!self.complete)))
    }
}

/// Whether a path stays below the directory it is taken from, and its parts could be names.
pub(crate) fn is_sound(path: &str) -> bool {
    path.len() <= MAX_PATH
        && path.split('/').all(|part| {
            !matches!(part, "" | "." | "..") && part.len() <= MAX_NAME && !part.contains('\0')
        })
}

/// By the name, else by what the file begins with.
fn mime_type(path: &str, probe: &[u8]) -> String {
    if let Some(known) = mime_guess::from_path(path).first() {
        return known.essence_str().to_owned();
    }
    let is_text = match std::str::from_utf8(probe) {
        Ok(text) => !text.contains('\0'),
        // A character that the probe cuts.
        Err(error) => error.error_len().is_none() && probe.len() == PROBE,
    };
    let kind = if is_text {
        "text/plain"
    } else {
        "application/octet-stream"
    };
    kind.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector() -> FileCollector {
        FileCollector::new(CollectLimits {
            files: 3,
            file_bytes: 10,
            total_bytes: 15,
        })
    }

    #[test]
    fn files_come_out_in_order_with_the_place_of_their_contents() {
        let mut files = collector();
        files.file("b.csv".into(), 6);
        assert!(files.data(b"abc") && files.data(b"def"));
        files.file("a b/é".into(), 2);
        assert!(files.data(b"\0\x01"));
        files.file("empty".into(), 0);
        files.complete(0);
        let (files, omitted) = files.finish();
        let told: Vec<_> = files
            .iter()
            .map(|StoredFile { file, offset }| {
                (
                    file.path.as_str(),
                    file.mime_type.as_str(),
                    file.kept,
                    *offset,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ("a b/é", "application/octet-stream", true, 6),
                ("b.csv", "text/csv", true, 0),
                ("empty", "text/plain", true, 8),
            ]
        );
        assert_eq!(omitted, 0);
    }

    #[test]
    fn what_is_too_much_is_named_and_not_stored() {
        let mut files = collector();
        files.file("large".into(), 11);
        assert!(!files.data(b"0123456789a"));
        files.file("lies".into(), 2);
        assert!(files.data(b"ab"));
        assert!(!files.data(b"c"));
        files.file("total".into(), 10);
        assert!(files.data(b"01234567"));
        assert!(files.data(b"89"));
        files.file("fourth".into(), 1);
        assert!(!files.data(b"x"));
        files.complete(5);
        let (files, omitted) = files.finish();
        let kept: Vec<_> = files.iter().map(|stored| stored.file.kept).collect();
        assert_eq!(kept, [false, true, true]);
        assert_eq!(omitted, 6);

        let mut files = collector();
        for path in ["a", "b"] {
            files.file(path.into(), 10);
            files.data(b"0123456789");
        }
        let (files, omitted) = files.finish();
        assert_eq!(omitted, 1, "nobody said that these are all");
        assert!(
            files[0].file.kept && !files[1].file.kept,
            "the total is bounded"
        );
    }

    #[test]
    fn paths_that_lead_elsewhere_are_left_out() {
        let mut files = collector();
        for path in [
            "",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a//b",
            "./a",
            "a/",
            "a\0",
            &"x".repeat(256),
        ] {
            files.file(path.into(), 0);
        }
        files.file("..a/b..".into(), 0);
        files.file("..a/b..".into(), 0);
        let (files, omitted) = files.finish();
        assert_eq!(files.len(), 1);
        assert_eq!(omitted, 10);
    }
}
