//! Interleaved rounds: everybody once a round, in random order, so that a busy moment of the
//! machine hits all alike.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::stats::{self, Shuffler, Summary};

/// One measurement; a value for each metric of its section.
pub(crate) type Measure<'a> = Box<dyn FnMut() -> Result<Vec<f64>> + 'a>;

/// Somebody who takes part.
pub(crate) struct Entrant<'a> {
    name: String,
    /// Absent with the reason, or how to measure.
    measure: Result<Measure<'a>, String>,
}

impl<'a> Entrant<'a> {
    pub(crate) fn new(name: &str, measure: impl FnMut() -> Result<Vec<f64>> + 'a) -> Self {
        Self {
            name: name.to_owned(),
            measure: Ok(Box::new(measure)),
        }
    }

    pub(crate) fn absent(name: &str, reason: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            measure: Err(reason.into()),
        }
    }
}

/// What came of one entrant.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Why there are no figures, or why they end early.
    pub(crate) fault: Option<String>,
    pub(crate) failed: bool,
    pub(crate) metrics: Vec<Metric>,
}

impl Row {
    /// Something that failed altogether.
    pub(crate) fn failed(name: String, error: &anyhow::Error) -> Self {
        complain(&format!("{name} failed: {error:#}"));
        Self {
            name,
            fault: Some(format!("failed: {error:#}")),
            failed: true,
            metrics: Vec::new(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    #[serde(flatten)]
    pub(crate) summary: Summary,
}

/// How often and how far apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) warm_up: usize,
    pub(crate) rounds: usize,
    /// Pause before each measurement, so that nobody pays for what the one before left to do.
    pub(crate) settle: Duration,
}

/// Measures everybody in every round.
pub(crate) fn rounds(
    title: &str,
    metrics: &[(&'static str, &'static str)],
    mut entrants: Vec<Entrant<'_>>,
    pace: Pace,
    shuffler: &mut Shuffler,
) -> Vec<Row> {
    let mut samples = vec![vec![Vec::new(); metrics.len()]; entrants.len()];
    let mut failed = vec![false; entrants.len()];
    let total = pace.warm_up + pace.rounds;
    for round in 0..total {
        progress(&format!("{title}: round {} of {total}", round + 1));
        for who in shuffler.order(entrants.len()) {
            let entrant = &mut entrants[who];
            let Ok(measure) = &mut entrant.measure else {
                continue;
            };
            std::thread::sleep(pace.settle);
            match measure() {
                Ok(values) => {
                    if round >= pace.warm_up {
                        for (series, value) in samples[who].iter_mut().zip(values) {
                            series.push(value);
                        }
                    }
                }
                Err(e) => {
                    complain(&format!("{title}: {} failed: {e:#}", entrant.name));
                    entrant.measure = Err(format!("failed in round {}: {e:#}", round + 1));
                    failed[who] = true;
                }
            }
        }
    }
    progress("");
    entrants
        .into_iter()
        .zip(samples)
        .zip(failed)
        .map(|((entrant, samples), failed)| Row {
            name: entrant.name,
            fault: entrant.measure.err(),
            failed,
            metrics: metrics
                .iter()
                .zip(&samples)
                .filter_map(|((name, unit), samples)| {
                    Some(Metric {
                        name,
                        unit,
                        summary: Summary::of(samples)?,
                    })
                })
                .collect(),
        })
        .collect()
}

/// One quantity of one entrant, as sampled round by round.
pub(crate) fn samples<'a>(rows: &'a [Row], name: &str, metric: &str) -> Option<&'a [f64]> {
    let row = rows.iter().find(|row| row.name == name)?;
    let metric = row.metrics.iter().find(|m| m.name == metric)?;
    Some(&metric.summary.samples)
}

/// The quotient of two entrants, round by round.
pub(crate) fn ratio(rows: &[Row], metric: &str, over: &str, under: &str) -> Option<Summary> {
    let quotients = stats::ratios(samples(rows, over, metric)?, samples(rows, under, metric)?);
    Summary::of(&quotients)
}

/// Tells at a terminal what goes on, in one line that the next one replaces.
fn progress(line: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{line}");
        let _ = stderr.flush();
    }
}

/// Tells on standard error what went wrong; it is in the report too.
fn complain(line: &str) {
    progress("");
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_absent_and_the_failed_are_told_and_the_others_go_on() {
        let mut calls = 0;
        let entrants = vec![
            Entrant::new("good", || Ok(vec![2.0])),
            Entrant::absent("gone", "not installed"),
            Entrant::new("bad", || {
                calls += 1;
                anyhow::ensure!(calls < 3, "broken");
                Ok(vec![6.0])
            }),
        ];
        let pace = Pace {
            warm_up: 0,
            rounds: 4,
            settle: Duration::ZERO,
        };
        let rows = rounds("t", &[("time", "ms")], entrants, pace, &mut Shuffler(1));
        assert_eq!(samples(&rows, "good", "time").unwrap().len(), 4);
        assert_eq!(rows[1].fault.as_deref(), Some("not installed"));
        assert!(!rows[1].failed && rows[2].failed);
        assert_eq!(rows[2].fault.as_deref(), Some("failed in round 3: broken"));
        let ratio = ratio(&rows, "time", "bad", "good").unwrap();
        assert_eq!((ratio.n, ratio.p50), (2, 3.0));
    }
}
