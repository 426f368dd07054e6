//! Sandboxes as containers of an engine: what is the same whatever the engine's API is.
//!
//! An adapter brings an [`Engine`], which makes, starts and removes one container, and a [`Connect`],
//! which finds the engine and tells what it can. [`EngineRuntime`] makes a `ContainerRuntime` of them.

mod counters;
mod limits;
mod owner;
mod presentation;
mod request;
mod runtime;
mod seccomp;

use async_trait::async_trait;
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::ByteStream;
use mcp_forge_ports::vocabulary::{RuntimeInfo, SandboxExit, SandboxSpec};

pub use limits::{Able, own_namespaces};
pub use owner::{LABEL_OWNER, Owner, leftovers};
pub use presentation::{Bind, Presentation, REPOSITORY};
pub use request::{
    CPU_PERIOD, LABEL_INSTANCE, LABEL_SANDBOX, LINGER, OF_ENGINES, int, rlimits, tmpfs_inodes,
};
pub use runtime::EngineRuntime;
pub use seccomp::profile;

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself or by a signal.
    Exit {
        /// How.
        exit: SandboxExit,
        /// Whether memory ran out, so far as the engine knows.
        oom: bool,
    },
    /// It was removed, by us or by somebody else, or the engine lost it.
    Gone,
}

impl End {
    /// Of a code as a shell tells it: the agent itself ends by 0 and 1.
    pub fn of_code(code: i64, oom: bool) -> Self {
        let code = i32::try_from(code).unwrap_or(i32::MAX);
        let exit = match code {
            129..=192 => SandboxExit::Signaled(code - 128),
            code => SandboxExit::Exited(code),
        };
        Self::Exit { exit, oom }
    }
}

/// What an engine says of a container now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Its id, 64 hexadecimal digits.
    pub id: String,
    /// Its first process, as the engine numbers processes; nothing when none lives.
    pub process: Option<i64>,
    /// Whether memory ran out.
    pub oom: bool,
}

/// What the root file system of a container is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// The image, as the engine calls it.
    pub image: String,
    /// What is bound over it.
    pub binds: Vec<Bind>,
}

/// Containers of an engine that answered. Each is known by its name.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Gives it the image of a presentation, unless it has it. Tells how it calls that image.
    ///
    /// # Errors
    ///
    /// What the engine refused.
    async fn give(&self, presentation: &Presentation) -> Result<String, PortError>;

    /// Removes the containers of servers that are gone.
    ///
    /// # Errors
    ///
    /// What the engine refused first; the others are removed.
    async fn reap(&self) -> Result<(), PortError>;

    /// Makes a container and starts nothing.
    ///
    /// # Errors
    ///
    /// What the engine refused; `NotFound` when it has not got the image any more. Nothing is made then.
    async fn create(&self, name: &str, spec: &SandboxSpec, base: &Base) -> Result<(), PortError>;

    /// Starts it; its standard input and output are the stream, from the first byte on.
    ///
    /// # Errors
    ///
    /// What the engine refused.
    async fn start(&self, name: &str) -> Result<Box<dyn ByteStream>, PortError>;

    /// Waits for the end of one that was started.
    async fn end(&self, name: &str) -> End;

    /// What it is now.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is gone.
    async fn state(&self, name: &str) -> Result<State, PortError>;

    /// Kills it; one that has ended, or is gone, is killed.
    ///
    /// # Errors
    ///
    /// What the engine refused.
    async fn kill(&self, name: &str) -> Result<(), PortError>;

    /// Removes it, running or not; one that is gone is removed.
    ///
    /// # Errors
    ///
    /// What the engine refused.
    async fn remove(&self, name: &str) -> Result<(), PortError>;
}

/// An engine, and what it says of itself.
pub struct Connected<E> {
    /// The engine.
    pub engine: E,
    /// For the core.
    pub info: RuntimeInfo,
    /// The limits that it enforces.
    pub able: Able,
}

/// Where an engine is.
#[async_trait]
pub trait Connect: Send + Sync + 'static {
    /// Its containers.
    type Engine: Engine;

    /// Mode of the directory under the mount of /workspace, which runc gives to what is mounted there,
    /// whatever its options say.
    const WORKSPACE: u32;

    /// Asks it what it is.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Unsupported`, with the remedy.
    async fn connect(&self) -> Result<Connected<Self::Engine>, PortError>;

    /// Its version, of which nothing else is asked.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Unsupported`, with the remedy.
    async fn version(&self) -> Result<String, PortError>;
}
