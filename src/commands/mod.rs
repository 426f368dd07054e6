//! The commands, one module each.

mod audit;
mod config;
mod directory;
mod doctor;
mod images;
mod pictures;
mod policy;
mod run;
mod serve;
mod signals;

use std::io::{self, Write};
use std::process::ExitCode;

use crate::cli::{Cli, Command, Policy};
use crate::settings::Settings;

/// Exit status when mcp-forge itself fails.
pub(crate) const FAILED: u8 = 125;

/// Exit status when nobody reads the output any more: that of a filter which SIGPIPE ends.
const BROKEN_PIPE: u8 = 128 + nix::libc::SIGPIPE as u8;

/// Does what the command line asks.
///
/// # Errors
///
/// What kept mcp-forge from it.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let file = cli.config();
    let settings = || Settings::load(file.as_deref(), &cli.set);
    let runtime = cli.runtime.as_deref();
    match &cli.command {
        Command::Config(command) => config::config(command, runtime, settings),
        Command::Policy(Policy::Check { file: Some(file) }) => policy::check(file),
        Command::Policy(command) => policy::policy(command, &settings()?),
        Command::Audit(command) => audit::audit(command, settings),
        Command::Images(command) => finish(images::images(command, runtime, &settings()?)),
        Command::Serve(serve) => finish(serve::serve(serve, runtime, &settings()?)),
        Command::Run(run) => finish(run::run(run, runtime, &settings()?)),
        Command::Doctor(doctor) => finish(doctor::doctor(doctor, runtime, &settings()?)),
    }
}

fn finish(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = tokio.block_on(work);
    // A read of standard input that nobody answers must not keep the process.
    tokio.shutdown_background();
    result
}

/// A text as a line of output shows it: escaped where a terminal would take it for more than text.
fn plain(text: &str) -> String {
    if text.chars().any(char::is_control) {
        return format!("{text:?}");
    }
    text.to_owned()
}

/// A count with its noun.
fn counted(count: u64, one: &str, several: &str) -> String {
    let noun = if count == 1 { one } else { several };
    format!("{count} {noun}")
}

/// Prints, and gives `status` unless that cannot be done.
fn printed(text: &str, status: ExitCode) -> ExitCode {
    match print(text) {
        Ok(()) => status,
        Err(error) => ExitCode::from(unwritten(&error)),
    }
}

/// Tells a person what went wrong. Standard error may be closed; there is nobody to tell then.
pub(crate) fn complain(error: &anyhow::Error) {
    for line in format!("{error:#}").lines() {
        say(&format!("mcp-forge: {line}"));
    }
}

/// The same for programs, in the form of a refusal without a run.
pub(crate) fn error_json(error: &anyhow::Error) -> String {
    let error = serde_json::json!({ "kind": "invalid_argument", "message": format!("{error:#}") });
    format!("{:#}\n", serde_json::json!({ "error": error }))
}

/// A line on standard error.
pub(crate) fn say(line: &str) {
    complain_bytes(format!("{line}\n").as_bytes());
}

/// Bytes on standard error, in one piece.
fn complain_bytes(bytes: &[u8]) {
    let _ = io::stderr().write_all(bytes);
}

/// Text on standard output, for commands that are not `serve`.
///
/// # Errors
///
/// When it is closed, full or read by nobody.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    standard_output_is_open()?;
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// What was closed when the program was started is /dev/null by now, where output would be lost
/// without a word.
pub(crate) fn standard_output_is_open() -> io::Result<()> {
    if crate::compose::stdout_was_closed() {
        return Err(nix::errno::Errno::EBADF.into());
    }
    Ok(())
}

/// The exit status after standard output or error could not be written: quiet as a filter that a
/// closed pipe ends, or with a message.
pub(crate) fn unwritten(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return BROKEN_PIPE;
    }
    say(&format!("mcp-forge: cannot write the output: {error}"));
    FAILED
}
