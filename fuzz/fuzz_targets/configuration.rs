//! Text of an operator's file, in both forms: entries, and their variables.
#![no_main]

use std::collections::BTreeMap;
use std::path::Path;

use libfuzzer_sys::fuzz_target;

// The program has no library; what reads the file needs nothing else of it.
#[allow(dead_code)]
#[path = "../../src/settings/given.rs"]
mod given;
#[path = "../../src/settings/variables.rs"]
mod variables;

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fuzz_target!(|text: &str| {
    let environment = BTreeMap::from([("X".into(), "x".into()), ("E".into(), "".into())]);
    for name in ["f.yaml", "f.toml"] {
        for entry in given::entries(Path::new(name), text).unwrap_or_default() {
            if let given::Value::Text(text) = entry.value {
                let _ = variables::expand(&text, &environment);
            }
        }
    }
    let _ = variables::expand(text, &environment);
});
