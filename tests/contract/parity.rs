//! `docs/parity.md`: for each port a table, case by adapter.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Kept,
    Broken,
    Skipped(String),
}

/// By the names of case and adapter.
pub(crate) type Outcomes = BTreeMap<(&'static str, &'static str), Outcome>;

/// The contract of one port.
pub(crate) struct Table {
    /// Its name in the document.
    pub(crate) name: &'static str,
    pub(crate) adapters: Vec<&'static str>,
    pub(crate) cases: Vec<&'static str>,
}

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/parity.md")
}

fn sentence(name: &str) -> String {
    name.replace('_', " ")
}

impl Table {
    fn begin(&self) -> String {
        format!("<!-- {} -->\n", self.name)
    }

    fn end(&self) -> String {
        format!("<!-- end of {} -->", self.name)
    }

    fn header(&self) -> String {
        let names = self.adapters.join(" | ");
        let line = "---|".repeat(self.adapters.len());
        format!("| case | {names} |\n|---|{line}\n")
    }

    /// Puts what became of its cases into the document.
    pub(crate) fn write(&self, outcomes: &Outcomes) {
        let (mut rows, mut notes) = (self.header(), Vec::new());
        for case in &self.cases {
            rows.push_str(&format!("| {} |", sentence(case)));
            for adapter in &self.adapters {
                let cell = match outcomes.get(&(case, adapter)) {
                    Some(Outcome::Kept) => "yes".to_owned(),
                    Some(Outcome::Broken) => "**no**".to_owned(),
                    Some(Outcome::Skipped(why)) => {
                        let note = notes.iter().position(|note| note == why);
                        let note = note.unwrap_or_else(|| {
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
        let (begin, end) = (self.begin(), self.end());
        let (before, rest) = document.split_once(&begin).unwrap();
        let (_, after) = rest.split_once(&end).unwrap();
        fs::write(path(), format!("{before}{begin}{rows}{end}{after}")).unwrap();
    }

    /// What is wrong with it in the document: it has each case and each adapter, and none that is broken.
    fn faults(&self, document: &str) -> Vec<String> {
        let part = document.split_once(&self.begin());
        let part = part.and_then(|(_, rest)| rest.split_once(&self.end()));
        let Some((part, _)) = part else {
            return vec![format!("there is no table {:?}", self.name)];
        };
        let mut wrong = Vec::new();
        if !part.starts_with(&self.header()) {
            wrong.push(format!("{}: other adapters", self.name));
        }
        let rows = part.lines().filter(|line| line.starts_with("| ")).skip(1);
        let rows: Vec<&str> = rows.collect();
        let told = rows.iter().filter_map(|row| row.split('|').nth(1));
        if !told
            .map(str::trim)
            .eq(self.cases.iter().map(|case| sentence(case)))
        {
            wrong.push(format!("{}: other cases", self.name));
        }
        let bad = rows
            .iter()
            .filter(|row| row.contains("**no**") || row.contains("not run"));
        wrong.extend(bad.map(|row| format!("not kept: {row}")));
        wrong
    }
}

/// The document has every table, as it should be.
pub(crate) fn check(tables: &[Table]) -> Result<(), String> {
    let document = fs::read_to_string(path()).map_err(|e| format!("docs/parity.md: {e}"))?;
    let wrong: Vec<String> = tables
        .iter()
        .flat_map(|table| table.faults(&document))
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "docs/parity.md: {}; UPDATE_DOCS=1 cargo test --test contract",
        wrong.join("; ")
    ))
}
