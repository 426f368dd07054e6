//! `forge-bench`: measures mcp-forge beside other ways to do the same, on this machine, now.
//!
//! It asserts nothing about time: it prints goals beside figures. It exits with 1 when a
//! contestant failed, and never because one was slow.

mod engines;
mod forge;
mod host;
mod mcp;
mod noop;
mod procs;
mod proof;
mod recovery;
mod report;
mod round;
mod runs;
mod stats;
mod sustained;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use crate::host::Host;
use crate::report::{Bound, Report, Section, Verdict};
use crate::round::{Row, ratio, samples};
use crate::stats::{Shuffler, Summary};

/// Measures mcp-forge beside podman, runc, bare Python and other MCP servers.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    /// Rounds in which everybody is measured once
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    only: Vec<Part>,
    /// Pause before each single run, ms
    #[arg(long, default_value_t = 25, value_name = "MS")]
    settle: u64,
    /// How long each contestant is kept busy for runs per second, s
    #[arg(long, default_value_t = 5, value_name = "S")]
    spell: u64,
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
}

impl Part {
    const ALL: [Self; 4] = [Self::Runs, Self::Sustained, Self::Recovery, Self::Noop];
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
    let report = measure(&plan, &cli, seed)?;
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

fn measure(plan: &Plan, cli: &Cli, seed: u64) -> Result<Report> {
    let mut report = Report {
        host: Host::now(plan),
        command: shown(cli),
        seed,
        goals: Vec::new(),
        sections: Vec::new(),
    };
    let mut shuffler = Shuffler(seed);
    for part in Part::ALL.into_iter().filter(|part| cli.only.contains(part)) {
        match part {
            Part::Runs => {
                let runs = runs::measure(plan, &mut shuffler).context("single runs")?;
                single_run_goals(&mut report, &runs.rows);
                report.add(
                    "One run, from the request to its result",
                    runs.rows,
                    runs.freshness,
                );
            }
            Part::Sustained => {
                let sustained =
                    sustained::measure(plan, &mut shuffler).context("sustained runs")?;
                sustained_goals(&mut report, &sustained.rows);
                report.add(
                    "Runs per second, four at a time",
                    sustained.rows,
                    sustained.leaks,
                );
            }
            Part::Recovery => {
                let recovery = recovery::measure(plan, &mut shuffler).context("recovery")?;
                recovery_goals(&mut report, &recovery.rows);
                report.add(
                    "After a hostile program, with one slot",
                    recovery.rows,
                    recovery.notes,
                );
            }
            Part::Noop => {
                let noop = noop::measure(plan, &mut shuffler).context("no-op calls")?;
                noop_goals(&mut report, &noop);
                let memory = "mcp-forge consists of the server and its helper processes; all are \
                              counted. \"Resident\" counts what they share once for each of them, \
                              \"proportional\" once."
                    .to_owned();
                report.add("No-op, one call after the other", noop.latency, Vec::new());
                report.add("No-op, 1000 requests at once", noop.throughput, Vec::new());
                report.add(
                    "From the start of the process to the answer of `initialize`",
                    noop.start,
                    Vec::new(),
                );
                report.add("Memory after some hundred calls", noop.memory, vec![memory]);
            }
        }
    }
    report.host.finished();
    Ok(report)
}

impl Report {
    fn add(&mut self, title: &'static str, rows: Vec<Row>, notes: Vec<String>) {
        self.sections.push(Section { title, rows, notes });
    }

    fn goal(
        &mut self,
        goal: &'static str,
        what: &str,
        bound: Bound,
        unit: &'static str,
        found: Option<Summary>,
    ) {
        self.goals.push(Verdict {
            goal,
            what: what.to_owned(),
            bound,
            found,
            unit,
        });
    }
}

fn single_run_goals(report: &mut Report, rows: &[Row]) {
    let times = |over, under| ratio(rows, "time", over, under);
    let (least, most) = (Bound::AtLeast, Bound::AtMost);
    let forge = runs::FORGE;
    report.goal(
        "G6",
        "one run, time over bare Python's",
        most(1.6),
        "x",
        times(forge, runs::BARE),
    );
    report.goal(
        "G6",
        "one run, podman's time over it",
        least(8.0),
        "x",
        times(runs::PODMAN, forge),
    );
    let next = times(runs::PODMAN, runs::FORGE_NEXT);
    report.goal(
        "G6",
        "the same, directly after another run",
        least(8.0),
        "x",
        next,
    );
    report.goal(
        "-",
        "one run, runc's time over it",
        least(1.0),
        "x",
        times(runs::RUNC, forge),
    );
}

fn sustained_goals(report: &mut Report, rows: &[Row]) {
    let rates = |over, under| ratio(rows, "rate", over, under);
    let (forge, podman, bare) = (sustained::FORGE, sustained::PODMAN, sustained::BARE);
    let what = "runs per second over podman's (stage 1)";
    report.goal("G4", what, Bound::AtLeast(6.0), "x", rates(forge, podman));
    let what = "runs per second over bare Python's (stage 3)";
    report.goal("G4", what, Bound::AtLeast(4.0), "x", rates(forge, bare));
}

fn recovery_goals(report: &mut Report, rows: &[Row]) {
    for name in [recovery::LOOP, recovery::BOMB, recovery::STUBBORN] {
        for metric in [recovery::NEXT, recovery::GONE] {
            let found = samples(rows, name, metric).and_then(Summary::of);
            let what = format!(
                "{name}: from the answer until the {}",
                metric_phrase(metric)
            );
            report.goal("G16", &what, Bound::AtMost(50.0), "ms", found);
        }
    }
}

fn metric_phrase(metric: &str) -> &'static str {
    if metric == recovery::NEXT {
        "next program runs in the only slot"
    } else {
        "last process and control group are gone"
    }
}

fn noop_goals(report: &mut Report, noop: &noop::Noop) {
    let name = |server, kind| format!("{server} {kind}");
    for kind in [noop::PING, noop::TOOL] {
        let (forge, fast) = (name(noop::FORGE, kind), name(noop::FAST, kind));
        let found = ratio(&noop.latency, "time", &fast, &forge);
        let what = format!("{kind}, FastMCP's time over mcp-forge's");
        report.goal("G13", &what, Bound::AtLeast(8.0), "x", found);
        let found = ratio(&noop.throughput, "rate", &forge, &fast);
        let what = format!("{kind}, pipelined, calls per second over FastMCP's");
        report.goal("G13", &what, Bound::AtLeast(10.0), "x", found);
    }
    let found = ratio(&noop.start, "time", noop::FAST, noop::FORGE);
    report.goal(
        "G13",
        "start, FastMCP's time over mcp-forge's",
        Bound::AtLeast(50.0),
        "x",
        found,
    );
    for metric in ["resident", "proportional"] {
        let found = ratio(&noop.memory, metric, noop::FAST, noop::FORGE);
        let what = format!("memory, {metric}, FastMCP's over mcp-forge's with its helpers");
        report.goal("G13", &what, Bound::AtLeast(6.0), "x", found);
    }
}

/// The command that does it again, without the places of files.
fn shown(cli: &Cli) -> String {
    let mut text = format!("forge-bench --rounds {}", cli.rounds);
    if cli.only != Part::ALL {
        let names: Vec<String> = cli
            .only
            .iter()
            .filter_map(|part| Some(part.to_possible_value()?.get_name().to_owned()))
            .collect();
        text.push_str(&format!(" --only {}", names.join(",")));
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
