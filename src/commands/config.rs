//! `mcp-forge config`.

use std::process::ExitCode;

use serde_json::{Map, json};

use super::{complain, plain, printed};
use crate::cli::Config;
use crate::settings::{Effective, Settings, schema};

/// Exit status when something is wrong with the configuration that was to be checked.
const WRONG: u8 = 1;

pub(super) fn config(
    command: &Config,
    runtime: Option<&str>,
    load: impl Fn() -> anyhow::Result<Settings>,
) -> anyhow::Result<ExitCode> {
    match command {
        Config::Show { json } => {
            let mut effective = load()?.effective();
            if let Some(kind) = runtime {
                // The option of that name counts before all others.
                for one in effective.iter_mut().filter(|one| one.key == "runtime.kind") {
                    one.value = Some(kind.to_owned());
                    one.source = "--runtime".to_owned();
                }
            }
            let text = if *json {
                as_json(&effective)
            } else {
                as_table(&effective)
            };
            Ok(printed(&text, ExitCode::SUCCESS))
        }
        Config::Check { file } => {
            let checked = match file {
                Some(file) => Settings::load_file(file),
                None => load(),
            };
            if let Err(error) = checked {
                complain(&error);
                return Ok(ExitCode::from(WRONG));
            }
            Ok(printed("the configuration is sound\n", ExitCode::SUCCESS))
        }
        Config::Schema => Ok(printed(&format!("{:#}\n", schema()), ExitCode::SUCCESS)),
    }
}

fn as_json(effective: &[Effective]) -> String {
    let one = |one: &Effective| {
        let value = json!({ "value": one.value, "source": one.source });
        (one.key.to_owned(), value)
    };
    let all: Map<_, _> = effective.iter().map(one).collect();
    format!("{:#}\n", serde_json::Value::from(all))
}

fn as_table(effective: &[Effective]) -> String {
    let value = |one: &Effective| match &one.value {
        Some(value) => plain(value),
        None => "-".to_owned(),
    };
    let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or_default();
    let keys = width(&mut effective.iter().map(|one| one.key.len()));
    let values = width(&mut effective.iter().map(|one| value(one).chars().count()));
    effective
        .iter()
        .map(|one| {
            let (key, value, source) = (one.key, value(one), &one.source);
            format!("{key:keys$}  {value:values$}  {source}\n")
        })
        .collect()
}
