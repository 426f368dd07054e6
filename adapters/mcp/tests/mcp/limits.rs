//! Lines that are too long, too deep, too rich, or no JSON-RPC at all.

use mcp_forge_ports::vocabulary::{Refusal, RefusalKind};
use serde_json::{Value, json};

use crate::fakes::{Scripted, completed, server};
use crate::raw::RawClient;

async fn client() -> RawClient {
    RawClient::initialized(server(Scripted::answering(Ok(completed())))).await
}

/// The connection still works, and nothing else was answered before.
async fn goes_on(mut client: RawClient) {
    client.call(json!({"code": "1"})).await;
    assert_eq!(client.disconnect().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_program_of_5_mb_reaches_the_core_which_refuses_it_by_name() {
    let execution = Scripted::new(|request, _, _| async move {
        Err(Refusal {
            kind: RefusalKind::LimitExceeded,
            message: format!("code of {} bytes", request.code.len()),
            hint: "split it".to_owned(),
            field: Some("code".to_owned()),
            allowed: None,
            correlation_id: "c".to_owned(),
        })
    });
    let mut client = RawClient::initialized(server(execution)).await;
    let answer = client
        .call(json!({"code": "x = 1\n".repeat(5_000_000 / 6)}))
        .await;
    let error = &answer["result"]["structuredContent"]["error"];
    assert_eq!(error["message"], "code of 4999998 bytes");
}

#[tokio::test]
async fn a_longer_line_is_answered_under_its_id() {
    let mut client = client().await;
    let answer = client.call(json!({"code": "x".repeat(9 << 20)})).await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("longer than the 8388608 bytes"),
        "{message}"
    );
    goes_on(client).await;
}

#[tokio::test]
async fn the_bound_is_exact() {
    let mut settings = crate::fakes::settings();
    settings.max_message_bytes = 1000;
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::initialized(mcp_forge_mcp::McpServer::new(
        execution,
        std::sync::Arc::new(crate::fakes::NoRuns),
        settings,
    ))
    .await;
    let empty = json!({
        "jsonrpc": "2.0", "id": 50, "method": "tools/call",
        "params": {"name": "execute_python", "arguments": {"code": ""}},
    });
    let room = 1000 - empty.to_string().len();
    for (length, kind) in [(room, "result"), (room + 1, "error")] {
        let mut call = empty.clone();
        call["params"]["arguments"]["code"] = "x".repeat(length).into();
        client.send(&call).await;
        let answer = client.answer(50).await;
        assert!(answer.get(kind).is_some(), "{answer}");
    }
}

#[tokio::test]
async fn deep_nesting_is_answered_and_harmless() {
    for depth in [50, 100, 200, 100_000] {
        let mut client = client().await;
        let nested = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{{"name":"execute_python","arguments":{{"code":{nested}}}}}}}"#
        );
        client.send_line(line.as_bytes()).await;
        let answer = client.answer(77).await;
        if depth == 50 {
            assert_eq!(answer["result"]["isError"], true, "{answer}");
        } else {
            assert_eq!(answer["error"]["code"], -32600, "{answer}");
        }
        goes_on(client).await;
    }
}

#[tokio::test]
async fn a_flood_of_values_is_answered_and_harmless() {
    let mut client = client().await;
    for rich in [vec![json!(0); 1_000_000], vec![json!({}); 200_000]] {
        let answer = client.call(json!({"code": "1", "files": rich})).await;
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
    }
    let many: serde_json::Map<_, _> = (0..50_000).map(|n| (n.to_string(), json!(n))).collect();
    let answer = client.call(Value::Object(many)).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    goes_on(client).await;
}

#[tokio::test]
async fn every_line_that_is_no_message_gets_one_error() {
    let mut client = client().await;
    let long_id = format!(
        r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#,
        "x".repeat(257)
    );
    let long_line = vec![b'x'; (8 << 20) + 1];
    for (line, code, id) in [
        (
            &br#"{"jsonrpc":"2.0","id":60,"method":"ping","params":{]}"#[..],
            -32700,
            json!(60),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":\"s\",\"method\":\"\xff\"}",
            -32700,
            json!("s"),
        ),
        (b"hello", -32700, Value::Null),
        (b"\xff\xfe\x00", -32700, Value::Null),
        (b"{\"jsonrpc\":", -32700, Value::Null),
        (b"Content-Length: 7\r", -32700, Value::Null),
        (
            br#"{"jsonrpc":"2.0","method":"notifications/initialized""#,
            -32700,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":64,"method":"ping","params":{"a":1e999}}"#,
            -32700,
            json!(64),
        ),
        (
            br#"{"jsonrpc":"1.0","id":61,"method":"ping"}"#,
            -32600,
            json!(61),
        ),
        (br#"{"id":62,"method":"ping"}"#, -32600, json!(62)),
        (br#"{"jsonrpc":"2.0","id":63}"#, -32600, json!(63)),
        (
            br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":1000000000000000000000000000000,"method":"ping"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":9223372036854775808,"method":"ping"}"#,
            -32600,
            Value::Null,
        ),
        (long_id.as_bytes(), -32600, Value::Null),
        (&long_line, -32600, Value::Null),
        (br#"{"jsonrpc":"2.0","method":7}"#, -32600, Value::Null),
        (b"{}", -32600, Value::Null),
        (b"[]", -32600, Value::Null),
        (
            br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            -32600,
            Value::Null,
        ),
        (b"7", -32600, Value::Null),
        (b"null", -32600, Value::Null),
    ] {
        client.send_line(line).await;
        let answer = client.next().await.unwrap();
        let shown = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
        assert_eq!(answer["error"]["code"], code, "{shown}: {answer}");
        // It is there, also without a value.
        assert_eq!(answer.get("id"), Some(&id), "{shown}: {answer}");
        assert!(answer.to_string().len() < 300, "{answer}");
    }
    goes_on(client).await;
}

#[tokio::test]
async fn notifications_answers_and_blank_lines_get_none() {
    let mut client = client().await;
    let long = json!({"jsonrpc": "2.0", "method": "m", "params": {"a": "x".repeat(9 << 20)}});
    for line in [
        &b""[..],
        b"   \r",
        br#"{"jsonrpc":"2.0","method":"notifications/unheard_of","params":{"a":1}}"#,
        br#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}"#,
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}"#,
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1.5}}"#,
        br#"{"jsonrpc":"2.0","id":99,"result":{}}"#,
        br#"{"jsonrpc":"2.0","id":1.5,"result":{}}"#,
        br#"{"jsonrpc":"2.0","id":99,"error":{"code":1,"message":"m"}}"#,
        br#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"an echo"}}"#,
        br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"an echo"}}"#,
        long.to_string().as_bytes(),
    ] {
        client.send_line(line).await;
    }
    client
        .send_line(b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":70,\"method\":\"ping\"}\r")
        .await;
    assert_eq!(client.answer(70).await["result"], json!({}));
    goes_on(client).await;
}

#[tokio::test]
async fn a_last_line_without_an_end_is_not_taken() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::initialized(server(execution.clone())).await;
    client.send_line(b"").await;
    let call = json!({
        "jsonrpc": "2.0", "id": 5, "method": "tools/call",
        "params": {"name": "execute_python", "arguments": {"code": "1"}},
    });
    client.send_unfinished(call.to_string().as_bytes()).await;
    assert_eq!(client.disconnect().await, Vec::<Value>::new());
    assert_eq!(execution.requests(), []);
}
