//! Builds the agent as a static program of its own, so that it runs on any root file system, and
//! hands its path to the crate that embeds it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let root = manifest.join("../..");
    for path in [
        "images/agent/src",
        "images/agent/Cargo.toml",
        "Cargo.lock",
        "Cargo.toml",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo")).join("agent");
    let target = env::var("TARGET").expect("set by cargo");
    let status = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .current_dir(&root)
        .args([
            "build",
            "--locked",
            "--package",
            "mcp-forge-agent",
            "--bin",
            "mcp-forge-agent",
        ])
        .args(["--profile", "agent", "--target", &target])
        .arg("--target-dir")
        .arg(&out)
        // The outer build's flags and wrappers (clippy, coverage) are not the agent's.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env(
            "RUSTFLAGS",
            "-C target-feature=+crt-static -C relocation-model=static",
        )
        .status()
        .expect("cargo runs");
    assert!(status.success(), "building the agent failed");
    let agent = out.join(&target).join("agent/mcp-forge-agent");
    println!("cargo::rustc-env=MCP_FORGE_AGENT={}", agent.display());
}
