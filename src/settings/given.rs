//! What was typed: keys and values of a file and of the environment, as text, and where each one
//! was set. What a key means and what a value may be is not known here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use nix::fcntl::OFlag;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::scanner::TScalarStyle;

/// Largest configuration file, bytes.
const MAX_FILE: u64 = 1 << 20;

/// What the names of our environment variables start with.
pub(super) const PREFIX: &str = "MCP_FORGE_";

/// The variable that names the file.
const FILE_VARIABLE: &str = "MCP_FORGE_CONFIG";

/// What a key was set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A text, a number or a flag, as it was written.
    Text(String),
    /// Nothing: `key:` in YAML.
    Nothing,
    /// Keys of its own, which are entries too.
    Section,
}

/// One key, what it was set to, and the line, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// With dots: `execution.pids`.
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) line: usize,
}

/// What is wrong with a line, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) what: String,
}

/// What could be read of a file, and what could not.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) entries: Vec<Entry>,
    pub(super) faults: Vec<Fault>,
}

/// The entries of a file.
///
/// # Errors
///
/// What it is when it is no regular file, or has no name of one.
pub(super) fn file(path: &Path) -> anyhow::Result<Given> {
    let shown = path.display();
    let text = read(path).with_context(|| format!("configuration file {shown}"))?;
    entries(path, &text).with_context(|| format!("configuration file {shown}"))
}

/// The entries in a text, of the form that the file's name tells.
///
/// # Errors
///
/// When it tells none.
pub(super) fn entries(path: &Path, text: &str) -> anyhow::Result<Given> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("yaml" | "yml") => Ok(yaml(text)),
        Some("toml") => Ok(toml(text)),
        _ => bail!("its name must end in .yaml, .yml or .toml"),
    }
}

/// The text of a regular file of at most 1 MiB that not everybody may write.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    let kind = fs::metadata(path)?.file_type();
    let what = match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a named pipe",
        _ if kind.is_socket() => "a socket",
        _ if !kind.is_file() => "a device",
        _ => "",
    };
    if !what.is_empty() {
        bail!("it is {what}, must be a regular file");
    }
    // A named pipe that takes its place meanwhile does not hold up the start.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    if mode & 0o002 != 0 {
        bail!(
            "everybody may write it (mode {mode:04o}): look whether it is yours, then `chmod o-w` it"
        );
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        bail!("it is larger than 1 MiB");
    }
    String::from_utf8(bytes).map_err(|e| anyhow!("it is not UTF-8: {}", e.utf8_error()))
}

/// Reads what comes: one key a time.
#[derive(Default)]
struct Reading {
    given: Given,
    /// The keys, and whether it was told that there are two.
    seen: BTreeMap<String, bool>,
}

impl Reading {
    fn fault(&mut self, line: usize, what: impl Into<String>) {
        let what = what.into();
        self.given.faults.push(Fault { line, what });
    }

    fn add(&mut self, key: String, line: usize, value: Value) {
        if let Some(told) = self.seen.get_mut(&key) {
            if !std::mem::replace(told, true) {
                self.fault(line, format!("{key} is set a second time"));
            }
            return;
        }
        self.seen.insert(key.clone(), false);
        self.given.entries.push(Entry { key, value, line });
    }
}

/// Settings have two names, a section's and their own.
const MAX_NAMES: usize = 2;

/// Where in a YAML document we are.
#[derive(Default)]
struct Yaml {
    reading: Reading,
    /// The open mappings, each with the name whose value comes next, and its line.
    open: Vec<Option<(String, usize)>>,
    /// Lists and mappings that are open and passed over.
    passed_over: usize,
    begun: bool,
}

/// Pulls one event after the other: no depth of nesting costs a stack, and every value stays as it
/// was written. There are no aliases, with which a short file can stand for an endless one.
fn yaml(text: &str) -> Given {
    let mut parser = Parser::new_from_str(text);
    let mut yaml = Yaml::default();
    loop {
        match parser.next_token() {
            Ok((Event::StreamEnd, _)) => break,
            Ok((event, mark)) => {
                if !yaml.take(event, mark.line()) {
                    break;
                }
            }
            Err(error) => {
                yaml.reading.fault(error.marker().line(), error.info());
                break;
            }
        }
    }
    yaml.reading.given
}

impl Yaml {
    /// Whether what follows can be read.
    fn take(&mut self, event: Event, line: usize) -> bool {
        let opens = matches!(event, Event::SequenceStart(..) | Event::MappingStart(..));
        if self.passed_over > 0 {
            match event {
                Event::SequenceEnd | Event::MappingEnd => self.passed_over -= 1,
                _ if opens => self.passed_over += 1,
                _ => {}
            }
            if self.passed_over == 0 {
                self.has_value();
            }
            return true;
        }
        let value = match event {
            Event::DocumentStart if self.begun => {
                self.reading.fault(line, "a second document");
                return false;
            }
            Event::DocumentStart => {
                self.begun = true;
                return true;
            }
            Event::MappingEnd => {
                self.open.pop();
                self.has_value();
                return true;
            }
            Event::Alias(_) => Err("an alias, must be written out"),
            Event::SequenceStart(..) => Err("a list, must be one value"),
            Event::MappingStart(..) => Ok(Value::Section),
            Event::Scalar(text, TScalarStyle::Plain, ..)
                if ["", "~", "null"].contains(&text.as_str()) =>
            {
                Ok(Value::Nothing)
            }
            Event::Scalar(text, ..) => Ok(Value::Text(text)),
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::Nothing => return true,
        };
        let names: Vec<&str> = self
            .open
            .iter()
            .flatten()
            .map(|(name, _)| &**name)
            .collect();
        let key = names.join(".");
        let depth = names.len();
        match (self.open.last_mut(), value) {
            (None, Ok(Value::Section)) => self.open.push(None),
            (None, Ok(Value::Nothing)) => {}
            (None, _) => {
                self.reading.fault(line, "no section such as `execution:`");
                return false;
            }
            (Some(name @ None), Ok(Value::Text(text))) => *name = Some((text, line)),
            (Some(None), _) => {
                self.reading.fault(line, "a key that is no text");
                return false;
            }
            (Some(Some((_, line))), value) => {
                let line = *line;
                let value = match value {
                    Ok(Value::Section) if depth == MAX_NAMES => Err("a section, must be one value"),
                    value => value,
                };
                match value {
                    Ok(Value::Section) => {
                        self.reading.add(key, line, Value::Section);
                        self.open.push(None);
                    }
                    Ok(value) => {
                        self.reading.add(key, line, value);
                        self.has_value();
                    }
                    Err(what) => {
                        self.reading.fault(line, format!("{key} is {what}"));
                        if opens {
                            self.passed_over = 1;
                        } else {
                            self.has_value();
                        }
                    }
                }
            }
        }
        true
    }

    fn has_value(&mut self) {
        if let Some(name) = self.open.last_mut() {
            *name = None;
        }
    }
}

/// What can be read of a TOML document, what cannot, and where its lines begin.
pub(super) fn parse_toml(text: &str) -> (Spanned<DeTable<'_>>, Vec<Fault>, Breaks) {
    let breaks = Breaks::of(text);
    let (root, errors) = DeTable::parse_recoverable(text);
    let fault = |error: toml::de::Error| Fault {
        line: breaks.line(error.span().map_or(0, |span| span.start)),
        what: error.message().to_owned(),
    };
    let mut faults: Vec<Fault> = errors.into_iter().map(fault).collect();
    // One slip can be several errors.
    faults.sort_by_key(|fault| fault.line);
    faults.dedup_by_key(|fault| fault.line);
    (root, faults, breaks)
}

/// Where the lines of a text end.
pub(super) struct Breaks(Vec<usize>);

impl Breaks {
    fn of(text: &str) -> Self {
        let all = text.bytes().enumerate();
        Self(
            all.filter(|(_, byte)| *byte == b'\n')
                .map(|(at, _)| at)
                .collect(),
        )
    }

    /// The line of a byte, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        self.0.partition_point(|end| *end < at) + 1
    }
}

fn toml(text: &str) -> Given {
    let (root, faults, breaks) = parse_toml(text);
    let mut reading = Reading::default();
    let mut sections = vec![(String::new(), root.into_inner())];
    while let Some((section, table)) = sections.pop() {
        for (name, value) in table {
            let at = breaks.line(name.span().start);
            let key = match section.as_str() {
                "" => name.into_inner().into_owned(),
                section => format!("{section}.{}", name.into_inner()),
            };
            let written = value.span();
            let value = match value.into_inner() {
                DeValue::Table(table) if section.is_empty() => {
                    sections.push((key.clone(), table));
                    Value::Section
                }
                DeValue::Table(_) => {
                    reading.fault(at, format!("{key} is a section, must be one value"));
                    continue;
                }
                DeValue::Array(_) => {
                    reading.fault(at, format!("{key} is a list, must be one value"));
                    continue;
                }
                DeValue::String(text) => Value::Text(text.into_owned()),
                // Without the underscores.
                DeValue::Integer(number) if number.radix() == 10 => {
                    Value::Text(number.as_str().to_owned())
                }
                _ => Value::Text(text.get(written).unwrap_or_default().to_owned()),
            };
            reading.add(key, at, value);
        }
    }
    let mut given = reading.given;
    // What was made of a line that cannot be read says nothing.
    let is_broken = |line| faults.iter().any(|fault: &Fault| fault.line == line);
    given.entries.retain(|entry| !is_broken(entry.line));
    given.faults.extend(faults);
    given
}

/// The entries of the environment: variables that start with [`PREFIX`], but the one that names the
/// file; and what is told of those that are not UTF-8, in their name or in their value.
pub(super) fn environment(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> (Vec<(String, String)>, Vec<String>) {
    let ours = variables.into_iter().filter(|(name, _)| {
        name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) && name != FILE_VARIABLE
    });
    let (mut given, mut faults) = (Vec::new(), Vec::new());
    for (name, value) in ours {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => given.push((name, value)),
            (Err(name), _) => faults.push(format!(
                "environment variable {name:?}: its name is not UTF-8"
            )),
            (Ok(name), Err(_)) => {
                faults.push(format!(
                    "environment variable {name}: its value is not UTF-8"
                ));
            }
        }
    }
    (given, faults)
}
