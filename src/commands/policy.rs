//! `mcp-forge policy`.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use mcp_forge_domain::decision::{Mount, Proposal, SourceKind, Table, Verdict};

use super::{complain, printed};
use crate::cli::Policy;
use crate::settings::{Settings, policy_file};

/// Exit status when a proposal is not allowed, or a policy is not sound.
const NOT: u8 = 1;

/// Longest proposal, bytes.
const MAX_PROPOSAL: u64 = 1 << 20;

pub(super) fn check(file: &Path) -> anyhow::Result<ExitCode> {
    if let Err(error) = policy_file::load(file) {
        complain(&error);
        return Ok(ExitCode::from(NOT));
    }
    Ok(printed("the policy is sound\n", ExitCode::SUCCESS))
}

pub(super) fn policy(command: &Policy, settings: &Settings) -> anyhow::Result<ExitCode> {
    // What is wrong with the configured one was told when the settings were read.
    let policy = settings.policy()?.sandboxes;
    match command {
        Policy::Check { .. } => Ok(printed("the policy is sound\n", ExitCode::SUCCESS)),
        Policy::Explain { proposal } => {
            let text = read(proposal).with_context(|| proposal.display().to_string())?;
            let Table(mut proposal): Table<Proposal> =
                serde_json::from_str(&text).map_err(|error| anyhow!("the proposal: {error}"))?;
            for mount in &mut proposal.mounts {
                resolve(mount)
                    .with_context(|| format!("the proposal: mount of {:?}", mount.source))?;
            }
            let evaluation = policy.evaluate(&proposal);
            let status = match evaluation.verdict {
                Verdict::Allow => ExitCode::SUCCESS,
                Verdict::Prompt | Verdict::Forbid => ExitCode::from(NOT),
            };
            let told = serde_json::json!({
                "verdict": evaluation.verdict,
                "decisions": evaluation.decisions,
                "proposal": proposal,
            });
            Ok(printed(&format!("{told:#}\n"), status))
        }
    }
}

/// The rules are about what is really mounted.
fn resolve(mount: &mut Mount) -> anyhow::Result<()> {
    let resolved = fs::canonicalize(&mount.source)?;
    let found = fs::metadata(&resolved)?;
    mount.kind = Some(match found.file_type() {
        kind if kind.is_dir() => SourceKind::Directory,
        kind if kind.is_file() => SourceKind::File,
        _ => SourceKind::Special,
    });
    match resolved.into_os_string().into_string() {
        Ok(source) => mount.source = source,
        Err(source) => bail!("{source:?} is not UTF-8"),
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(fs::File::open(path)?)
    };
    source.take(MAX_PROPOSAL + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_PROPOSAL {
        bail!("longer than 1 MiB");
    }
    Ok(text)
}
