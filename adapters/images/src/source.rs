//! Bytes of files: decompressed by what they begin with, counted, hashed and bounded.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use sha2::{Digest, Sha256};

use mcp_forge_ports::driven::ImageProgress;

use crate::Failure;

/// Of a tar, bytes: pax, "ustar interchange format".
const BLOCK: usize = 512;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What else people have, and its name.
const OTHERS: [(&[u8], &str); 4] = [
    (b"\xfd7zXZ\0", "compressed by xz"),
    (b"BZh", "compressed by bzip2"),
    (b"PK\x03\x04", "a zip"),
    (b"7z\xbc\xaf", "a 7z"),
];

/// Who is told of bytes that were read, and whether anybody still waits for them.
#[derive(Clone)]
pub(crate) struct Progress {
    pub(crate) told: ImageProgress,
    pub(crate) given_up: Arc<AtomicBool>,
}

impl Progress {
    /// Of what takes no time.
    pub(crate) fn silent() -> Self {
        Self {
            told: Arc::new(|_, _| {}),
            given_up: Arc::default(),
        }
    }
}

/// A file as it was before somebody compressed it; `progress` is told how much of it was read.
pub(crate) fn plain(path: &Path, progress: &Progress) -> Result<Box<dyn Read>, Failure> {
    let mut file = File::open(path).map_err(Failure::source(path))?;
    let mut magic = [0; 6];
    let length = read_some(&mut file, &mut magic).map_err(Failure::source(path))?;
    for (begin, what) in OTHERS {
        if magic.starts_with(begin) {
            let what =
                format!("it is {what}; a tar is read as it is, or compressed by gzip or zstd");
            return Err(Failure::Wrong(what));
        }
    }
    file.seek(SeekFrom::Start(0))
        .map_err(Failure::source(path))?;
    let length_of_all = file.metadata().map_err(Failure::source(path))?.len();
    let watched = Watched {
        file,
        done: 0,
        all: length_of_all,
        progress: progress.clone(),
    };
    let file = BufReader::with_capacity(1 << 16, watched);
    if length >= 2 && magic[..2] == GZIP {
        return Ok(Box::new(MultiGzDecoder::new(file)));
    }
    if length >= 4 && magic[..4] == ZSTD {
        let decoder = StreamingDecoder::new(file)
            .map_err(|error| Failure::Read(io::Error::other(error.to_string())))?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(file))
}

struct Watched {
    file: File,
    done: u64,
    all: u64,
    progress: Progress,
}

impl Read for Watched {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.progress.given_up.load(Ordering::Relaxed) {
            return Err(io::Error::other("nobody waits for it any more"));
        }
        let came = self.file.read(bytes)?;
        self.done += came as u64;
        (self.progress.told)(self.done, self.all);
        Ok(came)
    }
}

fn read_some(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match reader.read(&mut bytes[filled..])? {
            0 => break,
            came => filled += came,
        }
    }
    Ok(filled)
}

/// What was read through it, up to a bound, and its hash.
pub(crate) struct Counted<'a, R> {
    reader: R,
    hash: Sha256,
    left: &'a mut u64,
    /// The last bytes, of which an archive has at least a block of zeros.
    last: Vec<u8>,
}

impl<'a, R: Read> Counted<'a, R> {
    pub(crate) fn new(reader: R, left: &'a mut u64) -> Self {
        Self {
            reader,
            hash: Sha256::new(),
            left,
            last: Vec::new(),
        }
    }

    /// Reads what is left of an archive and gives the digest of all.
    pub(crate) fn digest(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        if self.last.len() < BLOCK || self.last.iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "its end is missing",
            ));
        }
        Ok(hex(&self.hash.finalize()))
    }

    fn remember(&mut self, bytes: &[u8]) {
        let kept = self.last.len().min(BLOCK.saturating_sub(bytes.len()));
        self.last.drain(..self.last.len() - kept);
        self.last
            .extend_from_slice(&bytes[bytes.len().saturating_sub(BLOCK)..]);
    }
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let came = self.reader.read(bytes)?;
        *self.left = self
            .left
            .checked_sub(came as u64)
            .ok_or_else(|| io::Error::other("it is too large once it is decompressed"))?;
        self.hash.update(&bytes[..came]);
        self.remember(&bytes[..came]);
        Ok(came)
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Copies what an archive has into a file; `wrong` is what it is when that cannot be written.
pub(crate) fn copy(
    from: &mut impl Read,
    file: &mut File,
    wrong: impl Fn(io::Error) -> Failure,
) -> Result<u64, Failure> {
    let mut bytes = vec![0; 1 << 16];
    let mut copied = 0;
    loop {
        let came = from.read(&mut bytes).map_err(Failure::Read)?;
        if came == 0 {
            return Ok(copied);
        }
        file.write_all(&bytes[..came]).map_err(&wrong)?;
        copied += came as u64;
    }
}

/// Whether it is 64 of them.
pub(crate) fn is_hex(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
