//! Calls that are refused, and what reaches the execution of those that are not.

use mcp_forge_ports::vocabulary::{ExecutionRequest, Language, Refusal, RefusalKind};
use serde_json::{Value, json};

use crate::fakes::{Scripted, completed, server};
use crate::raw::RawClient;

/// The structured content of a tool error; its text must say the same.
fn tool_error(answer: &Value) -> &Value {
    let result = &answer["result"];
    assert_eq!(result["isError"], true, "{answer}");
    let content = &result["structuredContent"];
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(result["content"].as_array().unwrap().len(), 1);
    let (error, id) = (
        &content["error"],
        content["correlation_id"].as_str().unwrap(),
    );
    for part in ["kind", "message", "hint"] {
        assert!(text.contains(error[part].as_str().unwrap()), "{text}");
    }
    assert!(text.contains(id) && !id.is_empty());
    content
}

#[tokio::test]
async fn every_argument_reaches_the_execution() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::initialized(server(execution.clone())).await;
    let params = json!({
        "_meta": {"correlationId": "req:7.a-b"},
        "name": "execute_python",
        "arguments": {
            "code": "print(input())", "timeout": 7.0, "memory": "1g", "cpu_quota": 50000,
            "stdin": "zeile\n",
        },
    });
    client.request("tools/call", params).await;
    let expected = ExecutionRequest {
        timeout: Some(7),
        memory: Some("1g".to_owned()),
        cpu_quota: Some(50_000),
        stdin: Some("zeile\n".to_owned()),
        correlation_id: Some("req:7.a-b".to_owned()),
        client: Some("raw-client".to_owned()),
        ..ExecutionRequest::new(Language::Python, "print(input())")
    };
    assert_eq!(execution.requests(), [expected]);
}

#[tokio::test]
async fn correlation_ids_that_are_no_text_are_not_taken() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::initialized(server(execution.clone())).await;
    for meta in [
        json!({}),
        json!({"correlationId": 7}),
        json!({"correlationId": null}),
    ] {
        let params = json!({"_meta": meta, "name": "execute_python", "arguments": {"code": "1"}});
        client.request("tools/call", params).await;
    }
    for request in execution.requests() {
        assert_eq!(request.correlation_id, None);
    }
}

#[tokio::test]
async fn the_clients_name_is_cut_to_one_printable_line() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::connect(server(execution.clone()));
    let name = format!("\u{1b}[1mevil\nname\u{202e}{}", "x".repeat(10_000));
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": name, "version": "1"},
    });
    client.request("initialize", params).await;
    client.call(json!({"code": "1"})).await;
    let name = execution.requests()[0].client.clone().unwrap();
    assert_eq!(name.chars().count(), 128);
    assert!(name.starts_with("evilnamexxx"), "{name}");
}

#[tokio::test]
async fn bad_arguments_are_tool_errors_and_nothing_runs() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::initialized(server(execution.clone())).await;
    let mut told = Vec::new();
    for arguments in [
        json!({}),
        json!({"code": null}),
        json!({"code": 1}),
        json!({"code": "1", "timeuot": 5}),
        json!({"code": "1", "colour": "red"}),
        json!({"code": "1", "timeout": "30"}),
        json!({"code": "1", "timeout": -1}),
        json!({"code": "1", "timeout": 0}),
        json!({"code": "1", "timeout": 2.5}),
        json!({"code": "1", "timeout": true}),
        json!({"code": "1", "memory": 512}),
        json!({"code": "1", "cpu_quota": {}}),
        json!({"code": "1", "stdin": ["a"]}),
        json!({"code": "1", "session_id": "s"}),
        json!({"code": "1", "backend": "jupyter"}),
        json!({"code": "1", "environment": "e"}),
        json!({"code": "1", "custom_image": 1}),
        json!({"code": "1", "mcp_tools": []}),
        json!({"code": "1", "files": {}}),
        json!({"code": "1", "files": [{"path": "a"}]}),
        json!({"code": "1", "background": "yes"}),
    ] {
        let params = json!({
            "_meta": {"correlationId": "corr-9"}, "name": "execute_python", "arguments": arguments,
        });
        let answer = client.request("tools/call", params).await;
        let content = tool_error(&answer);
        assert_eq!(content["correlation_id"], "corr-9");
        told.push(json!({"arguments": arguments, "error": content["error"]}));
    }
    assert_eq!(execution.requests(), []);
    insta::with_settings!({sort_maps => true, snapshot_path => "../snapshots"}, {
        insta::assert_json_snapshot!("bad_arguments", told);
    });
}

#[tokio::test]
async fn a_refusal_before_the_core_is_reported_to_it_and_told_under_its_id() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::initialized(server(execution.clone())).await;
    for (meta, arguments, id) in [
        (json!({}), json!({}), "fresh-1"),
        (json!({"correlationId": "c-2"}), json!({"code": 1}), "c-2"),
        (json!({}), json!({"code": "1", "a": 1}), "fresh-3"),
        (json!({"correlationId": "c-4"}), json!([1]), "c-4"),
    ] {
        let params = json!({"_meta": meta, "name": "execute_python", "arguments": arguments});
        let answer = client.request("tools/call", params).await;
        assert_eq!(tool_error(&answer)["correlation_id"], id);
    }
    let refused = execution.refused();
    let told: Vec<_> = refused
        .iter()
        .map(|(refusal, client)| (refusal.field.as_deref(), client.as_deref()))
        .collect();
    let client = Some("raw-client");
    assert_eq!(
        told,
        [
            (Some("code"), client),
            (Some("code"), client),
            (Some("a"), client),
            (None, client)
        ]
    );
    assert_eq!(execution.requests(), []);
}

#[tokio::test]
async fn odd_numbers_are_told_as_they_were_written() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::initialized(server(execution.clone())).await;
    for (argument, number, kind, allowed) in [
        (
            "timeout",
            "1000000000000000000000000000000",
            "limit_exceeded",
            "1 to 300",
        ),
        ("timeout", "1e5", "limit_exceeded", "1 to 300"),
        ("timeout", "1.50", "invalid_argument", "1 to 300"),
        ("cpu_quota", "9.99e2", "invalid_argument", "1000 to 400000"),
        ("memory", "5e8", "invalid_argument", "16m to 4g"),
    ] {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":900,"method":"tools/call","params":{{"name":"execute_python","arguments":{{"code":"1","{argument}": {number} }}}}}}"#
        );
        client.send_line(line.as_bytes()).await;
        let answer = client.answer(900).await;
        let error = &tool_error(&answer)["error"];
        assert_eq!(error["kind"], kind, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with(&format!(" {number}")), "{message}");
        assert!(
            error["allowed"].as_str().unwrap().contains(allowed),
            "{error}"
        );
    }
    assert_eq!(execution.requests(), []);
    let line = br#"{"jsonrpc":"2.0","id":901,"method":"tools/call","params":{"name":"execute_python","arguments":{"code":"1","timeout":1e2}}}"#;
    client.send_line(line).await;
    client.answer(901).await;
    assert_eq!(execution.requests()[0].timeout, Some(100));
}

#[tokio::test]
async fn refusals_of_the_core_are_told_in_full() {
    for kind in [
        RefusalKind::InvalidArgument,
        RefusalKind::LimitExceeded,
        RefusalKind::PolicyViolation,
        RefusalKind::NotFound,
        RefusalKind::Busy,
        RefusalKind::Unsupported,
        RefusalKind::Unavailable,
        RefusalKind::RateLimited,
        RefusalKind::ApprovalRequired,
        RefusalKind::Internal,
    ] {
        let refusal = Refusal {
            kind,
            message: "timeout of 900 s exceeds the maximum of 300 s".to_owned(),
            hint: "ask for at most 300 s".to_owned(),
            field: Some("timeout".to_owned()),
            allowed: Some("1..=300".to_owned()),
            correlation_id: "corr-3".to_owned(),
        };
        let execution = Scripted::answering(Err(refusal.clone()));
        let mut client = RawClient::initialized(server(execution)).await;
        let answer = client.call(json!({"code": "1", "timeout": 900})).await;
        let expected = json!({
            "error": {
                "kind": kind.as_str(),
                "message": "timeout of 900 s exceeds the maximum of 300 s",
                "hint": "ask for at most 300 s",
                "field": "timeout",
                "allowed": "1..=300",
            },
            "correlation_id": "corr-3",
        });
        assert_eq!(tool_error(&answer), &expected);
        assert_eq!(mcp_forge_mcp::wire::refusal(&refusal), expected);
        assert_eq!(
            answer["result"]["content"][0]["text"],
            format!(
                "{}: timeout of 900 s exceeds the maximum of 300 s\nhint: ask for at most 300 s\n\
                 allowed: 1..=300\ncorrelation id: corr-3",
                kind.as_str()
            )
        );
    }
}

#[tokio::test]
async fn what_is_not_known_of_a_refusal_is_left_out() {
    let refusal = Refusal {
        kind: RefusalKind::Busy,
        message: "all 4 slots are taken".to_owned(),
        hint: "try again".to_owned(),
        field: None,
        allowed: None,
        correlation_id: "c".to_owned(),
    };
    let error = &mcp_forge_mcp::wire::refusal(&refusal)["error"];
    assert_eq!(error.as_object().unwrap().len(), 3, "{error}");
}

#[tokio::test]
async fn a_defect_is_a_tool_error_and_the_connection_goes_on() {
    let execution = Scripted::new(|request, _, _| async move {
        assert_ne!(request.code, "boom", "the defect");
        Ok(completed())
    });
    let mut client = RawClient::initialized(server(execution)).await;
    let answer = client.call(json!({"code": "boom"})).await;
    let content = tool_error(&answer);
    assert_eq!(content["error"]["kind"], "internal");
    assert!(!answer.to_string().contains("the defect"));
    assert_eq!(
        client.call(json!({"code": "1"})).await["result"]["isError"],
        false
    );
}

#[tokio::test]
async fn what_is_no_call_of_a_tool_is_a_protocol_error() {
    let mut client = RawClient::initialized(server(Scripted::answering(Ok(completed())))).await;
    let long = "x".repeat(100_000);
    for (method, params, code) in [
        (
            "tools/call",
            json!({"name": "execute_perl", "arguments": {"code": "1"}}),
            -32602,
        ),
        ("tools/call", json!({"name": long, "arguments": {}}), -32602),
        (
            "tools/call",
            json!({"name": "execute_perl", "arguments": []}),
            -32602,
        ),
        ("tools/call", json!({"arguments": {"code": "1"}}), -32602),
        ("tools/call", json!({"name": 7}), -32602),
        ("tools/call", json!([1]), -32600),
        (
            "tools/call",
            json!({"_meta": 7, "name": "execute_python"}),
            -32600,
        ),
        (
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "1"}, "requestState": 7}),
            -32602,
        ),
        ("tools/list", json!({"cursor": "2"}), -32602),
        ("execute_python", json!({"code": "1"}), -32601),
        ("resources/list", json!({"cursor": "x"}), -32602),
        ("resources/read", json!({}), -32602),
        (
            "resources/read",
            json!({"uri": "file:///etc/passwd"}),
            -32002,
        ),
        (
            "resources/read",
            json!({"uri": "mcp://forge/runs/run-9/log"}),
            -32002,
        ),
        ("prompts/list", json!({}), -32601),
        ("completion/complete", json!({}), -32601),
    ] {
        let answer = client.request(method, params).await;
        assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
        assert!(answer.to_string().len() < 500);
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_a_tool_error() {
    let mut client = RawClient::initialized(server(Scripted::answering(Ok(completed())))).await;
    for (arguments, found) in [
        (json!("print(1)"), "the string \"print(1)\""),
        (json!([1, 2]), "an array of 2 items"),
        (json!(7), "the number 7"),
    ] {
        let params = json!({"name": "execute_python", "arguments": arguments});
        let answer = client.request("tools/call", params).await;
        let message = format!("the arguments must be an object, not {found}");
        assert_eq!(tool_error(&answer)["error"]["message"], message);
        assert_eq!(answer["result"].get("resultType"), None);
    }
    let params = json!({
        "_meta": crate::raw::stateless_meta(), "name": "execute_python", "arguments": 7,
    });
    let mut client = RawClient::connect(server(Scripted::answering(Ok(completed()))));
    let answer = client.request("tools/call", params).await;
    tool_error(&answer);
    assert_eq!(answer["result"]["resultType"], "complete");
}
