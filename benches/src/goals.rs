//! The goals of the project that can be measured today, computed from the rows.
//!
//! Quotients without a bound are for the record.

use crate::on_engines::Runtime;
use crate::report::{Bound, Report};
use crate::round::{Row, ratio, samples};
use crate::stats::Summary;
use crate::{noop, recovery, runs, sustained};

pub(crate) fn single_runs(report: &mut Report, rows: &[Row]) {
    let times = |over, under| ratio(rows, "time", over, under);
    let most = Some(Bound::AtMost(1.6));
    let least = Some(Bound::AtLeast(8.0));
    let forge = runs::FORGE;
    let what = "one run, mcp-forge's time over bare Python's";
    report.goal("G6", what, most, "x", times(forge, runs::BARE));
    let what = "without the proof, mcp-forge's time over bare Python's";
    let plain = times(runs::FORGE_PLAIN, runs::BARE_PLAIN);
    report.goal("G6", what, most, "x", plain);
    let what = "directly after another run, mcp-forge's time over bare Python's";
    report.goal("G6", what, most, "x", times(runs::FORGE_NEXT, runs::BARE));
    let what = "one run, podman's time over mcp-forge's (G1: stage 1, no pool)";
    report.goal("G1, G6", what, least, "x", times(runs::PODMAN, forge));
    let what = "directly after another run, podman's time over mcp-forge's";
    let next = times(runs::PODMAN, runs::FORGE_NEXT);
    report.goal("G1, G6", what, least, "x", next);
    let what = "one run, runc's time over mcp-forge's";
    report.goal("-", what, None, "x", times(runs::RUNC, forge));
}

pub(crate) fn sustained(report: &mut Report, rows: &[Row]) {
    let rates = |over, under| ratio(rows, "rate", over, under);
    let (one, each) = (sustained::FORGE, sustained::FORGE_EACH);
    for (who, forge) in [("one server", one), ("a server for each client", each)] {
        let what = format!("{who}: runs per second over podman's (stage 1)");
        let found = rates(forge, sustained::PODMAN);
        report.goal("G4", &what, Some(Bound::AtLeast(6.0)), "x", found);
        let what = format!("{who}: runs per second over bare Python's (stage 3)");
        let found = rates(forge, sustained::BARE);
        report.goal("G4", &what, Some(Bound::AtLeast(4.0)), "x", found);
    }
}

pub(crate) fn recovery(report: &mut Report, rows: &[Row]) {
    let free = samples(rows, recovery::FREE, recovery::NEXT);
    for name in [recovery::LOOP, recovery::BOMB, recovery::STUBBORN] {
        let of = |metric| samples(rows, name, metric);
        // What the making of the next sandbox costs is told in the table.
        let slot = |from_limit: bool| {
            let triples = of(recovery::NEXT)?
                .iter()
                .zip(free?)
                .zip(of(recovery::LATE)?);
            let waits: Vec<f64> = triples
                .map(|((next, free), late)| next - free + if from_limit { *late } else { 0.0 })
                .collect();
            Summary::of(&waits)
        };
        let gone = of(recovery::GONE).and_then(Summary::of);
        let bound = Some(Bound::AtMost(50.0));
        for (what, bound, found) in [
            (
                "from the answer until the only slot is free",
                bound,
                slot(false),
            ),
            (
                "from the answer until no process and control group is left",
                bound,
                gone,
            ),
            (
                "from the time limit until the only slot is free",
                None,
                slot(true),
            ),
        ] {
            report.goal("G16", &format!("{name}: {what}"), bound, "ms", found);
        }
    }
}

pub(crate) fn on_engines(report: &mut Report, rows: &[Row]) {
    for runtime in [Runtime::Podman, Runtime::Docker] {
        let found = ratio(rows, "time", &runtime.forge(), &runtime.command());
        let what = format!(
            "{}, without a pool: its time over that of `{}`",
            runtime.forge(),
            runtime.command()
        );
        report.goal("G7", &what, Some(Bound::AtMost(0.7)), "x", found);
    }
}

pub(crate) fn noop(report: &mut Report, found: &noop::Noop) {
    let name = |server, kind| format!("{server} {kind}");
    for kind in [noop::PING, noop::TOOL] {
        let (forge, fast) = (name(noop::FORGE, kind), name(noop::FAST, kind));
        let what = format!("{kind}, FastMCP's time over mcp-forge's");
        let times = ratio(&found.latency, "time", &fast, &forge);
        report.goal("G13", &what, Some(Bound::AtLeast(8.0)), "x", times);
        let what = format!("{kind}, pipelined, calls per second over FastMCP's");
        let rates = ratio(&found.throughput, "rate", &forge, &fast);
        report.goal("G13", &what, Some(Bound::AtLeast(10.0)), "x", rates);
    }
    let what = "start, FastMCP's time over mcp-forge's";
    let times = ratio(&found.start, "time", noop::FAST, noop::FORGE);
    report.goal("G13", what, Some(Bound::AtLeast(50.0)), "x", times);
    for metric in ["resident", "proportional"] {
        let what = format!("memory, {metric}, FastMCP's over mcp-forge's with its helpers");
        let sizes = ratio(&found.memory, metric, noop::FAST, noop::FORGE);
        report.goal("G13", &what, Some(Bound::AtLeast(6.0)), "x", sizes);
    }
}
