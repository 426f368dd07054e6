//! The repository checks itself: which crate may depend on which, which external crate is used
//! where, and a few rules that no compiler knows.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// For each member: the members it may depend on, and the external crates it may use.
const MEMBERS: [(&str, &[&str], &[&str]); 9] = [
    (
        "mcp-forge",
        &[
            "mcp-forge-audit-file",
            "mcp-forge-domain",
            "mcp-forge-guest",
            "mcp-forge-libcontainer",
            "mcp-forge-mcp",
            "mcp-forge-ports",
        ],
        &[
            "anyhow",
            "async-trait",
            "clap",
            "config",
            "futures",
            "indicatif",
            "nix",
            "serde",
            "serde_json",
            "tokio",
            "tokio-util",
            "tracing",
            "tracing-subscriber",
            "uuid",
        ],
    ),
    (
        "mcp-forge-ports",
        &[],
        &[
            "async-trait",
            "futures",
            "mockall",
            "serde_json",
            "thiserror",
            "tokio",
            "tokio-util",
        ],
    ),
    (
        "mcp-forge-domain",
        &["mcp-forge-ports"],
        &[
            "async-trait",
            "futures",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tokio-util",
            "tracing",
        ],
    ),
    (
        "mcp-forge-libcontainer",
        &["mcp-forge-ports"],
        &[
            "async-trait",
            "libcontainer",
            "libseccomp",
            "nix",
            "oci-spec",
            "postcard",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
            "toml",
            "tracing",
        ],
    ),
    (
        "mcp-forge-guest",
        &["mcp-forge-agent", "mcp-forge-ports"],
        &["async-trait", "serde", "serde_json", "tokio"],
    ),
    (
        "mcp-forge-mcp",
        &["mcp-forge-ports"],
        &[
            "async-trait",
            "futures",
            "rmcp",
            "rustix",
            "serde_json",
            "strsim",
            "thiserror",
            "tokio",
            "tokio-util",
            "tracing",
            "uuid",
        ],
    ),
    (
        "mcp-forge-audit-file",
        &["mcp-forge-ports"],
        &[
            "async-trait",
            "jiff",
            "rustix",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
        ],
    ),
    ("mcp-forge-agent", &[], &["nix"]),
    // Measures the product from outside, with whatever that takes.
    ("mcp-forge-benches", &[], &["*"]),
];

/// The leaf modules that may hold `unsafe`.
const UNSAFE: [&str; 1] = ["adapters/libcontainer/src/sys.rs"];

/// Wire types that neither contracts nor rules may name.
const WIRE: [&str; 6] = [
    "rmcp",
    "bollard",
    "podman_api",
    "oci_spec",
    "libcontainer::",
    "jupyter",
];

/// What is wrong with the edges of one member.
fn faults(
    name: &str,
    internal: &[&str],
    external: &[&str],
    uses: &BTreeSet<String>,
) -> Vec<String> {
    uses.iter()
        .filter(|used| {
            let ours = used.starts_with("mcp-forge");
            let allowed = if ours { internal } else { external };
            !allowed.contains(&"*") && !allowed.contains(&used.as_str())
        })
        .map(|used| format!("{name} must not depend on {used}"))
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tracked(pattern: &str) -> Vec<String> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            pattern,
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "git ls-files failed");
    let files: Vec<String> = String::from_utf8(listed.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    files
        .into_iter()
        .filter(|file| root().join(file).is_file())
        .collect()
}

fn read(file: &str) -> String {
    String::from_utf8_lossy(&std::fs::read(root().join(file)).unwrap()).into_owned()
}

#[test]
fn a_forbidden_edge_is_found() {
    let uses = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let found = faults(
        "d",
        &["mcp-forge-ports"],
        &["serde"],
        &uses(&["mcp-forge-mcp", "rmcp"]),
    );
    assert_eq!(
        found,
        [
            "d must not depend on mcp-forge-mcp",
            "d must not depend on rmcp"
        ]
    );
    let none = faults(
        "d",
        &["mcp-forge-ports"],
        &["serde"],
        &uses(&["mcp-forge-ports", "serde"]),
    );
    assert!(none.is_empty());
}

#[test]
fn dependencies_go_where_they_may() {
    let metadata = MetadataCommand::new()
        .no_deps()
        .current_dir(root())
        .exec()
        .unwrap();
    let mut found = Vec::new();
    for package in &metadata.packages {
        let Some((name, internal, external)) = MEMBERS
            .iter()
            .find(|(name, ..)| package.name.as_str() == *name)
        else {
            found.push(format!("{} is not in the list of members", package.name));
            continue;
        };
        let uses = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind == DependencyKind::Normal)
            .map(|dependency| dependency.name.clone())
            .collect();
        found.extend(faults(name, internal, external, &uses));
    }
    assert_eq!(
        metadata.packages.len(),
        MEMBERS.len(),
        "a member is missing"
    );
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_member_takes_the_lints_of_the_workspace() {
    for manifest in tracked("*Cargo.toml")
        .iter()
        .filter(|file| !file.starts_with("fuzz/"))
    {
        let text = read(manifest);
        assert!(
            text.contains("[lints]\nworkspace = true"),
            "{manifest} has lints of its own"
        );
    }
}

#[test]
fn every_module_says_what_it_is() {
    // The name of a file of tests says it already.
    let sources = tracked("*.rs")
        .into_iter()
        .filter(|file| !file.contains("tests"));
    for file in sources {
        let text = read(&file);
        assert!(text.starts_with("//!"), "{file} does not start with //!");
    }
}

#[test]
fn unsafe_code_is_in_named_leaf_modules_only() {
    for file in tracked("*.rs")
        .iter()
        .filter(|file| !file.starts_with("tests/"))
    {
        let holds = read(file).lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("allow(unsafe")
        });
        assert!(
            !holds || UNSAFE.contains(&file.as_str()),
            "{file} holds unsafe code"
        );
    }
}

#[test]
fn contracts_and_rules_name_no_wire_type() {
    for file in tracked("*.rs")
        .iter()
        .filter(|f| f.starts_with("ports/") || f.starts_with("domain/"))
    {
        for line in read(file).lines() {
            let code = line.split("//").next().unwrap_or_default();
            let named = WIRE
                .iter()
                .find(|wire| code.contains(**wire) && code.contains("use "));
            assert_eq!(named, None, "{file}: {line}");
        }
    }
}

#[test]
fn no_file_names_a_place_of_one_machine() {
    // Put together here, so that this file does not name it.
    let place = ["/root", "/."].concat();
    for file in tracked("*").iter().filter(|file| !file.ends_with(".lock")) {
        assert!(!read(file).contains(&place), "{file} names {place}");
    }
}

#[test]
fn every_decision_is_in_the_index() {
    let index = read("ADR/README.md");
    let decisions: Vec<String> = tracked("ADR/*.md")
        .into_iter()
        .filter_map(|file| file.strip_prefix("ADR/").map(str::to_owned))
        .filter(|file| file != "README.md")
        .collect();
    assert!(decisions.len() > 1, "there are no decisions");
    for file in decisions {
        assert!(index.contains(&file), "ADR/README.md does not name {file}");
    }
}
