//! What an operator is told of the configuration.

use serde_json::Value;

use crate::home::{Finished, Home, alone, finish};
use crate::leftovers::RANGE;

fn config(home: &Home, variables: &[(&str, &str)], arguments: &[&str]) -> Finished {
    let mut command = home.command();
    command.envs(variables.iter().copied()).args(arguments);
    finish(command, b"")
}

#[test]
fn each_value_is_shown_with_its_source_and_the_first_source_counts() {
    let home = Home::new(alone(), RANGE);
    let file = home.file(
        "forge.yaml",
        "execution:\n  pids: ${PIDS:-50}\n  queue: 9\n",
    );
    let file = file.to_str().unwrap();
    let variables = [
        ("MCP_FORGE_EXECUTION__QUEUE", "8"),
        ("MCP_FORGE_EXECUTION__CONCURRENCY", "3"),
        ("PIDS", "60"),
    ];
    let set = "execution.concurrency=2";
    let arguments = ["--config", file, "--set", set, "config", "show", "--json"];
    let shown = config(&home, &variables, &arguments);
    assert_eq!(shown.code(), 0, "{shown:?}");
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    for (key, value, source) in [
        ("execution.pids", "60", format!("{file}:2")),
        (
            "execution.queue",
            "8",
            "MCP_FORGE_EXECUTION__QUEUE".to_owned(),
        ),
        ("execution.concurrency", "2", "--set".to_owned()),
        ("execution.descriptors", "256", "default".to_owned()),
    ] {
        assert_eq!(shown[key]["value"], value, "{key}");
        assert_eq!(shown[key]["source"], source, "{key}");
    }
    let table = config(&home, &[], &["config", "show"]).stdout;
    assert!(table.contains("execution.pids "), "{table}");
}

#[test]
fn a_file_is_checked_alone_and_everything_is_told() {
    let home = Home::new(alone(), RANGE);
    let sound = home.file("sound.yaml", "execution: {pids: 50}\n");
    let wrong = home.file(
        "wrong.yaml",
        "execution:\n  pids: 1\n  pidz: 2\nfilez:\n  count: 1\n",
    );
    // A variable that is wrong is not of the file.
    let variables = [("MCP_FORGE_EXECUTION__PIDS", "x")];
    let sound = config(
        &home,
        &variables,
        &["config", "check", sound.to_str().unwrap()],
    );
    assert_eq!((sound.code(), sound.stderr.as_str()), (0, ""), "{sound:?}");
    let wrong = wrong.to_str().unwrap();
    let told = config(&home, &variables, &["config", "check", wrong]);
    assert_eq!((told.code(), told.stdout.as_str()), (1, ""), "{told:?}");
    let expected = [
        format!(
            "mcp-forge: {wrong}:3: unknown key \"execution.pidz\"; did you mean execution.pids?"
        ),
        format!("mcp-forge: {wrong}:4: unknown key \"filez\"; did you mean files?"),
        format!("mcp-forge: {wrong}:2: execution.pids is \"1\", must be 8 to 32768"),
    ];
    assert_eq!(told.stderr.lines().collect::<Vec<_>>(), expected);
    let effective = config(&home, &variables, &["config", "check"]);
    assert_eq!(effective.code(), 1, "{effective:?}");
    assert!(
        effective.stderr.contains("MCP_FORGE_EXECUTION__PIDS: "),
        "{effective:?}"
    );
    let schema = config(&home, &variables, &["config", "schema"]);
    let schema: Value = serde_json::from_str(&schema.stdout).unwrap();
    assert_eq!(
        schema["properties"]["execution"]["properties"]["pids"]["default"],
        100
    );
}
