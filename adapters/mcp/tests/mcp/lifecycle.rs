//! Opening and ending a connection, in every protocol revision.

use mcp_forge_mcp::McpServer;
use mcp_forge_ports::vocabulary::{EndedBy, Language};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fakes::{Scripted, completed, server, settings, waiting};
use crate::raw::{DEADLINE, RawClient, stateless_meta};

fn ready() -> McpServer {
    server(Scripted::answering(Ok(completed())))
}

#[tokio::test]
async fn every_revision_with_initialize_is_spoken() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut client = RawClient::connect(ready());
        let answer = client.initialize(version).await;
        assert_eq!(answer["result"]["protocolVersion"], version);
        let answer = client.call(json!({"code": "1"})).await;
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert_eq!(answer["result"].get("resultType"), None);
        assert_eq!(client.disconnect().await, Vec::<Value>::new());
    }
}

#[tokio::test]
async fn initialize_tells_who_we_are() {
    let mut client = RawClient::connect(ready());
    let answer = client.initialize("2025-11-25").await;
    insta::with_settings!({sort_maps => true, snapshot_path => "../snapshots"}, {
        insta::assert_json_snapshot!("initialize", answer["result"], {
            ".serverInfo.version" => "[version]",
        });
    });
}

#[tokio::test]
async fn an_unknown_revision_gets_the_newest_with_initialize() {
    let mut client = RawClient::connect(ready());
    let answer = client.initialize("2031-01-01").await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
}

#[tokio::test]
async fn the_revision_without_sessions_needs_no_opening() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::connect(server(execution.clone()));
    let params = json!({
        "_meta": stateless_meta(), "name": "execute_python", "arguments": {"code": "1"},
    });
    let answer = client.request("tools/call", params).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert_eq!(answer["result"]["isError"], false);
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "42\n");
    assert_eq!(
        execution.requests()[0].client.as_deref(),
        Some("stateless-client")
    );

    let answer = client
        .request("tools/list", json!({"_meta": stateless_meta()}))
        .await;
    assert_eq!(answer["result"]["tools"][0]["name"], "execute_python");
    assert_eq!(answer["result"]["cacheScope"], "private");

    // Each request stands alone: what an earlier one said does not count.
    let answer = client.request("tools/list", json!({})).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[tokio::test]
async fn progress_and_cancellation_need_no_opening_either() {
    let (started, cancelled) = (CancellationToken::new(), CancellationToken::new());
    let mut client = RawClient::connect(server(waiting(started.clone(), cancelled.clone())));
    let mut meta = stateless_meta();
    meta["progressToken"] = json!("p");
    let params = json!({
        "_meta": meta, "name": "execute_python", "arguments": {"code": "1"},
    });
    let id = client.start("tools/call", params).await;
    let progress = client.next().await.unwrap();
    assert_eq!(progress["params"]["progressToken"], "p");
    assert!(started.is_cancelled());
    let params = json!({"_meta": stateless_meta(), "requestId": id});
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
        .await;
    tokio::time::timeout(DEADLINE, cancelled.cancelled())
        .await
        .unwrap();
    let rest = client.disconnect().await;
    assert!(
        rest.iter().all(|message| message.get("id").is_none()),
        "{rest:?}"
    );
}

#[tokio::test]
async fn discovery_lists_every_revision() {
    let mut client = RawClient::connect(ready());
    let answer = client
        .request("server/discover", json!({"_meta": stateless_meta()}))
        .await;
    let versions = &answer["result"]["supportedVersions"];
    for version in [
        "2024-11-05",
        "2025-03-26",
        "2025-06-18",
        "2025-11-25",
        "2026-07-28",
    ] {
        assert!(
            versions.as_array().unwrap().contains(&json!(version)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn stray_messages_before_the_first_request_are_ignored() {
    let mut client = RawClient::connect(ready());
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    client
        .send(&json!({"jsonrpc": "2.0", "id": 9, "result": {}}))
        .await;
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
    let cancelled = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1},
    });
    client.send(&cancelled).await;
    let answer = client.request("tools/list", json!({})).await;
    assert_eq!(answer["error"]["code"], -32002, "not opened yet: {answer}");
    client.send(&cancelled).await;
    assert!(client.initialize("2025-06-18").await["result"].is_object());
    assert!(client.request("tools/list", json!({})).await["result"].is_object());
}

#[tokio::test]
async fn a_call_before_the_opening_is_told_what_to_do_first() {
    let execution = Scripted::answering(Ok(completed()));
    let mut client = RawClient::connect(server(execution.clone()));
    let answer = client.call(json!({"code": "1"})).await;
    assert_eq!(answer["error"]["code"], -32002, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("initialize first"), "{message}");
    let answer = client.request("initialize", json!({})).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("protocolVersion"), "{message}");
    // Who speaks the revision without sessions forgot something else.
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let answer = client.request("tools/list", json!({"_meta": meta})).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer.to_string().contains("clientCapabilities"));
    assert_eq!(execution.requests(), []);

    client.initialize("2025-11-25").await;
    let answer = client.call(json!({"code": "1"})).await;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}

#[tokio::test]
async fn rmcps_own_client_is_served() {
    use rmcp::ServiceExt;
    use rmcp::model::CallToolRequestParams;

    let (near, far) = tokio::io::duplex(64 * 1024);
    let (reader, writer) = tokio::io::split(far);
    let serving = tokio::spawn(mcp_forge_mcp::serve(
        ready(),
        reader,
        writer,
        CancellationToken::new(),
    ));
    let client = ().serve(near).await.unwrap();
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 4);
    assert_eq!(tools[0].title.as_deref(), Some("Run Python"));
    let Value::Object(arguments) = json!({"code": "print(42)"}) else {
        unreachable!()
    };
    let call = CallToolRequestParams::new("execute_python").with_arguments(arguments);
    let result = client.call_tool(call).await.unwrap();
    assert_eq!(result.is_error, Some(false));
    assert_eq!(result.structured_content.unwrap()["run_id"], "run-1");
    client.cancel().await.unwrap();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_and_not_answered() {
    let (started, cancelled) = (CancellationToken::new(), CancellationToken::new());
    let mut client =
        RawClient::initialized(server(waiting(started.clone(), cancelled.clone()))).await;
    let params = json!({"name": "execute_python", "arguments": {"code": "1"}});
    let id = client.start("tools/call", params).await;
    started.cancelled().await;
    client
        .send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "enough"},
        }))
        .await;
    tokio::time::timeout(DEADLINE, cancelled.cancelled())
        .await
        .unwrap();
    // The connection goes on; the call is not answered.
    client.request("ping", json!({})).await;
    assert_eq!(client.disconnect().await, Vec::<Value>::new());
}

#[tokio::test]
async fn other_calls_survive_a_cancelled_one() {
    let (started, cancelled) = (CancellationToken::new(), CancellationToken::new());
    let mut client =
        RawClient::initialized(server(waiting(started.clone(), cancelled.clone()))).await;
    client
        .start(
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "1"}}),
        )
        .await;
    started.cancelled().await;
    client
        .send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4711},
        }))
        .await;
    client.request("ping", json!({})).await;
    assert!(!cancelled.is_cancelled());
    client.disconnect().await;
    assert!(cancelled.is_cancelled());
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_and_serve_waits_for_the_end() {
    let (started, cancelled) = (CancellationToken::new(), CancellationToken::new());
    let mut client =
        RawClient::initialized(server(waiting(started.clone(), cancelled.clone()))).await;
    client
        .start(
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "1"}}),
        )
        .await;
    started.cancelled().await;
    client.disconnect().await;
    assert!(
        cancelled.is_cancelled(),
        "serve returned before the call had ended"
    );
}

#[tokio::test]
async fn the_shutdown_token_cancels_and_the_call_is_answered() {
    let (started, cancelled) = (CancellationToken::new(), CancellationToken::new());
    let mut client =
        RawClient::initialized(server(waiting(started.clone(), cancelled.clone()))).await;
    let id = client
        .start(
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "1"}}),
        )
        .await;
    started.cancelled().await;
    client.shutdown.cancel();
    let rest = client.drain().await;
    assert!(cancelled.is_cancelled());
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!(rest[0]["id"], id);
    assert_eq!(
        rest[0]["result"]["structuredContent"]["ended_by"],
        EndedBy::Cancelled.as_str()
    );
}

#[tokio::test]
async fn a_connection_that_was_never_opened_ends_without_an_error() {
    assert_eq!(
        RawClient::connect(ready()).disconnect().await,
        Vec::<Value>::new()
    );
    let client = RawClient::connect(ready());
    client.shutdown.cancel();
    assert_eq!(client.drain().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_hold_up_the_end() {
    let mut outcome = completed();
    outcome.stdout = "x".repeat(1 << 20);
    let mut client = RawClient::connect_with(server(Scripted::answering(Ok(outcome))), 4096);
    client.initialize("2025-11-25").await;
    for _ in 0..3 {
        client
            .start(
                "tools/call",
                json!({"name": "execute_python", "arguments": {"code": "1"}}),
            )
            .await;
    }
    client.shutdown.cancel();
    tokio::time::timeout(DEADLINE, &mut client.serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn the_tools_depend_on_the_languages_only() {
    let mut both = settings();
    both.languages = vec![Language::R, Language::Python];
    let mut lists = Vec::new();
    for settings in [settings(), both.clone(), both] {
        let server = McpServer::new(
            Scripted::answering(Ok(completed())),
            std::sync::Arc::new(crate::fakes::NoRuns),
            settings,
        );
        let mut client = RawClient::initialized(server).await;
        let first = client.request("tools/list", json!({})).await["result"].clone();
        client.call(json!({"code": "1"})).await;
        let second = client.request("tools/list", json!({})).await["result"].clone();
        assert_eq!(first.to_string(), second.to_string());
        lists.push(first);
    }
    let names = |list: &Value| -> Vec<String> {
        let tools = list["tools"].as_array().unwrap();
        tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let of_runs = ["get_run", "list_runs", "cancel_run"];
    assert_eq!(names(&lists[0])[..1], ["execute_python"]);
    assert_eq!(names(&lists[0])[1..], of_runs);
    assert_eq!(names(&lists[1])[..2], ["execute_python", "execute_r"]);
    assert_eq!(names(&lists[1])[2..], of_runs);
    assert_eq!(lists[1].to_string(), lists[2].to_string());
    insta::with_settings!({sort_maps => true, snapshot_path => "../snapshots"}, {
        insta::assert_json_snapshot!("tools", lists[1]["tools"]);
    });
}

#[tokio::test]
async fn schemas_hold_no_null_and_name_the_bounds() {
    fn check(value: &Value, path: &str) {
        match value {
            Value::Null => panic!("null at {path}"),
            Value::Array(items) => items.iter().for_each(|item| check(item, path)),
            Value::Object(members) => {
                for (name, member) in members {
                    check(member, &format!("{path}/{name}"));
                }
            }
            _ => {}
        }
    }
    let mut client = RawClient::initialized(ready()).await;
    let list = client.request("tools/list", json!({})).await;
    let tool = &list["result"]["tools"][0];
    check(tool, "");
    let schema = &tool["inputSchema"];
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["required"], json!(["code"]));
    assert_eq!(schema["properties"]["timeout"]["maximum"], 300);
    assert_eq!(tool.get("outputSchema"), None);
    for (hint, value) in [
        ("readOnlyHint", false),
        ("destructiveHint", false),
        ("idempotentHint", false),
        ("openWorldHint", false),
    ] {
        assert_eq!(tool["annotations"][hint], value, "{hint}");
    }
}
