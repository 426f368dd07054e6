//! The contract of `ContainerRuntime` (`mcp_forge_ports::contract`), held against each runtime that
//! this host has.
//!
//! A test program of its own, since it is also the helper of the embedded runtime. With
//! `UPDATE_DOCS` in one process (`cargo test --test contract`) it writes `docs/parity.md`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod engines;
mod parity;
mod subjects;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use mcp_forge_ports::contract::{Case, cases};

use crate::parity::{Outcome, Table};
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
    let table: Arc<Mutex<Table>> = Arc::default();
    let mut trials = vec![Trial::test("the_document_has_every_case", || {
        parity::check().map_err(Failed::from)
    })];
    trials.extend(engines::trials());
    for runtime in &RUNTIMES {
        trials.extend(cases().into_iter().map(|case| trial(runtime, case, &table)));
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        parity::write(&table.lock().unwrap());
    }
    conclusion.exit_code()
}

fn trial(runtime: &'static Runtime, case: Case, table: &Arc<Mutex<Table>>) -> Trial {
    let table = Arc::clone(table);
    let name = format!("{}::{}", runtime.name, case.name);
    Trial::test(name, move || {
        let told = hold(runtime, case);
        let outcome = match &told {
            Ok(None) => Outcome::Kept,
            Ok(Some(why)) => Outcome::Skipped(why.clone()),
            Err(_) => Outcome::Broken,
        };
        table
            .lock()
            .unwrap()
            .insert((case.name, runtime.name), outcome);
        if let Ok(Some(why)) = &told {
            skipped(&format!("{} ({})", case.name, runtime.name), why);
        }
        told.map(drop)
    })
}

/// Nothing when the contract is kept, or why that was not looked at.
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
