//! `forge-bench`: measures mcp-forge beside other ways to do the same, on this machine, now.
//!
//! It asserts nothing about time: it prints goals beside figures. It exits with 1 when a
//! contestant failed, and never because one was slow.

mod engines;
mod forge;
mod goals;
mod host;
mod mcp;
mod noop;
mod on_engines;
mod procs;
mod proof;
mod recovery;
mod report;
mod round;
mod runs;
mod soak;
mod stats;
mod sustained;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use crate::host::Host;
use crate::on_engines::Runtime;
use crate::report::Report;
use crate::round::Row;
use crate::stats::Shuffler;

/// Measures mcp-forge beside podman, docker, runc, bare Python and other MCP servers.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    /// Rounds in which everybody is measured once
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::USUAL)]
    only: Vec<Part>,
    /// Pause before each single run, ms
    #[arg(long, default_value_t = 25, value_name = "MS")]
    settle: u64,
    /// How long each contestant is kept busy for runs per second, s
    #[arg(long, default_value_t = 5, value_name = "S")]
    spell: u64,
    /// How long `soak` lasts, minutes
    #[arg(long, default_value_t = 15, value_name = "MIN")]
    minutes: u64,
    /// What `soak` runs on
    #[arg(long, value_enum, default_value_t = Runtime::Libcontainer)]
    runtime: Runtime,
    /// What benches/prepare made
    #[arg(long, default_value = "/var/cache/mcp-forge-bench", value_name = "DIR")]
    cache: PathBuf,
    /// The mcp-forge to measure; by default the one beside this program
    #[arg(long, value_name = "FILE")]
    forge: Option<PathBuf>,
    /// Start of the random order; by default the time
    #[arg(long)]
    seed: Option<u64>,
    /// Write everything, samples included, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Replace the measured part of this file; without it the tables go to standard output
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A single call against podman, runc and bare Python
    Runs,
    /// Runs per second, four at a time
    Sustained,
    /// After a timeout and a fork bomb
    Recovery,
    /// The protocol alone
    Noop,
    /// A single call on Podman and Docker against their own commands
    Engines,
    /// Mixed load for a long time; only when named
    Soak,
}

impl Part {
    const USUAL: [Self; 5] = [
        Self::Runs,
        Self::Sustained,
        Self::Recovery,
        Self::Noop,
        Self::Engines,
    ];

    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The command line, resolved.
struct Plan {
    rounds: usize,
    settle: Duration,
    spell: Duration,
    cache: PathBuf,
    forge: PathBuf,
    noop_server: PathBuf,
}

impl Plan {
    /// Rounds of what takes seconds each.
    fn few(&self) -> usize {
        (self.rounds / 5).max(6)
    }
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let here = std::env::current_exe()?;
    let beside = here.parent().context("no directory of this program")?;
    let plan = Plan {
        rounds: cli.rounds.max(1),
        settle: Duration::from_millis(cli.settle),
        spell: Duration::from_secs(cli.spell.max(1)),
        cache: std::path::absolute(&cli.cache)?,
        forge: std::path::absolute(
            cli.forge
                .clone()
                .unwrap_or_else(|| beside.join("mcp-forge")),
        )?,
        noop_server: beside.join("noop-server"),
    };
    ensure!(
        plan.forge.is_file(),
        "no mcp-forge at {}: build it first, or name it with --forge",
        plan.forge.display()
    );
    let seed = match cli.seed {
        Some(seed) => seed,
        None => SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_secs(),
    };
    let report = measure(&plan, &cli, seed);
    if let Some(file) = &cli.json {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    }
    match &cli.markdown {
        Some(file) => report.write_into(file)?,
        None => std::io::stdout().write_all(report.markdown().as_bytes())?,
    }
    let failed = report
        .sections
        .iter()
        .flat_map(|s| &s.rows)
        .any(|row| row.failed);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Measures part after part; one that fails is told in the report, and the next goes on.
fn measure(plan: &Plan, cli: &Cli, seed: u64) -> Report {
    let mut report = Report {
        host: Host::now(plan),
        command: shown(cli),
        seed,
        goals: Vec::new(),
        sections: Vec::new(),
    };
    let mut shuffler = Shuffler(seed);
    for part in Part::value_variants() {
        if !cli.only.contains(part) {
            continue;
        }
        if let Err(e) = measure_part(*part, cli, plan, &mut report, &mut shuffler) {
            report.add(
                "What could not be measured",
                vec![Row::failed(part.name(), &e)],
                Vec::new(),
            );
        }
    }
    report.host.finished();
    report
}

fn measure_part(
    part: Part,
    cli: &Cli,
    plan: &Plan,
    report: &mut Report,
    shuffler: &mut Shuffler,
) -> Result<()> {
    match part {
        Part::Runs => {
            let found = runs::measure(plan, shuffler)?;
            goals::single_runs(report, &found.rows);
            report.add(
                "One run, from the request to its result",
                found.rows,
                found.notes,
            );
        }
        Part::Sustained => {
            let found = sustained::measure(plan, shuffler)?;
            goals::sustained(report, &found.rows);
            report.add("Runs per second, four at a time", found.rows, found.notes);
        }
        Part::Recovery => {
            let found = recovery::measure(plan, shuffler)?;
            goals::recovery(report, &found.rows);
            report.add(
                "After a hostile program, with one slot",
                found.rows,
                found.notes,
            );
        }
        Part::Engines => {
            let found = on_engines::measure(plan, shuffler)?;
            goals::on_engines(report, &found.rows);
            report.add("One run on an engine", found.rows, found.notes);
        }
        Part::Soak => {
            let time = Duration::from_secs(cli.minutes.max(1) * 60);
            let found = soak::measure(plan, cli.runtime, time, shuffler)?;
            report.add("Mixed load", found.rows, found.notes);
        }
        Part::Noop => {
            let found = noop::measure(plan, shuffler)?;
            goals::noop(report, &found);
            let memory = "mcp-forge consists of the server and its helper processes; all are \
                          counted. \"Resident\" counts what they share once for each of them, \
                          \"proportional\" once.";
            report.add("No-op, one call after the other", found.latency, Vec::new());
            report.add("No-op, 1000 requests at once", found.throughput, Vec::new());
            let start = "From the start of the process to the answer of `initialize`";
            report.add(start, found.start, Vec::new());
            report.add(
                "Memory after some hundred calls",
                found.memory,
                vec![memory.to_owned()],
            );
        }
    }
    Ok(())
}

/// The command that does it again, without the places of files.
fn shown(cli: &Cli) -> String {
    let mut text = format!("forge-bench --rounds {}", cli.rounds);
    if cli.only != Part::USUAL {
        let names: Vec<String> = cli.only.iter().map(|part| part.name()).collect();
        text.push_str(&format!(" --only {}", names.join(",")));
    }
    if cli.only.contains(&Part::Soak) {
        let runtime = cli.runtime.name();
        text.push_str(&format!(" --minutes {} --runtime {runtime}", cli.minutes));
    }
    text.push_str(&format!(" --settle {} --spell {}", cli.settle, cli.spell));
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
