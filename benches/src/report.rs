//! The figures as Markdown and JSON, and the goals beside them.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::host::Host;
use crate::round::Row;
use crate::stats::Summary;

const BEGIN: &str = "<!-- forge-bench: begin -->";
const END: &str = "<!-- forge-bench: end -->";

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) host: Host,
    pub(crate) command: String,
    pub(crate) seed: u64,
    pub(crate) goals: Vec<Verdict>,
    pub(crate) sections: Vec<Section>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

/// A goal and what was found.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) goal: &'static str,
    pub(crate) what: String,
    /// None for the record.
    pub(crate) bound: Option<Bound>,
    /// None when a contestant was absent or failed.
    pub(crate) found: Option<Summary>,
    pub(crate) unit: &'static str,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(bound) => format!("≥ {bound}"),
            Self::AtMost(bound) => format!("≤ {bound}"),
        }
    }
}

impl Verdict {
    fn told(&self) -> &'static str {
        let Some(found) = &self.found else {
            return "not measured";
        };
        let Some(bound) = self.bound else {
            return "for the record";
        };
        let met = bound.holds(found.p50);
        let alike = |(low, high)| [low, high].map(|end| bound.holds(end)) == [met, met];
        match (met, found.ci95.map(alike)) {
            (true, Some(true)) => "met",
            (true, Some(false)) => "met by the median; the interval reaches beyond",
            (true, None) => "met by the median of too few rounds",
            (false, Some(true)) => "**not met**",
            (false, Some(false)) => "**not met** by the median; the interval reaches it",
            (false, None) => "**not met** by the median of too few rounds",
        }
    }
}

impl Report {
    pub(crate) fn add(&mut self, title: &'static str, rows: Vec<Row>, notes: Vec<String>) {
        self.sections.push(Section { title, rows, notes });
    }

    pub(crate) fn goal(
        &mut self,
        goal: &'static str,
        what: &str,
        bound: Option<Bound>,
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

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{}\nMeasured with `{}`.\n",
            self.host.markdown(),
            self.command
        );
        if !self.goals.is_empty() {
            text.push_str("### Goals\n\n| goal | what | bound | median (95 % interval) | |\n|---|---|---|---|---|\n");
            for goal in &self.goals {
                let found = goal.found.as_ref().map_or("-".to_owned(), |found| {
                    format!("{} {}{}", number(found.p50), goal.unit, interval(found))
                });
                let bound = goal.bound.map_or_else(
                    || "-".to_owned(),
                    |bound| format!("{} {}", bound.text(), goal.unit),
                );
                let _ = writeln!(
                    text,
                    "| {} | {} | {bound} | {found} | {} |",
                    goal.goal,
                    goal.what,
                    goal.told()
                );
            }
            text.push('\n');
        }
        for section in &self.sections {
            let _ = writeln!(text, "### {}\n", section.title);
            section.table(&mut text);
            for note in &section.notes {
                let _ = writeln!(text, "- {note}");
            }
            if !section.notes.is_empty() {
                text.push('\n');
            }
        }
        format!("{}\n", text.trim_end())
    }

    /// Puts the text between the markers of the file.
    pub(crate) fn write_into(&self, file: &Path) -> Result<()> {
        let old = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
        std::fs::write(file, spliced(&old, &self.markdown())?)?;
        Ok(())
    }
}

fn spliced(old: &str, new: &str) -> Result<String> {
    let (before, rest) = old
        .split_once(BEGIN)
        .context("no line that begins the measured part")?;
    let (_, after) = rest
        .split_once(END)
        .context("no line that ends the measured part")?;
    ensure!(!after.contains(BEGIN), "more than one measured part");
    Ok(format!("{before}{BEGIN}\n\n{new}\n{END}{after}"))
}

impl Section {
    fn table(&self, text: &mut String) {
        let many = self.rows.iter().any(|row| row.metrics.len() > 1);
        let head = if many { "| | |" } else { "| |" };
        let _ = writeln!(text, "{head} p50 | 95 % interval | p90 | p99 | n |");
        let _ = writeln!(
            text,
            "{}---|---|---|---|---|",
            if many { "|---|---|" } else { "|---|" }
        );
        for row in &self.rows {
            for metric in &row.metrics {
                let s = &metric.summary;
                let name = if many {
                    format!("{} | {}", row.name, metric.name)
                } else {
                    row.name.clone()
                };
                let unit = if metric.unit.is_empty() {
                    String::new()
                } else {
                    format!(" {}", metric.unit)
                };
                let range = s.ci95.map_or("-".to_owned(), |(low, high)| {
                    format!("{} to {}", number(low), number(high))
                });
                let _ = writeln!(
                    text,
                    "| {name} | {}{unit} | {range} | {} | {} | {} |",
                    number(s.p50),
                    number(s.p90),
                    number(s.p99),
                    s.n
                );
            }
            if let Some(fault) = &row.fault {
                let gap = if many { " |" } else { "" };
                let state = if row.failed { "" } else { "absent: " };
                let fault = fault.replace(['\n', '|'], " ");
                let _ = writeln!(text, "| {} |{gap} {state}{fault} | | | | |", row.name);
            }
        }
        text.push('\n');
    }
}

fn interval(summary: &Summary) -> String {
    summary.ci95.map_or(String::new(), |(low, high)| {
        format!(" ({} to {})", number(low), number(high))
    })
}

/// Three digits that mean something.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(bound: Bound, samples: &[f64]) -> &'static str {
        let bound = Some(bound);
        let found = Summary::of(samples);
        Verdict {
            goal: "G",
            what: String::new(),
            bound,
            found,
            unit: "x",
        }
        .told()
    }

    #[test]
    fn a_verdict_says_when_the_interval_leaves_it_open() {
        let around = [8.0, 9.0, 10.0, 11.0, 12.0, 13.0];
        assert_eq!(verdict(Bound::AtLeast(5.0), &around), "met");
        assert!(verdict(Bound::AtLeast(10.0), &around).starts_with("met by the median"));
        assert_eq!(verdict(Bound::AtMost(5.0), &around), "**not met**");
        assert!(verdict(Bound::AtMost(10.0), &around).starts_with("**not met** by"));
        assert!(verdict(Bound::AtMost(10.0), &[1.0]).contains("too few rounds"));
        assert_eq!(verdict(Bound::AtMost(10.0), &[]), "not measured");
    }

    #[test]
    fn only_the_measured_part_is_replaced() {
        let old = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let new = spliced(&old, "new\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n"));
        assert_eq!(spliced(&new, "new\n").unwrap(), new);
        assert!(spliced("nothing", "new").is_err());
    }

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [1234.5, 56.78, 1.234, 0.1234].map(number);
        assert_eq!(shown, ["1234", "56.8", "1.23", "0.123"]);
    }
}
