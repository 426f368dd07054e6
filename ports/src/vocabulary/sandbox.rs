//! A sandbox as a runtime makes it, and the agent inside as the core sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use super::{InputFile, Language, OutputStream, Picture, ResourceLimits};

/// Name of one sandbox; unguessable, minted by the core.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SandboxId(pub String);

impl SandboxId {
    /// Whether a runtime takes it: 1 to 64 of `[A-Za-z0-9_-]`, which is a name everywhere.
    pub fn is_name(&self) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=64).contains(&self.0.len()) && self.0.bytes().all(is_plain)
    }
}

impl fmt::Display for SandboxId {
    /// One line, also of what is no name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_debug().fmt(f)
    }
}

/// Where the files of a sandbox come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SandboxRoot {
    /// The host's own interpreters, through read-only binds of its system directories.
    Host,
    /// An image that the runtime keeps, by its id.
    Image {
        /// See [`Image::id`].
        id: String,
    },
}

/// A root file system that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What it was made of: a SHA-256, 64 hexadecimal digits. Of an OCI image that of its configuration, as engines
    /// show it; of a root file system that of its tar.
    pub id: String,
    /// References to it.
    pub names: Vec<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it was made here.
    pub imported: SystemTime,
}

/// An image that was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedImage {
    /// It.
    pub image: Image,
    /// What the archive calls it.
    pub name: Option<String>,
    /// Devices and pipes, which no sandbox gets from an image.
    pub skipped: u64,
}

/// What an image is built of.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageRecipe {
    /// A Containerfile (containers-common, `Containerfile.5`) that copies no files: there are none.
    Containerfile {
        /// It.
        text: String,
        /// The values of its `ARG`s.
        arguments: BTreeMap<String, String>,
        /// The network of its commands, as the engine calls it (`none`, `host`); the engine's own without.
        network: Option<String>,
    },
    /// A set of Debian packages: `python`, `r` or `kernels`.
    Packages(String),
}

/// One sandbox, resolved. A runtime obeys it or answers `Unsupported`; it never weakens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// Its name.
    pub id: SandboxId,
    /// Its files.
    pub root: SandboxRoot,
    /// Its limits.
    pub limits: ResourceLimits,
}

/// What a runtime says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// `libcontainer`, `podman`, `docker`.
    pub kind: String,
    /// Version of the engine or library.
    pub version: String,
    /// Limits and barriers that this host cannot enforce, with the reason and the remedy.
    pub weak: Vec<String>,
    /// The namespaces of the host, of which a sandbox shares none; empty where nobody can tell.
    pub host_namespaces: Namespaces,
}

/// How strong a sandbox proved to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxVerdict {
    /// Every barrier and every limit was found.
    Confirmed,
    /// Every barrier was found, and not every limit is enforced; the operator accepts that.
    Weak,
}

impl SandboxVerdict {
    /// The name in the audit log and in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "SandboxConfirmed",
            Self::Weak => "WeakSandboxMode",
        }
    }
}

/// Where programs run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionEnvironment {
    /// What makes the sandboxes.
    pub runtime: RuntimeInfo,
    /// Name of the image; `host` for the host presentation.
    pub image: String,
    /// Languages that it runs.
    pub languages: Vec<Language>,
    /// Limits of a run that asks for none.
    pub limits: ResourceLimits,
    /// That of the newest run; nothing before the first.
    pub verdict: Option<SandboxVerdict>,
}

/// How a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxExit {
    /// Its first process exited with this status.
    Exited(i32),
    /// This signal ended its first process.
    Signaled(i32),
}

/// What the kernel counted for a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxUsage {
    /// CPU time of all its processes, where it is counted.
    pub cpu: Option<Duration>,
    /// Peak memory, bytes, where it is counted.
    pub peak_memory_bytes: Option<u64>,
    /// How many processes the kernel killed for the memory limit.
    pub oom_kills: u64,
    /// How often a fork was refused for the pids limit.
    pub pids_refused: u64,
}

/// What the agent is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestJob {
    /// The language, and so the runner.
    pub language: Language,
    /// The program text.
    pub code: String,
    /// Name of the program in tracebacks.
    pub source_name: String,
    /// Bytes for standard input; `None` means that reading is refused at once.
    pub stdin: Option<Vec<u8>>,
    /// Files to be there before the program starts.
    pub files: Vec<InputFile>,
    /// What is brought back of the workspace; `None` for nothing.
    pub collect: Option<CollectLimits>,
}

/// How much is brought back of the files that a program leaves in its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectLimits {
    /// Files that are named.
    pub files: u32,
    /// Largest file whose contents come along, bytes.
    pub file_bytes: u64,
    /// Contents of all files together, bytes.
    pub total_bytes: u64,
}

/// What the agent says of itself when it starts, as read inside the sandbox. Untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestHello {
    /// Version of the agent.
    pub version: String,
    /// Its effective user id.
    pub uid: u32,
    /// Its effective group id.
    pub gid: u32,
    /// How many supplementary groups it has besides `gid`.
    pub groups: u32,
    /// `NoNewPrivs` of /proc/self/status.
    pub no_new_privs: bool,
    /// `Seccomp` of /proc/self/status (2 is a filter).
    pub seccomp_mode: u8,
    /// Union of the five capability sets; 0 is none.
    pub capabilities: u64,
    /// Hard limit of open files.
    pub descriptors: u64,
    /// Hard limit of a core file, bytes.
    pub core_bytes: u64,
    /// Its namespaces.
    pub namespaces: Namespaces,
    /// The mounts that it looked at.
    pub mounts: Vec<GuestMount>,
}

/// Inode numbers by the names in `/proc/self/ns`; 0 where it could not be read.
pub type Namespaces = BTreeMap<String, u64>;

/// A mount inside a sandbox, as statvfs(3) tells it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestMount {
    /// Where it is.
    pub path: String,
    /// Nothing can be written.
    pub read_only: bool,
    /// Set-user-id bits and device files do nothing.
    pub inert: bool,
    /// Size, bytes; 0 where it could not be read.
    pub bytes: u64,
}

/// What a runner reports besides the text streams. Untrusted.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RunnerReport {
    /// The value of the last expression.
    Value {
        /// Where JSON can carry it.
        json: Option<serde_json::Value>,
        /// Its printed form.
        repr: String,
    },
    /// The exception that ended the program.
    Error {
        /// Class of the exception.
        name: String,
        /// Its message.
        message: String,
        /// Traceback with the user's frames.
        traceback: String,
    },
    /// A message that the language tells apart from its streams (R's `message()`).
    Message {
        /// As the language prints it, with the end of its line.
        text: String,
    },
    /// A warning.
    Warning {
        /// Its message.
        text: String,
        /// The call that gave it.
        call: Option<String>,
    },
    /// Something the program showed.
    Display(Display),
}

/// One thing that a program showed, in the forms that it offers of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Display {
    /// As plain text.
    pub text: Option<String>,
    /// As a picture.
    pub picture: Option<Picture>,
    /// As HTML.
    pub html: Option<String>,
    /// As JSON.
    pub json: Option<serde_json::Value>,
}

/// How the program ended, as the agent saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestExit {
    /// Exit status or signal of the program.
    pub status: SandboxExit,
    /// CPU time of the program and the children it waited for.
    pub cpu: Duration,
    /// Largest resident size of one process, bytes.
    pub max_rss_bytes: u64,
}

/// What comes from the agent, in order.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GuestEvent {
    /// The agent runs; first event of each sandbox.
    Hello(GuestHello),
    /// The program wrote.
    Output {
        /// On which stream.
        stream: OutputStream,
        /// Not empty, at most 64 KiB.
        bytes: Vec<u8>,
    },
    /// The runner reported.
    Report {
        /// How many bytes the report was.
        bytes: usize,
        /// What it says; `None` when it is no report, which the program's own code can send too.
        report: Option<RunnerReport>,
    },
    /// The program and all its children are gone; last event unless files were asked for.
    Exited(GuestExit),
    /// A file that the program made or changed. Only after `Exited`.
    File {
        /// Path below the workspace.
        path: String,
        /// Its size, bytes.
        size: u64,
    },
    /// The next part of the contents of the last file. None comes of a file that is too large.
    FileData(Vec<u8>),
    /// All files were named; last event.
    Collected {
        /// Files beyond the number that may be named.
        omitted: u64,
    },
    /// The program could not be started (no interpreter, for one).
    StartFailed {
        /// The reason.
        message: String,
    },
}
