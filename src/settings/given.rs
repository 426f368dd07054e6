//! What was typed: keys and values of a file and of the environment, as text, and where each one
//! was set. What a key means and what a value may be is not known here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use nix::fcntl::OFlag;
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

/// One key, what it was set to, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// With dots: `execution.pids`.
    pub(super) key: String,
    pub(super) value: Value,
    /// `/etc/forge.yaml:3` or `MCP_FORGE_EXECUTION__PIDS`.
    pub(super) origin: String,
}

/// The entries of a file.
///
/// # Errors
///
/// What it is when it is no regular file, and the line that cannot be read.
pub(super) fn file(path: &Path) -> anyhow::Result<Vec<Entry>> {
    // Before it is read.
    form(path)?;
    let text = read(path).with_context(|| format!("configuration file {}", path.display()))?;
    entries(path, &text)
}

type Parse = fn(&str) -> Result<Lines, Fault>;

fn form(path: &Path) -> anyhow::Result<Parse> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("yaml" | "yml") => Ok(yaml),
        Some("toml") => Ok(toml),
        _ => {
            let path = path.display();
            bail!("configuration file {path}: its name must end in .yaml, .yml or .toml")
        }
    }
}

/// The entries in a text, of the form that the file's name tells.
pub(super) fn entries(path: &Path, text: &str) -> anyhow::Result<Vec<Entry>> {
    let (shown, parse) = (path.display(), form(path)?);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let entries = parse(text).map_err(|fault| anyhow!("{shown}:{}: {}", fault.line, fault.what))?;
    Ok(entries
        .into_iter()
        .map(|(key, (line, value))| Entry {
            key,
            value,
            origin: format!("{shown}:{line}"),
        })
        .collect())
}

/// The text of a regular file of at most 1 MiB.
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
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        bail!("it is larger than 1 MiB");
    }
    String::from_utf8(bytes).map_err(|e| anyhow!("it is not UTF-8: {}", e.utf8_error()))
}

/// What is wrong with a line, counted from 1.
struct Fault {
    line: usize,
    what: String,
}

impl Fault {
    fn new(line: usize, what: impl Into<String>) -> Self {
        Self {
            line,
            what: what.into(),
        }
    }
}

/// Key, line, value.
type Lines = BTreeMap<String, (usize, Value)>;

fn add(lines: &mut Lines, key: String, line: usize, value: Value) -> Result<(), Fault> {
    let what = format!("{key} is set a second time");
    match lines.insert(key, (line, value)) {
        None => Ok(()),
        Some(_) => Err(Fault::new(line, what)),
    }
}

/// Settings have two names, a section's and their own.
const MAX_NAMES: usize = 2;

/// Pulls one event after the other: no depth of nesting costs a stack, and every value stays as it
/// was written. There are no aliases, with which a short file can stand for an endless one.
fn yaml(text: &str) -> Result<Lines, Fault> {
    let mut parser = Parser::new_from_str(text);
    let mut lines = Lines::new();
    // The open mappings, each with the name whose value comes next, and its line.
    let mut open: Vec<Option<(String, usize)>> = Vec::new();
    let mut documents = 0;
    loop {
        let (event, mark) = parser
            .next_token()
            .map_err(|e| Fault::new(e.marker().line(), e.info()))?;
        let fault = |what: &str| Err(Fault::new(mark.line(), what));
        let value = match event {
            Event::StreamEnd => return Ok(lines),
            Event::DocumentStart if documents == 1 => return fault("a second document"),
            Event::DocumentStart => {
                documents = 1;
                continue;
            }
            Event::MappingEnd => {
                open.pop();
                if let Some(name) = open.last_mut() {
                    *name = None;
                }
                continue;
            }
            Event::Alias(_) => return fault("an alias; write the value out"),
            Event::SequenceStart(..) => return fault("a list; every setting has one value"),
            Event::MappingStart(..) => Value::Section,
            Event::Scalar(text, TScalarStyle::Plain, ..)
                if ["", "~", "null"].contains(&text.as_str()) =>
            {
                Value::Nothing
            }
            Event::Scalar(text, ..) => Value::Text(text),
            Event::StreamStart | Event::DocumentEnd | Event::SequenceEnd | Event::Nothing => {
                continue;
            }
        };
        let section = value == Value::Section;
        match open.last_mut() {
            None if section || value == Value::Nothing => {}
            None => return fault("no section such as `execution:`"),
            Some(name @ None) => match value {
                Value::Text(text) => *name = Some((text, mark.line())),
                _ => return fault("a key that is no text"),
            },
            Some(Some((_, line))) => {
                let line = *line;
                let names: Vec<&str> = open.iter().flatten().map(|(name, _)| &**name).collect();
                let key = names.join(".");
                if section && names.len() == MAX_NAMES {
                    return fault(&format!("{key} has keys of its own, must be one value"));
                }
                add(&mut lines, key, line, value)?;
                if !section && let Some(name) = open.last_mut() {
                    *name = None;
                }
            }
        }
        if section {
            open.push(None);
        }
    }
}

fn toml(text: &str) -> Result<Lines, Fault> {
    let line = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    let root = DeTable::parse(text)
        .map_err(|e| Fault::new(line(e.span().map_or(0, |span| span.start)), e.message()))?;
    let mut lines = Lines::new();
    let mut sections = vec![(String::new(), root.into_inner())];
    while let Some((section, table)) = sections.pop() {
        for (name, value) in table {
            let at = line(name.span().start);
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
                    let what = format!("{key} has keys of its own, must be one value");
                    return Err(Fault::new(at, what));
                }
                DeValue::Array(_) => {
                    return Err(Fault::new(at, "a list; every setting has one value"));
                }
                DeValue::String(text) => Value::Text(text.into_owned()),
                // Without the underscores.
                DeValue::Integer(number) if number.radix() == 10 => {
                    Value::Text(number.as_str().to_owned())
                }
                _ => Value::Text(text.get(written).unwrap_or_default().to_owned()),
            };
            add(&mut lines, key, at, value)?;
        }
    }
    Ok(lines)
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
