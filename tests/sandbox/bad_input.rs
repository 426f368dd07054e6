//! What a client may send wrong: a tool error that says which argument, why, and what to do; and
//! nothing is started.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::{Home, finish};

#[test]
fn bad_arguments_are_tool_errors_and_start_nothing() {
    let Some(home) = Home::for_root("bad arguments") else {
        return;
    };
    let mut server = Server::start(&home);
    let cases = [
        ("no code", json!({}), "invalid_argument", "code"),
        (
            "code of another type",
            json!({"code": 42}),
            "invalid_argument",
            "code",
        ),
        (
            "code as lines",
            json!({"code": ["print(1)"]}),
            "invalid_argument",
            "code",
        ),
        (
            "empty code",
            json!({"code": ""}),
            "invalid_argument",
            "code",
        ),
        (
            "blank code",
            json!({"code": " \n\t"}),
            "invalid_argument",
            "code",
        ),
        (
            "NUL in the code",
            json!({"code": "print(1)\0"}),
            "invalid_argument",
            "code",
        ),
        (
            "5 MB of code",
            json!({"code": "#".repeat(5_000_000)}),
            "limit_exceeded",
            "code",
        ),
        (
            "5 MB of input",
            json!({"code": "1", "stdin": "x".repeat(5_000_000)}),
            "limit_exceeded",
            "stdin",
        ),
        (
            "an unknown argument",
            json!({"code": "1", "tiemout": 5}),
            "invalid_argument",
            "tiemout",
        ),
        (
            "an argument of later",
            json!({"code": "1", "session_id": "a"}),
            "unsupported",
            "session_id",
        ),
        (
            "no time",
            json!({"code": "1", "timeout": 0}),
            "invalid_argument",
            "timeout",
        ),
        (
            "less than no time",
            json!({"code": "1", "timeout": -1}),
            "invalid_argument",
            "timeout",
        ),
        (
            "time as text",
            json!({"code": "1", "timeout": "5"}),
            "invalid_argument",
            "timeout",
        ),
        (
            "half a second",
            json!({"code": "1", "timeout": 0.5}),
            "invalid_argument",
            "timeout",
        ),
        (
            "too much time",
            json!({"code": "1", "timeout": 1801}),
            "limit_exceeded",
            "timeout",
        ),
        (
            "no memory",
            json!({"code": "1", "memory": "0"}),
            "invalid_argument",
            "memory",
        ),
        (
            "memory in no unit",
            json!({"code": "1", "memory": "1x"}),
            "invalid_argument",
            "memory",
        ),
        (
            "memory as a number",
            json!({"code": "1", "memory": 512}),
            "invalid_argument",
            "memory",
        ),
        (
            "too much memory",
            json!({"code": "1", "memory": "3g"}),
            "limit_exceeded",
            "memory",
        ),
        (
            "endless memory",
            json!({"code": "1", "memory": "99999999999999999999g"}),
            "limit_exceeded",
            "memory",
        ),
        (
            "no CPU",
            json!({"code": "1", "cpu_quota": 0}),
            "invalid_argument",
            "cpu_quota",
        ),
        (
            "too much CPU",
            json!({"code": "1", "cpu_quota": 100_001}),
            "limit_exceeded",
            "cpu_quota",
        ),
        (
            "input of another type",
            json!({"code": "1", "stdin": {}}),
            "invalid_argument",
            "stdin",
        ),
    ];
    let refusals = cases.len();
    for (name, arguments, kind, field) in cases {
        // `told` asserts that `isError` is set.
        let told = server.call(arguments);
        let error = &told["error"];
        assert_eq!(error["kind"], kind, "{name}: {told:#}");
        assert_eq!(error["field"], field, "{name}: {told:#}");
        for text in ["message", "hint", "allowed"] {
            let told = error[text].as_str().unwrap_or_default();
            assert!(
                !told.is_empty() && told.len() < 1000,
                "{text} of {name}: {told:?}"
            );
        }
        assert!(told["correlation_id"].is_string(), "{name}: {told:#}");
    }
    let started = |line: &Value| {
        line["event"]
            .as_str()
            .is_some_and(|event| event.starts_with("container."))
            || line["event"] == "execution.request"
    };
    let audit = home.audit();
    assert!(!audit.iter().any(started), "{audit:#?}");
    let refused = |line: &&Value| line["event"] == "execution.refused";
    assert_eq!(audit.iter().filter(refused).count(), refusals, "{audit:#?}");
    assert!(
        !audit
            .iter()
            .any(|line| line.to_string().contains("tiemout"))
    );

    // The largest of everything is taken.
    let most = json!({
        "code": format!("input()\n#{}", "#".repeat((1 << 20) - 9)),
        "stdin": "x".repeat(1 << 20),
        "timeout": 1800,
        "memory": "2g",
        "cpu_quota": 100_000,
    });
    let told = server.call(most);
    assert_eq!(told["ended_by"], "completed", "{}", told["error"]);
    assert!(home.audit().iter().any(started));
    server.expect_rest();
    server.close();
}

#[test]
fn what_is_no_call_is_a_protocol_error() {
    let Some(home) = Home::for_root("protocol errors") else {
        return;
    };
    let mut server = Server::start(&home);
    for (method, params, code) in [
        (
            "tools/call",
            json!({"name": "execute_cobol", "arguments": {"code": "1"}}),
            -32602,
        ),
        ("tools/call", json!({"arguments": {"code": "1"}}), -32602),
        ("no/such/method", json!({}), -32601),
    ] {
        let answer = server.request(method, params);
        assert_eq!(answer["error"]["code"], code, "{answer:#}");
    }
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.close();
}

#[test]
fn a_configuration_that_cannot_be_used_is_told_and_starts_nothing() {
    let Some(home) = Home::for_root("bad configurations") else {
        return;
    };
    let file = home.file("forge.yaml", "execution:\n  pids: many\n");
    let fifo = file.with_file_name("fifo.yaml");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().as_bytes().to_vec();
    let config = "MCP_FORGE_CONFIG";
    for (name, value, told) in [
        (
            config,
            text(&file),
            "forge.yaml:2: execution.pids is \"many\" (no whole number), must be 8 to 32768",
        ),
        (
            config,
            text(&fifo),
            "it is a named pipe, must be a regular file",
        ),
        (
            config,
            text(home.path()),
            "it is a directory, must be a regular file",
        ),
        (
            "MCP_FORGE_EXECUTION",
            b"3g".to_vec(),
            "execution is a section",
        ),
        (
            "MCP_FORGE_AUDIT_PATH",
            b"/a".to_vec(),
            "did you mean MCP_FORGE_AUDIT__PATH?",
        ),
        (
            "MCP_FORGE_EXECUTION__PIDS",
            b"\xff".to_vec(),
            "PIDS: its value is not UTF-8",
        ),
        (
            "MCP_FORGE_AUDIT__PATH",
            b"a.jsonl".to_vec(),
            "must be an absolute path",
        ),
    ] {
        for arguments in [&["run", "-c", "print(1)"][..], &["serve"], &["doctor"]] {
            let mut command = home.command();
            command.args(arguments);
            command.env(name, OsString::from_vec(value.clone()));
            let finished = finish(command, b"");
            let (code, stdout) = (finished.code(), finished.stdout.as_str());
            assert_eq!((code, stdout), (125, ""), "{name}: {finished:?}");
            assert!(finished.stderr.starts_with("mcp-forge: "), "{finished:?}");
            assert!(finished.stderr.contains(told), "{name}: {finished:?}");
            assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
        }
    }
    assert_eq!(home.audit(), [] as [Value; 0]);

    // What is not ours may be anything.
    let mut command = home.command();
    command.args(["run", "-c", "6*7"]);
    command.env("OTHER", OsString::from_vec(b"\xff".to_vec()));
    command.env(OsString::from_vec(b"\xff".to_vec()), "1");
    let finished = finish(command, b"");
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr.as_str()),
        ("42\n", "")
    );
    home.expect_nothing_left();
}
