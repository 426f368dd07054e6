//! `mcp-forge run`: one program for a person at a terminal, by the same engine.

mod files;
mod screen;
mod terminal;
mod told;

use std::fs::File;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use mcp_forge_domain::ExecutionPolicy;
use mcp_forge_domain::limits::MIN_CPU_QUOTA;
use mcp_forge_mcp::wire;
use mcp_forge_ports::driving::{CodeExecution, NoObserver, RunObserver};
use mcp_forge_ports::vocabulary::{
    ExecutionOutcome, ExecutionRequest, Language, OutputBlock, OutputStream,
};
use nix::sys::signal::Signal;
use tokio_util::sync::CancellationToken;

use self::screen::Screen;
use self::terminal::{Terminal, spinner};
use super::directory::Directory;
use super::pictures::Pictures;
use super::signals::{self, Endings};
use super::{FAILED, complain_bytes, print};
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
    let pictures = Pictures::new(arguments)?;
    let directory = arguments.save_files.as_deref().map(|path| {
        let told = || format!("cannot save files in {} (--save-files)", path.display());
        Directory::open(path).with_context(told)
    });
    let directory = directory.transpose()?;
    let cancel = CancellationToken::new();
    let ended = cancel_on_signal(&cancel)?;
    let application = Application::new(runtime, settings)?;
    let (spinner, screen) = (spinner(), Arc::new(Screen::new()));
    let unwritten = Arc::new(OnceLock::new());
    let observer: Arc<dyn RunObserver> = if arguments.json {
        Arc::new(NoObserver)
    } else {
        Arc::new(Terminal {
            spinner: spinner.clone(),
            screen: Arc::clone(&screen),
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
    let files = match (&directory, &result) {
        (Some(directory), Ok(outcome)) => {
            files::save(directory, outcome, &*application.execution).await
        }
        _ => Vec::new(),
    };
    let say = |line: &str| complain_bytes(&screen.lines(OutputStream::Stderr, line));
    let mut is_whole = true;
    let code = match (unwritten.get(), &result) {
        (Some(error), _) => super::unwritten(error),
        (None, Ok(outcome)) => {
            let told = if arguments.json {
                let json = json(outcome, &pictures, &files).await;
                print(&format!("{json:#}\n"))
            } else {
                told::tell(outcome, &policy, arguments, ended.get(), &screen)
            };
            told.map_or_else(
                |e| super::unwritten(&e),
                |()| told::status(outcome, ended.get()),
            )
        }
        (None, Err(refusal)) => {
            if arguments.json {
                // The refusal is on standard error as well, and the status is the same.
                let _ = print(&format!("{:#}\n", wire::refusal(refusal)));
            }
            told::refuse(refusal);
            FAILED
        }
    };
    for file in &files {
        match file {
            Ok(_) if arguments.json => {}
            Ok(path) => say(&format!("mcp-forge: saved {}", path.display())),
            Err(error) => {
                is_whole = false;
                say(&format!("mcp-forge: cannot save the file {error:#}"));
            }
        }
    }
    if let Ok(outcome) = &result {
        let (left, omitted) = (outcome.files.len() as u64, outcome.files_omitted);
        if directory.is_some() && omitted > 0 {
            is_whole = false;
            say(&format!(
                "mcp-forge: more files than can be saved were left: {omitted} (files.count)"
            ));
        } else if directory.is_none() && left + omitted > 0 && !arguments.json {
            say(&format!(
                "mcp-forge: files left in the workspace and not kept: {}; --save-files DIR saves them",
                left + omitted
            ));
        }
    }
    if let Some(hint) = pictures.hint() {
        say(&hint);
    }
    application.shut_down().await;
    is_whole &= !pictures.saved().contains(&None);
    Ok(ExitCode::from(if is_whole { code } else { FAILED }))
}

/// How long the end may take after a signal. Another one is the end itself from then on: whoever
/// reads the output may have stopped reading.
const PATIENCE: Duration = Duration::from_secs(5);

/// Cancels at the first signal, which is there to be told afterwards.
fn cancel_on_signal(cancel: &CancellationToken) -> io::Result<Arc<OnceLock<Signal>>> {
    let mut endings = Endings::catch()?;
    let (cancel, first) = (cancel.clone(), Arc::new(OnceLock::new()));
    let ended = Arc::clone(&first);
    tokio::spawn(async move {
        let _ = first.set(endings.next().await);
        cancel.cancel();
        let hurried = Instant::now();
        loop {
            let signal = endings.next().await;
            if hurried.elapsed() > PATIENCE {
                // The helper processes see the socket close and clear up by themselves.
                std::process::exit(signals::status(signal).into());
            }
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
    request.image = arguments.image.clone();
    request.cpu_quota = cpu_quota;
    request.stdin = match &arguments.stdin {
        Some(path) if path == Path::new("-") && file == Some(Path::new("-")) => {
            bail!("program and --stdin cannot both come from standard input")
        }
        Some(path) => Some(read(path, bound(policy.max_stdin_bytes), "standard input")?),
        None => None,
    };
    request.files = files::inputs(&arguments.inputs, policy)?;
    Ok(request)
}

/// The language that was asked for, or that the file's ending tells; Python where there is none.
/// The policy has the list of those that there are.
fn language(
    asked: Option<&str>,
    file: Option<&Path>,
    policy: &ExecutionPolicy,
) -> anyhow::Result<Language> {
    let there: Vec<_> = policy.languages.iter().map(|l| l.as_str()).collect();
    let there = there.join(" and ");
    let ending = file.and_then(Path::extension);
    let name = match (asked, ending) {
        (Some(name), _) => name,
        (None, None) => return Ok(Language::Python),
        (None, Some(ending)) => match ending.to_ascii_lowercase().to_str() {
            Some("py") => "python",
            Some("r") => "r",
            _ => bail!(
                "the ending .{} tells no language that can be run; if it is one of {there}, say \
                 which: --language",
                ending.display()
            ),
        },
    };
    let language = name.parse().ok();
    language
        .filter(|language| policy.languages.contains(language))
        .with_context(|| format!("{name} is not available in this version, which runs {there}"))
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

/// The whole result, with where its pictures and files were saved.
async fn json(
    outcome: &ExecutionOutcome,
    pictures: &Arc<Pictures>,
    files: &[anyhow::Result<PathBuf>],
) -> serde_json::Value {
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
    let told = value["files"].as_array_mut().into_iter().flatten();
    for (file, saved) in told.zip(files) {
        let path = saved.as_ref().ok().map(|path| path.display().to_string());
        file["saved_as"] = path.into();
    }
    value
}
