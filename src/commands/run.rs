//! `mcp-forge run`: one program for a person at a terminal, by the same engine.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use async_trait::async_trait;
use indicatif::{ProgressBar, ProgressStyle};
use mcp_forge_domain::ExecutionPolicy;
use mcp_forge_domain::limits::{MIN_CPU_QUOTA, format_byte_size};
use mcp_forge_mcp::wire;
use mcp_forge_ports::driving::{CodeExecution, NoObserver, RunObserver};
use mcp_forge_ports::vocabulary::{
    EndedBy, ExecutionOutcome, ExecutionRequest, Language, OutputBlock, OutputStream, Picture,
    Refusal, RunEvent,
};
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

use super::pictures::Pictures;
use super::signals::{self, Endings};
use super::{FAILED, print, say, standard_output_is_open};
use crate::cli::Run;
use crate::compose::Application;
use crate::settings::Settings;

/// From this exit status on, a program's own could be one of mcp-forge's.
const OURS: i32 = 124;

/// What the runner says first when the program reads and there is nothing.
const NO_STDIN: &str = "no standard input";

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
    let pictures = Pictures::new(arguments)?;
    let cancel = CancellationToken::new();
    let ended = cancel_on_signal(&cancel)?;
    let application = Application::new(runtime, settings)?;
    let spinner = spinner();
    let unwritten = Arc::new(OnceLock::new());
    let observer: Arc<dyn RunObserver> = if arguments.json {
        Arc::new(NoObserver)
    } else {
        Arc::new(Terminal {
            spinner: spinner.clone(),
            cancel: cancel.clone(),
            unwritten: Arc::clone(&unwritten),
            pictures: Arc::clone(&pictures),
        })
    };
    let result = application
        .execution
        .execute(request, observer, cancel)
        .await;
    spinner.finish_and_clear();
    pictures.settle().await;
    let code = match (unwritten.get(), &result) {
        (Some(error), _) => super::unwritten(error),
        (None, Ok(outcome)) => {
            let told = if arguments.json {
                print(&format!("{:#}\n", json(outcome, &pictures).await))
            } else {
                tell(outcome, &policy, arguments, ended.get())
            };
            told.map_or_else(|e| super::unwritten(&e), |()| status(outcome, ended.get()))
        }
        (None, Err(refusal)) => {
            if arguments.json {
                // The refusal is on standard error as well, and the status is the same.
                let _ = print(&format!("{:#}\n", wire::refusal(refusal)));
            }
            refuse(refusal);
            FAILED
        }
    };
    pictures.hint();
    application.shut_down().await;
    let unsaved = pictures.saved().contains(&None);
    Ok(ExitCode::from(if unsaved { FAILED } else { code }))
}

/// Cancels at the first signal, which is there to be told afterwards. More of them hurry nothing:
/// the end takes about a second at the most, and the audit log is to tell it.
fn cancel_on_signal(cancel: &CancellationToken) -> io::Result<Arc<OnceLock<Signal>>> {
    let mut endings = Endings::catch()?;
    let (cancel, first) = (cancel.clone(), Arc::new(OnceLock::new()));
    let ended = Arc::clone(&first);
    tokio::spawn(async move {
        loop {
            let _ = first.set(endings.next().await);
            cancel.cancel();
        }
    });
    Ok(ended)
}

fn request(arguments: &Run, policy: &ExecutionPolicy) -> anyhow::Result<ExecutionRequest> {
    let file = arguments.file.as_deref();
    let language = language(arguments.language.as_deref(), file, policy)?;
    let limits = &policy.limits;
    let timeout = number(
        "--timeout",
        &arguments.timeout,
        1..=limits.max_timeout.as_secs(),
        "whole seconds",
    )?;
    let cpu_quota = number(
        "--cpu-quota",
        &arguments.cpu_quota,
        MIN_CPU_QUOTA..=limits.max_cpu_quota,
        "µs per 100 ms",
    )?;
    let bound = |bytes: usize| bytes as u64;
    let code = match (&arguments.code, file) {
        (Some(code), _) => code.clone(),
        (None, Some(file)) => read(file, bound(policy.max_code_bytes), "program")?,
        (None, None) => bail!(
            "no program: give its text (-c CODE), its file (FILE), or - to read it from standard input"
        ),
    };
    let mut request = ExecutionRequest::new(language, code);
    request.source_name = file
        .filter(|f| *f != Path::new("-"))
        .map(|f| f.display().to_string());
    request.timeout = timeout;
    request.memory = arguments.memory.clone();
    request.cpu_quota = cpu_quota;
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

/// The language that was asked for, or that the file's ending tells. The policy has the list of
/// those that there are.
fn language(
    asked: Option<&str>,
    file: Option<&Path>,
    policy: &ExecutionPolicy,
) -> anyhow::Result<Language> {
    let by_ending = || {
        let ending = file?.extension()?.to_str()?.to_ascii_lowercase();
        (ending == "r").then_some("R")
    };
    let Some(name) = asked.or_else(by_ending) else {
        return Ok(Language::Python);
    };
    let language = name.parse().ok();
    language
        .filter(|language| policy.languages.contains(language))
        .with_context(|| {
            let there: Vec<_> = policy.languages.iter().map(|l| l.as_str()).collect();
            format!(
                "{name} is not available in this version, which runs {}",
                there.join(" and ")
            )
        })
}

/// A number. Whether it is in its range is the domain's to tell, and goes to the audit log.
fn number(
    flag: &str,
    text: &Option<String>,
    range: RangeInclusive<u64>,
    unit: &str,
) -> anyhow::Result<Option<u64>> {
    let Some(text) = text else { return Ok(None) };
    let number = text.parse().map_err(|_| {
        let (least, most) = (range.start(), range.end());
        anyhow!("{flag} is {text:?}, must be {least} to {most} {unit}")
    });
    number.map(Some)
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
    /// Why the output could not be passed on; there is nothing to go on for then.
    unwritten: Arc<OnceLock<io::Error>>,
    pictures: Arc<Pictures>,
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
            RunEvent::Output { stream, bytes } => self.show(stream, &bytes).await,
            RunEvent::Block(block) => match block {
                OutputBlock::Message { text } => {
                    self.show(OutputStream::Stderr, &whole_line(text)).await;
                }
                OutputBlock::Warning { text, call } => {
                    let of = call.map(|call| format!(" in {call} "));
                    let text = format!("Warning{}: {text}", of.unwrap_or_default());
                    self.show(OutputStream::Stderr, &whole_line(text)).await;
                }
                OutputBlock::Html {
                    text: Some(text), ..
                }
                | OutputBlock::Json {
                    text: Some(text), ..
                }
                | OutputBlock::Text { text } => {
                    self.show(OutputStream::Stdout, &whole_line(text)).await;
                }
                OutputBlock::Image { picture, .. } => self.show_picture(picture).await,
                // The value and the exception come at the end.
                _ => {}
            },
            _ => {}
        }
    }
}

impl Terminal {
    async fn show(&self, stream: OutputStream, bytes: &[u8]) {
        if self.unwritten.get().is_some() {
            return;
        }
        self.spinner.finish_and_clear();
        let written = match stream {
            OutputStream::Stdout => match standard_output_is_open() {
                Ok(()) => write(tokio::io::stdout(), bytes).await,
                Err(closed) => Err(closed),
            },
            OutputStream::Stderr => write(tokio::io::stderr(), bytes).await,
        };
        self.check(written);
    }

    async fn show_picture(&self, picture: Picture) {
        if self.unwritten.get().is_some() {
            return;
        }
        self.spinner.finish_and_clear();
        self.check(self.pictures.take(picture).await);
    }

    fn check(&self, written: io::Result<()>) {
        if let Err(error) = written {
            let _ = self.unwritten.set(error);
            self.cancel.cancel();
        }
    }
}

/// The whole result, with where its pictures were saved.
async fn json(outcome: &ExecutionOutcome, pictures: &Arc<Pictures>) -> serde_json::Value {
    for block in &outcome.blocks {
        if let OutputBlock::Image { picture, .. } = block {
            // Nothing is drawn, so nothing is written.
            let _ = pictures.take(picture.clone()).await;
        }
    }
    let mut value = wire::run_result(outcome, wire::Pictures::Contained);
    let blocks = value["blocks"].as_array_mut().into_iter().flatten();
    let images = blocks.filter(|block| block["type"] == "image");
    for (image, path) in images.zip(pictures.saved()) {
        image["saved_as"] = path.map(|path| path.display().to_string()).into();
    }
    value
}

fn whole_line(mut text: String) -> Vec<u8> {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.into_bytes()
}

async fn write(mut to: impl tokio::io::AsyncWrite + Unpin, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// What the streams did not show: the value as at Python's prompt, the exception, an early end.
fn tell(
    outcome: &ExecutionOutcome,
    policy: &ExecutionPolicy,
    arguments: &Run,
    ended: Option<&Signal>,
) -> io::Result<()> {
    if let Some(repr) = &outcome.result_repr {
        print(&format!("{repr}\n"))?;
    }
    if let Some(error) = &outcome.error {
        say(error.traceback.trim_end());
        if arguments.stdin.is_none() && error.message.starts_with(NO_STDIN) {
            say("  hint: give it a file with --stdin FILE, or mcp-forge's own with --stdin -");
        }
    }
    if let Some(ending) = ending(outcome, policy, ended) {
        say(&format!("mcp-forge: the program {ending}"));
    }
    Ok(())
}

/// How a program ended that did not end by itself, or whose own status could pass for ours.
fn ending(
    outcome: &ExecutionOutcome,
    policy: &ExecutionPolicy,
    ended: Option<&Signal>,
) -> Option<String> {
    let limits = &outcome.limits.requested;
    Some(match outcome.ended_by {
        EndedBy::Completed => return None,
        EndedBy::Error => match outcome.exit_code {
            Some(code) if code >= OURS => format!("exited with status {code}"),
            _ => return None,
        },
        EndedBy::Timeout => format!(
            "was stopped: time limit of {} s reached (--timeout, at most {})",
            limits.timeout.as_secs(),
            policy.limits.max_timeout.as_secs()
        ),
        EndedBy::Oom => format!(
            "was killed: memory limit of {} reached (--memory, at most {})",
            in_words(limits.memory_bytes),
            format_byte_size(policy.limits.max_memory)
        ),
        EndedBy::Pids => format!(
            "failed: limit of {} processes and threads reached",
            limits.pids
        ),
        EndedBy::OutputLimit => format!(
            "was stopped: it wrote more than {}",
            in_words(policy.output_stop_bytes)
        ),
        EndedBy::Cancelled => match ended {
            Some(signal) => format!("was interrupted: mcp-forge got {signal}"),
            None => "was interrupted".to_owned(),
        },
        EndedBy::Crashed => match &outcome.signal {
            Some(signal) => format!("was killed by signal {signal}"),
            None => "was killed by a signal".to_owned(),
        },
        EndedBy::RuntimeLost => "was lost with its sandbox".to_owned(),
    })
}

/// A size as in `512 MiB`.
fn in_words(bytes: u64) -> String {
    let size = format_byte_size(bytes);
    match size.strip_suffix(['k', 'm', 'g', 't']) {
        Some(number) => format!("{number} {}iB", size[number.len()..].to_ascii_uppercase()),
        None => format!("{size} bytes"),
    }
}

fn refuse(refusal: &Refusal) {
    say(&format!("mcp-forge: {}", refusal.message));
    let hint = match (refusal.field.as_deref(), &refusal.allowed) {
        (Some(field @ ("timeout" | "memory" | "cpu_quota")), Some(allowed)) => {
            &format!("give --{} as {allowed}", field.replace('_', "-"))
        }
        _ => &refusal.hint,
    };
    say(&format!("  hint: {hint}"));
}

/// Exit statuses as timeout(1) and shells give them.
fn status(outcome: &ExecutionOutcome, ended: Option<&Signal>) -> u8 {
    let own = || outcome.exit_code.and_then(|code| u8::try_from(code).ok());
    match outcome.ended_by {
        EndedBy::Completed => 0,
        EndedBy::Timeout => 124,
        EndedBy::Oom => 137,
        EndedBy::Cancelled => signals::status(ended.copied().unwrap_or(Signal::SIGINT)),
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
    name.parse().ok().map(signals::status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        for (bytes, words) in [
            (512 << 20, "512 MiB"),
            (3 << 30, "3 GiB"),
            (1000, "1000 bytes"),
        ] {
            assert_eq!(in_words(bytes), words);
        }
    }

    #[test]
    fn signals_become_shell_statuses() {
        assert_eq!(signal_status("SIGSEGV"), Some(139));
        assert_eq!(signal_status("SIGKILL"), Some(137));
        assert_eq!(signal_status("nonsense"), None);
    }
}
