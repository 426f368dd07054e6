//! The writing end of a log.
//!
//! Many processes may write one log. Each entry is appended under an advisory lock (`flock`) on the
//! head, which stays while logs come and go: whoever has it knows where the chain ends, may take
//! back what was written in part, and may begin a new file. Whoever ignores the lock can still
//! append, and `verify` finds it. Nothing here waits longer than the deadline.
//!
//! The head is written after the entry. A writer that is killed between the two leaves entries
//! that go on from the head, which the next writer takes over; one that is killed within the entry
//! leaves a line without an end, which stays, and whose hash the next entry carries. Anything else
//! that does not fit the head is left for `verify` to find: the chain goes on from the head.

use std::fs::{File, TryLockError};
use std::io::{self, BufReader, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::chain::{HEAD_BYTES, Hash, Head, Link, SEAL_ROOM, seal};
use crate::error::FileAuditError;
use crate::place::Place;
use crate::{FileAuditOptions, LOCK_WAIT, append, lines};

/// First pause between two attempts to get the lock; it doubles up to `MAX_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const MAX_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Writer {
    place: Place,
    head: File,
    log: File,
    options: FileAuditOptions,
}

impl Writer {
    pub(crate) fn open(path: &Path, options: FileAuditOptions) -> Result<Self, FileAuditError> {
        let place = Place::of(path, true)?;
        place.check_directory()?;
        // A log that cannot be opened must not leave a head behind.
        let is_new = place.stat(place.log_name())?.is_none();
        // It is written at its start.
        let head = |place: &Place| {
            let opened = place.open(&place.head_name(), OFlags::empty());
            opened.map_err(FileAuditError::of_head)
        };
        let (head, log) = if is_new {
            let head = head(&place)?;
            let log = place.open(place.log_name(), OFlags::APPEND)?;
            (head, log)
        } else {
            let log = place.open(place.log_name(), OFlags::APPEND)?;
            (head(&place)?, log)
        };
        let writer = Self {
            place,
            head,
            log,
            options,
        };
        if is_new {
            writer.begin()?;
        }
        Ok(writer)
    }

    /// A log without entries has a head that says so: an empty one was emptied.
    fn begin(&self) -> Result<(), FileAuditError> {
        lock(&self.head, Instant::now() + LOCK_WAIT, File::try_lock)?;
        let begun = read_head(&self.head).map_err(write);
        let begun = begun.and_then(|head| match (head, self.log.metadata()) {
            (None, Ok(log)) if log.size() == 0 => self.write_head(&Head::new()),
            _ => Ok(()),
        });
        self.head.unlock().map_err(write)?;
        begun
    }

    /// Appends an entry, a JSON object with its line break, or leaves the log as it was.
    pub(crate) fn append(
        &mut self,
        entry: Vec<u8>,
        deadline: Instant,
    ) -> Result<(), FileAuditError> {
        lock(&self.head, deadline, File::try_lock)?;
        let written = self.append_locked(entry);
        match self.head.unlock() {
            // The first error tells more.
            Ok(()) => written,
            Err(source) => written.and(Err(FileAuditError::Write { source })),
        }
    }

    fn append_locked(&mut self, entry: Vec<u8>) -> Result<(), FileAuditError> {
        let size = self.follow()?;
        let (mut head, torn) = self.end_of_chain(size)?;
        let full = size + (entry.len() + SEAL_ROOM) as u64 > self.options.max_bytes;
        let size = if full && size > 0 && torn.is_none() {
            self.begin_a_new_file(&mut head)?;
            0
        } else {
            size
        };
        let seq = head.seq.checked_add(1).ok_or(FileAuditError::Numbers)?;
        let link = Link {
            seq,
            previous: head.hash,
            torn,
        };
        let mut line = seal(entry, &link)?;
        head.hash = Hash::of(&line[..line.len() - 1]);
        head.seq = link.seq;
        if link.torn.is_some() {
            // What is there stays, on a line of its own.
            line.insert(0, b'\n');
        }
        head.size = size + line.len() as u64;
        append::line(&mut self.log, &line, size)?;
        let synced = if self.options.sync {
            self.log.sync_data().map_err(write)
        } else {
            Ok(())
        };
        synced
            .and_then(|()| self.write_head(&head))
            // The caller is told that nothing was recorded, so nothing may be.
            .inspect_err(|_| drop(self.log.set_len(size)))
    }

    /// Looks whether the files are still those of the log, and tells its size.
    fn follow(&mut self) -> Result<u64, FileAuditError> {
        let ours = self.log.metadata().map_err(write)?;
        let head = self.head.metadata().map_err(write)?;
        if ours.nlink() == 0 || head.nlink() == 0 {
            return Err(FileAuditError::Deleted);
        }
        let named = self.place.stat(self.place.log_name())?;
        if named.is_some_and(|stat| stat.st_dev == ours.dev() && stat.st_ino == ours.ino()) {
            return Ok(ours.size());
        }
        // Another writer found it full.
        self.log = self.place.open(self.place.log_name(), OFlags::APPEND)?;
        Ok(self.log.metadata().map_err(write)?.size())
    }

    /// Where the chain ends, and what is after it in the file without a line break.
    fn end_of_chain(&self, size: u64) -> Result<(Head, Option<Hash>), FileAuditError> {
        let head = read_head(&self.head).map_err(write)?;
        if let Some(head) = &head
            && head.size == size
        {
            return Ok((head.clone(), None));
        }
        let lost = head.is_none() && size > 0;
        let mut head = head.unwrap_or_else(Head::new);
        let mut reader = BufReader::new(&self.log);
        // What is shorter than the head says was cut, maybe within a line.
        let from = if lost || head.size > size {
            0
        } else {
            head.size
        };
        reader.seek(SeekFrom::Start(from)).map_err(write)?;
        let mut torn = None;
        while let Some(line) = lines::next(&mut reader).map_err(write)? {
            if !line.ended {
                torn = Some(line.hash);
                break;
            }
            if let Some(link) = Link::of(&line.text)
                && (lost || head.goes_on_with(&link))
            {
                head.seq = link.seq;
                head.hash = line.hash;
            }
        }
        if lost {
            // Nobody can tell what was before.
            head.first = head.seq.saturating_add(1);
        }
        Ok((head, torn))
    }

    fn begin_a_new_file(&mut self, head: &mut Head) -> Result<(), FileAuditError> {
        self.place.put_away(head.seq)?;
        self.log = self.place.open(self.place.log_name(), OFlags::APPEND)?;
        head.size = 0;
        let mut remove = Vec::new();
        if let Some(keep) = self.options.keep {
            let full = self.place.full()?;
            let end = full
                .len()
                .saturating_sub(keep.try_into().unwrap_or(usize::MAX));
            remove.extend_from_slice(&full[..end]);
        }
        if let Some(last) = remove.last() {
            head.first = head.first.max(last.saturating_add(1));
        }
        // First, so that no entry is missed that a crash left behind.
        self.write_head(head)?;
        remove
            .iter()
            .try_for_each(|last| self.place.remove_full(*last))
    }

    fn write_head(&self, head: &Head) -> Result<(), FileAuditError> {
        self.head.write_all_at(&head.encode()?, 0).map_err(write)
    }
}

/// What the head says.
pub(crate) fn read_head(file: &File) -> io::Result<Option<Head>> {
    let mut content = [0; HEAD_BYTES];
    match file.read_exact_at(&mut content, 0) {
        Ok(()) => Ok(Head::parse(&content)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(source: io::Error) -> FileAuditError {
    FileAuditError::Write { source }
}

/// Waits for a lock, by one of the ways of trying it.
pub(crate) fn lock(
    file: &File,
    deadline: Instant,
    try_lock: fn(&File) -> Result<(), TryLockError>,
) -> Result<(), FileAuditError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match try_lock(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {
                continue;
            }
            Err(TryLockError::Error(source)) => return Err(write(source)),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FileAuditError::Locked);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
