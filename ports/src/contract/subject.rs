//! What cases do with a subject.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Subject;
use crate::driven::{ByteStream, GuestRun};
use crate::vocabulary::{
    CollectLimits, GuestEvent, GuestExit, GuestHello, GuestJob, InputFile, Language, OutputStream,
    ResourceLimits, RunnerReport, SandboxExit, SandboxId, SandboxRoot, SandboxSpec,
};
use crate::{PortError, PortErrorKind};

/// A name that no other case has.
pub(super) fn id() -> SandboxId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    SandboxId(format!("case-{process}-{}-{number}", now.as_micros()))
}

pub(super) fn limits() -> ResourceLimits {
    ResourceLimits {
        memory_bytes: 256 << 20,
        cpu_quota: 100_000,
        pids: 64,
        // R takes no fewer.
        descriptors: 256,
        tmp_bytes: 8 << 20,
        workspace_bytes: 16 << 20,
        timeout: Duration::from_secs(60),
    }
}

pub(super) fn spec(id: &SandboxId) -> SandboxSpec {
    SandboxSpec {
        id: id.clone(),
        root: SandboxRoot::Host,
        limits: limits(),
    }
}

/// A program in Python.
pub(super) fn job(code: &str) -> GuestJob {
    GuestJob {
        language: Language::Python,
        code: code.to_owned(),
        source_name: "case.py".to_owned(),
        stdin: None,
        files: Vec::new(),
        collect: None,
    }
}

pub(super) fn file(path: &str, data: impl Into<Vec<u8>>) -> InputFile {
    InputFile {
        path: path.to_owned(),
        data: data.into(),
    }
}

/// What a failed call must say.
#[track_caller]
pub(super) fn expect_kind<T>(result: Result<T, PortError>, kind: PortErrorKind) {
    match result {
        Ok(_) => panic!("it worked, must be {kind:?}"),
        Err(error) => {
            assert_eq!(error.kind, kind, "{}", error.chain());
            let plain = !error.context.is_empty() && !error.context.contains('\n');
            assert!(plain, "{:?} is no message", error.context);
        }
    }
}

#[track_caller]
pub(super) fn ok<T>(result: Result<T, PortError>) -> T {
    result.unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// A program that runs.
pub(super) struct Live {
    pub(super) id: SandboxId,
    pub(super) run: Box<dyn GuestRun>,
}

/// A program that has ended.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub(super) hello: Option<GuestHello>,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) exit: Option<GuestExit>,
    pub(super) value: Option<String>,
    pub(super) error: Option<String>,
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

impl Ran {
    #[track_caller]
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("UTF-8")
    }

    #[track_caller]
    pub(super) fn status(&self) -> SandboxExit {
        self.exit
            .unwrap_or_else(|| panic!("no end: {self:?}"))
            .status
    }

    fn take(&mut self, event: GuestEvent, last: &mut Option<String>) {
        match event {
            GuestEvent::Hello(hello) => self.hello = Some(hello),
            GuestEvent::Output { stream, bytes } => match stream {
                OutputStream::Stdout => self.stdout.extend(bytes),
                OutputStream::Stderr => self.stderr.extend(bytes),
            },
            GuestEvent::Report { report, .. } => match report {
                Some(RunnerReport::Value { repr, .. }) => self.value = Some(repr),
                Some(RunnerReport::Error { name, message, .. }) => {
                    self.error = Some(format!("{name}: {message}"));
                }
                _ => {}
            },
            GuestEvent::Exited(exit) => self.exit = Some(exit),
            GuestEvent::File { path, .. } => {
                self.files.insert(path.clone(), Vec::new());
                *last = Some(path);
            }
            GuestEvent::FileData(data) => {
                let file = last.as_ref().and_then(|path| self.files.get_mut(path));
                file.expect("data of a file").extend(data);
            }
            GuestEvent::Collected { .. } => {}
            GuestEvent::StartFailed { message } => panic!("{message}"),
        }
    }
}

impl Live {
    /// Everything up to the end of the stream.
    pub(super) async fn rest(&mut self) -> Ran {
        let (mut ran, mut last) = (Ran::default(), None);
        while let Some(event) = ok(self.run.next_event().await) {
            ran.take(event, &mut last);
        }
        ran
    }

    /// Reads until the program has printed this.
    pub(super) async fn printed(&mut self, text: &str) {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            match ok(self.run.next_event().await) {
                Some(GuestEvent::Output { bytes, .. }) => seen.extend(bytes),
                Some(GuestEvent::Report { report, .. }) => {
                    assert!(
                        !matches!(report, Some(RunnerReport::Error { .. })),
                        "{report:?}"
                    );
                }
                Some(_) => {}
                None => panic!("it ended after {:?}", String::from_utf8_lossy(&seen)),
            }
        }
    }
}

impl Subject {
    /// The sandbox of a case, under a name of its own.
    pub fn spec() -> SandboxSpec {
        spec(&id())
    }

    /// A sandbox that is made.
    pub(super) async fn made(&self) -> SandboxId {
        let id = id();
        ok(self.runtime.create(&spec(&id)).await);
        id
    }

    /// A sandbox that is started.
    pub(super) async fn started(&self) -> (SandboxId, Box<dyn ByteStream>) {
        let id = self.made().await;
        let stream = ok(self.runtime.start(&id).await);
        (id, stream)
    }

    pub(super) async fn remove(&self, id: &SandboxId) {
        ok(self.runtime.remove(id).await);
    }

    /// A program that runs in a sandbox of its own.
    pub(super) async fn begin(&self, limits: ResourceLimits, job: GuestJob) -> Live {
        let id = id();
        let spec = SandboxSpec {
            limits,
            ..spec(&id)
        };
        ok(self.runtime.create(&spec).await);
        let stream = ok(self.runtime.start(&id).await);
        let run = ok(self.guest.run(stream, job).await);
        Live { id, run }
    }

    /// Runs a program to its end.
    pub(super) async fn run_job(&self, job: GuestJob) -> Ran {
        let mut live = self.begin(limits(), job).await;
        let ran = live.rest().await;
        self.remove(&live.id).await;
        ran
    }

    /// Runs a program that has to end well.
    pub(super) async fn run(&self, code: &str) -> Ran {
        let ran = self.run_job(job(code)).await;
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(
            ran.status(),
            SandboxExit::Exited(0),
            "{:?} {stderr}",
            ran.error
        );
        ran
    }

    /// What such a program prints.
    pub(super) async fn prints(&self, code: &str) -> String {
        self.run(code).await.text().to_owned()
    }

    /// Runs a program whose files are brought back.
    pub(super) async fn run_with_files(&self, code: &str, files: Vec<InputFile>) -> Ran {
        let collect = CollectLimits {
            files: 100,
            file_bytes: 4 << 20,
            total_bytes: 8 << 20,
        };
        let job = GuestJob {
            files,
            collect: Some(collect),
            ..job(code)
        };
        let ran = self.run_job(job).await;
        assert_eq!(ran.status(), SandboxExit::Exited(0), "{ran:?}");
        ran
    }
}
