//! `mcp-forge audit`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use mcp_forge_audit_file::{Entry, Follower, Verification, entries, newest, verify};
use mcp_forge_ports::PortError;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{counted, plain, print, printed, unwritten};
use crate::cli::{Audit, Log, Query, Severity};
use crate::settings::Settings;

/// Exit status when the log is not as it was written.
const ALTERED: u8 = 1;

/// Time between two looks at a log that is followed.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn audit(
    command: &Audit,
    settings: impl Fn() -> anyhow::Result<Settings>,
) -> anyhow::Result<ExitCode> {
    // A log that is named can be read whatever is wrong with the configuration.
    let path_of = |log: &Log| match &log.path {
        Some(path) => Ok(path.clone()),
        None => settings()?.audit_path(),
    };
    match command {
        Audit::Verify { log, expect, json } => {
            let path = path_of(log)?;
            let expect = expect
                .as_ref()
                .map(|(number, hash)| (*number, hash.as_str()));
            let found = verify(&path, expect).map_err(told)?;
            let status = if found.intact {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(ALTERED)
            };
            let text = if *json {
                format!("{:#}\n", serde_json::to_value(&found)?)
            } else {
                report(&path, &found)
            };
            Ok(printed(&text, status))
        }
        Audit::Tail {
            log,
            lines,
            follow,
            json,
        } => tail(&path_of(log)?, *lines as usize, *follow, *json),
        Audit::Query(query) => {
            if let (Some(since), Some(until)) = (query.since, query.until)
                && since >= until
            {
                bail!("--since ({since}) must be before --until ({until})");
            }
            let found = last_of(&path_of(&query.log)?, query)?;
            let text: String = found.iter().map(|entry| shown(entry, query.json)).collect();
            Ok(printed(&text, ExitCode::SUCCESS))
        }
    }
}

fn told(error: PortError) -> anyhow::Error {
    let hint = error.hint.as_deref().map(|hint| format!("; {hint}"));
    anyhow!("{}{}", error.chain(), hint.unwrap_or_default())
}

fn report(path: &Path, found: &Verification) -> String {
    let mut text = String::new();
    for finding in &found.findings {
        let place = match (&finding.file, finding.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: "),
            _ => String::new(),
        };
        text.push_str(&format!("{place}{}\n", finding.what));
    }
    if found.more_findings > 0 {
        text.push_str(&format!("and {} more\n", found.more_findings));
    }
    if found.torn > 0 {
        let lines = counted(found.torn, "line was", "lines were");
        text.push_str(&format!(
            "{lines} torn by a writer that was ended while it wrote; nothing was recorded by it\n"
        ));
    }
    for remark in &found.remarks {
        text.push_str(&format!("{remark}\n"));
    }
    let verdict = if found.intact {
        "intact"
    } else {
        "NOT as it was written"
    };
    let entries = match (found.first, found.last) {
        (Some(first), Some(last)) => {
            let entries = counted(found.entries, "entry", "entries");
            format!("{entries}, {first} to {last}")
        }
        _ => "no entry".to_owned(),
    };
    let path = path.display();
    text.push_str(&format!(
        "{path}: {verdict}; {entries}, in {}\n",
        counted(found.files as u64, "file", "files")
    ));
    if let (true, Some(last), Some(hash)) = (found.intact, found.last, &found.hash) {
        text.push_str(&format!(
            "to prove later that none of them was changed, keep elsewhere: --expect {last}:{}\n",
            hash.as_str()
        ));
    }
    text
}

/// The newest entries that are asked for, oldest first.
fn last_of(path: &Path, query: &Query) -> anyhow::Result<VecDeque<Entry>> {
    let mut newest = VecDeque::new();
    entries(path, |entry| {
        if meets(&entry, query) {
            if newest.len() == query.limit as usize {
                newest.pop_front();
            }
            newest.push_back(entry);
        }
    })
    .map_err(told)?;
    Ok(newest)
}

fn tail(path: &Path, lines: usize, follow: bool, json: bool) -> anyhow::Result<ExitCode> {
    // Before the newest are read, so that none is missed; some may come twice otherwise.
    let mut follower = if follow {
        Some(Follower::at_end(path).map_err(told)?)
    } else {
        None
    };
    let until = follower.as_ref().map(Follower::position);
    let found = match newest(path, lines) {
        Ok(found) => found,
        // It may still come.
        Err(_) if until == Some(0) => Vec::new(),
        Err(error) => return Err(told(error)),
    };
    // What came between the two looks comes again, at once.
    let mut last = found.last().and_then(number);
    let text: String = found.iter().map(|entry| shown(entry, json)).collect();
    if let Err(error) = print(&text) {
        return Ok(ExitCode::from(unwritten(&error)));
    }
    while let Some(follower) = &mut follower {
        for entry in follower.news().map_err(told)? {
            if last.is_some_and(|last| number(&entry).is_some_and(|number| number <= last)) {
                continue;
            }
            if let Err(error) = print(&shown(&entry, json)) {
                return Ok(ExitCode::from(unwritten(&error)));
            }
        }
        last = None;
        if let Err(error) = wait_for_reader(LOOK) {
            return Ok(ExitCode::from(unwritten(&error)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits, or tells that nobody reads standard output any more.
fn wait_for_reader(time: Duration) -> io::Result<()> {
    let stdout = io::stdout();
    let mut looked = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    match poll(
        &mut looked,
        PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX),
    ) {
        Err(Errno::EINTR) | Ok(0) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn number(entry: &Entry) -> Option<u64> {
    entry.members.get("seq")?.as_u64()
}

fn meets(entry: &Entry, query: &Query) -> bool {
    let is = |name: &str, wanted: &Option<String>| {
        wanted
            .as_deref()
            .is_none_or(|wanted| entry.text(name) == Some(wanted))
    };
    let event = query.event.as_deref().is_none_or(|wanted| {
        let rest = entry
            .text("event")
            .and_then(|event| event.strip_prefix(wanted));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let severity = query.severity.is_none_or(|least| {
        let of = entry
            .text("severity")
            .and_then(|text| clap::ValueEnum::from_str(text, false).ok());
        of.is_some_and(|of: Severity| of >= least)
    });
    let success = query.success.is_none_or(|wanted| {
        entry
            .members
            .get("success")
            .and_then(serde_json::Value::as_bool)
            == Some(wanted)
    });
    let time = || entry.text("time")?.parse::<Timestamp>().ok();
    let since = query
        .since
        .is_none_or(|since| time().is_some_and(|time| time >= since));
    let until = query
        .until
        .is_none_or(|until| time().is_some_and(|time| time < until));
    event
        && severity
        && success
        && since
        && until
        && is("run_id", &query.run_id)
        && is("correlation_id", &query.correlation_id)
        && is("client", &query.client)
}

/// An entry as a line: as it is, or for a person.
fn shown(entry: &Entry, json: bool) -> String {
    if json {
        return format!("{}\n", entry.line);
    }
    let text = |name: &str| entry.text(name).map_or("-".to_owned(), plain);
    let mut line = format!(
        "{} {:8} {:18} {}",
        text("time"),
        text("severity"),
        text("event"),
        text("run_id"),
    );
    if let Some(success) = entry
        .members
        .get("success")
        .and_then(serde_json::Value::as_bool)
    {
        line.push_str(if success { " ok" } else { " failed" });
    }
    for name in ["client", "correlation_id", "session", "error"] {
        if let Some(value) = entry.text(name) {
            line.push_str(&format!(" {name}={}", word(value)));
        }
    }
    let details = entry
        .members
        .get("details")
        .and_then(serde_json::Value::as_object);
    for (name, value) in details.into_iter().flatten() {
        let value = match value {
            serde_json::Value::String(text) => word(text),
            value => plain(&value.to_string()),
        };
        line.push_str(&format!(" {}={value}", plain(name)));
    }
    line.push('\n');
    line
}

/// A text that can be told from what is beside it.
fn word(text: &str) -> String {
    if text.is_empty() || text.contains([' ', '=', '"']) || text.chars().any(char::is_control) {
        return format!("{text:?}");
    }
    text.to_owned()
}
