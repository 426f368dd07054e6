//! `docs/parity.md`: case by runtime.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mcp_forge_ports::contract::cases;

use crate::subjects::RUNTIMES;

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Kept,
    Broken,
    Skipped(String),
}

/// By the names of case and runtime.
pub(crate) type Table = BTreeMap<(&'static str, &'static str), Outcome>;

const BEGIN: &str = "<!-- cases -->\n";
const END: &str = "<!-- end -->";

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/parity.md")
}

fn header() -> String {
    let names: Vec<&str> = RUNTIMES.iter().map(|runtime| runtime.name).collect();
    format!(
        "| case | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    )
}

fn sentence(name: &str) -> String {
    name.replace('_', " ")
}

pub(crate) fn write(table: &Table) {
    let (mut rows, mut notes) = (header(), Vec::new());
    for case in cases() {
        rows.push_str(&format!("| {} |", sentence(case.name)));
        for runtime in &RUNTIMES {
            let cell = match table.get(&(case.name, runtime.name)) {
                Some(Outcome::Kept) => "yes".to_owned(),
                Some(Outcome::Broken) => "**no**".to_owned(),
                Some(Outcome::Skipped(why)) => {
                    let note = notes
                        .iter()
                        .position(|note| note == why)
                        .unwrap_or_else(|| {
                            notes.push(why.clone());
                            notes.len() - 1
                        });
                    format!("skipped ({})", note + 1)
                }
                None => "not run".to_owned(),
            };
            rows.push_str(&format!(" {cell} |"));
        }
        rows.push('\n');
    }
    for (number, note) in notes.iter().enumerate() {
        rows.push_str(&format!("\n{}. {note}\n", number + 1));
    }
    let document = fs::read_to_string(path()).unwrap();
    let (before, rest) = document.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    fs::write(path(), format!("{before}{BEGIN}{rows}{END}{after}")).unwrap();
}

/// The document has each case and each runtime, and none that is broken.
pub(crate) fn check() -> Result<(), String> {
    let document = fs::read_to_string(path()).map_err(|e| format!("docs/parity.md: {e}"))?;
    let mut wrong = Vec::new();
    if !document.contains(&header()) {
        wrong.push("its runtimes are others".to_owned());
    }
    let rows: Vec<&str> = document
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .collect();
    let names: Vec<String> = cases().iter().map(|case| sentence(case.name)).collect();
    let told: Vec<&str> = rows
        .iter()
        .filter_map(|row| row.split('|').nth(1))
        .map(str::trim)
        .collect();
    if told != names {
        wrong.push("its cases are others".to_owned());
    }
    let bad = rows
        .iter()
        .filter(|row| row.contains("**no**") || row.contains("not run"));
    wrong.extend(bad.map(|row| format!("not kept: {row}")));
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "docs/parity.md: {}; UPDATE_DOCS=1 cargo test --test contract",
        wrong.join("; ")
    ))
}
