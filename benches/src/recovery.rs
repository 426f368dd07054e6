//! How soon the only slot is free after a hostile program, and everything of it gone (goal G16).
//!
//! Two observations of each program, apart, so that neither disturbs the other: a program that
//! waits for the slot tells when its first line runs, and the host's view tells when the last
//! process and control group of the run are gone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::Plan;
use crate::forge::{Forge, Parts, completed};
use crate::noop::millis;
use crate::procs::{self, Process};
use crate::round::{Entrant, Pace, Row, rounds};
use crate::stats::Shuffler;

/// Time limit of the hostile programs, seconds.
const LIMIT: u64 = 1;
/// How long before the program that is to wait.
const HEAD_START: Duration = Duration::from_millis(300);
/// When they are looked at, before the limit.
const LOOK: Duration = Duration::from_millis(600);
/// Longest wait for what must vanish.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) const FREE: &str = "a free slot, for comparison";
pub(crate) const LOOP: &str = "endless loop";
pub(crate) const BOMB: &str = "fork bomb";
pub(crate) const STUBBORN: &str = "endless loop that ignores SIGINT";

const PROGRAMS: [(&str, &str); 3] = [
    (LOOP, "while True: pass"),
    (
        BOMB,
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    ),
    (
        STUBBORN,
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    ),
];

/// Tells when its first line runs; the monotonic clock is the same inside.
const WATCHER: &str = "import time; print(time.monotonic_ns())";

pub(crate) const NEXT: &str = "next program runs";
pub(crate) const GONE: &str = "nothing is left";
pub(crate) const LATE: &str = "answer after the limit";

pub(crate) struct Recovery {
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn measure(plan: &Plan, shuffler: &mut Shuffler) -> Result<Recovery> {
    let state = tempfile::tempdir()?;
    let settings = [("MCP_FORGE_EXECUTION__CONCURRENCY", "1")];
    let forge = Forge::start(&plan.forge, state.path(), &settings)?;
    let idle = forge.idle()?;
    let forge = RefCell::new(forge);
    let endings = RefCell::new(BTreeMap::new());
    let mut entrants = vec![Entrant::new(FREE, || free_slot(&mut forge.borrow_mut()))];
    for (name, code) in PROGRAMS {
        let (forge, idle, endings) = (&forge, &idle, &endings);
        entrants.push(Entrant::new(name, move || {
            let mut forge = forge.borrow_mut();
            let (next, late) = next_run(&mut forge, code)?;
            std::thread::sleep(Duration::from_millis(50));
            let (gone, ended_by) = gone(&mut forge, code, idle)?;
            *endings.borrow_mut().entry((name, ended_by)).or_insert(0) += 1;
            Ok(vec![next, gone, late])
        }));
    }
    let metrics = [(NEXT, "ms"), (GONE, "ms"), (LATE, "ms")];
    let pace = Pace {
        warm_up: 1,
        rounds: plan.few(),
        settle: Duration::from_millis(100),
    };
    let rows = rounds("recovery", &metrics, entrants, pace, shuffler);

    let told: Vec<String> = endings
        .into_inner()
        .into_iter()
        .map(|((name, ended_by), count)| format!("{name}: {ended_by} ({count})"))
        .collect();
    let mut notes = vec![format!("Told as the ending: {}.", told.join(", "))];
    notes.extend(forge.into_inner().finish(&idle)?);
    Ok(Recovery { rows, notes })
}

/// From a call to the first line of its program, ms, when the slot is free.
fn free_slot(forge: &mut Forge) -> Result<Vec<f64>> {
    let sent = monotonic()?;
    let answer = forge
        .client
        .call("execute_python", &json!({ "code": WATCHER }))?;
    Ok(vec![
        first_line(&answer.value)?.saturating_sub(sent) as f64 / 1e6,
    ])
}

fn hostile(code: &str) -> Value {
    json!({ "code": code, "timeout": LIMIT })
}

/// From the answer to the hostile program to the first line of the program that waited, and from
/// its time limit to its answer, ms.
fn next_run(forge: &mut Forge, code: &str) -> Result<(f64, f64)> {
    let (first, sent) = forge.client.call_later("execute_python", &hostile(code))?;
    // Two requests at once may be taken in either order.
    std::thread::sleep(HEAD_START);
    let (second, waiting) = forge
        .client
        .call_later("execute_python", &json!({ "code": WATCHER }))?;
    let answer = forge.client.answer(first, sent)?;
    let answered = monotonic()? - u64::try_from(answer.at.elapsed().as_nanos())?;
    let watched = forge.client.answer(second, waiting)?;
    let begun = first_line(&watched.value)?;
    let late = answer.took.saturating_sub(Duration::from_secs(LIMIT));
    Ok(((begun as f64 - answered as f64) / 1e6, millis(late)))
}

/// From the answer to the hostile program until nothing of it is left, ms; and how it ended.
fn gone(forge: &mut Forge, code: &str, idle: &Parts) -> Result<(f64, String)> {
    let (id, sent) = forge.client.call_later("execute_python", &hostile(code))?;
    std::thread::sleep(LOOK);
    let (processes, groups) = traces(forge.client.pid(), idle)?;
    let answer = forge.client.answer(id, sent)?;
    let until = answer.at + PATIENCE;
    loop {
        let left = processes.iter().filter(|process| process.exists()).count()
            + groups.iter().filter(|group| group.is_dir()).count();
        if left == 0 {
            break;
        }
        ensure!(
            Instant::now() < until,
            "{left} processes and control groups are still there"
        );
        std::thread::sleep(Duration::from_micros(200));
    }
    let took = answer.at.elapsed();
    // Whatever the bomb made meanwhile is gone with the first process of its namespace; see.
    let server = forge.client.pid();
    let namespaces = procs::pid_namespaces(&processes);
    let late = procs::descendants(server)?;
    ensure!(
        late.iter()
            .all(|process| process.namespace.is_none_or(|ns| !namespaces.contains(&ns))),
        "a process of the run outlived the first one"
    );
    let ended_by = answer.value["structuredContent"]["ended_by"]
        .as_str()
        .unwrap_or("?");
    Ok((millis(took), ended_by.to_owned()))
}

/// The processes of the run that is going on, and its control groups.
fn traces(server: u32, idle: &Parts) -> Result<(Vec<Process>, Vec<PathBuf>)> {
    let known = procs::pid_namespaces(&idle.processes);
    let mut processes = procs::descendants(server)?;
    processes.retain(|process| process.namespace.is_some_and(|ns| !known.contains(&ns)));
    ensure!(
        processes.len() >= 2,
        "the processes of the run are not to be found"
    );
    let mut groups: Vec<PathBuf> = processes
        .iter()
        .flat_map(|process| procs::control_groups(process.pid))
        .collect();
    groups.sort();
    groups.dedup();
    groups.retain(|group| group.is_dir());
    ensure!(
        !groups.is_empty(),
        "the control groups of the run are not to be found"
    );
    Ok((processes, groups))
}

fn first_line(result: &Value) -> Result<u64> {
    completed(result)?.trim().parse().context("a time")
}

/// The monotonic clock, ns.
fn monotonic() -> Result<u64> {
    let now = clock_gettime(ClockId::Monotonic);
    Ok(u64::try_from(now.tv_sec)? * 1_000_000_000 + u64::try_from(now.tv_nsec)?)
}
