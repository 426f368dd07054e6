//! Whether a log is as it was written.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use mcp_forge_ports::PortError;
use serde::Serialize;

use crate::LOCK_WAIT;
use crate::chain::{Hash, Head, Link};
use crate::entry::ENTRY;
use crate::error::FileAuditError;
use crate::lines::{self, Line};
use crate::place::Place;
use crate::read::{missing, read};
use crate::writer::{lock, read_head};

/// Most findings that are told one by one.
pub const MAX_FINDINGS: usize = 100;

/// One thing that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file's name; nothing where it is of no one file.
    pub file: Option<String>,
    /// From 1.
    pub line: Option<u64>,
    /// What is wrong.
    pub what: String,
}

/// What was looked at and found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Whether nothing was found.
    pub intact: bool,
    /// Files that were read.
    pub files: usize,
    /// Entries that were read.
    pub entries: u64,
    /// Number of the oldest entry.
    pub first: Option<u64>,
    /// Number of the newest entry.
    pub last: Option<u64>,
    /// Its hash: who keeps both elsewhere can prove later that nothing before was changed.
    pub hash: Option<Hash>,
    /// Lines that a writer left without an end because it was ended while it wrote. Nothing was
    /// recorded by them.
    pub torn: u64,
    /// What lets others change the log, without that anything was found to be changed.
    pub remarks: Vec<String>,
    /// What was found, in order.
    pub findings: Vec<Finding>,
    /// How many more there are.
    pub more_findings: u64,
}

/// Reads the whole log at `path` and compares it with its chain and its head. With `expected`, the
/// number and the hash of an entry that were kept elsewhere, also with those.
///
/// The log may be written meanwhile: what comes later is not looked at. Memory is bounded by the
/// longest line.
///
/// # Errors
///
/// `NotFound` when there is no log; when it cannot be read, which says nothing about it.
pub fn verify(path: &Path, expected: Option<(u64, &str)>) -> Result<Verification, PortError> {
    let look = || {
        let place = Place::of(path, false).map_err(missing)?;
        let Snapshot { head, full, newest } = snapshot(&place)?;
        let mut walk = Walk::new(head, expected);
        walk.found.remarks = place.remarks();
        // One after the other: there may be more of them than a process may have open.
        for last in full {
            let name = place.full_name(last);
            match place.read(&name)? {
                Some(file) => walk.file(&name, file)?,
                // Nothing of it was looked at, and it is not kept any more.
                None => {
                    let now = place.read(&place.head_name())?;
                    walk.begins_later(head_in(now.as_ref())?, last);
                }
            }
        }
        if let Some((file, size)) = newest {
            walk.file(place.log_name(), file.take(size))?;
        }
        Ok(walk.end())
    };
    look().map_err(|error: FileAuditError| error.into_port(path))
}

/// A log at one moment.
struct Snapshot {
    head: Option<Head>,
    /// The files that are full, by the number of their last entry.
    full: Vec<u64>,
    /// The one that is written, and its size.
    newest: Option<(File, u64)>,
}

fn snapshot(place: &Place) -> Result<Snapshot, FileAuditError> {
    let file = place.read(&place.head_name())?;
    if let Some(file) = &file {
        lock(file, Instant::now() + LOCK_WAIT, File::try_lock_shared)?;
    }
    let head = head_in(file.as_ref())?;
    let newest = place.read(place.log_name())?;
    let newest = newest.map(|file| file.metadata().map(|log| (file, log.size())));
    let newest = newest.transpose().map_err(read)?;
    let first = head.as_ref().map_or(0, |head| head.first);
    let mut full = place.full()?;
    // Those before are to be removed: a writer was ended before it could.
    full.retain(|last| *last >= first);
    if newest.is_none() && full.is_empty() && head.is_none() {
        return Err(FileAuditError::Missing);
    }
    // The lock ends with the descriptor.
    Ok(Snapshot { head, full, newest })
}

fn head_in(file: Option<&File>) -> Result<Option<Head>, FileAuditError> {
    let head = file.map(read_head).transpose().map_err(read)?;
    Ok(head.flatten())
}

/// A line that waits for the next one, which may tell that it is torn.
struct Held {
    line: Line,
    link: Option<Link>,
    file: String,
    number: u64,
}

/// Whether a line may be what a writer left of an entry.
fn is_begun(line: &Line) -> bool {
    let both = ENTRY.len().min(line.text.len());
    both > 0 && line.text[..both] == ENTRY[..both]
}

struct Walk<'a> {
    head: Option<Head>,
    expected: Option<(u64, &'a str)>,
    /// Number and hash of the entry before.
    before: Option<(u64, Hash)>,
    held: Option<Held>,
    found: Verification,
}

impl<'a> Walk<'a> {
    fn new(head: Option<Head>, expected: Option<(u64, &'a str)>) -> Self {
        Self {
            head,
            expected,
            before: None,
            held: None,
            found: Verification {
                intact: true,
                files: 0,
                entries: 0,
                first: None,
                last: None,
                hash: None,
                torn: 0,
                remarks: Vec::new(),
                findings: Vec::new(),
                more_findings: 0,
            },
        }
    }

    fn find(&mut self, at: Option<(&str, u64)>, what: String) {
        self.found.intact = false;
        if self.found.findings.len() == MAX_FINDINGS {
            self.found.more_findings += 1;
            return;
        }
        self.found.findings.push(Finding {
            file: at.map(|(file, _)| file.to_owned()),
            line: at.map(|(_, line)| line),
            what,
        });
    }

    /// The files up to the one that ends with this entry were removed meanwhile.
    fn begins_later(&mut self, now: Option<Head>, last: u64) {
        if let (Some(head), Some(now)) = (&mut self.head, now)
            && now.first > last
            && self.before.is_none()
        {
            head.first = now.first;
        }
    }

    fn file(&mut self, name: &OsStr, file: impl Read) -> Result<(), FileAuditError> {
        let name = name.to_string_lossy().into_owned();
        self.found.files += 1;
        let mut reader = BufReader::new(file);
        let mut number = 0;
        while let Some(line) = lines::next(&mut reader).map_err(read)? {
            number += 1;
            let link = Link::of(&line.text);
            let torn = link.as_ref().and_then(|link| link.torn.as_ref());
            if let Some(held) = self.held.take() {
                if torn == Some(&held.line.hash) && is_begun(&held.line) {
                    self.found.torn += 1;
                } else {
                    self.line(held);
                }
            }
            self.held = Some(Held {
                line,
                link,
                file: name.clone(),
                number,
            });
        }
        Ok(())
    }

    fn line(&mut self, held: Held) {
        let at = Some((held.file.as_str(), held.number));
        let Some(link) = held.link else {
            self.find(at, "no entry: it was changed or put there".to_owned());
            return;
        };
        let seq = link.seq;
        let (expected, previous) = match (&self.before, &self.head) {
            (Some((before, hash)), _) => (before.saturating_add(1), Some(hash.clone())),
            (None, Some(head)) => (head.first, (head.first == 1).then(Hash::zero)),
            (None, None) => (1, (seq == 1).then(Hash::zero)),
        };
        if seq > expected {
            let what = match seq - expected {
                1 => format!("entry {expected} before it is missing"),
                _ => format!("entries {expected} to {} before it are missing", seq - 1),
            };
            self.find(at, what);
        } else if seq < expected {
            let first = self.before.is_none();
            let what = if first {
                format!(
                    "entry {seq} is older than the head of the log ({expected}): the head was lost"
                )
            } else {
                format!("entry {seq} is repeated or out of order: {expected} was to come")
            };
            self.find(at, what);
        } else if previous.is_some_and(|previous| previous != link.previous) {
            let what = if seq == 1 {
                "entry 1 does not begin the chain: it was changed".to_owned()
            } else {
                format!(
                    "entry {} before it was changed, or this one was",
                    seq.saturating_sub(1)
                )
            };
            self.find(at, what);
        }
        let hash = held.line.hash;
        let by_head = self
            .head
            .as_ref()
            .map(|head| (head.seq, head.hash.as_str()));
        let changed = [by_head, self.expected]
            .into_iter()
            .flatten()
            .any(|(kept, of)| kept == seq && of != hash.as_str());
        if changed {
            let what = format!("entry {seq} was changed: another hash of it was kept");
            self.find(at, what);
        }
        self.found.entries += 1;
        self.found.first.get_or_insert(seq);
        self.before = Some((seq, hash));
    }

    fn end(mut self) -> Verification {
        match self.held.take() {
            // Being written, or its writer was ended.
            Some(held) if !held.line.ended && is_begun(&held.line) => self.found.torn += 1,
            Some(held) => self.line(held),
            None => {}
        }
        let last = self.before.as_ref().map_or(0, |(seq, _)| *seq);
        match &self.head {
            None => self.find(
                None,
                "the head is missing or unreadable: entries at the end may be missing".to_owned(),
            ),
            Some(head) if head.seq > last => {
                let what = match head.seq - last {
                    1 => format!("entry {} at the end is missing", head.seq),
                    _ => format!(
                        "entries {} to {} at the end are missing",
                        last + 1,
                        head.seq
                    ),
                };
                self.find(None, what);
            }
            Some(_) => {}
        }
        if let Some((seq, _)) = self.expected
            && !(self.found.first.is_some_and(|first| first <= seq) && seq <= last)
        {
            self.find(
                None,
                format!("entry {seq}, whose hash was kept, is not there"),
            );
        }
        self.found.last = self.before.as_ref().map(|(seq, _)| *seq);
        self.found.hash = self.before.map(|(_, hash)| hash);
        self.found
    }
}
