//! Files of the person's that the program finds in its workspace, and those that it leaves there.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use mcp_forge_domain::ExecutionPolicy;
use mcp_forge_ports::driving::Runs;
use mcp_forge_ports::vocabulary::{ExecutionOutcome, InputFile, OutputFile, RunPart};

use crate::commands::directory::Directory;

/// Bytes of a file that are in memory at once.
const PART: u64 = 1 << 20;

/// Reads the files that `--input [NAME=]PATH` names, one byte more than allowed at the most: the
/// domain then refuses them by their size.
///
/// # Errors
///
/// A file that cannot be read, by its name.
pub(super) fn inputs(
    arguments: &[String],
    policy: &ExecutionPolicy,
) -> anyhow::Result<Vec<InputFile>> {
    let mut left = policy.max_file_bytes as u64 + 1;
    let mut files = Vec::new();
    for argument in arguments {
        let (name, path) = named(argument)?;
        let told = || format!("cannot read the input {}", path.display());
        let file = File::open(path).with_context(told)?;
        if file.metadata().with_context(told)?.is_dir() {
            bail!("{}: it is a directory; name its files", told());
        }
        let mut data = Vec::new();
        file.take(left).read_to_end(&mut data).with_context(told)?;
        left -= data.len() as u64;
        files.push(InputFile { path: name, data });
    }
    Ok(files)
}

/// The name in the workspace and the path here. A path may have `=` in it.
fn named(argument: &str) -> anyhow::Result<(String, &Path)> {
    if let Some((name, path)) = argument.split_once('=')
        && !Path::new(argument).exists()
    {
        return Ok((name.to_owned(), Path::new(path)));
    }
    let path = Path::new(argument);
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| anyhow!("the input {argument:?} has no name; give NAME=PATH"))?;
    Ok((name.to_owned(), path))
}

/// Saves what the program left in its workspace: for each file, where it is or why it is not.
pub(super) async fn save(
    directory: &Directory,
    outcome: &ExecutionOutcome,
    runs: &dyn Runs,
) -> Vec<anyhow::Result<PathBuf>> {
    let mut saved = Vec::new();
    for file in &outcome.files {
        saved.push(save_one(directory, &outcome.run_id, file, runs).await);
    }
    saved
}

async fn save_one(
    directory: &Directory,
    run_id: &str,
    file: &OutputFile,
    runs: &dyn Runs,
) -> anyhow::Result<PathBuf> {
    let place = directory.place(Path::new(&file.path))?;
    if !file.kept {
        let (path, size) = (place.path.display(), file.size);
        bail!("{path}: its {size} bytes are too many (files.file_size, files.total_size)");
    }
    let mut offset = 0;
    let next = async || {
        let part = RunPart::File(file.path.clone());
        let read = runs.read(run_id, part, offset..offset + PART).await;
        let data = read.map_err(|refusal| anyhow!(refusal.message))?.data;
        offset += data.len() as u64;
        Ok(Some(data).filter(|data| !data.is_empty()))
    };
    place.fill(next).await?;
    Ok(place.path)
}
