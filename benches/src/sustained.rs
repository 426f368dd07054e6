//! Single-use runs per second, four at a time (goal G4).

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::Plan;
use crate::engines::OneShot;
use crate::forge::Forge;
use crate::noop::millis;
use crate::round::{Entrant, Pace, Row, rounds};
use crate::stats::{Shuffler, Summary};

pub(crate) const CLIENTS: usize = 4;
pub(crate) const FORGE: &str = "mcp-forge, one server, 4 calls in flight";
pub(crate) const FORGE_EACH: &str = "mcp-forge, 4 clients with a server each";
pub(crate) const PODMAN: &str = "podman run --rm, 4 at a time";
const RUNC: &str = "runc run, 4 at a time";
pub(crate) const BARE: &str = "bare python3 -c, 4 at a time";

pub(crate) struct Sustained {
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn measure(plan: &Plan, shuffler: &mut Shuffler) -> Result<Sustained> {
    let state = tempfile::tempdir()?;
    let one = Forge::start(&plan.forge, state.path(), &[])?;
    let idle = one.idle()?;
    let one = RefCell::new(one);
    let states = (0..CLIENTS)
        .map(|_| tempfile::tempdir())
        .collect::<Result<Vec<_>, _>>()?;
    let mut each = Vec::new();
    for state in &states {
        each.push(Forge::start(&plan.forge, state.path(), &[])?);
    }
    let each = RefCell::new(each);

    let entrants = vec![
        Entrant::new(FORGE, || {
            let begun = Instant::now();
            let took = one.borrow_mut().sustain(CLIENTS, plan.spell)?;
            outcome(&took, begun.elapsed())
        }),
        Entrant::new(FORGE_EACH, || {
            together(&mut each.borrow_mut(), |forge| forge.sustain(1, plan.spell))
        }),
        many(PODMAN, plan, || OneShot::podman(&plan.cache)),
        many(RUNC, plan, || OneShot::runc(&plan.cache)),
        many(BARE, plan, OneShot::bare),
    ];
    let metrics = [("rate", "runs/s"), ("time", "ms"), ("slowest tenth", "ms")];
    let pace = Pace {
        warm_up: 1,
        rounds: plan.few(),
        settle: Duration::from_millis(300),
    };
    let rows = rounds("sustained", &metrics, entrants, pace, shuffler);

    let one = one.into_inner();
    let judged = one.judged();
    let mut notes = vec![format!("The one server did {judged} runs.")];
    notes.extend(one.finish(&idle)?);
    Ok(Sustained { rows, notes })
}

/// A contestant that starts a command per run, on several threads.
fn many<'a>(name: &str, plan: &'a Plan, make: impl Fn() -> Result<OneShot>) -> Entrant<'a> {
    match (0..CLIENTS).map(|_| make()).collect::<Result<Vec<_>>>() {
        Ok(mut contestants) => Entrant::new(name, move || {
            together(&mut contestants, |contestant| {
                let begun = Instant::now();
                let mut took = Vec::new();
                while begun.elapsed() < plan.spell {
                    took.push(contestant.run(false)?);
                }
                Ok(took)
            })
        }),
        Err(reason) => Entrant::absent(name, format!("{reason:#}")),
    }
}

/// Lets everybody work at once.
fn together<T: Send>(
    workers: &mut [T],
    work: impl Fn(&mut T) -> Result<Vec<Duration>> + Sync,
) -> Result<Vec<f64>> {
    let begun = Instant::now();
    let done: Vec<_> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let elapsed = begun.elapsed();
    let mut took = Vec::new();
    for result in done {
        match result {
            Ok(result) => took.extend(result?),
            Err(_) => bail!("a client panicked"),
        }
    }
    outcome(&took, elapsed)
}

fn outcome(took: &[Duration], elapsed: Duration) -> Result<Vec<f64>> {
    let times: Vec<f64> = took.iter().copied().map(millis).collect();
    match Summary::of(&times) {
        Some(times) => Ok(vec![
            took.len() as f64 / elapsed.as_secs_f64(),
            times.p50,
            times.p90,
        ]),
        None => bail!("no run ended in time"),
    }
}
