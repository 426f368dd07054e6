//! Text of an operator's file, in both forms: entries, and their variables.
#![no_main]

use std::collections::BTreeMap;
use std::path::Path;

use libfuzzer_sys::fuzz_target;

// The program has no library; what reads the file needs nothing else of it.
#[allow(dead_code)]
#[path = "../../src/settings/given.rs"]
mod given;
#[allow(dead_code)]
#[path = "../../src/settings/policy_file.rs"]
mod policy_file;
#[path = "../../src/settings/variables.rs"]
mod variables;

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fuzz_target!(|text: &str| {
    let environment = BTreeMap::from([("X".into(), "x".into()), ("E".into(), "".into())]);
    for name in ["f.yaml", "f.toml"] {
        let given = given::entries(Path::new(name), text).unwrap_or_default();
        // A carriage return ends a line of YAML too, and its end may be one further.
        let lines = text.split(['\n', '\r']).count() + 1;
        assert!(
            given
                .faults
                .iter()
                .all(|fault| (1..=lines).contains(&fault.line))
        );
        for entry in given.entries {
            assert!((1..=lines).contains(&entry.line));
            if let given::Value::Text(text) = entry.value {
                let _ = variables::expand(&text, &environment);
            }
        }
    }
    let _ = variables::expand(text, &environment);
    let _ = policy_file::parse(text);
});
