//! What a client may send wrong: a tool error that says which argument, why, and what to do; and
//! nothing is started.

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::Home;

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
