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
        format!("mcp-forge: {wrong}:2: execution.pids is \"1\", must be 8 to 32768"),
        format!(
            "mcp-forge: {wrong}:3: unknown key \"execution.pidz\"; did you mean execution.pids?"
        ),
        format!("mcp-forge: {wrong}:4: unknown key \"filez\"; did you mean files?"),
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

const POLICY: &str = "[[rules]]\nname = 'no R here'\nlanguage = 'r'\ndecision = 'forbid'\n\
                      justification = 'nobody needs it'\nnot_match = [{}]\n\
                      [[rules]]\nname = 'ask'\nlanguage = 'r'\ndecision = 'prompt'\njustification = 'x'\n";

#[test]
fn the_policy_is_explained_and_enforced() {
    let Some(home) = Home::for_root("a policy") else {
        return;
    };
    let policy = home.file("policy.toml", POLICY);
    let set = format!("security.policy={}", policy.display());
    let explain = |proposal: &str| {
        let mut command = home.command();
        command.args(["--set", &set, "policy", "explain", "-"]);
        finish(command, proposal.as_bytes())
    };
    let told = |finished: &Finished| -> Value { serde_json::from_str(&finished.stdout).unwrap() };
    let allowed = explain("{}");
    assert_eq!(allowed.code(), 0, "{allowed:?}");
    assert_eq!(told(&allowed)["verdict"], "allow");
    let forbidden = explain("{\"language\": \"r\", \"image\": \"python\"}");
    assert_eq!(forbidden.code(), 1, "{forbidden:?}");
    let decisions = told(&forbidden)["decisions"].clone();
    assert_eq!(decisions[0]["rule"], "image");
    assert_eq!(decisions[1]["rule"], "no R here");
    assert_eq!(decisions[2]["verdict"], "prompt");
    // A link is what it leads to.
    let link = policy.with_file_name("link");
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    let mount = serde_json::json!({"mounts": [{"source": link, "target": "/mnt/a"}]});
    let mount = explain(&mount.to_string());
    let decision = &told(&mount)["decisions"][0];
    assert_eq!(decision["justification"], "\"/etc\": /etc is in no sandbox");
    let socket = policy.with_file_name("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mount = serde_json::json!({"mounts": [{"source": socket, "target": "/mnt/a"}]});
    let mount = explain(&mount.to_string());
    let why = told(&mount)["decisions"][0]["justification"].clone();
    assert!(
        why.as_str()
            .unwrap()
            .ends_with("neither a directory nor a regular file"),
        "{why}"
    );
    for (proposal, why) in [
        ("{\"uids\": 1}", "unknown field `uids`"),
        (
            "[",
            "the proposal: invalid type: sequence, expected an object with names",
        ),
        ("{", "the proposal: EOF"),
    ] {
        let wrong = explain(proposal);
        assert_eq!(wrong.code(), 125, "{wrong:?}");
        assert!(wrong.stderr.contains(why), "{wrong:?}");
    }

    // The control, and then what is forbidden: it starts nothing and is audited.
    assert_eq!(home.run(&["--set", &set, "-c", "6 * 7"]).stdout, "42\n");
    let before = home.audit().len();
    let refused = home.run(&["--set", &set, "--language", "r", "-c", "6 * 7"]);
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (125, ""),
        "{refused:?}"
    );
    let why = "the operator's policy forbids this, rule \"no R here\": nobody needs it";
    assert!(refused.stderr.contains(why), "{refused:?}");
    let audit = home.audit();
    let [entry] = &audit[before..] else {
        panic!("{audit:#?}");
    };
    assert_eq!(entry["event"], "execution.refused");
    assert_eq!(entry["details"]["kind"], "policy_violation");
    home.expect_nothing_left();
}

#[test]
fn a_policy_whose_examples_do_not_hold_is_refused_with_everything_that_is_wrong() {
    let home = Home::new(alone(), RANGE);
    let text = POLICY.replace("not_match = [{}]", "match = [{}, {language = 'r'}]");
    let wrong = home.file("wrong.toml", &format!("images = ['A b']\n{text}"));
    let wrong = wrong.to_str().unwrap();
    let expected = [
        format!("mcp-forge: {wrong}: images: \"A b\" is no pattern of image references: "),
        format!(
            "mcp-forge: {wrong}: rule \"no R here\": it does not speak of its example in `match`, number 1"
        ),
    ];
    let checked = config(&home, &[], &["policy", "check", wrong]);
    assert_eq!(checked.code(), 1, "{checked:?}");
    let lines: Vec<_> = checked.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{checked:?}");
    for (line, expected) in lines.iter().zip(&expected) {
        assert!(line.starts_with(expected.as_str()), "{line}");
    }
    let set = format!("security.policy={wrong}");
    let started = config(&home, &[], &["--set", &set, "run", "-c", "1"]);
    assert_eq!(
        (started.code(), started.stdout.as_str()),
        (125, ""),
        "{started:?}"
    );
    assert!(started.stderr.contains("rule \"no R here\""), "{started:?}");
    let sound = home.file("sound.toml", POLICY);
    let checked = config(&home, &[], &["policy", "check", sound.to_str().unwrap()]);
    assert_eq!(
        (checked.code(), checked.stderr.as_str()),
        (0, ""),
        "{checked:?}"
    );
}
