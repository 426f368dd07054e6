//! Reading the entries of a log, of all its files in order.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mcp_forge_ports::PortError;
use serde_json::{Map, Value};

use crate::error::FileAuditError;
use crate::lines::{self, Line};
use crate::place::Place;

/// An entry: its line and what that says.
#[derive(Debug, Clone)]
pub struct Entry {
    /// As it is in the file, without its line break.
    pub line: String,
    /// Its members.
    pub members: Map<String, Value>,
}

impl Entry {
    fn of(line: Line) -> Option<Self> {
        let line = String::from_utf8(line.text).ok()?;
        let members = serde_json::from_str(&line).ok()?;
        Some(Self { line, members })
    }

    /// A member that is a text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.members.get(name)?.as_str()
    }
}

/// Gives every entry to `take`, oldest first. What is no entry is passed over: [`crate::verify`]
/// tells of it.
///
/// # Errors
///
/// `NotFound` when there is no log at `path`; when it cannot be read.
pub fn entries(path: &Path, mut take: impl FnMut(Entry)) -> Result<(), PortError> {
    let mut all = || {
        let place = Place::of(path, false).map_err(missing)?;
        // Opened first: it may be put away while the others are read.
        let mut newest = place.read(place.log_name())?;
        let full = place.full()?;
        if newest.is_none() && full.is_empty() {
            return Err(FileAuditError::Missing);
        }
        for last in full {
            // One that was removed since is no longer of the log.
            let Some(file) = place.read(&place.full_name(last))? else {
                continue;
            };
            if newest.as_ref().is_some_and(|newest| same(newest, &file)) {
                newest = place.read(place.log_name())?;
            }
            give(file, &mut take)?;
        }
        newest.map_or(Ok(()), |newest| give(newest, &mut take))
    };
    all().map_err(|error: FileAuditError| error.into_port(path))
}

fn give(file: File, take: &mut impl FnMut(Entry)) -> Result<(), FileAuditError> {
    let mut reader = BufReader::new(file);
    while let Some(line) = lines::next(&mut reader).map_err(read)? {
        if let Some(entry) = Entry::of(line) {
            take(entry);
        }
    }
    Ok(())
}

/// First part of a file that is read from its end, bytes.
const LAST_PART: u64 = 64 << 10;

/// The newest entries, at most so many, oldest first. Reads no more of the log than it has to.
///
/// # Errors
///
/// As [`entries`].
pub fn newest(path: &Path, most: usize) -> Result<Vec<Entry>, PortError> {
    let all = || {
        let place = Place::of(path, false).map_err(missing)?;
        let newest = place.read(place.log_name())?;
        let full = place.full()?;
        if newest.is_none() && full.is_empty() {
            return Err(FileAuditError::Missing);
        }
        let mut found = VecDeque::new();
        if let Some(newest) = &newest {
            take_last(newest, most, &mut found)?;
        }
        for last in full.into_iter().rev() {
            if found.len() >= most {
                break;
            }
            if let Some(file) = place.read(&place.full_name(last))?
                // It was put away since.
                && !newest.as_ref().is_some_and(|newest| same(newest, &file))
            {
                take_last(&file, most - found.len(), &mut found)?;
            }
        }
        Ok(found.into())
    };
    all().map_err(|error: FileAuditError| error.into_port(path))
}

/// Puts the last entries of a file before what was found.
fn take_last(file: &File, most: usize, found: &mut VecDeque<Entry>) -> Result<(), FileAuditError> {
    let size = file.metadata().map_err(read)?.size();
    let mut part = LAST_PART;
    loop {
        let begin = size.saturating_sub(part);
        let mut reader = BufReader::new(file);
        reader.seek(SeekFrom::Start(begin)).map_err(read)?;
        let mut reader = reader.take(size - begin);
        if begin > 0 {
            // It begins somewhere before.
            lines::next(&mut reader).map_err(read)?;
        }
        let mut last = VecDeque::new();
        while let Some(line) = lines::next(&mut reader).map_err(read)? {
            if let Some(entry) = Entry::of(line) {
                if last.len() == most {
                    last.pop_front();
                }
                if most > 0 {
                    last.push_back(entry);
                }
            }
        }
        if last.len() >= most || begin == 0 {
            last.into_iter()
                .rev()
                .for_each(|entry| found.push_front(entry));
            return Ok(());
        }
        part = part.saturating_mul(4);
    }
}

fn same(file: &File, other: &File) -> bool {
    let of = |file: &File| file.metadata().map(|m| (m.dev(), m.ino())).ok();
    of(file) == of(other)
}

pub(crate) fn missing(error: FileAuditError) -> FileAuditError {
    match error {
        FileAuditError::Open { source } if source.kind() == std::io::ErrorKind::NotFound => {
            FileAuditError::Missing
        }
        error => error,
    }
}

pub(crate) fn read(source: std::io::Error) -> FileAuditError {
    FileAuditError::Read { source }
}

/// Follows a log from its end on, also into the files that come.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    place: Place,
    file: Option<BufReader<File>>,
    /// Where the first line begins that was not given yet, bytes.
    position: u64,
}

impl Follower {
    /// From the end that the log has now; it may still come.
    ///
    /// # Errors
    ///
    /// When its directory or the log cannot be read.
    pub fn at_end(path: &Path) -> Result<Self, PortError> {
        let open = || {
            let place = Place::of(path, false).map_err(missing)?;
            let file = place.read(place.log_name())?;
            let position = match &file {
                Some(file) => file.metadata().map_err(read)?.size(),
                None => 0,
            };
            Ok(Self {
                path: path.to_owned(),
                file: file.map(BufReader::new),
                place,
                position,
            })
        };
        open().map_err(|error: FileAuditError| error.into_port(path))
    }

    /// Where it goes on in the file, bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The entries that came since.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn news(&mut self) -> Result<Vec<Entry>, PortError> {
        let mut news = Vec::new();
        self.read_news(&mut news)
            .map_err(|error| error.into_port(&self.path))?;
        Ok(news)
    }

    fn read_news(&mut self, news: &mut Vec<Entry>) -> Result<(), FileAuditError> {
        // What the name leads to is looked at first: what is written to the old file is before.
        let named = self.place.stat(self.place.log_name())?;
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(self.position)).map_err(read)?;
            while let Some(line) = lines::next(file).map_err(read)? {
                if !line.ended {
                    break;
                }
                self.position += line.size;
                news.extend(Entry::of(line));
            }
            let ours = file.get_ref().metadata().map_err(read)?;
            if named.is_none_or(|stat| stat.st_dev == ours.dev() && stat.st_ino == ours.ino()) {
                return Ok(());
            }
        }
        self.file = self.place.read(self.place.log_name())?.map(BufReader::new);
        self.position = 0;
        if self.file.is_some() {
            return self.read_news(news);
        }
        Ok(())
    }
}
