//! Bytes of files: decompressed by what they begin with, counted, hashed and bounded.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use sha2::{Digest, Sha256};

use mcp_forge_ports::driven::ImageProgress;

use crate::Failure;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A file as it was before somebody compressed it; `progress` is told how much of it was read.
pub(crate) fn plain(path: &Path, progress: &ImageProgress) -> Result<Box<dyn Read>, Failure> {
    let mut file = File::open(path).map_err(Failure::source(path))?;
    let mut magic = [0; 4];
    let length = read_some(&mut file, &mut magic).map_err(Failure::source(path))?;
    file.seek(SeekFrom::Start(0))
        .map_err(Failure::source(path))?;
    let length_of_all = file.metadata().map_err(Failure::source(path))?.len();
    let watched = Watched {
        file,
        done: 0,
        all: length_of_all,
        progress: ImageProgress::clone(progress),
    };
    let file = BufReader::with_capacity(1 << 16, watched);
    if length >= 2 && magic[..2] == GZIP {
        return Ok(Box::new(MultiGzDecoder::new(file)));
    }
    if length == 4 && magic == ZSTD {
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
    progress: ImageProgress,
}

impl Read for Watched {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let came = self.file.read(bytes)?;
        self.done += came as u64;
        (self.progress)(self.done, self.all);
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
}

impl<'a, R: Read> Counted<'a, R> {
    pub(crate) fn new(reader: R, left: &'a mut u64) -> Self {
        Self {
            reader,
            hash: Sha256::new(),
            left,
        }
    }

    /// Reads what is left of it and gives the digest of all.
    pub(crate) fn digest(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hex(&self.hash.finalize()))
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
        Ok(came)
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether it is 64 of them.
pub(crate) fn is_hex(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
