//! A place of its own for each test, and `mcp-forge run` in it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use crate::host::{GLANCE, LATER, Process, SOON, is_root, skip, wait_until};
use crate::leftovers::{Census, GIVEN, RANGE, Traces};

/// The program under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_mcp-forge");

/// What nothing inside a sandbox, and nothing in the audit log, may ever show.
pub(crate) const CANARY: &str = "canary-7f1d0c55b6";

/// Tests count over the whole machine, so there is one at a time, whoever runs them.
static ALONE: Mutex<()> = Mutex::new(());

/// The right to be the one test that runs.
pub(crate) type Alone = MutexGuard<'static, ()>;

/// Waits for the right. A test that failed has given it back.
pub(crate) fn alone() -> Alone {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Directories below the home that the program is told to use.
const DIRECTORIES: [(&str, &str); 6] = [
    ("HOME", "home"),
    ("TMPDIR", "tmp"),
    ("XDG_STATE_HOME", "state"),
    ("XDG_RUNTIME_DIR", "runtime"),
    ("XDG_CACHE_HOME", "cache"),
    ("XDG_DATA_HOME", "data"),
];

/// Where a test's programs live. When it goes, what is in it goes as well.
pub(crate) struct Home {
    dir: TempDir,
    ids: Range<u32>,
    before: Traces,
    _alone: Alone,
}

impl Home {
    /// A home for root, whose sandboxes the kernel limits. For others there is none: the test is
    /// left out by name.
    pub(crate) fn for_root(test: &str) -> Option<Self> {
        if is_root() {
            return Some(Self::new(alone(), RANGE));
        }
        skip(
            test,
            "it takes root; the module `ordinary_user` has what others get",
        );
        None
    }

    /// A home where the sandboxes' ids on the host are these.
    pub(crate) fn new(alone: Alone, ids: Range<u32>) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("forge-test-")
            .tempdir()
            .unwrap();
        for (_, name) in DIRECTORIES {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let before = Traces::now(dir.path(), &ids);
        Self {
            dir,
            ids,
            before,
            _alone: alone,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The processes now.
    pub(crate) fn census(&self) -> Census {
        Census::take(self.ids.clone())
    }

    /// Gives a program this home and nothing else of the test's environment but a secret.
    pub(crate) fn furnish(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("FORGE_TEST_CANARY", CANARY)
            .envs(DIRECTORIES.map(|(variable, name)| (variable, self.path().join(name))))
            .current_dir(self.path());
    }

    /// The program under test, in this home.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        self.furnish(&mut command);
        command
    }

    /// `mcp-forge run` with these arguments and nothing on standard input.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        let mut command = self.command();
        command.arg("run").args(arguments);
        finish(command, b"")
    }

    /// The result that `mcp-forge run --json` prints.
    pub(crate) fn result(&self, arguments: &[&str]) -> Value {
        let finished = self.run(&[&["--json"], arguments].concat());
        serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished:?}"))
    }

    /// Gives the program a file.
    pub(crate) fn file(&self, name: &str, contents: &str) -> PathBuf {
        let given = self.path().join(GIVEN);
        fs::create_dir_all(&given).unwrap();
        let path = given.join(name);
        File::create(&path)
            .unwrap()
            .write_all(contents.as_bytes())
            .unwrap();
        path
    }

    pub(crate) fn audit_path(&self) -> PathBuf {
        self.path().join("state/mcp-forge/audit.jsonl")
    }

    /// The audit log; each line is JSON.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.audit_path()).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// What there is now and was not when the home was made.
    pub(crate) fn leftovers(&self) -> Result<(), String> {
        Traces::now(self.path(), &self.ids)
            .since(&self.before)
            .none()
    }

    /// Control groups that were not there when the home was made.
    pub(crate) fn new_groups(&self, census: &Census) -> BTreeSet<PathBuf> {
        &census.groups() - &self.before.groups
    }

    /// The same beside a server whose helpers these are.
    pub(crate) fn leftovers_beside(&self, helpers: &[&Process]) -> Result<(), String> {
        let mut found = Traces::now(self.path(), &self.ids).since(&self.before);
        found.forget(helpers);
        found.none()
    }

    /// Waits until nothing is left over.
    #[track_caller]
    pub(crate) fn expect_nothing_left(&self) {
        wait_until(SOON, || self.leftovers());
    }

    /// Takes what is there now for given.
    pub(crate) fn settle(&mut self) {
        self.before = Traces::now(self.path(), &self.ids);
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The exit status, as a shell would tell it.
    pub(crate) fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or_default())
    }
}

/// Runs a program to its end.
#[track_caller]
pub(crate) fn finish(mut command: Command, input: &[u8]) -> Finished {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    // Who does not want its input may close it.
    let _ = child.stdin.take().unwrap().write_all(input);
    let status = end_of(&mut child);
    Finished {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

/// Waits for the end of a program; one that does not end is killed.
#[track_caller]
pub(crate) fn end_of(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + LATER;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("a program that should have ended was killed after {LATER:?}");
        }
        std::thread::sleep(GLANCE);
    }
}

/// Reads a stream to its end, beside the test.
pub(crate) fn collect(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    let mut stream = stream.unwrap();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
