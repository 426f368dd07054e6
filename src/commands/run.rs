//! `mcp-forge run`: one program for a person at a terminal, by the same engine.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use async_trait::async_trait;
use indicatif::{ProgressBar, ProgressStyle};
use mcp_forge_domain::ExecutionPolicy;
use mcp_forge_mcp::wire;
use mcp_forge_ports::driving::{CodeExecution, NoObserver, RunObserver};
use mcp_forge_ports::vocabulary::{
    EndedBy, ExecutionOutcome, ExecutionRequest, Language, OutputStream, Refusal, RunEvent,
};
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

use super::{FAILED, print, say};
use crate::cli::Run;
use crate::compose::Application;
use crate::settings::Settings;

/// Runs the program; the exit status is the program's, or tells how it ended.
///
/// # Errors
///
/// What kept mcp-forge from running it.
pub(crate) async fn run(
    arguments: &Run,
    runtime: Option<&str>,
    settings: &Settings,
) -> anyhow::Result<ExitCode> {
    let policy = settings.policy()?;
    let request = request(arguments, &policy)?;
    let application = Application::new(runtime, settings)?;
    let cancel = CancellationToken::new();
    let interrupted = cancel.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupted.cancel();
        }
    });
    let spinner = spinner();
    let observer: Arc<dyn RunObserver> = if arguments.json {
        Arc::new(NoObserver)
    } else {
        Arc::new(Terminal {
            spinner: spinner.clone(),
            cancel: cancel.clone(),
        })
    };
    let result = application
        .execution
        .execute(request, observer, cancel)
        .await;
    spinner.finish_and_clear();
    let code = match &result {
        Ok(outcome) => {
            if arguments.json {
                print(&format!(
                    "{:#}\n",
                    wire::run_result(outcome, wire::Pictures::Contained)
                ));
            } else {
                tell(outcome, &policy);
            }
            status(outcome)
        }
        Err(refusal) => {
            if arguments.json {
                print(&format!("{:#}\n", wire::refusal(refusal)));
            }
            refuse(refusal);
            FAILED
        }
    };
    application.shut_down().await;
    Ok(ExitCode::from(code))
}

fn request(arguments: &Run, policy: &ExecutionPolicy) -> anyhow::Result<ExecutionRequest> {
    let file = arguments.file.as_deref();
    let bound = |bytes: usize| bytes as u64;
    let code = match (&arguments.code, file) {
        (Some(code), _) => code.clone(),
        (None, Some(file)) => read(file, bound(policy.max_code_bytes), "program")?,
        (None, None) => bail!("no program: give -c CODE, a FILE, or - for standard input"),
    };
    let by_ending = || {
        let ending = file?.extension()?.to_str()?.to_ascii_lowercase();
        matches!(ending.as_str(), "r").then_some(Language::R)
    };
    let language = match &arguments.language {
        Some(name) => name.parse()?,
        None => by_ending().unwrap_or(Language::Python),
    };
    let mut request = ExecutionRequest::new(language, code);
    request.source_name = file
        .filter(|f| *f != Path::new("-"))
        .map(|f| f.display().to_string());
    request.timeout = arguments.timeout;
    request.memory = arguments.memory.clone();
    request.cpu_quota = arguments.cpu_quota;
    request.stdin = match &arguments.stdin {
        Some(path) if path == Path::new("-") && file == Some(Path::new("-")) => {
            bail!("program and --stdin cannot both come from standard input")
        }
        Some(path) => Some(read(path, bound(policy.max_stdin_bytes), "standard input")?),
        None => None,
    };
    request.client = Some("command line".to_owned());
    Ok(request)
}

/// Reads a text, one byte more than allowed at the most: the domain then refuses it by its size.
fn read(path: &Path, most: u64, what: &str) -> anyhow::Result<String> {
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(path).with_context(|| format!("cannot open {}", path.display()))?)
    };
    let mut bytes = Vec::new();
    source
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() as u64 > most {
        // Cut inside a character it would not be UTF-8; the size is what is wrong with it.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|e| {
        anyhow!(
            "the {what} {} is not UTF-8: {}",
            path.display(),
            e.utf8_error()
        )
    })
}

/// A spinner while nothing is shown yet, on a terminal only.
fn spinner() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner()
        .with_style(
            ProgressStyle::with_template("{spinner} {msg} {elapsed}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        )
        .with_message("starting");
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// Passes the program's streams on as they come.
struct Terminal {
    spinner: ProgressBar,
    cancel: CancellationToken,
}

#[async_trait]
impl RunObserver for Terminal {
    async fn observe(&self, event: RunEvent) {
        match event {
            RunEvent::Queued { position } => {
                self.spinner
                    .set_message(format!("waiting, number {position}"));
            }
            RunEvent::Running => self.spinner.set_message("running"),
            RunEvent::Output { stream, bytes } => {
                self.spinner.finish_and_clear();
                let written = match stream {
                    OutputStream::Stdout => write(tokio::io::stdout(), &bytes).await,
                    OutputStream::Stderr => write(tokio::io::stderr(), &bytes).await,
                };
                // Nobody reads any more (`| head`): nothing to go on for.
                if written.is_err() {
                    self.cancel.cancel();
                }
            }
            _ => {}
        }
    }
}

async fn write(mut to: impl tokio::io::AsyncWrite + Unpin, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// What the streams did not show: the value as at Python's prompt, the exception, an early end.
fn tell(outcome: &ExecutionOutcome, policy: &ExecutionPolicy) {
    if let Some(repr) = &outcome.result_repr {
        print(&format!("{repr}\n"));
    }
    if let Some(error) = &outcome.error {
        say(error.traceback.trim_end());
    }
    let limits = &outcome.limits.requested;
    let why = match outcome.ended_by {
        EndedBy::Completed | EndedBy::Error => return,
        EndedBy::Timeout => format!(
            "was stopped at its time limit of {} s (--timeout, at most {})",
            limits.timeout.as_secs(),
            policy.limits.max_timeout.as_secs()
        ),
        EndedBy::Oom => format!(
            "was killed at its memory limit of {} (--memory, at most {})",
            mcp_forge_domain::limits::format_byte_size(limits.memory_bytes),
            mcp_forge_domain::limits::format_byte_size(policy.limits.max_memory)
        ),
        EndedBy::Pids => format!(
            "failed at its limit of {} processes and threads",
            limits.pids
        ),
        EndedBy::OutputLimit => "was stopped: it wrote too much output".to_owned(),
        EndedBy::Cancelled => "was interrupted".to_owned(),
        EndedBy::Crashed => {
            format!(
                "was ended by {}",
                outcome.signal.as_deref().unwrap_or("a signal")
            )
        }
        EndedBy::RuntimeLost => "was lost with its sandbox".to_owned(),
    };
    say(&format!("mcp-forge: the program {why}"));
}

fn refuse(refusal: &Refusal) {
    say(&format!("mcp-forge: {}", refusal.message));
    say(&format!("  hint: {}", refusal.hint));
}

/// Exit statuses as timeout(1) and shells give them.
fn status(outcome: &ExecutionOutcome) -> u8 {
    let own = || outcome.exit_code.and_then(|code| u8::try_from(code).ok());
    match outcome.ended_by {
        EndedBy::Completed => 0,
        EndedBy::Timeout => 124,
        EndedBy::Oom => 137,
        EndedBy::Cancelled => 130,
        EndedBy::Crashed => own()
            .or_else(|| outcome.signal.as_deref().and_then(signal_status))
            .unwrap_or(1),
        EndedBy::RuntimeLost => FAILED,
        EndedBy::Error | EndedBy::Pids | EndedBy::OutputLimit => {
            own().filter(|code| *code != 0).unwrap_or(1)
        }
    }
}

/// 128 and the number of the signal.
fn signal_status(name: &str) -> Option<u8> {
    let signal: nix::sys::signal::Signal = name.parse().ok()?;
    u8::try_from(128 + signal as i32).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_become_shell_statuses() {
        assert_eq!(signal_status("SIGSEGV"), Some(139));
        assert_eq!(signal_status("SIGKILL"), Some(137));
        assert_eq!(signal_status("nonsense"), None);
    }
}
