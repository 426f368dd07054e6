//! Creators: forked copies of the nursery that make one container each.
//!
//! A creator is forked ahead of its order, so that the fork, the control group and the first
//! touch of its memory cost no run anything. It knows nothing of any run before the order comes,
//! and it ends after the one.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigHandler, SigSet, Signal, kill};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv,
    recvmsg, sendmsg, socketpair,
};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};

use crate::cgroup::Leaf;
use crate::executor::Confined;
use crate::protocol::{Effective, Limits, MAX_MESSAGE, bounded};
use crate::{ids, spec, sys};

/// What a creator tells the nursery: the first process, as the nursery sees it, and its limits.
pub(crate) type Created = Result<(i32, Effective), String>;

/// The first packet to a creator: its ids are there.
const ADMITTED: &[u8] = b"a";

/// What all containers of a nursery share.
pub(crate) struct Workshop {
    /// The root file system of the host presentation.
    pub(crate) base: PathBuf,
    /// Where libcontainer keeps its state, by id.
    pub(crate) states: PathBuf,
    pub(crate) executor: Confined,
}

/// How to make it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) limits: Limits,
    /// The root file system.
    pub(crate) base: PathBuf,
}

/// What to make.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    id: String,
    plan: Plan,
}

/// A forked creator, as the nursery sees it. Reaping it is the nursery's business.
pub(crate) struct Creator {
    pub(crate) pid: Pid,
    /// Readable when the creator has told, or is gone.
    pub(crate) channel: OwnedFd,
    pub(crate) leaf: Leaf,
    pub(crate) bundle: PathBuf,
    /// The id of the container's user in the nursery's namespace.
    pub(crate) user: u32,
}

impl Creator {
    /// Forks a creator that waits for its order in a user namespace and a control group of its
    /// own.
    pub(crate) fn fork(
        workshop: &Workshop,
        leaf: Leaf,
        bundle: PathBuf,
        user: u32,
    ) -> io::Result<Self> {
        // Packets, not streams: the container's first process holds this end too, so the end of
        // a stream would tell nothing.
        let (channel, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        let pid = sys::fork_into(libc::CLONE_NEWUSER, || {
            sys::close_all_but(&theirs);
            let work = Work {
                workshop,
                leaf: &leaf,
                bundle: &bundle,
            };
            i32::from(work.one_order(&theirs).is_err())
        })?;
        let admitted = ids::write_nested(pid.as_raw(), user)
            .and_then(|()| Ok(nix::unistd::write(&channel, ADMITTED)?));
        if let Err(e) = admitted {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
            return Err(e);
        }
        Ok(Self {
            pid,
            channel,
            leaf,
            bundle,
            user,
        })
    }

    /// Gives the order and the container's end of its stream.
    pub(crate) fn order(&self, id: &str, plan: &Plan, stream: &OwnedFd) -> io::Result<()> {
        let order = Order {
            id: id.to_owned(),
            plan: plan.clone(),
        };
        let bytes = postcard::to_stdvec(&order).map_err(io::Error::other)?;
        let fds = [stream.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let parts = [io::IoSlice::new(&bytes)];
        let flags = MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(self.channel.as_raw_fd(), &parts, &rights, flags, None)?;
        Ok(())
    }
}

/// What there is to hear of a creator.
pub(crate) enum Told {
    /// Nothing yet.
    Nothing,
    Created(Created),
    /// It died without a word.
    Dead,
}

/// Takes what a creator tells.
pub(crate) fn told(channel: &OwnedFd) -> Told {
    let mut packet = vec![0u8; MAX_MESSAGE];
    match recv(channel.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
        Err(Errno::EINTR) => Told::Nothing,
        Ok(length) if length > 0 => Told::Created(
            postcard::from_bytes(&packet[..length])
                .map_err(|e| e.to_string())
                .flatten(),
        ),
        _ => Told::Dead,
    }
}

type Failure = Box<dyn std::error::Error>;

/// In the creator.
struct Work<'a> {
    workshop: &'a Workshop,
    leaf: &'a Leaf,
    bundle: &'a Path,
}

impl Work<'_> {
    fn one_order(&self, channel: &OwnedFd) -> io::Result<()> {
        // Without its ids it can make no file.
        let mut admitted = [0; ADMITTED.len()];
        if nix::unistd::read(channel, &mut admitted)? == 0 {
            return Ok(());
        }
        // An order comes even when the preparation failed: its answer tells.
        let prepared = self.prepare();
        let Some((order, stream)) = await_order(channel)? else {
            return Ok(());
        };
        let created: Created = prepared
            .and_then(|null| self.build(&order, &stream, null))
            .map_err(|e| bounded(e.to_string()));
        let bytes = postcard::to_stdvec(&created).map_err(io::Error::other)?;
        nix::unistd::write(channel, &bytes)?;
        Ok(())
    }

    /// Whatever no order changes; returns /dev/null for writing.
    fn prepare(&self) -> Result<OwnedFd, Failure> {
        // A program starts with the signals of a fresh process.
        sys::handle_signals(&crate::nursery::IGNORED, SigHandler::SigDfl);
        SigSet::all().thread_unblock()?;
        let group = |e: io::Error| format!("control group: {e}");
        self.leaf.create().map_err(group)?;
        self.leaf.enter().map_err(group)?;
        // The container's network namespace, made here because only here can its one interface be
        // switched on: servers and workers of one program talk over `lo`. The specification names
        // no network namespace, so the container is born in this one, and nothing else ever is.
        unshare(CloneFlags::CLONE_NEWNET)?;
        sys::loopback_up().map_err(|e| format!("loopback interface: {e}"))?;
        fs::create_dir(self.bundle)?;
        self.rehearse()?;
        Ok(fs::OpenOptions::new().write(true).open("/dev/null")?.into())
    }

    /// Writes and reads a specification of no container: what this touches of the memory shared
    /// with the nursery is then this process's own.
    fn rehearse(&self) -> Result<(), Failure> {
        let limits = Limits {
            memory_bytes: 1,
            cpu_quota: 1,
            pids: 1,
            descriptors: 1,
            tmp_bytes: 1,
            workspace_bytes: 1,
        };
        let config = self.bundle.join("config.json");
        spec::build(&self.workshop.base, Path::new("/none"), &limits, true)?.save(&config)?;
        Spec::load(config)?;
        Ok(())
    }

    fn build(
        &self,
        order: &Order,
        stream: &OwnedFd,
        null: OwnedFd,
    ) -> Result<(i32, Effective), Failure> {
        let Order { id, plan } = order;
        let Plan { limits, base } = plan;
        let effective = self
            .leaf
            .limit(limits)
            .map_err(|e| format!("control group: {e}"))?;
        let bounded = effective.weak.is_empty();
        let spec = spec::build(base, &Path::new("/").join(id), limits, bounded)?;
        spec.save(self.bundle.join("config.json"))?;
        let container = ContainerBuilder::new(id.clone(), SyscallType::default())
            .with_root_path(&self.workshop.states)?
            .with_stdin(stream.try_clone()?)
            .with_stdout(stream.try_clone()?)
            .with_stderr(null)
            .with_executor(self.workshop.executor.clone())
            .validate_id()?
            .as_init(self.bundle)
            .with_systemd(false)
            .with_detach(true)
            .build()?;
        let pid = container
            .pid()
            .ok_or("the container has no process")?
            .as_raw();
        Ok((pid, effective))
    }
}

/// Waits for the order; none when the nursery does not want this creator any more.
fn await_order(channel: &OwnedFd) -> io::Result<Option<(Order, OwnedFd)>> {
    let mut buffer = vec![0u8; MAX_MESSAGE];
    let mut space = cmsg_space!([std::os::fd::RawFd; 1]);
    let (length, stream) = loop {
        let mut parts = [io::IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(channel.as_raw_fd(), &mut parts, Some(&mut space), flags)
        {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let mut stream = None;
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = part {
                stream = fds.into_iter().map(sys::adopt).next_back();
            }
        }
        break (message.bytes, stream);
    };
    if length == 0 {
        return Ok(None);
    }
    let order = postcard::from_bytes(&buffer[..length]).map_err(io::Error::other)?;
    let stream = stream.ok_or_else(|| io::Error::other("no stream came with the order"))?;
    Ok(Some((order, stream)))
}
