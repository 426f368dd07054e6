//! The commands, one module each.

mod doctor;
mod run;
mod serve;

use std::io::Write;
use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::settings::Settings;

/// Exit status when mcp-forge itself fails.
pub(crate) const FAILED: u8 = 125;

/// Does what the command line asks.
///
/// # Errors
///
/// What kept mcp-forge from it.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(cli.config.as_deref())?;
    let runtime = cli.runtime.as_deref();
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = tokio.block_on(async {
        match &cli.command {
            Command::Serve(serve) => serve::serve(serve, runtime, &settings).await,
            Command::Run(run) => run::run(run, runtime, &settings).await,
            Command::Doctor(doctor) => doctor::doctor(doctor, runtime, &settings).await,
        }
    });
    // A read of standard input that nobody answers must not keep the process.
    tokio.shutdown_background();
    result
}

/// Tells a person what went wrong. Standard error may be closed; there is nobody to tell then.
pub(crate) fn complain(error: &anyhow::Error) {
    say(&format!("mcp-forge: {error:#}"));
}

/// A line on standard error.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Text on standard output, for commands that are not `serve`.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
