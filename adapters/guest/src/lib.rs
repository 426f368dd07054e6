//! The `Guest` port: gives the agent in a sandbox its job and takes what comes back.
//!
//! Everything that comes is hostile: frames are bounded before they are held, reports are parsed
//! by total functions, and what breaks the contract ends the stream with a `Protocol` error. The
//! crate decides nothing about a run.

mod report;

use async_trait::async_trait;
use mcp_forge_agent::{
    Collect, Decoder, Facts, FromAgent, MAX_FROM_AGENT, MOUNTS, NAMESPACES, Runner, Status, ToAgent,
};
use mcp_forge_ports::driven::{ByteStream, Guest, GuestRun};
use mcp_forge_ports::vocabulary::{
    CollectLimits, GuestEvent, GuestExit, GuestHello, GuestJob, GuestMount, Language, OutputStream,
    SandboxExit,
};
use mcp_forge_ports::{PortError, PortErrorKind};
use mcp_forge_presentation::Placed;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What every sandbox gets: the agent, a static program for this target, and the runners.
pub const PLACED: [Placed; 4] = [
    Placed {
        path: "agent",
        contents: include_bytes!(env!("MCP_FORGE_AGENT")),
        executable: true,
    },
    Placed {
        path: "python/runner.py",
        contents: include_bytes!("../../../images/python/runner.py"),
        executable: false,
    },
    // What the runner for Python loads when a program shows something.
    Placed {
        path: "python/display.py",
        contents: include_bytes!("../../../images/python/display.py"),
        executable: false,
    },
    Placed {
        path: "r/runner.R",
        contents: include_bytes!("../../../images/r/runner.R"),
        executable: false,
    },
];

/// Bytes read at once.
const CHUNK: usize = 128 * 1024;

/// Speaks the agent's frames.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamGuest;

#[async_trait]
impl Guest for StreamGuest {
    async fn run(
        &self,
        stream: Box<dyn ByteStream>,
        job: GuestJob,
    ) -> Result<Box<dyn GuestRun>, PortError> {
        let runner = match job.language {
            Language::Python => Runner::Python,
            Language::R => Runner::R,
            other => {
                return Err(PortError::new(
                    PortErrorKind::Unsupported,
                    format!("the agent has no runner for {other}"),
                ));
            }
        };
        let mut frame = Vec::new();
        let run = ToAgent::Run {
            runner,
            name: job.source_name,
            code: job.code,
            stdin: job.stdin,
            files: job
                .files
                .into_iter()
                .map(|file| (file.path, file.data))
                .collect(),
            collect: job.collect.map(collect).unwrap_or_default(),
        };
        run.encode(&mut frame);
        Ok(Box::new(StreamRun {
            stream,
            job: Some(Outgoing { frame, sent: 0 }),
            greeted: false,
            decoder: Decoder::new(MAX_FROM_AGENT),
            chunk: vec![0; CHUNK],
        }))
    }
}

fn collect(limits: CollectLimits) -> Collect {
    Collect {
        files: limits.files,
        file_bytes: limits.file_bytes,
        total_bytes: limits.total_bytes,
    }
}

fn closed(e: std::io::Error) -> PortError {
    PortError::new(
        PortErrorKind::Unreachable,
        "the stream of the sandbox is closed",
    )
    .with_source(e)
}

fn protocol(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> PortError {
    PortError::new(
        PortErrorKind::Protocol,
        "the sandbox broke the contract of its stream",
    )
    .with_source(e)
}

/// A frame on its way.
struct Outgoing {
    frame: Vec<u8>,
    sent: usize,
}

struct StreamRun {
    stream: Box<dyn ByteStream>,
    /// Sent when the caller asks for what comes after the greeting, and so has accepted it: a
    /// badly confined agent never gets a program.
    job: Option<Outgoing>,
    greeted: bool,
    decoder: Decoder,
    chunk: Vec<u8>,
}

impl StreamRun {
    /// Sends the rest of the job. Cancel-safe: what a write took is counted before the next wait.
    async fn send_job(&mut self) -> Result<(), PortError> {
        while let Some(job) = &mut self.job {
            job.sent += self
                .stream
                .write(&job.frame[job.sent..])
                .await
                .map_err(closed)?;
            if job.sent == job.frame.len() {
                self.job = None;
            }
        }
        Ok(())
    }

    async fn tell(&mut self, message: &ToAgent) -> Result<(), PortError> {
        // A job that was not begun is not to be; one that was must not be cut in the middle.
        if self.job.as_ref().is_some_and(|job| job.sent == 0) {
            self.job = None;
        }
        self.send_job().await?;
        let mut frame = Vec::new();
        message.encode(&mut frame);
        self.stream.write_all(&frame).await.map_err(closed)
    }
}

#[async_trait]
impl GuestRun for StreamRun {
    async fn next_event(&mut self) -> Result<Option<GuestEvent>, PortError> {
        if self.greeted {
            self.send_job().await?;
        }
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(protocol)? {
                let event = event(FromAgent::decode(frame).map_err(protocol)?);
                self.greeted |= matches!(event, GuestEvent::Hello(_));
                return Ok(Some(event));
            }
            // Cancel-safe: what a read gives is pushed before the next wait.
            let count = match self.stream.read(&mut self.chunk).await {
                Ok(count) => count,
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => 0,
                Err(e) => return Err(closed(e)),
            };
            if count == 0 {
                return Ok(None);
            }
            self.decoder.push(&self.chunk[..count]);
        }
    }

    async fn interrupt(&mut self) -> Result<(), PortError> {
        self.tell(&ToAgent::Interrupt).await
    }

    async fn kill(&mut self) -> Result<(), PortError> {
        self.tell(&ToAgent::Kill).await
    }
}

fn hello(version: String, facts: &Facts) -> GuestHello {
    let names = NAMESPACES.iter().map(|name| (*name).to_owned());
    let mounts = MOUNTS.iter().zip(&facts.mounts);
    GuestHello {
        version,
        uid: facts.uid,
        gid: facts.gid,
        groups: facts.groups,
        no_new_privs: facts.no_new_privs,
        seccomp_mode: facts.seccomp,
        capabilities: facts.capabilities,
        descriptors: facts.descriptors,
        core_bytes: facts.core_bytes,
        namespaces: names.zip(facts.namespaces).collect(),
        mounts: mounts
            .map(|(path, mount)| GuestMount {
                path: (*path).to_owned(),
                read_only: mount.read_only,
                inert: mount.no_suid && mount.no_dev,
                bytes: mount.bytes,
            })
            .collect(),
    }
}

/// The event of a message. A malformed report breaks no contract: the agent passes on what the
/// program's own code may have written, and that only loses the program its report.
fn event(message: FromAgent) -> GuestEvent {
    match message {
        FromAgent::Hello { version, facts } => GuestEvent::Hello(hello(version, &facts)),
        FromAgent::Stdout(bytes) => GuestEvent::Output {
            stream: OutputStream::Stdout,
            bytes,
        },
        FromAgent::Stderr(bytes) => GuestEvent::Output {
            stream: OutputStream::Stderr,
            bytes,
        },
        FromAgent::Report(json) => GuestEvent::Report {
            bytes: json.len(),
            report: report::parse(&json).ok(),
        },
        FromAgent::Exited {
            status,
            cpu_us,
            max_rss_bytes,
        } => GuestEvent::Exited(GuestExit {
            status: match status {
                Status::Exited(code) => SandboxExit::Exited(code),
                Status::Signaled(signal) => SandboxExit::Signaled(signal),
            },
            cpu: Duration::from_micros(cpu_us),
            max_rss_bytes,
        }),
        FromAgent::Failed(message) => GuestEvent::StartFailed { message },
        FromAgent::File { path, size } => GuestEvent::File { path, size },
        FromAgent::FileData(bytes) => GuestEvent::FileData(bytes),
        FromAgent::Collected { omitted } => GuestEvent::Collected { omitted },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> GuestJob {
        GuestJob {
            language: Language::Python,
            code: "1".to_owned(),
            source_name: "<code>".to_owned(),
            stdin: None,
            files: Vec::new(),
            collect: None,
        }
    }

    async fn events_of(bytes: &[u8]) -> Vec<Result<GuestEvent, PortErrorKind>> {
        let (mine, mut theirs) = tokio::io::duplex(1 << 20);
        let mut run = StreamGuest.run(Box::new(mine), job()).await.unwrap();
        theirs.write_all(bytes).await.unwrap();
        theirs.shutdown().await.unwrap();
        let mut events = Vec::new();
        loop {
            match run.next_event().await {
                Ok(Some(event)) => events.push(Ok(event)),
                Ok(None) => return events,
                Err(e) => {
                    events.push(Err(e.kind));
                    return events;
                }
            }
        }
    }

    /// The frames that reach an agent which greets, if `greets`, when the host then interrupts and
    /// kills.
    async fn frames_to(greets: bool) -> Vec<ToAgent> {
        let (mine, mut theirs) = tokio::io::duplex(1 << 20);
        let mut run = StreamGuest.run(Box::new(mine), job()).await.unwrap();
        if greets {
            let mut bytes = Vec::new();
            let hello = FromAgent::Hello {
                version: "1".to_owned(),
                facts: Facts::default(),
            };
            hello.encode(&mut bytes);
            FromAgent::Stdout(b"x".to_vec()).encode(&mut bytes);
            theirs.write_all(&bytes).await.unwrap();
            assert!(matches!(
                run.next_event().await,
                Ok(Some(GuestEvent::Hello(_)))
            ));
            assert!(matches!(
                run.next_event().await,
                Ok(Some(GuestEvent::Output { .. }))
            ));
        }
        run.interrupt().await.unwrap();
        run.kill().await.unwrap();
        drop(run);
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).await.unwrap();
        let mut decoder = Decoder::new(mcp_forge_agent::MAX_TO_AGENT);
        decoder.push(&bytes);
        let mut frames = Vec::new();
        while let Some(frame) = decoder.next_frame().unwrap() {
            frames.push(ToAgent::decode(frame).unwrap());
        }
        frames
    }

    #[tokio::test]
    async fn the_job_follows_an_accepted_greeting_and_signals_follow_the_job() {
        let frames = frames_to(true).await;
        assert!(matches!(&frames[0], ToAgent::Run { code, stdin: None, .. } if code == "1"));
        assert_eq!(frames[1..], [ToAgent::Interrupt, ToAgent::Kill]);
    }

    #[tokio::test]
    async fn an_agent_that_did_not_greet_gets_no_job() {
        assert_eq!(frames_to(false).await, [ToAgent::Interrupt, ToAgent::Kill]);
    }

    #[tokio::test]
    async fn events_come_in_order() {
        let mut bytes = Vec::new();
        FromAgent::Stdout(b"a".to_vec()).encode(&mut bytes);
        FromAgent::Report(b"no report".to_vec()).encode(&mut bytes);
        FromAgent::Report(br#"{"type":"value","json":42,"repr":"42"}"#.to_vec()).encode(&mut bytes);
        FromAgent::Exited {
            status: Status::Exited(0),
            cpu_us: 5,
            max_rss_bytes: 6,
        }
        .encode(&mut bytes);
        let events = events_of(&bytes).await;
        assert_eq!(events.len(), 4);
        assert!(matches!(&events[0], Ok(GuestEvent::Output { bytes, .. }) if bytes == b"a"));
        let nothing = GuestEvent::Report {
            bytes: 9,
            report: None,
        };
        assert_eq!(events[1].as_ref(), Ok(&nothing));
        assert!(matches!(&events[3], Ok(GuestEvent::Exited(exit)) if exit.max_rss_bytes == 6));
    }

    #[tokio::test]
    async fn what_breaks_the_contract_is_a_protocol_error() {
        for hostile in [
            &[255u8, 255, 255, 255][..],
            &[0, 0, 0, 0],
            &[1, 0, 0, 0, 99],
            &[2, 0, 0, 0, 20, 7],
        ] {
            let events = events_of(hostile).await;
            assert_eq!(events, [Err(PortErrorKind::Protocol)], "{hostile:?}");
        }
        // The control: half a frame and then the end is an end, not an error.
        assert_eq!(events_of(&[9, 0, 0]).await, []);
    }
}
