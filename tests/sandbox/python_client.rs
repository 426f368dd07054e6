//! A client that nobody here wrote: PyPI's `mcp`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::home::{BINARY, Home, finish};
use crate::host::{note, skip};

/// Where `.ci/run` puts the interpreter with the client, unless it is told otherwise.
const CACHE: &str = "/var/cache/mcp-forge-ci";

/// An interpreter that has the packages of `tests/clients/requirements.txt`.
fn interpreter() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    variable("MCP_FORGE_TEST_PYTHON")
        .or_else(|| {
            let cache = variable("MCP_FORGE_CI_CACHE").unwrap_or_else(|| CACHE.into());
            Some(cache.join("clients/bin/python"))
        })
        .filter(|python| python.exists())
}

#[test]
fn the_client_of_pypi_works() {
    let Some(home) = Home::for_root("PyPI's MCP client") else {
        return;
    };
    let Some(python) = interpreter() else {
        skip(
            "PyPI's MCP client",
            "MCP_FORGE_TEST_PYTHON names no interpreter with it",
        );
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/test_python_client.py");
    let mut command = Command::new(python);
    home.furnish(&mut command);
    command.env("FORGE_BINARY", BINARY).arg("-B").arg(script);
    let finished = finish(command, b"");
    assert_eq!(
        finished.code(),
        0,
        "{}\n{}",
        finished.stdout,
        finished.stderr
    );
    // An interpreter that finds no tests is content, too.
    let ran = finished
        .stderr
        .lines()
        .find(|line| line.starts_with("Ran "));
    assert!(
        ran.is_some_and(|line| !line.starts_with("Ran 0")),
        "{}",
        finished.stderr
    );
    note(finished.stderr.trim_end());
    home.expect_nothing_left();
}
