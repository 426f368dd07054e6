//! The server's side: starts the helper processes and implements the port over their socket.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use mcp_forge_ports::driven::{ByteStream, ContainerRuntime};
use mcp_forge_ports::vocabulary::{
    EffectiveLimits, Namespaces, RuntimeInfo, SandboxExit, SandboxId, SandboxRoot, SandboxSpec,
    SandboxUsage,
};
use mcp_forge_ports::{PortError, PortErrorKind};
use mcp_forge_presentation::{NoRoot, root_of};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, sendmsg, shutdown,
    socketpair,
};
use tokio::io::Interest;
use tokio::net::{UnixDatagram, UnixStream};
use tokio::sync::{Mutex as AsyncMutex, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cgroup;
use crate::protocol::{
    Effective, Exit, Failure, Limits, MAX_MESSAGE, Message, Operation, Request, Success,
};
use crate::rootfs::WORK;

/// Version of the library that makes the containers.
const LIBCONTAINER: &str = "0.7";

type Reply = Result<Success, Failure>;

/// How long helpers that owe an answer may say nothing at all. What takes them longest is to
/// give up on a creator twice, see `nursery`.
const SILENCE: Duration = Duration::from_secs(15);

/// How long the warden may take to clear up when its time has come.
const FAREWELL: Duration = Duration::from_secs(5);

/// One started helper and what is known of its containers.
struct Link {
    socket: UnixDatagram,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    serial: u64,
    /// With the time of the request. They stay when nobody waits any more.
    pending: HashMap<u64, (Instant, oneshot::Sender<Reply>)>,
    exits: HashMap<String, watch::Sender<Option<SandboxExit>>>,
    streams: HashMap<String, UnixStream>,
    /// Why the helper is gone; set once.
    dead: Option<(String, String)>,
}

impl Link {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dead(&self) -> Option<PortError> {
        self.shared().dead.as_ref().map(|(error, hint)| {
            PortError::new(PortErrorKind::Unreachable, error.clone()).with_hint(hint.clone())
        })
    }

    fn die(&self, error: &str, hint: &str) {
        let mut shared = self.shared();
        shared
            .dead
            .get_or_insert_with(|| (error.to_owned(), hint.to_owned()));
        shared.pending.clear();
        shared.exits.clear();
        shared.streams.clear();
    }

    /// Tells the helper to end. The listener holds the socket too, so closing is not enough.
    fn hang_up(&self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }

    async fn send(&self, bytes: &[u8], stream: Option<&OwnedFd>) -> io::Result<()> {
        let fds = stream.map(|fd| [fd.as_raw_fd()]);
        let rights = fds.as_ref().map(|fds| [ControlMessage::ScmRights(fds)]);
        let rights = rights.as_ref().map_or(&[][..], |rights| &rights[..]);
        let attempt = || {
            let parts = [io::IoSlice::new(bytes)];
            let fd = self.socket.as_raw_fd();
            Ok(sendmsg::<()>(fd, &parts, rights, MsgFlags::MSG_NOSIGNAL, None).map(drop)?)
        };
        self.socket.async_io(Interest::WRITABLE, attempt).await
    }

    async fn ask(
        &self,
        operation: Operation,
        stream: Option<&OwnedFd>,
    ) -> Result<Success, PortError> {
        let (sender, receiver) = oneshot::channel();
        let serial = {
            let mut shared = self.shared();
            shared.serial += 1;
            let serial = shared.serial;
            if shared.dead.is_none() {
                shared.pending.insert(serial, (Instant::now(), sender));
            }
            serial
        };
        if let Some(error) = self.dead() {
            return Err(error);
        }
        let bytes = postcard::to_stdvec(&Request {
            serial,
            operation: operation.clone(),
        })
        .map_err(|e| PortError::new(PortErrorKind::Internal, "a request").with_source(e))?;
        // A helper that is gone has perhaps told why; the listener takes that, and then answers.
        match self.send(&bytes, stream).await {
            Err(e)
                if !matches!(
                    e.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                self.shared().pending.remove(&serial);
                let error =
                    PortError::new(PortErrorKind::Unreachable, "the nursery does not listen");
                return Err(error.with_source(e));
            }
            _ => {}
        }
        match receiver.await {
            Ok(Ok(success)) => Ok(success),
            Ok(Err(failure)) => Err(failed(&operation, failure)),
            Err(_) => Err(self.dead().unwrap_or_else(|| {
                PortError::new(PortErrorKind::Unreachable, "the nursery is gone")
            })),
        }
    }

    /// When the oldest request that has no answer was made.
    fn oldest(&self) -> Option<Instant> {
        let shared = self.shared();
        shared.pending.values().map(|(since, _)| *since).min()
    }

    /// Takes the next message. None when requests wait and nothing comes.
    async fn receive(&self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let began = Instant::now();
        let mut patience = SILENCE;
        loop {
            if let Ok(received) = timeout(patience, self.socket.recv(buffer)).await {
                return Some(received);
            }
            // Requests were made meanwhile.
            let owed = self.oldest().map(|since| since.max(began).elapsed());
            patience = SILENCE.saturating_sub(owed.unwrap_or_default());
            if patience.is_zero() {
                return None;
            }
        }
    }

    /// Takes messages until the helper is gone, or as good as gone.
    async fn listen(&self) {
        let mut buffer = vec![0u8; MAX_MESSAGE];
        loop {
            let Some(received) = self.receive(&mut buffer).await else {
                self.die(
                    &format!("the nursery has not answered for {} s", SILENCE.as_secs()),
                    "the next run starts a new one; a stopped process or an overloaded host does that",
                );
                return;
            };
            match received {
                Ok(length) if length > 0 => match postcard::from_bytes(&buffer[..length]) {
                    Ok(message) => self.take(message),
                    Err(_) => break,
                },
                // A reset tells that the helper did not read everything. What it said comes after.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset
                    ) => {}
                _ => break,
            }
        }
        self.die(
            "the nursery is gone",
            "the next run starts a new one; see the log for why",
        );
    }

    fn take(&self, message: Message) {
        match message {
            Message::Reply { serial, result } => {
                let waiting = self.shared().pending.remove(&serial);
                if let Some((_, waiting)) = waiting {
                    let _ = waiting.send(result);
                }
            }
            Message::Exited { id, exit } => {
                let exit = match exit {
                    Exit::Code(code) => SandboxExit::Exited(code),
                    Exit::Signal(signal) => SandboxExit::Signaled(signal),
                };
                if let Some(watch) = self.shared().exits.get(&id) {
                    watch.send_replace(Some(exit));
                }
            }
            Message::Fatal { error, hint } => self.die(&error, &hint),
        }
    }
}

/// Waits until the warden, whose socket is closed, has ended. One that does not, because it is
/// stopped, is killed; that is the end of its nursery too, and what it did not clear away is
/// cleared away here.
fn end(mut warden: Child) -> io::Result<()> {
    let deadline = Instant::now() + FAREWELL;
    while warden.try_wait()?.is_none() {
        if Instant::now() > deadline {
            tracing::warn!("the warden does not end and is killed");
            warden.kill()?;
            warden.wait()?;
            cgroup::reap();
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn failed(operation: &Operation, failure: Failure) -> PortError {
    let (verb, id) = match operation {
        Operation::Hello => ("greet", "the nursery"),
        Operation::Create { id, .. } => ("create", id.as_str()),
        Operation::Start { id } => ("start", id.as_str()),
        Operation::Usage { id } => ("read the usage of", id.as_str()),
        Operation::Kill { id } => ("kill", id.as_str()),
        Operation::Remove { id } => ("remove", id.as_str()),
    };
    match failure {
        Failure::NotFound => PortError::new(
            PortErrorKind::NotFound,
            format!("cannot {verb} {id}: no such container"),
        ),
        Failure::AlreadyExists => failed_to_create(id),
        Failure::Internal(error) => PortError::new(
            PortErrorKind::Internal,
            format!("cannot {verb} {id}: {error}"),
        )
        .with_hint("`mcp-forge doctor` tells what this host lacks"),
    }
}

/// A started helper process. Ends with its socket.
struct Helper {
    link: Arc<Link>,
    /// Ends when the helper processes have.
    ended: JoinHandle<()>,
}

impl Helper {
    fn start() -> io::Result<Self> {
        let (mine, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        // This very program, also when its file was replaced meanwhile. An empty environment:
        // no tokens, no LISTEN_FDS.
        let warden = Command::new("/proc/self/exe")
            .arg(crate::HELPER_ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;
        // A socket of packets is served by the same calls as one of datagrams.
        let socket = std::os::unix::net::UnixDatagram::from(mine);
        socket.set_nonblocking(true)?;
        let socket = UnixDatagram::from_std(socket)?;
        let link = Arc::new(Link {
            socket,
            shared: Mutex::default(),
        });
        let listener = Arc::clone(&link);
        let ended = tokio::spawn(async move {
            listener.listen().await;
            listener.hang_up();
            let waited = tokio::task::spawn_blocking(move || end(warden)).await;
            if !matches!(waited, Ok(Ok(()))) {
                tracing::warn!("cannot tell whether the nursery ended");
            }
        });
        Ok(Self { link, ended })
    }
}

/// The embedded OCI runtime.
///
/// Its helper processes start with the first use, or at [`LibcontainerRuntime::warm_up`], and
/// again when they died.
#[derive(Default)]
pub struct LibcontainerRuntime {
    helper: AsyncMutex<Option<Helper>>,
    /// The directory with the root file systems of images, each under its id.
    roots: Option<PathBuf>,
}

impl LibcontainerRuntime {
    /// A runtime whose helpers do not run yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with images, whose root file systems are below `roots`, each under its id.
    pub fn with_images(roots: PathBuf) -> Self {
        Self {
            roots: Some(roots),
            ..Self::default()
        }
    }

    /// Where the root file system of an image is.
    fn image(&self, id: &str) -> Result<PathBuf, PortError> {
        let root = root_of(self.roots.as_deref(), id).map_err(|why| {
            let shown: String = id.escape_debug().take(80).collect();
            let kind = match why {
                NoRoot::NotThere => PortErrorKind::NotFound,
                NoRoot::NoId | NoRoot::NoPlace => PortErrorKind::Unsupported,
            };
            PortError::new(kind, format!("image {shown}: {why}"))
        })?;
        // Where the nursery has its own files instead.
        match fs::canonicalize(&root) {
            Ok(real) if real.starts_with(WORK) => {
                let what = format!("images below {WORK} cannot be used: {}", root.display());
                Err(PortError::new(PortErrorKind::Unsupported, what)
                    .with_hint("name another directory for images (`images.directory`)"))
            }
            _ => Ok(root),
        }
    }

    /// Starts the helpers, so that the first run does not wait for them.
    ///
    /// # Errors
    ///
    /// `Unreachable` when this host does not let them start, with the remedy.
    pub async fn warm_up(&self) -> Result<(), PortError> {
        self.link().await.map(drop)
    }

    /// Ends the helpers and waits until they have cleared up. Containers that still run are
    /// killed.
    pub async fn shut_down(&self) {
        if let Some(Helper { link, ended }) = self.helper.lock().await.take() {
            link.hang_up();
            let _ = ended.await;
        }
    }

    async fn link(&self) -> Result<Arc<Link>, PortError> {
        let mut helper = self.helper.lock().await;
        if let Some(running) = helper.as_ref()
            && running.link.dead().is_none()
        {
            return Ok(Arc::clone(&running.link));
        }
        if let Some(dead) = helper.as_mut() {
            // So that nothing of it runs beside the new one.
            let _ = (&mut dead.ended).await;
            *helper = None;
        }
        let started = Helper::start().map_err(|e| {
            PortError::new(PortErrorKind::Unreachable, "cannot start the nursery").with_source(e)
        })?;
        let link = Arc::clone(&started.link);
        *helper = Some(started);
        Ok(link)
    }

    async fn ask(&self, operation: Operation) -> Result<Success, PortError> {
        self.link().await?.ask(operation, None).await
    }
}

fn name(id: &SandboxId) -> Result<String, PortError> {
    // "nursery" is the control group of the nursery itself.
    if !id.is_name() || id.0 == "nursery" {
        return Err(PortError::new(
            PortErrorKind::Unsupported,
            format!("sandbox id {:?} is not 1 to 64 of [A-Za-z0-9_-]", id.0),
        ));
    }
    Ok(id.0.clone())
}

fn failed_to_create(id: &str) -> PortError {
    PortError::new(
        PortErrorKind::AlreadyExists,
        format!("cannot create {id}: it exists already"),
    )
}

/// The namespaces of this process, which no sandbox may share: namespaces(7).
fn own_namespaces() -> Namespaces {
    let names = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];
    let own = names.map(|name| {
        let inode = std::fs::metadata(format!("/proc/self/ns/{name}"));
        (
            name.to_owned(),
            inode.map_or(0, |namespace| namespace.ino()),
        )
    });
    own.into()
}

fn unexpected(success: &Success) -> PortError {
    PortError::new(
        PortErrorKind::Internal,
        format!("unexpected reply {success:?}"),
    )
}

#[async_trait]
impl ContainerRuntime for LibcontainerRuntime {
    async fn info(&self) -> Result<RuntimeInfo, PortError> {
        match self.ask(Operation::Hello).await? {
            Success::Hello { weak } => Ok(RuntimeInfo {
                kind: "libcontainer".to_owned(),
                version: LIBCONTAINER.to_owned(),
                weak,
                host_namespaces: own_namespaces(),
            }),
            other => Err(unexpected(&other)),
        }
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<EffectiveLimits, PortError> {
        let id = name(&spec.id)?;
        let image = match &spec.root {
            SandboxRoot::Host => None,
            SandboxRoot::Image { id } => Some(self.image(id)?),
            other => {
                return Err(PortError::new(
                    PortErrorKind::Unsupported,
                    format!("root {other:?} is not supported"),
                ));
            }
        };
        let limits = Limits {
            memory_bytes: spec.limits.memory_bytes,
            cpu_quota: spec.limits.cpu_quota,
            pids: spec.limits.pids,
            descriptors: spec.limits.descriptors,
            tmp_bytes: spec.limits.tmp_bytes,
            workspace_bytes: spec.limits.workspace_bytes,
        };
        let failed = |e: io::Error| {
            PortError::new(
                PortErrorKind::Internal,
                "cannot make the stream of a sandbox",
            )
            .with_source(e)
        };
        let (mine, theirs) = UnixStream::pair().map_err(failed)?;
        let theirs = theirs.into_std().map_err(failed)?;
        theirs.set_nonblocking(false).map_err(failed)?;
        let theirs = OwnedFd::from(theirs);
        let link = self.link().await?;
        let (exit, _) = watch::channel(None);
        if link.shared().exits.contains_key(&id) {
            return Err(failed_to_create(&id));
        }
        link.shared().exits.insert(id.clone(), exit);
        let created = link
            .ask(
                Operation::Create {
                    id: id.clone(),
                    limits,
                    image,
                },
                Some(&theirs),
            )
            .await;
        match created {
            Ok(Success::Created(Effective {
                memory_bytes,
                cpu_quota,
                pids,
                weak,
            })) => {
                link.shared().streams.insert(id, mine);
                Ok(EffectiveLimits {
                    memory_bytes,
                    cpu_quota,
                    pids,
                    weak,
                })
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => {
                link.shared().exits.remove(&id);
                Err(error)
            }
        }
    }

    async fn start(&self, id: &SandboxId) -> Result<Box<dyn ByteStream>, PortError> {
        let link = self.link().await?;
        let Some(stream) = link.shared().streams.remove(&id.0) else {
            let (kind, why) = if link.shared().exits.contains_key(&id.0) {
                (PortErrorKind::AlreadyExists, "it was started before")
            } else {
                (PortErrorKind::NotFound, "no such container")
            };
            return Err(PortError::new(kind, format!("cannot start {id}: {why}")));
        };
        link.ask(Operation::Start { id: id.0.clone() }, None)
            .await?;
        Ok(Box::new(stream))
    }

    async fn wait(&self, id: &SandboxId) -> Result<SandboxExit, PortError> {
        let link = self.link().await?;
        let not_found = || {
            PortError::new(
                PortErrorKind::NotFound,
                format!("cannot wait for {id}: no such container"),
            )
        };
        let mut exit = link
            .shared()
            .exits
            .get(&id.0)
            .map(watch::Sender::subscribe)
            .ok_or_else(not_found)?;
        let exit = exit
            .wait_for(Option::is_some)
            .await
            .map_err(|_| not_found())?;
        exit.ok_or_else(not_found)
    }

    async fn usage(&self, id: &SandboxId) -> Result<SandboxUsage, PortError> {
        match self.ask(Operation::Usage { id: id.0.clone() }).await? {
            Success::Usage(counted) => Ok(SandboxUsage {
                cpu: counted.cpu_ns.map(Duration::from_nanos),
                peak_memory_bytes: counted.peak_memory_bytes,
                oom_kills: counted.oom_kills,
                pids_refused: counted.pids_refused,
            }),
            other => Err(unexpected(&other)),
        }
    }

    async fn kill(&self, id: &SandboxId) -> Result<(), PortError> {
        self.ask(Operation::Kill { id: id.0.clone() })
            .await
            .map(drop)
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), PortError> {
        let link = self.link().await?;
        let removed = link
            .ask(Operation::Remove { id: id.0.clone() }, None)
            .await
            .map(drop);
        let mut shared = link.shared();
        shared.streams.remove(&id.0);
        shared.exits.remove(&id.0);
        removed
    }
}
