//! The runs that go on and those that ended lately: how far each has come, its answer, and what is
//! kept of it. It starts and stops nothing but by a run's own token.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::{Blob, BlobStore};
use mcp_forge_ports::vocabulary::{
    EndedBy, ExecutionOutcome, Language, OutputBlock, OutputFile, Refusal, RunBytes, RunLog,
    RunPart, RunState, RunStatus,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::output::files::StoredFile;
use crate::output::{json_size, newest_line};

pub(super) type Answer = Result<Arc<ExecutionOutcome>, Refusal>;

/// How much is kept of runs that have ended, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// For how long.
    pub time: Duration,
    /// Of how many runs.
    pub runs: usize,
    /// Bytes of all of them together; the last run is kept in any case.
    pub bytes: u64,
}

/// Bytes of the newest output that are looked at for its last line.
const TAIL: usize = 1024;

/// What an answer takes in memory besides its texts, about, bytes.
const ANSWER: u64 = 4096;

#[derive(Debug, Clone)]
enum Stage {
    /// Nothing was decided yet.
    Accepted,
    Queued(usize),
    Starting,
    Running,
    Ended {
        answer: Answer,
        at: Duration,
    },
}

/// One run.
pub(super) struct Entry {
    pub(super) run_id: String,
    pub(super) correlation_id: String,
    language: Language,
    requested_at: SystemTime,
    /// The same by the monotonic clock.
    began: Duration,
    pub(super) cancel: CancellationToken,
    stage: watch::Sender<Stage>,
    /// Who would miss the answer; the run is cancelled with the last of them.
    waiting: AtomicUsize,
    /// Nobody waits, and it goes on all the same.
    background: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    tail: Vec<u8>,
    log: Option<(Arc<dyn Blob>, RunLog)>,
    files: Option<(Arc<dyn Blob>, Vec<StoredFile>)>,
    bytes: u64,
}

impl Entry {
    pub(super) fn new(
        (run_id, correlation_id): (String, String),
        language: Language,
        requested_at: SystemTime,
        began: Duration,
    ) -> Self {
        Self {
            run_id,
            correlation_id,
            language,
            requested_at,
            began,
            cancel: CancellationToken::new(),
            stage: watch::Sender::new(Stage::Accepted),
            waiting: AtomicUsize::new(0),
            background: AtomicBool::new(false),
            kept: Mutex::default(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn queued(&self, position: usize) {
        self.stage.send_replace(Stage::Queued(position));
    }

    pub(super) fn starting(&self) {
        self.stage.send_replace(Stage::Starting);
    }

    pub(super) fn running(&self) {
        self.stage.send_replace(Stage::Running);
    }

    fn end(&self, answer: Answer, at: Duration) {
        let weight = answer.as_ref().map_or(0, |outcome| size(outcome));
        {
            let mut kept = self.kept();
            kept.tail = Vec::new();
            kept.bytes += weight + ANSWER;
        }
        self.stage.send_replace(Stage::Ended { answer, at });
    }

    /// Keeps bytes of a stream, up to `most` of them.
    pub(super) async fn log(&self, store: &dyn BlobStore, bytes: &[u8], most: u64) {
        let blob = {
            let mut kept = self.kept();
            let new = &bytes[bytes.len().saturating_sub(TAIL)..];
            let excess = (kept.tail.len() + new.len()).saturating_sub(TAIL);
            kept.tail.drain(..excess);
            kept.tail.extend_from_slice(new);
            let whole = RunLog {
                bytes: 0,
                complete: true,
            };
            let (blob, log) = kept
                .log
                .get_or_insert_with(|| (store.create().into(), whole));
            if !log.complete {
                return;
            }
            if log.bytes + bytes.len() as u64 > most {
                log.complete = false;
                return;
            }
            Arc::clone(blob)
        };
        let added = blob.append(bytes.to_vec()).await;
        let mut kept = self.kept();
        let Kept {
            log: Some((_, log)),
            bytes: sum,
            ..
        } = &mut *kept
        else {
            return;
        };
        match added {
            Ok(()) => {
                log.bytes += bytes.len() as u64;
                *sum += bytes.len() as u64;
            }
            Err(error) => {
                log.complete = false;
                tracing::warn!(
                    run_id = self.run_id,
                    error = error.chain(),
                    "log incomplete"
                );
            }
        }
    }

    pub(super) fn run_log(&self) -> Option<RunLog> {
        self.kept().log.as_ref().map(|(_, log)| *log)
    }

    pub(super) fn store_files(&self, blob: Arc<dyn Blob>, files: Vec<StoredFile>) {
        let mut kept = self.kept();
        let contents = files.iter().filter(|stored| stored.file.kept);
        kept.bytes += contents.map(|stored| stored.file.size).sum::<u64>();
        // The outcome has their names too.
        let names = files.iter().map(|stored| stored.file.path.len());
        kept.bytes += 2 * (names.sum::<usize>() + files.len() * size_of::<StoredFile>()) as u64;
        kept.files = Some((blob, files));
    }

    /// Returns when the run has an answer.
    pub(super) async fn answer(&self) -> Answer {
        let mut stage = self.stage.subscribe();
        loop {
            if let Stage::Ended { answer, .. } = &*stage.borrow_and_update() {
                return answer.clone();
            }
            // The sender is in `self`.
            let _ = stage.changed().await;
        }
    }

    /// Returns when it is known whether the run may go on, with the refusal if it may not.
    pub(super) async fn decided(&self) -> Result<(), Refusal> {
        let mut stage = self.stage.subscribe();
        loop {
            match &*stage.borrow_and_update() {
                Stage::Accepted => {}
                Stage::Ended {
                    answer: Err(refusal),
                    ..
                } => return Err(refusal.clone()),
                _ => return Ok(()),
            }
            let _ = stage.changed().await;
        }
    }

    pub(super) fn status(&self, now: Duration) -> RunStatus {
        let stage = self.stage.borrow().clone();
        let (state, until, answer) = match stage {
            Stage::Accepted | Stage::Starting => (RunState::Starting, now, None),
            Stage::Queued(position) => (RunState::Queued { position }, now, None),
            Stage::Running => (RunState::Running, now, None),
            Stage::Ended { answer, at } => (RunState::Ended, at, Some(answer)),
        };
        RunStatus {
            run_id: self.run_id.clone(),
            correlation_id: self.correlation_id.clone(),
            language: self.language,
            state,
            requested_at: self.requested_at,
            age: until.saturating_sub(self.began),
            newest_line: newest_line(&self.kept().tail),
            answer,
        }
    }

    /// Reads of a part; none when there is no such part.
    pub(super) async fn read(
        &self,
        part: &RunPart,
        range: Range<u64>,
    ) -> Option<Result<RunBytes, PortError>> {
        let (blob, mime_type, offset, total) = match part {
            RunPart::Picture(number) => return self.picture(*number, range).map(Ok),
            RunPart::Log => {
                let kept = self.kept();
                let (blob, log) = kept.log.as_ref()?;
                let mime_type = "text/plain".to_owned();
                (Arc::clone(blob), mime_type, 0, log.bytes)
            }
            RunPart::File(path) => {
                let kept = self.kept();
                let (blob, files) = kept.files.as_ref()?;
                let stored = files.iter().find(|stored| stored.file.path == *path)?;
                let OutputFile {
                    mime_type,
                    size,
                    kept: true,
                    ..
                } = &stored.file
                else {
                    return None;
                };
                (Arc::clone(blob), mime_type.clone(), stored.offset, *size)
            }
        };
        let Range { start, end } = within(range, total);
        let length = usize::try_from(end - start).unwrap_or(usize::MAX);
        let read = blob.read(offset + start, length).await;
        Some(read.map(|data| RunBytes {
            mime_type,
            total,
            data,
        }))
    }

    fn picture(&self, number: usize, range: Range<u64>) -> Option<RunBytes> {
        let Stage::Ended {
            answer: Ok(outcome),
            ..
        } = self.stage.borrow().clone()
        else {
            return None;
        };
        let picture = outcome
            .blocks
            .iter()
            .filter_map(|block| match block {
                OutputBlock::Image { picture, .. } => Some(picture),
                _ => None,
            })
            .nth(number)?;
        let total = picture.data.len() as u64;
        let Range { start, end } = within(range, total);
        Some(RunBytes {
            mime_type: picture.mime_type.clone(),
            total,
            // Both are lengths of memory.
            data: picture.data[start as usize..end as usize].to_vec(),
        })
    }

    #[cfg(test)]
    pub(super) fn waiters(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn ended_at(&self) -> Option<Duration> {
        match *self.stage.borrow() {
            Stage::Ended { at, .. } => Some(at),
            _ => None,
        }
    }
}

/// The part of a range that is there; never one that ends before it begins.
fn within(range: Range<u64>, total: u64) -> Range<u64> {
    let start = range.start.min(total);
    start..range.end.clamp(start, total)
}

/// Somebody who waits for the answer of a run.
pub(super) struct Waiter(Arc<Entry>);

impl Waiter {
    pub(super) fn new(entry: &Arc<Entry>) -> Self {
        entry.waiting.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(entry))
    }

    /// Waits for good: the run goes on without anybody.
    pub(super) fn stays(self) {
        self.0.background.store(true, Ordering::SeqCst);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let is_last = self.0.waiting.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && !self.0.background.load(Ordering::SeqCst) {
            self.0.cancel.cancel();
        }
    }
}

/// The runs.
#[derive(Default)]
pub(super) struct Registry {
    runs: Mutex<Runs>,
}

#[derive(Default)]
struct Runs {
    /// In order of arrival.
    entries: BTreeMap<u64, Arc<Entry>>,
    next: u64,
    /// By idempotency key: the SHA-256 of the request and its run.
    keys: HashMap<String, (String, Arc<Entry>)>,
}

/// What an idempotency key says.
pub(super) enum Known {
    /// Nothing: the run is a new one, and is known from now on.
    New,
    /// This run is that request.
    Same(Arc<Entry>),
    /// It was used for another request.
    Other,
}

impl Registry {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a run, unless its key belongs to one already.
    pub(super) fn add(&self, entry: &Arc<Entry>, key: Option<(String, String)>) -> Known {
        let mut runs = self.runs();
        if let Some((key, request)) = key {
            // One that is being cancelled will have no answer to share.
            let known = runs.keys.get(&key);
            match known.filter(|(_, run)| run.ended_at().is_some() || !run.cancel.is_cancelled()) {
                Some((known, run)) if *known == request => return Known::Same(Arc::clone(run)),
                Some(_) => return Known::Other,
                None => runs.keys.insert(key, (request, Arc::clone(entry))),
            };
        }
        let number = runs.next;
        runs.next += 1;
        runs.entries.insert(number, Arc::clone(entry));
        Known::New
    }

    /// A run has its answer.
    pub(super) fn end(
        &self,
        entry: &Arc<Entry>,
        answer: Answer,
        now: Duration,
        retention: Retention,
    ) {
        // What was not run, or not to its end, may be asked for again.
        let repeatable = match &answer {
            Ok(outcome) => outcome.ended_by == EndedBy::Cancelled,
            Err(_) => true,
        };
        if repeatable {
            self.runs()
                .keys
                .retain(|_, (_, run)| !Arc::ptr_eq(run, entry));
        }
        let refused = answer.is_err();
        entry.end(answer, now);
        // Whoever waits has the answer; refusals must not crowd out results.
        if refused && !entry.background.load(Ordering::SeqCst) {
            self.remove(entry);
        }
        self.forget(now, retention);
    }

    pub(super) fn remove(&self, entry: &Arc<Entry>) {
        self.runs()
            .entries
            .retain(|_, known| !Arc::ptr_eq(known, entry));
    }

    /// Drops what is not kept any longer.
    pub(super) fn forget(&self, now: Duration, retention: Retention) {
        let mut runs = self.runs();
        let (mut count, mut bytes) = (0, 0);
        let mut gone = Vec::new();
        for (number, entry) in runs.entries.iter().rev() {
            let Some(ended_at) = entry.ended_at() else {
                continue;
            };
            count += 1;
            bytes += entry.kept().bytes;
            let old = now.saturating_sub(ended_at) >= retention.time;
            if old || count > retention.runs || (count > 1 && bytes > retention.bytes) {
                gone.push(*number);
            }
        }
        for number in gone {
            if let Some(entry) = runs.entries.remove(&number) {
                runs.keys.retain(|_, (_, run)| !Arc::ptr_eq(run, &entry));
            }
        }
    }

    pub(super) fn get(&self, run_id: &str) -> Option<Arc<Entry>> {
        let runs = self.runs();
        let found = runs.entries.values().find(|entry| entry.run_id == run_id);
        found.map(Arc::clone)
    }

    /// The newest first.
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        self.runs().entries.values().rev().map(Arc::clone).collect()
    }
}

/// About the memory of an outcome, bytes.
fn size(outcome: &ExecutionOutcome) -> u64 {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let blocks = outcome.blocks.iter().map(|block| match block {
        OutputBlock::Stream { text, .. }
        | OutputBlock::Message { text }
        | OutputBlock::Warning { text, .. }
        | OutputBlock::Text { text } => text.len(),
        OutputBlock::Value { json, repr } => repr.len() + json.as_ref().map_or(0, json_size),
        OutputBlock::Error(error) => error.message.len() + error.traceback.len(),
        OutputBlock::Image {
            picture,
            text: plain,
        } => picture.data.len() + text(plain),
        OutputBlock::Html { html, text: plain } => html.len() + text(plain),
        OutputBlock::Json { json, text: plain } => json_size(json) + text(plain),
        _ => 0,
    });
    let twice = outcome.result.as_ref().map_or(0, json_size) + text(&outcome.result_repr);
    let sum = blocks.sum::<usize>() + outcome.stdout.len() + outcome.stderr.len() + twice;
    sum as u64
}
