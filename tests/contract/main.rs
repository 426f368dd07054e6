//! The contracts of ports (`mcp_forge_ports::contract`), held against each adapter that this host has what it needs for.
//!
//! A test program of its own, since it is also the helper of the embedded runtime. With
//! `UPDATE_DOCS` in one process (`cargo test --test contract`) it writes `docs/parity.md`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod builders;
mod engines;
mod parity;
mod stores;
mod subjects;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use mcp_forge_ports::contract::{Case, builder_cases, cases, store_cases};

use crate::engines::KINDS;
use crate::parity::{Outcome, Outcomes, Table};
use crate::subjects::{RUNTIMES, Runtime};

/// Longest time for a case; each takes seconds at the most on an idle host.
const PATIENCE: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == mcp_forge_libcontainer::HELPER_ARGUMENT)
    {
        let status = mcp_forge_libcontainer::helper_main(&mcp_forge_guest::PLACED);
        return u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from);
    }
    let outcomes: Arc<Mutex<Outcomes>> = Arc::default();
    let mut trials = vec![Trial::test("the_document_has_every_case", || {
        parity::check(&tables()).map_err(Failed::from)
    })];
    trials.extend(engines::trials());
    for runtime in &RUNTIMES {
        trials.extend(cases().into_iter().map(|case| {
            let name = format!("{}::{}", runtime.name, case.name);
            trial(name, case.name, runtime.name, &outcomes, move || {
                hold(runtime, case)
            })
        }));
    }
    trials.extend(stores::trials(&outcomes));
    trials.extend(builders::trials(&outcomes));
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let outcomes = outcomes.lock().unwrap();
        tables().iter().for_each(|table| table.write(&outcomes));
    }
    conclusion.exit_code()
}

/// The tables of the document.
fn tables() -> [Table; 3] {
    [
        Table {
            name: "runtimes",
            adapters: RUNTIMES.iter().map(|runtime| runtime.name).collect(),
            cases: cases().iter().map(|case| case.name).collect(),
        },
        Table {
            name: "stores",
            adapters: vec![stores::STORE],
            cases: store_cases().iter().map(|case| case.name).collect(),
        },
        Table {
            name: "builders",
            adapters: KINDS.iter().map(|kind| kind.name).collect(),
            cases: builder_cases().iter().map(|case| case.name).collect(),
        },
    ]
}

/// A case held against an adapter, whose outcome is kept for the document. It gives nothing when the contract is kept, or
/// why that was not looked at.
fn trial(
    name: String,
    case: &'static str,
    adapter: &'static str,
    outcomes: &Arc<Mutex<Outcomes>>,
    hold: impl FnOnce() -> Result<Option<String>, Failed> + Send + 'static,
) -> Trial {
    let outcomes = Arc::clone(outcomes);
    Trial::test(name, move || {
        let told = hold();
        let outcome = match &told {
            Ok(None) => Outcome::Kept,
            Ok(Some(why)) => Outcome::Skipped(why.clone()),
            Err(_) => Outcome::Broken,
        };
        outcomes.lock().unwrap().insert((case, adapter), outcome);
        if let Ok(Some(why)) = &told {
            skipped(&format!("{case} ({adapter})"), why);
        }
        told.map(drop)
    })
}

fn hold(runtime: &'static Runtime, case: Case) -> Result<Option<String>, Failed> {
    if let Some(why) = (runtime.missing)() {
        return missing(runtime.name, why);
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    tokio.block_on(async {
        let made = (runtime.make)().await;
        if let Some(why) = case.skipped(&made.subject).await {
            (made.end)().await;
            return Ok(Some(why));
        }
        let subject = made.subject.clone();
        let body = tokio::spawn(tokio::time::timeout(PATIENCE, async move {
            case.run(subject).await;
        }));
        let ended = body.await;
        (made.end)().await;
        match ended {
            Ok(Ok(())) => Ok(None),
            Ok(Err(_)) => Err(format!("it hangs: nothing for {} s", PATIENCE.as_secs()).into()),
            Err(panicked) => Err(message(panicked).into()),
        }
    })
}

fn message(panicked: tokio::task::JoinError) -> String {
    let payload = panicked.into_panic();
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_else(|| "it panicked".to_owned())
}

/// Where the runtimes are installed for the tests none may be missing.
fn missing(name: &str, why: String) -> Result<Option<String>, Failed> {
    if std::env::var_os("NEXTEST_PROFILE").is_some_and(|profile| profile == "ci") {
        return Err(format!("{name} must be tested here: {why}").into());
    }
    Ok(Some(why))
}

#[allow(clippy::print_stderr, reason = "tests tell what they skip")]
fn skipped(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
}
