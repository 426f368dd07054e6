//! Compiles the Python runners once, so that no run pays for it.
//!
//! The host's interpreter does it, as a user of its own and without the nursery's powers; a
//! host without Python has nothing to compile. Nobody waits for it, and failure only costs time:
//! until a whole file is there Python falls back to the source.

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::ids::WORKER;
use crate::sys;
use mcp_forge_presentation::Placed;

/// Largest bytecode file that is believed, bytes.
const MAX_BYTECODE: u64 = 4 * 1024 * 1024;

/// Prints the cache tag on a line of its own and then the file: PEP 552, hash-based, unchecked.
const COMPILE: &str = "\
import sys, _imp, importlib._bootstrap_external as b
source = open(sys.argv[1], 'rb').read()
code = b.SourceLoader().source_to_code(source, sys.argv[2])
data = b._code_to_hash_pyc(code, _imp.source_hash(b._RAW_MAGIC_NUMBER, source), False)
sys.stdout.buffer.write(sys.implementation.cache_tag.encode() + b'\\n' + data)
";

/// Compiles, in a process of its own, every placed `.py` file below `forge`, the directory as the
/// nursery sees it. The caller reaps.
pub(crate) fn start(forge: &Path, placed: &[Placed]) {
    let started = sys::fork(|| {
        compile(forge, placed);
        0
    });
    if let Err(e) = started {
        tracing::debug!(error = %e, "no bytecode");
    }
}

fn compile(forge: &Path, placed: &[Placed]) {
    for file in placed.iter().filter(|file| file.path.ends_with(".py")) {
        if let Err(e) = compile_one(forge, file) {
            tracing::debug!(error = %e, file = file.path, "no bytecode");
        }
    }
}

fn compile_one(forge: &Path, file: &Placed) -> io::Result<()> {
    let source = forge.join(file.path);
    let inside = Path::new(mcp_forge_presentation::FORGE).join(file.path);
    let mut child = Command::new("python3")
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .args(["-I", "-S", "-c", COMPILE])
        .args([&source, &inside])
        .uid(WORKER)
        .gid(WORKER)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_BYTECODE).read_to_end(&mut output)?;
    }
    let status = child.wait()?;
    let end = output.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (tag, data) = output.split_at(end);
    let tag = std::str::from_utf8(tag).map_err(io::Error::other)?;
    let plain = !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !status.success() || !plain || data.len() < 17 {
        return Err(io::Error::other(format!(
            "the interpreter ended with {status}"
        )));
    }
    let cache = source.with_file_name("__pycache__");
    fs::create_dir_all(&cache)?;
    let stem = source
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or("runner");
    // A sandbox may read at any time, so the file appears whole.
    let half = cache.join(format!(".{stem}"));
    fs::write(&half, &data[1..])?;
    fs::rename(half, cache.join(format!("{stem}.{tag}.pyc")))
}
