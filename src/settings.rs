//! The operator's configuration: command line, environment (`MCP_FORGE_SECTION__KEY`), file,
//! defaults, the first that sets a value.
//!
//! Every setting has a default, so no file is needed. What is no setting is an error, every error
//! names where it was set, the key, the value and what it may be, and all of them are told at once.

mod docs;
mod given;
pub(crate) mod policy_file;
mod variables;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use mcp_forge_audit_file::FileAuditOptions;
use mcp_forge_domain::decision::CheckedPolicy;
use mcp_forge_domain::limits::{ByteSizeError, format_byte_size, parse_byte_size};
use mcp_forge_domain::{ExecutionPolicy, PolicyFault};

pub(crate) use docs::schema;
use given::{PREFIX, Value};

/// From this likeness of two names on, one is suggested for the other.
const LIKENESS: f64 = 0.8;

/// Characters of a refused value that are repeated in a message.
const SHOWN: usize = 40;

const RUNTIME: &str = "runtime.kind";
const CLEANUP: &str = "runtime.cleanup_interval";
const UNENFORCED: &str = "security.accept_unenforced_limits";
const STRONG: &str = "security.require_strong_sandbox";
const POLICY: &str = "security.policy";

/// What is in a policy of sandboxes and not here.
const POLICY_KEYS: [&str; 4] = ["images", "egress", "volume_roots", "rules"];

const IMAGES: &str = "images.directory";
const IMAGE_SIZE: &str = "images.max_size";

const AUDIT: &str = "audit.path";
const AUDIT_SIZE: &str = "audit.max_size";
const AUDIT_KEEP: &str = "audit.keep";
const AUDIT_SYNC: &str = "audit.sync";
const AUDIT_FAILURE: &str = "audit.on_failure";

/// A value of the execution policy.
struct Limit {
    key: &'static str,
    /// Its name in the policy.
    field: &'static str,
    form: Form,
    put: fn(&mut ExecutionPolicy, u64),
    get: fn(&ExecutionPolicy) -> u64,
    about: &'static str,
}

/// A setting that is none of the execution policy.
struct Other {
    key: &'static str,
    form: Form,
    /// As it would be written; nothing where there is no one text.
    default: Option<&'static str>,
    about: &'static str,
}

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Number,
    Size,
    Flag,
    Path,
    /// One of these.
    Choice(&'static [&'static str]),
    /// A number in a range.
    NumberIn(u64, u64),
    /// A number in a range, or `all`.
    NumberOrAll(u32),
    /// A size in a range.
    SizeIn(u64, u64),
}

impl Form {
    fn read(self, text: &str) -> Option<u64> {
        match self {
            Self::Size | Self::SizeIn(..) => parse_byte_size(text).ok(),
            _ => text.parse().ok(),
        }
    }

    fn write(self, value: u64) -> String {
        match self {
            Self::Size => format_byte_size(value),
            _ => value.to_string(),
        }
    }

    /// A value outside of every range: the policy, which alone knows the range, then tells it.
    fn outside(self) -> u64 {
        match self {
            Self::Size => 0,
            _ => u64::MAX,
        }
    }

    /// What it may be, where the form alone tells.
    fn allowed(self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Path => "an absolute path".to_owned(),
            Self::Choice(choices) => choices.join(" or "),
            Self::NumberIn(least, most) => format!("{least} to {most}"),
            Self::NumberOrAll(most) => format!("1 to {most}, or all"),
            Self::SizeIn(least, most) => {
                format!("{} to {}", format_byte_size(least), format_byte_size(most))
            }
            Self::Number | Self::Size => String::new(),
        }
    }

    /// Whether a text is such a value. Those of the policy are looked at there.
    fn takes(self, text: &str) -> bool {
        match self {
            Self::Flag => text.to_ascii_lowercase().parse::<bool>().is_ok(),
            // Relative, it would be another file in each directory that mcp-forge is started in.
            Self::Path => Path::new(text).is_absolute() && !text.contains('\0'),
            Self::Choice(choices) => choices.contains(&text),
            Self::NumberOrAll(most) => {
                text == "all"
                    || text
                        .parse()
                        .is_ok_and(|number| (1..=most).contains(&number))
            }
            Self::NumberIn(least, most) | Self::SizeIn(least, most) => self
                .read(text)
                .is_some_and(|size| (least..=most).contains(&size)),
            Self::Number | Self::Size => true,
        }
    }
}

#[rustfmt::skip] // a table
const OTHERS: [Other; 12] = [
    Other { key: RUNTIME, form: Form::Choice(&["auto", "libcontainer", "podman", "docker"]), default: Some("auto"), about: "What makes the sandboxes; auto takes the first of libcontainer, podman, docker that works here and enforces every limit, else the first that works" },
    Other { key: CLEANUP, form: Form::NumberIn(10, 86_400), default: Some("300"), about: "How often a server looks for what servers left on its engine that are gone, seconds" },
    Other { key: UNENFORCED, form: Form::Flag, default: Some("false"), about: "Run also where the kernel cannot enforce the limits" },
    Other { key: STRONG, form: Form::Flag, default: Some("false"), about: "Refuse where the kernel cannot enforce the limits, whatever accept_unenforced_limits says" },
    Other { key: POLICY, form: Form::Path, default: None, about: "The policy of sandboxes, a TOML file; by default the host presentation, no image, no network and no mount" },
    Other { key: IMAGES, form: Form::Path, default: None, about: "Where images are kept; by default /var/lib/mcp-forge/images of root, else mcp-forge/images below $XDG_DATA_HOME (~/.local/share)" },
    Other { key: IMAGE_SIZE, form: Form::SizeIn(1 << 20, 1 << 40), default: Some("16g"), about: "Largest image that is imported, its files together" },
    Other { key: AUDIT, form: Form::Path, default: None, about: "The audit log; by default mcp-forge/audit.jsonl below $XDG_STATE_HOME (~/.local/state)" },
    Other { key: AUDIT_SIZE, form: Form::SizeIn(1 << 20, 1 << 40), default: Some("64m"), about: "Size from which on a file of the log is full; the next one is begun then" },
    Other { key: AUDIT_KEEP, form: Form::NumberOrAll(100_000), default: Some("all"), about: "Full files that are kept; the oldest are removed" },
    Other { key: AUDIT_SYNC, form: Form::Flag, default: Some("false"), about: "Wait until each entry is on the disk; without, a crash of the machine can lose the newest entries" },
    Other { key: AUDIT_FAILURE, form: Form::Choice(&["refuse", "run"]), default: Some("refuse"), about: "What to do when an entry cannot be written, such as on a full disk: refuse work, or run unaudited with a line in the log" },
];

#[rustfmt::skip] // a table
const LIMITS: [Limit; 23] = [
    Limit { key: "execution.default_timeout", field: "default_timeout", form: Form::Number, put: |p, n| p.limits.default_timeout = Duration::from_secs(n), get: |p| p.limits.default_timeout.as_secs(), about: "Time limit of a run that asks for none, whole seconds" },
    Limit { key: "execution.max_timeout", field: "max_timeout", form: Form::Number, put: |p, n| p.limits.max_timeout = Duration::from_secs(n), get: |p| p.limits.max_timeout.as_secs(), about: "Longest time limit that a run may ask for, whole seconds" },
    Limit { key: "execution.default_memory", field: "default_memory", form: Form::Size, put: |p, n| p.limits.default_memory = n, get: |p| p.limits.default_memory, about: "Memory of a run that asks for none; k, m, g are powers of 1024" },
    Limit { key: "execution.max_memory", field: "max_memory", form: Form::Size, put: |p, n| p.limits.max_memory = n, get: |p| p.limits.max_memory, about: "Most memory that a run may ask for" },
    Limit { key: "execution.default_cpu_quota", field: "default_cpu_quota", form: Form::Number, put: |p, n| p.limits.default_cpu_quota = n, get: |p| p.limits.default_cpu_quota, about: "CPU time of a run that asks for none, µs per 100 ms" },
    Limit { key: "execution.max_cpu_quota", field: "max_cpu_quota", form: Form::Number, put: |p, n| p.limits.max_cpu_quota = n, get: |p| p.limits.max_cpu_quota, about: "Most CPU time that a run may ask for, µs per 100 ms" },
    Limit { key: "execution.pids", field: "pids", form: Form::Number, put: |p, n| p.limits.pids = n, get: |p| p.limits.pids, about: "Processes and threads of one run" },
    Limit { key: "execution.descriptors", field: "descriptors", form: Form::Number, put: |p, n| p.limits.descriptors = n, get: |p| p.limits.descriptors, about: "Open files of one process" },
    Limit { key: "execution.tmp_size", field: "tmp_bytes", form: Form::Size, put: |p, n| p.limits.tmp_bytes = n, get: |p| p.limits.tmp_bytes, about: "/tmp; what is in it counts as memory too" },
    Limit { key: "execution.workspace_size", field: "workspace_bytes", form: Form::Size, put: |p, n| p.limits.workspace_bytes = n, get: |p| p.limits.workspace_bytes, about: "/workspace; what is in it counts as memory too" },
    Limit { key: "execution.stdout_limit", field: "stdout_limit", form: Form::Size, put: |p, n| p.stdout_limit = narrow(n), get: |p| p.stdout_limit as u64, about: "Kept of standard output, head and tail" },
    Limit { key: "execution.stderr_limit", field: "stderr_limit", form: Form::Size, put: |p, n| p.stderr_limit = narrow(n), get: |p| p.stderr_limit as u64, about: "Kept of standard error, head and tail" },
    Limit { key: "execution.output_stop", field: "output_stop_bytes", form: Form::Size, put: |p, n| p.output_stop_bytes = n, get: |p| p.output_stop_bytes, about: "A run that writes more is stopped" },
    Limit { key: "execution.concurrency", field: "concurrency", form: Form::Number, put: |p, n| p.concurrency = narrow(n), get: |p| p.concurrency as u64, about: "Runs at once" },
    Limit { key: "execution.queue", field: "queue", form: Form::Number, put: |p, n| p.queue = narrow(n), get: |p| p.queue as u64, about: "Runs that may wait" },
    Limit { key: "execution.input_files", field: "max_files", form: Form::Number, put: |p, n| p.max_files = narrow(n), get: |p| p.max_files as u64, about: "Files of one request" },
    Limit { key: "execution.input_size", field: "max_file_bytes", form: Form::Size, put: |p, n| p.max_file_bytes = narrow(n), get: |p| p.max_file_bytes as u64, about: "All files of one request together" },
    Limit { key: "files.count", field: "collect.files", form: Form::Number, put: |p, n| p.collect.files = u32::try_from(n).unwrap_or(u32::MAX), get: |p| p.collect.files.into(), about: "Files left in /workspace that the result names; 0 for none" },
    Limit { key: "files.file_size", field: "collect.file_bytes", form: Form::Size, put: |p, n| p.collect.file_bytes = n, get: |p| p.collect.file_bytes, about: "The contents of larger files are not kept" },
    Limit { key: "files.total_size", field: "collect.total_bytes", form: Form::Size, put: |p, n| p.collect.total_bytes = n, get: |p| p.collect.total_bytes, about: "Contents of the files of one run that are kept" },
    Limit { key: "retention.time", field: "retention.time", form: Form::Number, put: |p, n| p.retention.time = Duration::from_secs(n), get: |p| p.retention.time.as_secs(), about: "How long a run that has ended is kept, whole seconds" },
    Limit { key: "retention.runs", field: "retention.runs", form: Form::Number, put: |p, n| p.retention.runs = narrow(n), get: |p| p.retention.runs as u64, about: "How many runs that have ended are kept, the newest ones" },
    Limit { key: "retention.size", field: "retention.bytes", form: Form::Size, put: |p, n| p.retention.bytes = n, get: |p| p.retention.bytes, about: "All of them together: results, logs, files, pictures" },
];

fn narrow(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Every key that there is.
fn keys() -> impl Iterator<Item = &'static str> {
    let limits = LIMITS.iter().map(|limit| limit.key);
    limits.chain(OTHERS.iter().map(|other| other.key))
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").to_ascii_uppercase())
}

/// A value, and where it was set.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    text: String,
    /// With its variables in it, whose values may be secrets: what messages show.
    written: Option<String>,
    origin: Origin,
}

impl Setting {
    fn quoted(&self) -> String {
        match &self.written {
            Some(written) => format!("{} with its variables replaced", quoted(written)),
            None => quoted(&self.text),
        }
    }
}

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    /// `/etc/forge.yaml:3`, `MCP_FORGE_EXECUTION__PIDS`, `--set`.
    shown: String,
    /// Of the file; what is in no file comes after it.
    line: usize,
}

impl Origin {
    fn outside(shown: &str) -> Self {
        Self {
            shown: shown.to_owned(),
            line: usize::MAX,
        }
    }
}

/// What was set, everything else has its default; and the policy of sandboxes, whose file is read
/// once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings(BTreeMap<&'static str, Setting>, CheckedPolicy);

/// Most faults that are told one by one.
const MAX_FAULTS: usize = 100;

/// Everything that is wrong, each with the line of the file that it is in.
#[derive(Debug, Default)]
struct Faults(Vec<(usize, String)>);

impl Faults {
    /// What is wrong with what was set there.
    fn of(&mut self, origin: &Origin, what: impl AsRef<str>) {
        let told = format!("{}: {}", origin.shown, what.as_ref());
        self.0.push((origin.line, told));
    }

    /// What is wrong and is in no file.
    fn add(&mut self, what: String) {
        self.0.push((usize::MAX, what));
    }

    /// One a line, those of the file first, in its order.
    fn or<T>(mut self, sound: T) -> anyhow::Result<T> {
        if self.0.is_empty() {
            return Ok(sound);
        }
        self.0.sort_by_key(|(line, _)| *line);
        let more = self.0.len().saturating_sub(MAX_FAULTS);
        let told = self.0.into_iter().take(MAX_FAULTS).map(|(_, told)| told);
        let more = (more > 0).then(|| format!("and {more} more"));
        let told: Vec<String> = told.chain(more).collect();
        Err(anyhow!(told.join("\n")))
    }
}

type Environment = BTreeMap<OsString, OsString>;

/// Where a value comes from that is not set.
const DEFAULT: &str = "default";

/// One effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) key: &'static str,
    /// Nothing where the value depends on what is not there.
    pub(crate) value: Option<String>,
    /// `default`, `FILE:LINE`, a variable, `--set`.
    pub(crate) source: String,
}

impl Settings {
    /// Reads file, environment and command line: `set` are the `KEY=VALUE` of `--set`. Without a
    /// file that is named, the one below the configuration directory (XDG Base Directory
    /// Specification), if there is one.
    ///
    /// # Errors
    ///
    /// Everything that is wrong and where it was set.
    pub(crate) fn load(file: Option<&Path>, set: &[String]) -> anyhow::Result<Self> {
        let environment: Environment = std::env::vars_os().collect();
        let found = match file {
            Some(_) => None,
            None => own_file(&environment)?,
        };
        Self::read(file.or(found.as_deref()), environment, set)
    }

    /// Reads one file alone, with the environment for its variables only.
    ///
    /// # Errors
    ///
    /// Everything that is wrong in it.
    pub(crate) fn load_file(file: &Path) -> anyhow::Result<Self> {
        let (mut settings, mut faults) = (Self::default(), Faults::default());
        settings.take_file(file, &std::env::vars_os().collect(), &mut faults);
        settings.check(&mut faults);
        faults.or(settings)
    }

    fn read(file: Option<&Path>, environment: Environment, set: &[String]) -> anyhow::Result<Self> {
        let (mut settings, mut faults) = (Self::default(), Faults::default());
        if let Some(file) = file {
            settings.take_file(file, &environment, &mut faults);
        }
        let (given, unreadable) = given::environment(environment);
        unreadable.into_iter().for_each(|what| faults.add(what));
        for (name, text) in given {
            match keys().find(|key| variable(key) == name) {
                Some(key) => settings.put(key, text, &name),
                None => no_setting(&name)
                    .into_iter()
                    .for_each(|what| faults.add(what)),
            }
        }
        for set in set {
            let refused = settings.take_argument(set);
            refused.into_iter().for_each(|what| faults.add(what));
        }
        settings.check(&mut faults);
        faults.or(settings)
    }

    fn put(&mut self, key: &'static str, text: String, origin: &str) {
        let setting = Setting {
            text,
            written: None,
            origin: Origin::outside(origin),
        };
        self.0.insert(key, setting);
    }

    fn take_file(&mut self, file: &Path, environment: &Environment, faults: &mut Faults) {
        let given = match given::file(file) {
            Ok(given) => given,
            Err(error) => return faults.add(format!("{error:#}")),
        };
        let origin = |line| Origin {
            shown: format!("{}:{line}", file.display()),
            line,
        };
        for fault in given.faults {
            faults.of(&origin(fault.line), fault.what);
        }
        for entry in given.entries {
            let (origin, written) = (origin(entry.line), entry.key);
            let section = keys().any(|key| is_in(key, &written));
            let key = keys().find(|key| *key == written);
            match (entry.value, key) {
                (Value::Text(written), Some(key)) => {
                    match variables::expand(&written, environment) {
                        Ok(text) => {
                            let written = (text != written).then_some(written);
                            let setting = Setting {
                                text,
                                written,
                                origin,
                            };
                            self.0.insert(key, setting);
                        }
                        Err(error) => faults.of(&origin, format!("{key}: {error}")),
                    }
                }
                (Value::Nothing, Some(_)) => {}
                (Value::Section | Value::Nothing, None) if section => {}
                (Value::Section, Some(key)) => {
                    faults.of(&origin, format!("{key} is a section, must be one value"));
                }
                (Value::Text(_), None) if section => faults.of(
                    &origin,
                    format!("{written} is a section, it has no value of its own"),
                ),
                (_, None) => {
                    // Its keys are not told as well.
                    let of_unknown = written
                        .split_once('.')
                        .is_some_and(|(section, _)| !keys().any(|key| is_in(key, section)));
                    if !of_unknown {
                        let section = (!written.contains('.')).then(|| nearest_section(&written));
                        let meant = section.flatten().or_else(|| nearest(&written));
                        let hint = if POLICY_KEYS.contains(&written.as_str()) {
                            "; a policy of sandboxes is a file of its own, see security.policy"
                                .to_owned()
                        } else {
                            suggestion(meant.map(str::to_owned))
                        };
                        faults.of(&origin, format!("unknown key {}{hint}", quoted(&written)));
                    }
                }
            }
        }
    }

    fn take_argument(&mut self, set: &str) -> Option<String> {
        let Some((written, text)) = set.split_once('=') else {
            let set = quoted(set);
            return Some(format!(
                "--set {set}: must be KEY=VALUE, such as execution.pids=50"
            ));
        };
        match keys().find(|key| *key == written) {
            Some(key) => {
                self.put(key, text.to_owned(), "--set");
                None
            }
            None => {
                let hint = suggestion(nearest(written).map(str::to_owned));
                Some(format!("--set: unknown key {}{hint}", quoted(written)))
            }
        }
    }

    /// The kind of runtime that was chosen, and where.
    pub(crate) fn runtime(&self) -> Option<(&str, &str)> {
        let setting = self.0.get(RUNTIME)?;
        Some((&setting.text, &setting.origin.shown))
    }

    /// How often leftovers are looked for.
    pub(crate) fn cleanup_interval(&self) -> Duration {
        let set = self.0.get(CLEANUP);
        let seconds = set.and_then(|setting| setting.text.parse().ok());
        Duration::from_secs(seconds.unwrap_or(300))
    }

    /// Every setting with its value and where that comes from, in the order of the example file.
    pub(crate) fn effective(&self) -> Vec<Effective> {
        let one = |row: docs::Row| match self.0.get(row.key) {
            Some(setting) => Effective {
                key: row.key,
                value: Some(setting.text.clone()),
                source: setting.origin.shown.clone(),
            },
            None => Effective {
                key: row.key,
                value: match row.key {
                    AUDIT => self
                        .audit_path()
                        .ok()
                        .map(|path| path.display().to_string()),
                    _ => Some(row.default).filter(|default| !default.is_empty()),
                },
                source: DEFAULT.to_owned(),
            },
        };
        docs::table().into_iter().map(one).collect()
    }

    /// The policy of execution that these settings make.
    ///
    /// # Errors
    ///
    /// Every value that is outside of its range or does not fit the others.
    pub(crate) fn policy(&self) -> anyhow::Result<ExecutionPolicy> {
        let mut faults = Faults::default();
        let policy = self.make_policy(&mut faults);
        faults.or(policy)
    }

    fn check(&mut self, faults: &mut Faults) {
        if let Some(setting) = self.0.get(POLICY).filter(|set| Form::Path.takes(&set.text)) {
            let shown = setting.written.as_ref().unwrap_or(&setting.text);
            match policy_file::load_as(Path::new(&setting.text), shown) {
                Ok(sandboxes) => self.1 = sandboxes,
                Err(error) => faults.of(&setting.origin, format!("{POLICY}: {error:#}")),
            }
        }
        self.make_policy(faults);
        for other in &OTHERS {
            if let Some(setting) = self.0.get(other.key)
                && !other.form.takes(&setting.text)
            {
                let (key, text, allowed) = (other.key, setting.quoted(), other.form.allowed());
                faults.of(
                    &setting.origin,
                    format!("{key} is {text}, must be {allowed}"),
                );
            }
        }
    }

    fn make_policy(&self, told: &mut Faults) -> ExecutionPolicy {
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
        policy.accept_unenforced = self.flag(UNENFORCED);
        policy.require_strong = self.flag(STRONG);
        policy.sandboxes.clone_from(&self.1);
        let faults_of = |policy: &ExecutionPolicy| policy.check().err().map_or(Vec::new(), |f| f.0);
        let mut faults = faults_of(&policy);
        for limit in unreadable {
            let mut policy = policy.clone();
            (limit.put)(&mut policy, limit.form.outside());
            let of_it = |fault: &PolicyFault| fault.field == limit.field;
            faults.extend(faults_of(&policy).into_iter().filter(of_it));
        }
        // What is wrong by itself is not told with how others compare with it as well.
        let wrong = |fault: &PolicyFault| fault.compared.is_empty().then_some(fault.field);
        let wrong: Vec<&str> = faults.iter().filter_map(wrong).collect();
        faults.retain(|fault| {
            let mut fields = fault.compared.iter().chain([&fault.field]);
            fault.compared.is_empty() || !fields.any(|field| wrong.contains(field))
        });
        for fault in &faults {
            let limit = LIMITS.iter().find(|limit| limit.field == fault.field);
            let key = limit.map_or(fault.field, |limit| limit.key);
            match self.0.get(key) {
                Some(setting) => {
                    let form = limit.map_or(Form::Number, |limit| limit.form);
                    let what = match (form, parse_byte_size(&setting.text)) {
                        (Form::Number, _) if !is_integer(&setting.text) => " (no whole number)",
                        (Form::Size, Err(ByteSizeError::TooLarge { .. })) => {
                            " (larger than any memory)"
                        }
                        (Form::Size, Err(_)) if !is_integer(&setting.text) => {
                            " (no size such as 512m)"
                        }
                        _ => "",
                    };
                    let (text, allowed) = (setting.quoted(), &fault.allowed);
                    let what = format!("{key} is {text}{what}, must be {allowed}");
                    told.of(&setting.origin, what);
                }
                None => told.add(format!(
                    "{key} is {} (not set), must be {}",
                    fault.value, fault.allowed
                )),
            }
        }
        policy
    }

    fn flag(&self, key: &str) -> bool {
        let set = self.0.get(key);
        set.is_some_and(|setting| setting.text.eq_ignore_ascii_case("true"))
    }

    /// Where the audit log is: as configured, else below the state directory (XDG Base Directory
    /// Specification).
    ///
    /// # Errors
    ///
    /// When it is not configured and there is neither `XDG_STATE_HOME` nor `HOME`.
    pub(crate) fn audit_path(&self) -> anyhow::Result<PathBuf> {
        if let Some(setting) = self.0.get(AUDIT) {
            return Ok(PathBuf::from(&setting.text));
        }
        let environment = std::env::vars_os().collect();
        let state = directory(&environment, "XDG_STATE_HOME", ".local/state").context(
            "no place for the audit log: set audit.path (MCP_FORGE_AUDIT__PATH), \
             XDG_STATE_HOME or HOME",
        )?;
        Ok(state.join("mcp-forge/audit.jsonl"))
    }

    /// Where images are kept: as configured, else below the data directory (XDG
    /// Base Directory Specification; of root Filesystem Hierarchy Standard, 5.8).
    ///
    /// # Errors
    ///
    /// When it is not configured and there is neither `XDG_DATA_HOME` nor `HOME`.
    pub(crate) fn images_path(&self) -> anyhow::Result<PathBuf> {
        if let Some(setting) = self.0.get(IMAGES) {
            return Ok(PathBuf::from(&setting.text));
        }
        // Not below root's home: other users' ids have to see it.
        if nix::unistd::geteuid().is_root() {
            return Ok("/var/lib/mcp-forge/images".into());
        }
        let environment = std::env::vars_os().collect();
        let data = directory(&environment, "XDG_DATA_HOME", ".local/share").context(
            "no place for images: set images.directory (MCP_FORGE_IMAGES__DIRECTORY), XDG_DATA_HOME or \
             HOME",
        )?;
        Ok(data.join("mcp-forge/images"))
    }

    /// The most bytes that an image may have.
    pub(crate) fn image_bytes(&self) -> u64 {
        let set = self.0.get(IMAGE_SIZE);
        set.and_then(|setting| parse_byte_size(&setting.text).ok())
            .unwrap_or(16 << 30)
    }

    /// How the audit log is kept.
    pub(crate) fn audit_options(&self) -> FileAuditOptions {
        let default = FileAuditOptions::default();
        let text = |key| self.0.get(key).map(|setting| setting.text.as_str());
        FileAuditOptions {
            max_bytes: text(AUDIT_SIZE)
                .and_then(|text| parse_byte_size(text).ok())
                .unwrap_or(default.max_bytes),
            keep: text(AUDIT_KEEP).and_then(|text| text.parse().ok()),
            sync: self.flag(AUDIT_SYNC),
        }
    }

    /// Whether work is done also when it cannot be audited.
    pub(crate) fn runs_unaudited(&self) -> bool {
        self.0.get(AUDIT_FAILURE).is_some_and(|s| s.text == "run")
    }
}

/// A directory of the XDG Base Directory Specification: the variable, else below the home. What is
/// relative does not count there.
fn directory(environment: &Environment, name: &str, below: &str) -> Option<PathBuf> {
    let set = |name: &str| {
        let path = environment
            .get(std::ffi::OsStr::new(name))
            .map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    set(name).or_else(|| set("HOME").map(|home| home.join(below)))
}

/// The configuration file that needs no option.
fn own_file(environment: &Environment) -> anyhow::Result<Option<PathBuf>> {
    let Some(directory) = directory(environment, "XDG_CONFIG_HOME", ".config") else {
        return Ok(None);
    };
    let names = ["config.yaml", "config.yml", "config.toml"];
    let files = names.map(|name| directory.join("mcp-forge").join(name));
    let mut there = files
        .into_iter()
        .filter(|file| file.symlink_metadata().is_ok());
    let (first, second) = (there.next(), there.next());
    if let (Some(first), Some(second)) = (&first, &second) {
        bail!(
            "two configuration files, {} and {}: remove one, or name one with --config",
            first.display(),
            second.display()
        );
    }
    Ok(first)
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a key is one of a section.
fn is_in(key: &str, section: &str) -> bool {
    key.split('.').next() == Some(section)
}

/// What is wrong with a variable with our prefix that is no setting: an error where a setting was
/// meant, else a warning, since the tests and scripts of mcp-forge have such variables too.
fn no_setting(name: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let written = rest.to_ascii_lowercase().replace("__", ".");
    if let Some(key) = keys().find(|key| is_in(key, &written)) {
        let such = variable(key);
        return Some(format!(
            "{name}: {written} is a section, set a key of it, such as {such}"
        ));
    }
    let meant = nearest(&written);
    if meant.is_none() && !written.contains('.') {
        tracing::warn!("environment variable {name} is no setting");
        return None;
    }
    let hint = suggestion(meant.map(variable));
    Some(format!("unknown environment variable {name}{hint}"))
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
