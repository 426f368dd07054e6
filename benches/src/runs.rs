//! One program, one fresh sandbox, one result: the single call.

use std::cell::RefCell;

use anyhow::Result;

use crate::Plan;
use crate::engines::OneShot;
use crate::forge::Forge;
use crate::noop::millis;
use crate::proof;
use crate::round::{Entrant, Pace, Row, rounds};
use crate::stats::Shuffler;

pub(crate) const FORGE: &str = "mcp-forge over MCP stdio";
pub(crate) const FORGE_NEXT: &str = "mcp-forge, directly after another run";
pub(crate) const FORGE_PLAIN: &str = "mcp-forge, without the proof";
pub(crate) const FORGE_COMMAND: &str = "mcp-forge run (a process per run)";
pub(crate) const PODMAN: &str = "podman run --rm";
pub(crate) const RUNC: &str = "runc run";
pub(crate) const BARE: &str = "bare python3 -c";
pub(crate) const BARE_PLAIN: &str = "bare python3 -c, without the proof";

/// Runs whose namespaces are kept open and compared.
const HELD: usize = 8;

pub(crate) struct Runs {
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

/// A contestant that starts a command per run, or why there is none.
pub(crate) fn one_shot<'a>(name: &str, made: Result<OneShot>) -> Entrant<'a> {
    match made {
        Ok(mut contestant) => Entrant::new(name, move || Ok(vec![millis(contestant.run(true)?)])),
        Err(reason) => Entrant::absent(name, format!("{reason:#}")),
    }
}

pub(crate) fn measure(plan: &Plan, shuffler: &mut Shuffler) -> Result<Runs> {
    let state = tempfile::tempdir()?;
    let mut forge = Forge::start(&plan.forge, state.path(), &[])?;
    let idle = forge.idle()?;
    let held = proof::held(&mut forge.client, HELD)?;
    let forge = RefCell::new(forge);
    let entrants = vec![
        Entrant::new(FORGE, || Ok(vec![millis(forge.borrow_mut().run()?)])),
        Entrant::new(FORGE_NEXT, || {
            forge.borrow_mut().run()?;
            Ok(vec![millis(forge.borrow_mut().run()?)])
        }),
        Entrant::new(FORGE_PLAIN, || {
            Ok(vec![millis(forge.borrow_mut().run_plain()?)])
        }),
        one_shot(FORGE_COMMAND, OneShot::forge(&plan.forge, state.path())),
        one_shot(PODMAN, OneShot::podman(&plan.cache)),
        one_shot(RUNC, OneShot::runc(&plan.cache)),
        one_shot(BARE, OneShot::bare()),
        one_shot(BARE_PLAIN, OneShot::bare_plain()),
    ];
    let pace = Pace {
        warm_up: 2,
        rounds: plan.rounds,
        settle: plan.settle,
    };
    let rows = rounds("single runs", &[("time", "ms")], entrants, pace, shuffler);

    let forge = forge.into_inner();
    let mut notes = vec![format!(
        "Each of the {} runs with the proof on the long-lived server was fresh by it.",
        forge.judged()
    )];
    let (new, shared): (Vec<_>, Vec<_>) = held.iter().partition(|(_, count)| *count == HELD);
    let list = |kinds: &[&(&str, usize)]| kinds.iter().map(|k| k.0).collect::<Vec<_>>().join(", ");
    notes.push(format!(
        "With the namespaces of {HELD} runs kept open, so that no number can be used again, every \
         run had its own: {}.",
        list(&new)
    ));
    if !shared.is_empty() {
        notes.push(format!(
            "Shared by runs of one server, though never with the host: {}.",
            list(&shared)
        ));
    }
    notes.extend(forge.finish(&idle)?);
    Ok(Runs { rows, notes })
}
