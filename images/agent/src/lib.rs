//! The frames between the host and the agent, on the one byte stream of a sandbox.
//!
//! A frame is a length (u32, little endian, of what follows), a tag (u8) and a payload. Both
//! sides share this module; it reads and writes nothing itself. Frames from a sandbox are hostile
//! input: [`Decoder`] refuses a length before it allocates for it, and decoding is total.
//!
//! | tag | direction | payload |
//! |---|---|---|
//! | 1 run | to the agent | language u8 (0 Python, 1 R), then name, code, and stdin each as u32 length + bytes (a length of `u32::MAX` is "no stdin"), collect (files u32, bytes of one u64, bytes of all u64), number of files u32, each as path and contents in the manner of the code |
//! | 2 interrupt | to the agent | none |
//! | 3 kill | to the agent | none |
//! | 16 hello | from the agent | uid u32, no_new_privs u8, seccomp u8, capabilities u64, version text |
//! | 17 stdout | from the agent | bytes, 1 to [`MAX_OUTPUT`] |
//! | 18 stderr | from the agent | the same |
//! | 19 report | from the agent | JSON of the runner, at most [`MAX_REPORT`] bytes |
//! | 20 exited | from the agent | how u8 (0 status, 1 signal), number i32, cpu µs u64, largest resident size u64 |
//! | 21 failed | from the agent | text: why the program could not be started |
//! | 22 file | from the agent | size u64, path below the workspace |
//! | 23 file data | from the agent | contents of that file, 1 to [`MAX_OUTPUT`] bytes |
//! | 24 collected | from the agent | number of files that were not named u64 |

#![forbid(unsafe_code)]

/// Largest payload of an output frame, bytes.
pub const MAX_OUTPUT: usize = 64 * 1024;

/// Largest payload of a report frame, bytes.
pub const MAX_REPORT: usize = 4 * 1024 * 1024;

/// Largest frame from a sandbox: the tag and the largest payload, bytes.
pub const MAX_FROM_AGENT: usize = MAX_REPORT + 1;

/// Largest frame to the agent, bytes: a program, its standard input and its files, each at most
/// 64 MiB.
pub const MAX_TO_AGENT: usize = 200 * 1024 * 1024;

/// Longest path of a file, bytes (`PATH_MAX` of Linux).
pub const MAX_PATH: usize = 4096;

/// What breaks the contract of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// A frame of this many bytes was announced; the bound is the second number.
    TooLong(usize, usize),
    /// A frame without a tag.
    Empty,
    /// No frame has this tag in this direction.
    UnknownTag(u8),
    /// The payload of this tag is malformed.
    Malformed(u8),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong(length, bound) => {
                write!(
                    f,
                    "a frame of {length} bytes was announced, {bound} is the bound"
                )
            }
            Self::Empty => f.write_str("an empty frame"),
            Self::UnknownTag(tag) => write!(f, "unknown frame tag {tag}"),
            Self::Malformed(tag) => write!(f, "malformed payload of frame tag {tag}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Cuts a byte stream into frames (tag and payload).
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Start of what is not consumed yet.
    start: usize,
    bound: usize,
}

impl Decoder {
    /// A decoder that refuses frames of more than `bound` bytes.
    #[must_use]
    pub fn new(bound: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            bound,
        }
    }

    /// Takes bytes as they came. Call [`Decoder::next_frame`] until it gives `None` before the
    /// next push: then never more than one frame and one push are held.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` when more bytes are needed.
    ///
    /// # Errors
    ///
    /// `TooLong` and `Empty`; the stream cannot be used any more then.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.buffer[self.start..];
        let Some((length, _)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 {
            return Err(FrameError::Empty);
        }
        if length > self.bound {
            return Err(FrameError::TooLong(length, self.bound));
        }
        let from = self.start + 4;
        let Some(frame) = self.buffer.get(from..from + length) else {
            return Ok(None);
        };
        self.start = from + length;
        Ok(Some(frame))
    }
}

/// The languages that the agent has a runner for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runner {
    /// `python3`.
    Python,
    /// `R`.
    R,
}

impl Runner {
    const fn number(self) -> u8 {
        match self {
            Self::Python => 0,
            Self::R => 1,
        }
    }

    const fn numbered(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Python),
            1 => Some(Self::R),
            _ => None,
        }
    }
}

/// What to bring back of the workspace when the program has ended. Without files, nothing follows
/// the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collect {
    /// Files to name.
    pub files: u32,
    /// Largest file whose contents come along, bytes.
    pub file_bytes: u64,
    /// Contents of all files together, bytes.
    pub total_bytes: u64,
}

/// A frame to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToAgent {
    /// Run this; the first frame, once.
    Run {
        /// The runner to use.
        runner: Runner,
        /// Name of the program in tracebacks.
        name: String,
        /// The program text.
        code: String,
        /// Bytes for standard input.
        stdin: Option<Vec<u8>>,
        /// Files for the workspace: path below it, and contents.
        files: Vec<(String, Vec<u8>)>,
        /// What to bring back of the workspace.
        collect: Collect,
    },
    /// SIGINT to the program's process group.
    Interrupt,
    /// SIGKILL to every process of the sandbox but the agent.
    Kill,
}

/// Namespaces that the agent tells of, by their names in `/proc/self/ns`.
pub const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];

/// Mounts that the agent tells of.
pub const MOUNTS: [&str; 4] = ["/", "/usr", "/tmp", "/workspace"];

/// How a mount is, as statvfs(3) tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mount {
    /// Nothing can be written.
    pub read_only: bool,
    /// Set-user-id bits do nothing.
    pub no_suid: bool,
    /// Device files do nothing.
    pub no_dev: bool,
    /// Size, bytes; 0 where it could not be read.
    pub bytes: u64,
}

/// What the agent finds of its own confinement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// How many supplementary groups besides its own.
    pub groups: u32,
    /// `NoNewPrivs` of /proc/self/status.
    pub no_new_privs: bool,
    /// `Seccomp` of /proc/self/status.
    pub seccomp: u8,
    /// Union of the five capability sets.
    pub capabilities: u64,
    /// Hard limit of open files.
    pub descriptors: u64,
    /// Hard limit of a core file, bytes.
    pub core_bytes: u64,
    /// Inode numbers of [`NAMESPACES`]; 0 where it could not be read.
    pub namespaces: [u64; NAMESPACES.len()],
    /// [`MOUNTS`].
    pub mounts: [Mount; MOUNTS.len()],
}

impl Default for Facts {
    /// The worst.
    fn default() -> Self {
        Self {
            uid: 0,
            gid: 0,
            groups: u32::MAX,
            no_new_privs: false,
            seccomp: 0,
            capabilities: u64::MAX,
            descriptors: u64::MAX,
            core_bytes: u64::MAX,
            namespaces: [0; NAMESPACES.len()],
            mounts: [Mount::default(); MOUNTS.len()],
        }
    }
}

impl Facts {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [self.uid, self.gid, self.groups] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&[u8::from(self.no_new_privs), self.seccomp]);
        for number in [self.capabilities, self.descriptors, self.core_bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in self.namespaces {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for mount in self.mounts {
            let flags = [mount.read_only, mount.no_suid, mount.no_dev].map(u8::from);
            out.extend_from_slice(&flags);
            out.extend_from_slice(&mount.bytes.to_le_bytes());
        }
        out
    }

    fn decode(payload: &mut Payload<'_>) -> Option<Self> {
        let mut facts = Self {
            uid: payload.u32()?,
            gid: payload.u32()?,
            groups: payload.u32()?,
            no_new_privs: payload.byte()? == 1,
            seccomp: payload.byte()?,
            capabilities: payload.u64()?,
            descriptors: payload.u64()?,
            core_bytes: payload.u64()?,
            ..Self::default()
        };
        for namespace in &mut facts.namespaces {
            *namespace = payload.u64()?;
        }
        for mount in &mut facts.mounts {
            *mount = Mount {
                read_only: payload.byte()? == 1,
                no_suid: payload.byte()? == 1,
                no_dev: payload.byte()? == 1,
                bytes: payload.u64()?,
            };
        }
        Some(facts)
    }
}

/// A frame from the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromAgent {
    /// The first frame.
    Hello {
        /// Version of the agent.
        version: String,
        /// What it finds of its confinement.
        facts: Facts,
    },
    /// Standard output.
    Stdout(Vec<u8>),
    /// Standard error.
    Stderr(Vec<u8>),
    /// JSON of the runner, as it came.
    Report(Vec<u8>),
    /// The program and all it started are gone.
    Exited {
        /// Exit status, or the signal.
        status: Status,
        /// CPU time of the program and its children, µs.
        cpu_us: u64,
        /// Largest resident size of one process, bytes.
        max_rss_bytes: u64,
    },
    /// The program could not be started.
    Failed(String),
    /// A file that the program made or changed.
    File {
        /// Its path below the workspace, at most [`MAX_PATH`] bytes.
        path: String,
        /// Its size, bytes.
        size: u64,
    },
    /// The next contents of the last file.
    FileData(Vec<u8>),
    /// There are no more files.
    Collected {
        /// Files that were not named.
        omitted: u64,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// By exit with this status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

const RUN: u8 = 1;
const INTERRUPT: u8 = 2;
const KILL: u8 = 3;
const HELLO: u8 = 16;
const STDOUT: u8 = 17;
const STDERR: u8 = 18;
const REPORT: u8 = 19;
const EXITED: u8 = 20;
const FAILED: u8 = 21;
const FILE: u8 = 22;
const FILE_DATA: u8 = 23;
const COLLECTED: u8 = 24;

/// Appends one frame of already encoded parts.
fn frame(out: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    // Every payload that the encoders make is far below 4 GiB: see the bounds above.
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    out.push(tag);
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// A payload that is read from its front.
struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }
}

impl ToAgent {
    /// Appends the frame. The caller keeps code and stdin within [`MAX_TO_AGENT`] together.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Run {
                runner,
                name,
                code,
                stdin,
                files,
                collect,
            } => {
                let runner = [runner.number()];
                let count = |part: &[u8]| u32::try_from(part.len()).unwrap_or(0).to_le_bytes();
                let stdin_count = stdin.as_ref().map_or(u32::MAX.to_le_bytes(), |s| count(s));
                let limits = [
                    &collect.files.to_le_bytes()[..],
                    &collect.file_bytes.to_le_bytes(),
                    &collect.total_bytes.to_le_bytes(),
                ]
                .concat();
                let file_count = u32::try_from(files.len()).unwrap_or(0).to_le_bytes();
                let counts: Vec<_> = files
                    .iter()
                    .map(|(path, data)| (count(path.as_bytes()), count(data)))
                    .collect();
                let (name_count, code_count) = (count(name.as_bytes()), count(code.as_bytes()));
                let mut parts = vec![
                    &runner[..],
                    &name_count,
                    name.as_bytes(),
                    &code_count,
                    code.as_bytes(),
                    &stdin_count,
                    stdin.as_deref().unwrap_or_default(),
                    &limits,
                    &file_count,
                ];
                for ((path, data), (path_count, data_count)) in files.iter().zip(&counts) {
                    parts.extend([&path_count[..], path.as_bytes(), data_count, data]);
                }
                frame(out, RUN, &parts);
            }
            Self::Interrupt => frame(out, INTERRUPT, &[]),
            Self::Kill => frame(out, KILL, &[]),
        }
    }

    /// Decodes one frame.
    ///
    /// # Errors
    ///
    /// `UnknownTag`, `Malformed`, `Empty`.
    pub fn decode(frame: &[u8]) -> Result<Self, FrameError> {
        let (&tag, payload) = frame.split_first().ok_or(FrameError::Empty)?;
        let mut payload = Payload(payload);
        let decoded = match tag {
            RUN => Self::decode_run(&mut payload),
            INTERRUPT => Some(Self::Interrupt),
            KILL => Some(Self::Kill),
            _ => return Err(FrameError::UnknownTag(tag)),
        };
        decoded
            .filter(|_| payload.0.is_empty())
            .ok_or(FrameError::Malformed(tag))
    }

    fn decode_run(payload: &mut Payload<'_>) -> Option<Self> {
        let runner = Runner::numbered(payload.byte()?)?;
        let name = Payload::text(payload.counted()?);
        let code = Payload::text(payload.counted()?);
        let stdin = match payload.u32()? {
            u32::MAX => None,
            length => Some(payload.take(length as usize)?.to_vec()),
        };
        let collect = Collect {
            files: payload.u32()?,
            file_bytes: payload.u64()?,
            total_bytes: payload.u64()?,
        };
        let mut files = Vec::new();
        for _ in 0..payload.u32()? {
            let path = Payload::text(payload.counted()?);
            files.push((path, payload.counted()?.to_vec()));
        }
        Some(Self::Run {
            runner,
            name,
            code,
            stdin,
            files,
            collect,
        })
    }
}

impl FromAgent {
    /// Appends the frame. Output beyond [`MAX_OUTPUT`] and reports beyond [`MAX_REPORT`] are the
    /// caller's to avoid.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version, facts } => {
                frame(out, HELLO, &[&facts.encode(), version.as_bytes()]);
            }
            Self::Stdout(bytes) => frame(out, STDOUT, &[bytes]),
            Self::Stderr(bytes) => frame(out, STDERR, &[bytes]),
            Self::Report(json) => frame(out, REPORT, &[json]),
            Self::Exited {
                status,
                cpu_us,
                max_rss_bytes,
            } => {
                let (how, number) = match status {
                    Status::Exited(code) => (0, *code),
                    Status::Signaled(signal) => (1, *signal),
                };
                frame(
                    out,
                    EXITED,
                    &[
                        &[how],
                        &number.to_le_bytes(),
                        &cpu_us.to_le_bytes(),
                        &max_rss_bytes.to_le_bytes(),
                    ],
                );
            }
            Self::Failed(why) => frame(out, FAILED, &[why.as_bytes()]),
            Self::File { path, size } => {
                frame(out, FILE, &[&size.to_le_bytes(), path.as_bytes()]);
            }
            Self::FileData(bytes) => frame(out, FILE_DATA, &[bytes]),
            Self::Collected { omitted } => frame(out, COLLECTED, &[&omitted.to_le_bytes()]),
        }
    }

    /// Decodes one frame.
    ///
    /// # Errors
    ///
    /// `UnknownTag`, `Malformed`, `Empty`.
    pub fn decode(frame: &[u8]) -> Result<Self, FrameError> {
        let (&tag, payload) = frame.split_first().ok_or(FrameError::Empty)?;
        let malformed = FrameError::Malformed(tag);
        match tag {
            STDOUT | STDERR if payload.is_empty() || payload.len() > MAX_OUTPUT => Err(malformed),
            STDOUT => Ok(Self::Stdout(payload.to_vec())),
            STDERR => Ok(Self::Stderr(payload.to_vec())),
            REPORT if payload.len() > MAX_REPORT => Err(malformed),
            REPORT => Ok(Self::Report(payload.to_vec())),
            FAILED if payload.len() > MAX_OUTPUT => Err(malformed),
            FAILED => Ok(Self::Failed(Payload::text(payload))),
            FILE => Self::decode_file(&mut Payload(payload)).ok_or(malformed),
            FILE_DATA if payload.is_empty() || payload.len() > MAX_OUTPUT => Err(malformed),
            FILE_DATA => Ok(Self::FileData(payload.to_vec())),
            COLLECTED => payload
                .try_into()
                .map(|omitted| Self::Collected {
                    omitted: u64::from_le_bytes(omitted),
                })
                .map_err(|_| malformed),
            HELLO => Self::decode_hello(&mut Payload(payload)).ok_or(malformed),
            EXITED => Self::decode_exited(&mut Payload(payload)).ok_or(malformed),
            _ => Err(FrameError::UnknownTag(tag)),
        }
    }

    fn decode_file(payload: &mut Payload<'_>) -> Option<Self> {
        let size = payload.u64()?;
        (payload.0.len() <= MAX_PATH).then(|| Self::File {
            path: Payload::text(payload.0),
            size,
        })
    }

    fn decode_hello(payload: &mut Payload<'_>) -> Option<Self> {
        let facts = Facts::decode(payload)?;
        // A version is a dozen characters.
        let version = (payload.0.len() <= 64).then(|| Payload::text(payload.0))?;
        Some(Self::Hello { version, facts })
    }

    fn decode_exited(payload: &mut Payload<'_>) -> Option<Self> {
        let how = payload.byte()?;
        let number = payload.u32()?.cast_signed();
        let status = match how {
            0 => Status::Exited(number),
            1 => Status::Signaled(number),
            _ => return None,
        };
        let (cpu_us, max_rss_bytes) = (payload.u64()?, payload.u64()?);
        payload.0.is_empty().then_some(Self::Exited {
            status,
            cpu_us,
            max_rss_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(bytes: &[u8], chunk: usize, bound: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut decoder = Decoder::new(bound);
        let mut all = Vec::new();
        for part in bytes.chunks(chunk.max(1)) {
            decoder.push(part);
            while let Some(frame) = decoder.next_frame()? {
                all.push(frame.to_vec());
            }
        }
        Ok(all)
    }

    fn samples() -> Vec<FromAgent> {
        vec![
            FromAgent::Hello {
                version: "0.1.0".to_owned(),
                facts: Facts {
                    uid: 1000,
                    no_new_privs: true,
                    namespaces: [1, 2, 3, 4, 5, 6, u64::MAX],
                    mounts: [Mount {
                        read_only: true,
                        bytes: 7,
                        ..Mount::default()
                    }; MOUNTS.len()],
                    ..Facts::default()
                },
            },
            FromAgent::Stdout(vec![0, 255]),
            FromAgent::Stderr(b"x".to_vec()),
            FromAgent::Report(b"{}".to_vec()),
            FromAgent::Exited {
                status: Status::Signaled(9),
                cpu_us: 7,
                max_rss_bytes: u64::MAX,
            },
            FromAgent::Failed("no python3".to_owned()),
            FromAgent::File {
                path: "a b/é.csv".to_owned(),
                size: 1 << 40,
            },
            FromAgent::FileData(vec![0; 3]),
            FromAgent::Collected { omitted: 5 },
        ]
    }

    #[test]
    fn frames_survive_the_way_whatever_the_chunks() {
        let mut bytes = Vec::new();
        for sample in samples() {
            sample.encode(&mut bytes);
        }
        for chunk in 1..40 {
            let decoded: Vec<FromAgent> = frames(&bytes, chunk, MAX_FROM_AGENT)
                .unwrap()
                .iter()
                .map(|frame| FromAgent::decode(frame).unwrap())
                .collect();
            assert_eq!(decoded, samples());
        }
    }

    #[test]
    fn a_job_survives_the_way() {
        for (runner, stdin) in [
            (Runner::Python, None),
            (Runner::R, Some(Vec::new())),
            (Runner::R, Some(vec![0, 1, 255])),
        ] {
            let job = ToAgent::Run {
                runner,
                name: "é.py".to_owned(),
                code: "print(1)\0".to_owned(),
                stdin,
                files: vec![
                    ("a/é".to_owned(), vec![0, 255]),
                    ("empty".to_owned(), Vec::new()),
                ],
                collect: Collect {
                    files: 1,
                    file_bytes: 2,
                    total_bytes: 3,
                },
            };
            let mut bytes = Vec::new();
            job.encode(&mut bytes);
            let frame = frames(&bytes, 7, MAX_TO_AGENT).unwrap().remove(0);
            assert_eq!(ToAgent::decode(&frame), Ok(job));
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_it_is_allocated() {
        let mut decoder = Decoder::new(MAX_FROM_AGENT);
        decoder.push(&u32::MAX.to_le_bytes());
        let expected = FrameError::TooLong(u32::MAX as usize, MAX_FROM_AGENT);
        assert_eq!(decoder.next_frame(), Err(expected));
        assert!(decoder.buffer.capacity() < 1024);

        let mut decoder = Decoder::new(MAX_FROM_AGENT);
        decoder.push(&u32::try_from(MAX_FROM_AGENT).unwrap().to_le_bytes());
        assert_eq!(decoder.next_frame(), Ok(None));
    }

    #[test]
    fn what_no_agent_sends_is_refused() {
        assert_eq!(frames(&[0, 0, 0, 0], 4, 10), Err(FrameError::Empty));
        assert_eq!(FromAgent::decode(&[]), Err(FrameError::Empty));
        assert_eq!(
            FromAgent::decode(&[RUN, 0]),
            Err(FrameError::UnknownTag(RUN))
        );
        assert_eq!(
            FromAgent::decode(&[STDOUT]),
            Err(FrameError::Malformed(STDOUT))
        );
        assert_eq!(
            FromAgent::decode(&[EXITED, 2]),
            Err(FrameError::Malformed(EXITED))
        );
        let long = [&[STDOUT][..], &vec![0; MAX_OUTPUT + 1]].concat();
        assert_eq!(FromAgent::decode(&long), Err(FrameError::Malformed(STDOUT)));
        let trailing = [&[KILL][..], b"x"].concat();
        assert_eq!(ToAgent::decode(&trailing), Err(FrameError::Malformed(KILL)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_none_are_hoarded(bytes: Vec<u8>, chunk in 1usize..64) {
            let mut decoder = Decoder::new(1000);
            for part in bytes.chunks(chunk) {
                decoder.push(part);
                loop {
                    match decoder.next_frame() {
                        Ok(Some(frame)) => {
                            let _ = FromAgent::decode(frame);
                            let _ = ToAgent::decode(frame);
                        }
                        Ok(None) => break,
                        Err(_) => return Ok(()),
                    }
                }
                prop_assert!(decoder.buffer.len() - decoder.start <= 1004 + chunk);
            }
        }
    }
}
