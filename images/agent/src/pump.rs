//! The agent's one loop: the host's stream, the program's streams, its reports and its end.
//!
//! One thread, one poll(2). Writing to the host blocks, so a host that does not read stops the
//! program's output instead of filling memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use mcp_forge_agent::{
    Collect, Decoder, FromAgent, MAX_OUTPUT, MAX_REPORT, MAX_TO_AGENT, Status, ToAgent,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::program::{Channel, Reserved};
use crate::workspace::Placed;
use crate::{facts, program, workspace};

/// The bit of a report's header that asks for an answer.
const ANSWER: u32 = 1 << 31;

/// The answer: this report, and everything written before it, is on its way to the host.
const TAKEN: u8 = 6;

/// Serves one job; returns when it is done and told, or when the host is gone.
pub(crate) fn serve() -> io::Result<()> {
    // Ids of processes and descriptors are all the same user's here: only a process that cannot
    // be dumped keeps its descriptors and memory from the program (proc(5), ptrace(2)).
    let hello = facts::hello();
    // Before anything else is opened.
    let reserved = Reserved::new()?;
    nix::sys::prctl::set_dumpable(false)?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut agent = Agent {
        host: Host {
            input: io::stdin().as_fd().try_clone_to_owned()?.into(),
            output: io::stdout().as_fd().try_clone_to_owned()?.into(),
            frame: Vec::new(),
        },
        incoming: Decoder::new(MAX_TO_AGENT),
        mask,
        signals,
        reserved: Some(reserved),
        run: None,
    };
    agent.host.send(&hello)?;
    agent.serve()?;
    linger();
    Ok(())
}

/// Milliseconds for which the agent stays after its last word, where the control group of the sandbox
/// goes with it: the host reads what the kernel has counted, and kills it then.
const LINGER: &str = "FORGE_LINGER_MS";

/// Longest such time, milliseconds.
const MAX_LINGER: u16 = 5000;

fn linger() {
    let told = std::env::var(LINGER)
        .ok()
        .and_then(|time| time.parse().ok());
    let time: u16 = told.unwrap_or(0).min(MAX_LINGER);
    if time > 0 {
        // No descriptor, so that the host's end of the stream decides nothing.
        let _ = poll(&mut [], PollTimeout::from(time));
    }
}

/// The stream to the host: descriptor 0 to read, descriptor 1 to write. They may be one socket.
struct Host {
    input: File,
    output: File,
    frame: Vec<u8>,
}

impl Host {
    fn send(&mut self, message: &FromAgent) -> io::Result<()> {
        self.frame.clear();
        message.encode(&mut self.frame);
        self.output.write_all(&self.frame)
    }
}

/// A program that runs or whose rest is collected.
struct Run {
    pid: Pid,
    status: Option<Status>,
    /// Everything is dead and reaped.
    reaped: bool,
    stdin: Option<(OwnedFd, Vec<u8>, usize)>,
    stdout: Option<File>,
    stderr: Option<File>,
    channel: Option<Channel>,
    report_bytes: Vec<u8>,
    placed: Placed,
    collect: Collect,
}

struct Agent {
    host: Host,
    incoming: Decoder,
    mask: SigSet,
    signals: SignalFd,
    /// The place of the program's channel, until it is started.
    reserved: Option<Reserved>,
    run: Option<Run>,
}

impl Agent {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            if ready.children {
                while let Ok(Some(_)) = self.signals.read_signal() {}
                self.reap();
            }
            if ready.host && !self.on_host()? {
                return Ok(());
            }
            if ready.stdin {
                self.feed();
            }
            self.drain()?;
            self.reports()?;
            if let Some(run) = &self.run
                && run.reaped
                && run.stdout.is_none()
                && run.stderr.is_none()
                && run.channel.is_none()
            {
                let status = run
                    .status
                    .unwrap_or(Status::Signaled(Signal::SIGKILL as i32));
                self.host.send(&exited(status))?;
                if run.collect.files > 0 {
                    let mut send = |message: &FromAgent| self.host.send(message);
                    workspace::collect(&run.placed, run.collect, &mut send)?;
                }
                return Ok(());
            }
        }
    }

    fn wait(&self) -> io::Result<Ready> {
        let mut fds = vec![
            PollFd::new(self.host.input.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        let mut stdin_at = None;
        if let Some(run) = &self.run {
            for fd in [&run.stdout, &run.stderr].into_iter().flatten() {
                fds.push(PollFd::new(fd.as_fd(), PollFlags::POLLIN));
            }
            if let Some(channel) = &run.channel {
                fds.push(PollFd::new(channel.reports.as_fd(), PollFlags::POLLIN));
            }
            if let Some((fd, ..)) = &run.stdin {
                stdin_at = Some(fds.len());
                fds.push(PollFd::new(fd.as_fd(), PollFlags::POLLOUT));
            }
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready = |at: usize| fds[at].any().unwrap_or(true);
        Ok(Ready {
            host: ready(0),
            children: ready(1),
            stdin: stdin_at.is_some_and(ready),
        })
    }

    /// Takes what the host says; false when it is gone.
    fn on_host(&mut self) -> io::Result<bool> {
        let mut chunk = vec![0u8; MAX_OUTPUT];
        let count = match self.host.input.read(&mut chunk) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(true),
            other => other?,
        };
        if count == 0 {
            return Ok(false);
        }
        self.incoming.push(&chunk[..count]);
        let mut messages = Vec::new();
        while let Some(frame) = self.incoming.next_frame().map_err(io::Error::other)? {
            messages.push(ToAgent::decode(frame).map_err(io::Error::other)?);
        }
        for message in messages {
            match message {
                ToAgent::Run {
                    runner,
                    name,
                    code,
                    stdin,
                    files,
                    collect,
                } => {
                    let Some(reserved) = self.reserved.take() else {
                        return Err(io::Error::other("a second job"));
                    };
                    let placed = match workspace::place(&files) {
                        Ok(placed) => placed,
                        Err(why) => {
                            self.host.send(&FromAgent::Failed(why))?;
                            return Ok(false);
                        }
                    };
                    drop(files);
                    // A program inherits the mask, and needs to hear of its children.
                    self.mask.thread_unblock()?;
                    let started = program::start(runner, &name, &code, stdin.is_some(), reserved);
                    self.mask.thread_block()?;
                    match started {
                        Ok(program) => {
                            self.run = Some(Run::new(program, stdin, placed, collect));
                            // It may have ended while the signal was not blocked.
                            self.reap();
                        }
                        Err(why) => {
                            self.host.send(&FromAgent::Failed(why))?;
                            return Ok(false);
                        }
                    }
                }
                ToAgent::Interrupt => {
                    if let Some(run) = self.run.as_ref().filter(|run| run.status.is_none()) {
                        let _ = killpg(run.pid, Signal::SIGINT);
                    }
                }
                ToAgent::Kill => kill_all(),
            }
        }
        Ok(true)
    }

    /// Writes on to the program's standard input.
    fn feed(&mut self) {
        let Some(run) = &mut self.run else { return };
        let Some((fd, bytes, done)) = &mut run.stdin else {
            return;
        };
        match nix::unistd::write(&*fd, &bytes[*done..]) {
            Ok(count) => *done += count,
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            // The program does not want it.
            Err(_) => *done = bytes.len(),
        }
        if *done == bytes.len() {
            run.stdin = None;
        }
    }

    fn reap(&mut self) {
        let mut alone = false;
        loop {
            let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Status::Exited(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Status::Signaled(signal as i32)),
                Err(Errno::EINTR) => continue,
                Err(Errno::ECHILD) => {
                    alone = true;
                    break;
                }
                Ok(WaitStatus::StillAlive) | Err(_) => break,
                Ok(_) => continue,
            };
            if let Some(run) = self.run.as_mut().filter(|run| run.pid == pid) {
                run.status = Some(status);
            }
        }
        if let Some(run) = self.run.as_mut().filter(|run| run.status.is_some()) {
            run.reaped = alone;
            if !alone {
                // What outlives the program ends with it.
                kill_all();
            }
        }
    }

    /// Carries what the program has written up to now.
    fn drain(&mut self) -> io::Result<()> {
        let Some(run) = &mut self.run else {
            return Ok(());
        };
        drain(&mut self.host, &mut run.stdout, FromAgent::Stdout)?;
        drain(&mut self.host, &mut run.stderr, FromAgent::Stderr)
    }

    /// Carries whole reports, each after the output that was written before it.
    fn reports(&mut self) -> io::Result<()> {
        let mut chunk = vec![0u8; MAX_OUTPUT];
        // As with the streams, a program that reports without end must not keep the loop here.
        for _ in 0..16 {
            let Some(run) = &mut self.run else {
                return Ok(());
            };
            let Some(channel) = &mut run.channel else {
                return Ok(());
            };
            match channel.reports.read(&mut chunk) {
                Ok(0) => run.channel = None,
                Ok(count) => run.report_bytes.extend_from_slice(&chunk[..count]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => run.channel = None,
            }
            while let Some((report, answer)) = self.run.as_mut().and_then(Run::next_report) {
                self.drain()?;
                self.host.send(&FromAgent::Report(report))?;
                let channel = self.run.as_ref().and_then(|run| run.channel.as_ref());
                if let Some(channel) = channel.filter(|_| answer) {
                    // Does not block; a program that does not read its answers goes without.
                    let _ = (&channel.answers).write(&[TAKEN]);
                }
            }
        }
        Ok(())
    }
}

struct Ready {
    host: bool,
    children: bool,
    stdin: bool,
}

impl Run {
    fn new(
        program: program::Program,
        stdin: Option<Vec<u8>>,
        placed: Placed,
        collect: Collect,
    ) -> Self {
        Self {
            pid: Pid::from_raw(program.child.id().cast_signed()),
            status: None,
            reaped: false,
            stdin: program.stdin.zip(stdin).map(|(fd, bytes)| (fd, bytes, 0)),
            stdout: Some(program.stdout.into()),
            stderr: Some(program.stderr.into()),
            channel: Some(program.channel),
            report_bytes: Vec::new(),
            placed,
            collect,
        }
    }

    /// Cuts one report (u32, big endian, and JSON) off what came, and tells whether the runner
    /// waits until it is taken (the highest bit of the u32; the others are the length). A length
    /// beyond the bound ends the channel: the program's own code wrote it.
    fn next_report(&mut self) -> Option<(Vec<u8>, bool)> {
        let (header, rest) = self.report_bytes.split_first_chunk::<4>()?;
        let header = u32::from_be_bytes(*header);
        let (length, answer) = ((header & !ANSWER) as usize, header & ANSWER != 0);
        if length > MAX_REPORT {
            self.channel = None;
            self.report_bytes = Vec::new();
            return None;
        }
        let report = rest.get(..length)?.to_vec();
        self.report_bytes.drain(..4 + length);
        Some((report, answer))
    }
}

fn drain(
    host: &mut Host,
    stream: &mut Option<File>,
    make: fn(Vec<u8>) -> FromAgent,
) -> io::Result<()> {
    let mut chunk = vec![0u8; MAX_OUTPUT];
    // A program that writes as fast as it is read must not keep the loop here.
    for _ in 0..16 {
        let Some(file) = stream else { return Ok(()) };
        match file.read(&mut chunk) {
            Ok(0) => *stream = None,
            Ok(count) => host.send(&make(chunk[..count].to_vec()))?,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(_) => *stream = None,
        }
    }
    Ok(())
}

/// Kills every process of the namespace but this one (kill(2), pid -1).
fn kill_all() {
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
}

fn exited(status: Status) -> FromAgent {
    let (cpu, max_rss_bytes) = getrusage(UsageWho::RUSAGE_CHILDREN).map_or_else(
        |_| (Duration::ZERO, 0),
        |usage| {
            let time = |t: nix::sys::time::TimeVal| {
                Duration::from_secs(t.tv_sec().unsigned_abs())
                    + Duration::from_micros(t.tv_usec().unsigned_abs())
            };
            let rss = usage.max_rss().unsigned_abs() * 1024;
            (time(usage.user_time()) + time(usage.system_time()), rss)
        },
    );
    let cpu_us = u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX);
    FromAgent::Exited {
        status,
        cpu_us,
        max_rss_bytes,
    }
}
