//! The operator's configuration: file, then environment (`MCP_FORGE_SECTION__KEY`), over defaults.
//!
//! Every setting has a default, so no file is needed. What is no setting is an error, and every
//! error names where it was set, the key, the value and what it may be.

mod given;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use mcp_forge_domain::limits::{ByteSizeError, parse_byte_size};
use mcp_forge_domain::{ExecutionPolicy, PolicyFault};

use given::{PREFIX, Value};

/// From this likeness of two names on, one is suggested for the other.
const LIKENESS: f64 = 0.8;

/// Characters of a refused value that are repeated in a message.
const SHOWN: usize = 40;

const RUNTIME: &str = "runtime.kind";
const UNENFORCED: &str = "security.accept_unenforced_limits";
const AUDIT: &str = "audit.path";

/// A value of the execution policy.
struct Limit {
    key: &'static str,
    /// Its name in the policy.
    field: &'static str,
    form: Form,
    put: fn(&mut ExecutionPolicy, u64),
}

/// How a value is written.
#[derive(Debug, Clone, Copy)]
enum Form {
    Number,
    Size,
}

impl Form {
    fn read(self, text: &str) -> Option<u64> {
        match self {
            Self::Number => text.parse().ok(),
            Self::Size => parse_byte_size(text).ok(),
        }
    }

    /// A value outside of every range: the policy, which alone knows the range, then tells it.
    fn outside(self) -> u64 {
        match self {
            Self::Number => u64::MAX,
            Self::Size => 0,
        }
    }
}

#[rustfmt::skip] // a table
const LIMITS: [Limit; 23] = [
    Limit { key: "execution.default_timeout", field: "default_timeout", form: Form::Number, put: |p, n| p.limits.default_timeout = Duration::from_secs(n) },
    Limit { key: "execution.max_timeout", field: "max_timeout", form: Form::Number, put: |p, n| p.limits.max_timeout = Duration::from_secs(n) },
    Limit { key: "execution.default_memory", field: "default_memory", form: Form::Size, put: |p, n| p.limits.default_memory = n },
    Limit { key: "execution.max_memory", field: "max_memory", form: Form::Size, put: |p, n| p.limits.max_memory = n },
    Limit { key: "execution.default_cpu_quota", field: "default_cpu_quota", form: Form::Number, put: |p, n| p.limits.default_cpu_quota = n },
    Limit { key: "execution.max_cpu_quota", field: "max_cpu_quota", form: Form::Number, put: |p, n| p.limits.max_cpu_quota = n },
    Limit { key: "execution.pids", field: "pids", form: Form::Number, put: |p, n| p.limits.pids = n },
    Limit { key: "execution.descriptors", field: "descriptors", form: Form::Number, put: |p, n| p.limits.descriptors = n },
    Limit { key: "execution.tmp_size", field: "tmp_bytes", form: Form::Size, put: |p, n| p.limits.tmp_bytes = n },
    Limit { key: "execution.workspace_size", field: "workspace_bytes", form: Form::Size, put: |p, n| p.limits.workspace_bytes = n },
    Limit { key: "execution.stdout_limit", field: "stdout_limit", form: Form::Size, put: |p, n| p.stdout_limit = narrow(n) },
    Limit { key: "execution.stderr_limit", field: "stderr_limit", form: Form::Size, put: |p, n| p.stderr_limit = narrow(n) },
    Limit { key: "execution.output_stop", field: "output_stop_bytes", form: Form::Size, put: |p, n| p.output_stop_bytes = n },
    Limit { key: "execution.concurrency", field: "concurrency", form: Form::Number, put: |p, n| p.concurrency = narrow(n) },
    Limit { key: "execution.queue", field: "queue", form: Form::Number, put: |p, n| p.queue = narrow(n) },
    Limit { key: "execution.input_files", field: "max_files", form: Form::Number, put: |p, n| p.max_files = narrow(n) },
    Limit { key: "execution.input_size", field: "max_file_bytes", form: Form::Size, put: |p, n| p.max_file_bytes = narrow(n) },
    Limit { key: "files.count", field: "collect.files", form: Form::Number, put: |p, n| p.collect.files = u32::try_from(n).unwrap_or(u32::MAX) },
    Limit { key: "files.file_size", field: "collect.file_bytes", form: Form::Size, put: |p, n| p.collect.file_bytes = n },
    Limit { key: "files.total_size", field: "collect.total_bytes", form: Form::Size, put: |p, n| p.collect.total_bytes = n },
    Limit { key: "retention.time", field: "retention.time", form: Form::Number, put: |p, n| p.retention.time = Duration::from_secs(n) },
    Limit { key: "retention.runs", field: "retention.runs", form: Form::Number, put: |p, n| p.retention.runs = narrow(n) },
    Limit { key: "retention.size", field: "retention.bytes", form: Form::Size, put: |p, n| p.retention.bytes = n },
];

fn narrow(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Every key that there is.
fn keys() -> impl Iterator<Item = &'static str> {
    let others = [RUNTIME, UNENFORCED, AUDIT];
    LIMITS.iter().map(|limit| limit.key).chain(others)
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").to_ascii_uppercase())
}

/// A value as it was written, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    text: String,
    origin: String,
}

/// What was set; everything else has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings(BTreeMap<&'static str, Setting>);

impl Settings {
    /// Reads file and environment.
    ///
    /// # Errors
    ///
    /// What is wrong and where it was set.
    pub(crate) fn load(file: Option<&Path>) -> anyhow::Result<Self> {
        Self::read(file, std::env::vars_os())
    }

    fn read(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> anyhow::Result<Self> {
        let mut settings = Self::default();
        for entry in file.map_or(Ok(Vec::new()), given::file)? {
            let (origin, written) = (entry.origin, entry.key);
            let section = keys().any(|key| is_in(key, &written));
            let key = keys().find(|key| *key == written);
            match (entry.value, key) {
                (Value::Text(text), Some(key)) => {
                    settings.0.insert(key, Setting { text, origin });
                }
                (Value::Nothing, Some(_)) => {}
                (Value::Section | Value::Nothing, None) if section => {}
                (Value::Section, Some(key)) => bail!("{origin}: {key} is one value, no section"),
                (Value::Text(_), None) if section => {
                    bail!("{origin}: {written} is a section, it has no value of its own")
                }
                (_, None) => {
                    let section = (!written.contains('.')).then(|| nearest_section(&written));
                    let meant = section.flatten().or_else(|| nearest(&written));
                    let hint = suggestion(meant.map(str::to_owned));
                    bail!("{origin}: unknown key {}{hint}", quoted(&written))
                }
            }
        }
        for (name, text) in given::environment(environment)? {
            let origin = name.clone();
            match keys().find(|key| variable(key) == name) {
                Some(key) => {
                    settings.0.insert(key, Setting { text, origin });
                }
                None => no_setting(&name)?,
            }
        }
        settings.policy()?;
        settings.audit_path_set()?;
        Ok(settings)
    }

    /// The kind of runtime that was chosen, and where.
    pub(crate) fn runtime(&self) -> Option<(&str, &str)> {
        let setting = self.0.get(RUNTIME)?;
        Some((&setting.text, &setting.origin))
    }

    /// The policy of execution that these settings make.
    ///
    /// # Errors
    ///
    /// Every value that is outside of its range or does not fit the others.
    pub(crate) fn policy(&self) -> anyhow::Result<ExecutionPolicy> {
        let mut policy = ExecutionPolicy::default();
        let mut unreadable = Vec::new();
        for limit in &LIMITS {
            let Some(setting) = self.0.get(limit.key) else {
                continue;
            };
            match limit.form.read(&setting.text) {
                Some(value) => (limit.put)(&mut policy, value),
                None => unreadable.push(limit),
            }
        }
        if let Some(Setting { text, origin }) = self.0.get(UNENFORCED) {
            policy.accept_unenforced = text.to_ascii_lowercase().parse().map_err(|_| {
                let text = quoted(text);
                anyhow!("{origin}: {UNENFORCED} is {text}, must be true or false")
            })?;
        }
        let faults_of = |policy: &ExecutionPolicy| policy.check().err().map_or(Vec::new(), |f| f.0);
        let mut faults = faults_of(&policy);
        // What cannot be read is told with its range alone, not with how others compare with it.
        faults.retain(|fault| unreadable.iter().all(|limit| limit.field != fault.field));
        for limit in unreadable {
            let mut policy = policy.clone();
            (limit.put)(&mut policy, limit.form.outside());
            let of_it = |fault: &PolicyFault| fault.field == limit.field;
            faults.extend(faults_of(&policy).into_iter().filter(of_it));
        }
        if faults.is_empty() {
            return Ok(policy);
        }
        let told = faults.iter().map(|fault| {
            let limit = LIMITS.iter().find(|limit| limit.field == fault.field);
            let key = limit.map_or(fault.field, |limit| limit.key);
            match self.0.get(key) {
                Some(Setting { text, origin }) => {
                    let form = limit.map_or(Form::Number, |limit| limit.form);
                    let what = match (form, parse_byte_size(text)) {
                        (Form::Number, _) if !is_integer(text) => " (no whole number)",
                        (Form::Size, Err(ByteSizeError::TooLarge { .. })) => {
                            " (larger than any memory)"
                        }
                        (Form::Size, Err(_)) if !is_integer(text) => " (no size such as 512m)",
                        _ => "",
                    };
                    let (text, allowed) = (quoted(text), &fault.allowed);
                    format!("{origin}: {key} is {text}{what}, must be {allowed}")
                }
                None => format!(
                    "{key} is {} (not set), must be {}",
                    fault.value, fault.allowed
                ),
            }
        });
        Err(anyhow!(told.collect::<Vec<_>>().join("\n")))
    }

    /// Where the audit log is: as configured, else below the state directory (XDG Base Directory
    /// Specification).
    ///
    /// # Errors
    ///
    /// When the configured one is relative, or there is neither `XDG_STATE_HOME` nor `HOME`.
    pub(crate) fn audit_path(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = self.audit_path_set()? {
            return Ok(path);
        }
        let set = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let state = set("XDG_STATE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".local/state")))
            .context(
                "no place for the audit log: set audit.path (MCP_FORGE_AUDIT__PATH), \
                 XDG_STATE_HOME or HOME",
            )?;
        Ok(state.join("mcp-forge/audit.jsonl"))
    }

    fn audit_path_set(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(Setting { text, origin }) = self.0.get(AUDIT) else {
            return Ok(None);
        };
        // Relative, it would be another file in each directory that mcp-forge is started in.
        if !Path::new(text).is_absolute() {
            let text = quoted(text);
            bail!("{origin}: {AUDIT} is {text}, must be an absolute path");
        }
        Ok(Some(PathBuf::from(text)))
    }
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a key is one of a section.
fn is_in(key: &str, section: &str) -> bool {
    key.split('.').next() == Some(section)
}

/// A variable with our prefix that is no setting: an error where a setting was meant, else a
/// warning, since the tests and scripts of mcp-forge have such variables too.
fn no_setting(name: &str) -> anyhow::Result<()> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let written = rest.to_ascii_lowercase().replace("__", ".");
    if let Some(key) = keys().find(|key| is_in(key, &written)) {
        let such = variable(key);
        bail!("{name}: {written} is a section, set a key of it, such as {such}");
    }
    let meant = nearest(&written);
    if meant.is_none() && !written.contains('.') {
        tracing::warn!("environment variable {name} is no setting");
        return Ok(());
    }
    let hint = suggestion(meant.map(variable));
    bail!("unknown environment variable {name}{hint}")
}

fn suggestion(meant: Option<String>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
}

/// The key that may have been meant, also without its section.
fn nearest(written: &str) -> Option<&'static str> {
    let likeness = |key: &str| {
        let (section, name) = key.split_once('.')?;
        let like = strsim::jaro_winkler;
        Some(match written.split_once('.') {
            // Not of the whole: those of one section are all alike.
            Some((of, written)) => like(of, section).min(like(written, name)),
            None => like(written, name).max(like(written, &key.replace('.', "_"))),
        })
    };
    keys()
        .filter_map(|key| Some((likeness(key)?, key)))
        .filter(|(likeness, _)| *likeness >= LIKENESS)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, key)| key)
}

/// The section that may have been meant.
fn nearest_section(written: &str) -> Option<&'static str> {
    let mut sections = keys().filter_map(|key| key.split('.').next());
    sections.find(|section| strsim::jaro_winkler(written, section) >= LIKENESS)
}

/// A value for a message: in quotes, escaped, cut.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests;
