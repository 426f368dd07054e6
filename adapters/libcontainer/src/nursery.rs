//! The nursery: the single-threaded process in which libcontainer runs.
//!
//! It is root only in a user namespace of its own and the first process of a process-id
//! namespace, so when it ends, for whatever reason, the kernel kills every container. Its mounts
//! are private: state, bundles and root file system vanish with it.
//!
//! Each container is made by a forked creator, so that two can be made at once and nothing of
//! one (descriptors, control group, dumpable flag) reaches the next.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libcontainer::container::Container as OciContainer;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::cgroup::{self, Leaf, Tree};
use crate::creator::{self, Creator, Plan, Told, Workshop};
use crate::executor::Confined;
use crate::ids::Users;
use crate::protocol::{Exit, Failure, MAX_MESSAGE, Message, Operation, Request, Success, bounded};
use crate::rootfs::{self, WORK};
use crate::{bytecode, seccomp, sys};
use mcp_forge_presentation::{FORGE, Placed};

/// Runs until the server is gone; returns the exit status.
pub(crate) fn main(control: &OwnedFd, tree: &Tree, placed: &[Placed], users: Users) -> i32 {
    let mut nursery = match Nursery::prepare(control, tree, placed, users) {
        Ok(nursery) => nursery,
        Err(e) => {
            let fatal = Message::Fatal {
                error: bounded(format!("cannot prepare the nursery: {e}")),
                hint: "`mcp-forge doctor` tells what this host lacks".to_owned(),
            };
            let _ = send(control, &fatal);
            return 1;
        }
    };
    match nursery.serve() {
        Ok(()) => 0,
        Err(e) => {
            tracing::error!(error = %e, "the nursery ends");
            1
        }
    }
}

/// Signals that the nursery ignores: the server tells by closing the socket.
pub(crate) const IGNORED: [Signal; 4] = [
    Signal::SIGPIPE,
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
];

fn send(control: &OwnedFd, message: &Message) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    nix::unistd::write(control, &bytes)?;
    Ok(())
}

/// How long the nursery must have nothing to do before it forks the next creator, ms. Doubled for
/// each that has died without an order, up to 2 s.
const QUIET: u16 = 2;

/// How long a creator may take with its order. It needs a hundredth of that; one that is stopped
/// or hangs must not be waited for.
const CREATION: Duration = Duration::from_secs(6);

fn rounded_up(time: Duration) -> PollTimeout {
    PollTimeout::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
}

enum State {
    /// A creator works on it; requests wait.
    Creating {
        creator: Pid,
        told: OwnedFd,
        serial: u64,
        waiting: Vec<Request>,
        until: Instant,
        /// To be tried once more, should the creator die without a word.
        again: Option<(Plan, OwnedFd)>,
    },
    /// Made, perhaps started; this is its first process.
    Alive { pid: Pid },
    /// Its first process is gone.
    Exited,
}

struct Container {
    leaf: Leaf,
    bundle: PathBuf,
    /// Its id in the nursery's namespace.
    user: u32,
    state: State,
    /// Requests to answer when its first process is gone.
    on_exit: Vec<Request>,
}

struct Nursery<'a> {
    control: &'a OwnedFd,
    signals: SignalFd,
    tree: Tree,
    workshop: Workshop,
    bundles: PathBuf,
    users: Users,
    /// A creator that waits for an order.
    spare: Option<Creator>,
    /// Whether to fork one when there is time.
    wants_spare: bool,
    /// How many have died one after another before an order came.
    lost_spares: u32,
    /// Number of the last creator.
    creators: u64,
    containers: HashMap<String, Container>,
    /// The root file systems of images, by device and inode of their directories.
    images: HashMap<(u64, u64), PathBuf>,
    /// Processes that ended before their creator had told of them.
    early: HashMap<Pid, Exit>,
}

impl<'a> Nursery<'a> {
    fn prepare(
        control: &'a OwnedFd,
        tree: &Tree,
        placed: &[Placed],
        users: Users,
    ) -> io::Result<Self> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        sys::handle_signals(&IGNORED, SigHandler::SigIgn);
        // Else the creators' files in /proc belong to the host's root, and their id maps could not be
        // written from here.
        prctl::set_dumpable(true)?;
        let what = |what: &'static str| move |e: Errno| io::Error::other(format!("{what}: {e}"));
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
            .map_err(what("private mounts"))?;
        mount(
            Some("tmpfs"),
            WORK,
            Some("tmpfs"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            Some("mode=0755,size=256m"),
        )
        .map_err(what("tmpfs"))?;
        // The host's control groups go aside, a read-only view of the unified ones takes the
        // place: libcontainer then takes the one path that works in a user namespace. Creators
        // enter their groups themselves, and libcontainer does without when refused.
        let work = Path::new(WORK);
        let groups = work.join("cgroup");
        fs::create_dir(&groups)?;
        let host = Path::new("/sys/fs/cgroup");
        mount(
            Some(host),
            &groups,
            none,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            none,
        )
        .map_err(what("control groups"))?;
        if cgroup::is_unified() {
            // Unified it is already; the same file system cannot be mounted over itself.
            sys::mount_read_only(host)
                .map_err(|e| io::Error::other(format!("read-only control groups: {e}")))?;
        } else {
            mount(
                Some("cgroup2"),
                host,
                Some("cgroup2"),
                MsFlags::MS_RDONLY,
                none,
            )
            .map_err(what("cgroup2"))?;
        }
        mount(
            Some("proc"),
            "/proc",
            Some("proc"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
            none,
        )
        .map_err(what("proc (is /proc of an outer container masked?)"))?;
        let tree = tree.rebased(host, &groups);
        tree.settle()?;
        let base = rootfs::prepare(placed)?;
        bytecode::start(&base.join(FORGE.trim_start_matches('/')), placed);
        let (states, bundles) = (work.join("state"), work.join("bundle"));
        fs::create_dir(&states)?;
        fs::create_dir(&bundles)?;
        Ok(Self {
            control,
            signals,
            tree,
            workshop: Workshop {
                base,
                states,
                executor: Confined::new(seccomp::compile().map_err(io::Error::other)?),
            },
            bundles,
            users,
            spare: None,
            wants_spare: true,
            lost_spares: 0,
            creators: 0,
            containers: HashMap::new(),
            images: HashMap::new(),
            early: HashMap::new(),
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.give_up_overdue();
            let quiet = self
                .wants_spare
                .then(|| Duration::from_millis(u64::from(QUIET) << self.lost_spares.min(10)));
            let now = Instant::now();
            let overdue = self.creations().map(|(until, _)| *until - now).min();
            let timeout = quiet.into_iter().chain(overdue).min();
            let creating: Vec<String> = self
                .containers
                .iter()
                .filter(|(_, c)| matches!(c.state, State::Creating { .. }))
                .map(|(id, _)| id.clone())
                .collect();
            let mut fds = vec![
                PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            for id in &creating {
                if let Some(State::Creating { told, .. }) =
                    self.containers.get(id).map(|c| &c.state)
                {
                    fds.push(PollFd::new(told.as_fd(), PollFlags::POLLIN));
                }
            }
            match poll(&mut fds, timeout.map_or(PollTimeout::NONE, rounded_up)) {
                Err(Errno::EINTR) => continue,
                Ok(0) => {
                    if quiet.is_some() && quiet == timeout {
                        self.keep_spare();
                    }
                    continue;
                }
                other => other?,
            };
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            for (id, ready) in creating.iter().zip(&ready[2..]) {
                if *ready {
                    self.on_creator(id)?;
                }
            }
            if ready[1] {
                while let Ok(Some(_)) = self.signals.read_signal() {}
                self.reap()?;
            }
            if ready[0] && !self.on_control()? {
                return Ok(());
            }
        }
    }

    fn reply(&self, serial: u64, result: Result<Success, Failure>) -> io::Result<()> {
        send(self.control, &Message::Reply { serial, result })
    }

    /// Takes one request; false when the server is gone.
    fn on_control(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0u8; MAX_MESSAGE];
        let mut space = cmsg_space!([std::os::fd::RawFd; 1]);
        let (length, stream) = {
            let mut parts = [io::IoSliceMut::new(&mut buffer)];
            let message = match recvmsg::<()>(
                self.control.as_raw_fd(),
                &mut parts,
                Some(&mut space),
                MsgFlags::MSG_CMSG_CLOEXEC,
            ) {
                Err(Errno::EINTR) => return Ok(true),
                Err(Errno::ECONNRESET) => return Ok(false),
                other => other?,
            };
            let mut stream = None;
            for part in message.cmsgs()? {
                if let ControlMessageOwned::ScmRights(fds) = part {
                    stream = fds.into_iter().map(sys::adopt).next_back();
                }
            }
            (message.bytes, stream)
        };
        if length == 0 {
            return Ok(false);
        }
        let request: Request = postcard::from_bytes(&buffer[..length]).map_err(io::Error::other)?;
        self.handle(request, stream)?;
        Ok(true)
    }

    fn handle(&mut self, request: Request, stream: Option<OwnedFd>) -> io::Result<()> {
        let serial = request.serial;
        let id = match &request.operation {
            Operation::Hello => {
                let weak = match &self.tree {
                    Tree::None { reason } => vec![reason.clone()],
                    _ => Vec::new(),
                };
                return self.reply(serial, Ok(Success::Hello { weak }));
            }
            Operation::Create { id, limits, image } => {
                if self.containers.contains_key(id) {
                    return self.reply(serial, Err(Failure::AlreadyExists));
                }
                let (id, limits) = (id.clone(), *limits);
                let base = match image {
                    None => Ok(self.workshop.base.clone()),
                    Some(image) => self.base_of(image),
                };
                let base = match base {
                    Ok(base) => base,
                    Err(e) => {
                        let what = format!("cannot present the image: {e}");
                        return self.reply(serial, Err(Failure::Internal(bounded(what))));
                    }
                };
                let plan = Plan { limits, base };
                let Some(stream) = stream else {
                    let failure = Failure::Internal("no stream came with the request".to_owned());
                    return self.reply(serial, Err(failure));
                };
                return self.create(serial, id, plan, stream, false);
            }
            Operation::Start { id }
            | Operation::Usage { id }
            | Operation::Kill { id }
            | Operation::Remove { id } => id.clone(),
        };
        let Some(container) = self.containers.get_mut(&id) else {
            // Killing and removing what is not there is done already.
            let result = match request.operation {
                Operation::Kill { .. } | Operation::Remove { .. } => Ok(Success::Done),
                _ => Err(Failure::NotFound),
            };
            return self.reply(serial, result);
        };
        let pid = match &mut container.state {
            State::Creating { waiting, .. } => {
                waiting.push(request);
                return Ok(());
            }
            State::Alive { pid } => Some(*pid),
            State::Exited => None,
        };
        match (request.operation, pid) {
            (Operation::Usage { .. }, _) => {
                let counted = container.leaf.counted();
                self.reply(serial, Ok(Success::Usage(counted)))
            }
            (Operation::Start { .. }, _) => {
                let result = OciContainer::load(self.workshop.states.join(&id))
                    .and_then(|mut c| c.start())
                    .map(|()| Success::Done)
                    .map_err(|e| Failure::Internal(bounded(format!("cannot start: {e}"))));
                self.reply(serial, result)
            }
            (operation @ (Operation::Kill { .. } | Operation::Remove { .. }), Some(pid)) => {
                // Not reaped yet, so the number cannot name another process.
                let _ = kill(pid, Signal::SIGKILL);
                container.leaf.unthrottle();
                container.on_exit.push(Request { serial, operation });
                Ok(())
            }
            (Operation::Remove { .. }, None) => {
                let result = self.remove(&id);
                self.reply(serial, result)
            }
            (_, None) => self.reply(serial, Ok(Success::Done)),
            // Answered above.
            (Operation::Hello | Operation::Create { .. }, Some(_)) => Ok(()),
        }
    }

    /// The root file system of an image, presented once. What was removed and made again is another one.
    fn base_of(&mut self, image: &Path) -> io::Result<PathBuf> {
        let found = fs::metadata(image)?;
        let key = (found.dev(), found.ino());
        if let Some(base) = self.images.get(&key) {
            return Ok(base.clone());
        }
        let base = Path::new(WORK).join(format!("image.{}", self.images.len()));
        rootfs::present(image, &self.workshop.base, &base)?;
        self.images.insert(key, base.clone());
        Ok(base)
    }

    /// The creators that have an order, with the time until when they have to tell.
    fn creations(&mut self) -> impl Iterator<Item = (&mut Instant, Pid)> {
        self.containers
            .values_mut()
            .filter_map(|c| match &mut c.state {
                State::Creating { until, creator, .. } => Some((until, *creator)),
                _ => None,
            })
    }

    /// Kills the creators that have taken too long; that they are dead is seen as with any other.
    fn give_up_overdue(&mut self) {
        let now = Instant::now();
        for (until, creator) in self.creations().filter(|(until, _)| **until <= now) {
            // Not reaped yet, so the number cannot name another process.
            let _ = kill(creator, Signal::SIGKILL);
            *until = now + CREATION;
        }
    }

    /// Orders a container; `last` tells that another creator has had the order already.
    fn create(
        &mut self,
        serial: u64,
        id: String,
        plan: Plan,
        stream: OwnedFd,
        last: bool,
    ) -> io::Result<()> {
        let ordered = match self.spare.take() {
            Some(spare) => match spare.order(&id, &plan, &stream) {
                Ok(()) => {
                    self.lost_spares = 0;
                    Ok(spare)
                }
                Err(_) => {
                    self.discard(spare);
                    self.order_new(&id, &plan, &stream)
                }
            },
            None => self.order_new(&id, &plan, &stream),
        };
        let Creator {
            pid,
            channel,
            leaf,
            bundle,
            user,
        } = match ordered {
            Ok(creator) => creator,
            Err(e) => {
                let failure = Failure::Internal(format!("cannot fork a creator: {e}"));
                return self.reply(serial, Err(failure));
            }
        };
        self.wants_spare = true;
        let state = State::Creating {
            creator: pid,
            told: channel,
            serial,
            waiting: Vec::new(),
            until: Instant::now() + CREATION,
            again: (!last).then_some((plan, stream)),
        };
        self.containers.insert(
            id,
            Container {
                leaf,
                bundle,
                user,
                state,
                on_exit: Vec::new(),
            },
        );
        Ok(())
    }

    fn fork_creator(&mut self) -> io::Result<Creator> {
        self.creators += 1;
        // With a dot, so that it is no container's id, which libcontainer takes for a group's name.
        let name = format!("creator.{}", self.creators);
        let user = self.users.take()?;
        let (leaf, bundle) = (self.tree.leaf(&name), self.bundles.join(&name));
        let forked = Creator::fork(&self.workshop, leaf, bundle, user);
        if forked.is_err() {
            self.users.give_back(user);
        }
        forked
    }

    fn order_new(&mut self, id: &str, plan: &Plan, stream: &OwnedFd) -> io::Result<Creator> {
        let creator = self.fork_creator()?;
        match creator.order(id, plan, stream) {
            Ok(()) => Ok(creator),
            Err(e) => {
                self.discard(creator);
                Err(e)
            }
        }
    }

    /// Forks a creator ahead of the next order.
    fn keep_spare(&mut self) {
        self.wants_spare = false;
        match self.fork_creator() {
            Ok(spare) => self.spare = Some(spare),
            // The order forks its own then, and tells if that fails too.
            Err(e) => tracing::debug!(error = %e, "no creator ahead"),
        }
    }

    /// Clears away a creator that has no order.
    fn discard(&mut self, creator: Creator) {
        let _ = kill(creator.pid, Signal::SIGKILL);
        let _ = waitpid(creator.pid, None);
        self.clear_away(&creator);
    }

    /// Removes what a creator without an order, which is reaped, has made.
    fn clear_away(&mut self, creator: &Creator) {
        let _ = fs::remove_dir_all(&creator.bundle);
        if let Err(e) = creator.leaf.remove() {
            tracing::error!(error = %e, "the control group of a creator is left behind");
        }
        self.users.give_back(creator.user);
    }

    /// Takes what a creator tells, or that it died without a word.
    fn on_creator(&mut self, id: &str) -> io::Result<()> {
        let Some(container) = self.containers.get_mut(id) else {
            return Ok(());
        };
        let State::Creating {
            told,
            serial,
            waiting,
            again,
            ..
        } = &mut container.state
        else {
            return Ok(());
        };
        let created = match creator::told(told) {
            Told::Nothing => return Ok(()),
            Told::Created(created) => created,
            Told::Dead => {
                if let Some((plan, stream)) = again.take() {
                    let (serial, waiting) = (*serial, std::mem::take(waiting));
                    return self.create_again(serial, id, plan, stream, waiting);
                }
                Err("the creator died without a word".to_owned())
            }
        };
        let (serial, waiting) = (*serial, std::mem::take(waiting));
        match created {
            Ok((pid, effective)) => {
                container.state = State::Alive {
                    pid: Pid::from_raw(pid),
                };
                self.reply(serial, Ok(Success::Created(effective)))?;
                if let Some(exit) = self.early.remove(&Pid::from_raw(pid)) {
                    self.on_exit(id, exit)?;
                }
            }
            Err(error) => {
                // The first error is the one to tell; what is left is removed as far as it goes.
                if let Err(e) = self.remove(id) {
                    tracing::error!(?e, id, "a failed container is left behind");
                }
                self.reply(serial, Err(Failure::Internal(error)))?;
            }
        }
        waiting
            .into_iter()
            .try_for_each(|request| self.handle(request, None))
    }

    /// Gives an order whose creator has died to another one.
    fn create_again(
        &mut self,
        serial: u64,
        id: &str,
        plan: Plan,
        stream: OwnedFd,
        waiting: Vec<Request>,
    ) -> io::Result<()> {
        tracing::warn!(id, "a creator died with its order; another one gets it");
        if let Err(e) = self.remove(id) {
            tracing::error!(?e, id, "a half-made container is left behind");
        }
        self.create(serial, id.to_owned(), plan, stream, true)?;
        waiting
            .into_iter()
            .try_for_each(|request| self.handle(request, None))
    }

    fn reap(&mut self) -> io::Result<()> {
        loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Exit::Signal(signal as i32)),
                Err(Errno::EINTR) => continue,
                Ok(WaitStatus::StillAlive) | Err(_) => break,
                Ok(_) => continue,
            };
            if let Some(spare) = self.spare.take_if(|spare| spare.pid == pid) {
                self.clear_away(&spare);
                self.wants_spare = true;
                self.lost_spares += 1;
                continue;
            }
            let whose = |state: &State| match state {
                State::Alive { pid: first } => *first == pid,
                State::Creating { creator, .. } => *creator == pid,
                State::Exited => false,
            };
            let found = self.containers.iter().find(|(_, c)| whose(&c.state));
            match found.map(|(id, c)| (id.clone(), matches!(c.state, State::Alive { .. }))) {
                Some((id, true)) => self.on_exit(&id, exit)?,
                Some((id, false)) => self.on_creator(&id)?,
                None => {
                    let creating = |c: &Container| matches!(c.state, State::Creating { .. });
                    if self.containers.values().any(creating) {
                        self.early.insert(pid, exit);
                    } else {
                        self.early.clear();
                    }
                }
            }
        }
        Ok(())
    }

    fn on_exit(&mut self, id: &str, exit: Exit) -> io::Result<()> {
        let Some(container) = self.containers.get_mut(id) else {
            return Ok(());
        };
        container.state = State::Exited;
        let waiting = std::mem::take(&mut container.on_exit);
        send(
            self.control,
            &Message::Exited {
                id: id.to_owned(),
                exit,
            },
        )?;
        waiting
            .into_iter()
            .try_for_each(|request| self.handle(request, None))
    }

    fn remove(&mut self, id: &str) -> Result<Success, Failure> {
        let Some(container) = self.containers.remove(id) else {
            return Ok(Success::Done);
        };
        let mut first = None;
        let mut note = |what: &str, result: Result<(), String>| {
            if let Err(e) = result {
                first.get_or_insert(bounded(format!("{what}: {e}")));
            }
        };
        let state = self.workshop.states.join(id);
        if state.exists() {
            let deleted = OciContainer::load(state.clone()).and_then(|mut c| c.delete(true));
            note("container", deleted.map_err(|e| e.to_string()));
            if state.exists() {
                note(
                    "container state",
                    fs::remove_dir_all(state).map_err(|e| e.to_string()),
                );
            }
        }
        if container.bundle.exists() {
            note(
                "bundle",
                fs::remove_dir_all(&container.bundle).map_err(|e| e.to_string()),
            );
        }
        note(
            "control group",
            container.leaf.remove().map_err(|e| e.to_string()),
        );
        self.users.give_back(container.user);
        first.map_or(Ok(Success::Done), |error| Err(Failure::Internal(error)))
    }
}
