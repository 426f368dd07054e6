//! The tools for runs, and what is kept of them, as resources.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use mcp_forge_mcp::McpServer;
use mcp_forge_ports::driving::Runs;
use mcp_forge_ports::vocabulary::{
    ExecutionOutcome, Language, OutputBlock, OutputFile, Picture, Refusal, RunBytes, RunLog,
    RunPart, RunState, RunStatus,
};
use serde_json::{Value, json};

use crate::fakes::{NoRuns, Scripted, completed, settings};
use crate::raw::RawClient;

/// One run that goes on and one that has ended; remembers what it was asked.
#[derive(Default)]
struct TwoRuns(Mutex<Vec<String>>);

fn outcome() -> Arc<ExecutionOutcome> {
    Arc::new(ExecutionOutcome {
        files: vec![OutputFile {
            path: "a b.csv".to_owned(),
            size: 4,
            mime_type: "text/csv".to_owned(),
            kept: true,
        }],
        log: Some(RunLog {
            bytes: 3,
            complete: true,
        }),
        ..completed()
    })
}

fn status(run_id: &str) -> RunStatus {
    let goes_on = run_id == "run-2";
    RunStatus {
        run_id: run_id.to_owned(),
        correlation_id: "corr-1".to_owned(),
        language: Language::Python,
        state: if goes_on {
            RunState::Running
        } else {
            RunState::Ended
        },
        requested_at: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
        age: Duration::from_secs(7),
        newest_line: goes_on.then(|| "50%".to_owned()),
        answer: if goes_on { None } else { Some(Ok(outcome())) },
    }
}

#[async_trait]
impl Runs for TwoRuns {
    async fn get(&self, run_id: &str, wait: Duration) -> Result<RunStatus, Refusal> {
        self.note(format!("get {run_id} {}", wait.as_secs()));
        Ok(status(run_id))
    }

    async fn list(&self) -> Vec<RunStatus> {
        vec![status("run-2"), status("run-1")]
    }

    async fn cancel(&self, run_id: &str) -> Result<RunStatus, Refusal> {
        self.note(format!("cancel {run_id}"));
        Ok(status("run-1"))
    }

    async fn read(
        &self,
        run_id: &str,
        part: RunPart,
        range: Range<u64>,
    ) -> Result<RunBytes, Refusal> {
        self.note(format!(
            "read {run_id} {part:?} {}",
            range.end - range.start
        ));
        Ok(RunBytes {
            mime_type: "text/csv".to_owned(),
            total: 4,
            data: b"1,2\n".to_vec(),
        })
    }
}

impl TwoRuns {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn client(runs: Arc<dyn Runs>) -> (RawClient, Arc<Scripted>) {
    let execution = Scripted::answering(Ok(completed()));
    let server = McpServer::new(Arc::clone(&execution) as _, runs, settings());
    (RawClient::initialized(server).await, execution)
}

async fn call(client: &mut RawClient, name: &str, arguments: Value) -> Value {
    let params = json!({"name": name, "arguments": arguments});
    client.request("tools/call", params).await["result"].clone()
}

#[tokio::test]
async fn a_run_is_told_as_it_is_or_with_its_result() {
    let runs = Arc::new(TwoRuns::default());
    let (mut client, _) = client(runs.clone()).await;
    let going = call(
        &mut client,
        "get_run",
        json!({"run_id": "run-2", "wait": 3}),
    )
    .await;
    assert_eq!(going["isError"], false);
    let structured = &going["structuredContent"];
    assert_eq!(structured["state"], "running");
    assert_eq!(structured["newest_line"], "50%");
    assert_eq!(structured["requested_at_ms"], 1500);
    let ended = call(&mut client, "get_run", json!({"run_id": "run-1"})).await;
    assert_eq!(ended["structuredContent"]["stdout"], "42\n");
    let cancelled = call(&mut client, "cancel_run", json!({"run_id": "run-2"})).await;
    assert_eq!(cancelled["structuredContent"]["ended_by"], "completed");
    assert_eq!(runs.asked(), ["get run-2 3", "get run-1 0", "cancel run-2"]);
    let list = call(&mut client, "list_runs", json!({})).await;
    let listed = list["structuredContent"]["runs"].as_array().unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[1]["ended_by"], "completed");
}

#[tokio::test]
async fn bad_arguments_of_run_tools_are_refused_and_noted() {
    let (mut client, execution) = client(Arc::new(NoRuns)).await;
    for (name, arguments, field) in [
        ("get_run", json!({}), "run_id"),
        ("get_run", json!({"run_id": 7}), "run_id"),
        ("get_run", json!({"run_id": "r", "wait": 301}), "wait"),
        ("get_run", json!({"run_id": "r", "wait": 0.5}), "wait"),
        ("cancel_run", json!({"run_id": "r", "force": true}), "force"),
        ("list_runs", json!({"all": true}), "all"),
    ] {
        let result = call(&mut client, name, arguments).await;
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(result["structuredContent"]["error"]["field"], field);
    }
    assert_eq!(execution.refused().len(), 6);
    // The control: it is asked for, and is not there.
    let result = call(&mut client, "get_run", json!({"run_id": "r"})).await;
    assert_eq!(result["structuredContent"]["error"]["kind"], "not_found");
}

#[tokio::test]
async fn what_is_kept_is_listed_and_read() {
    let runs = Arc::new(TwoRuns::default());
    let (mut client, _) = client(runs.clone()).await;
    let list = client.request("resources/list", json!({})).await;
    let uris: Vec<_> = list["result"]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| resource["uri"].as_str().unwrap().to_owned())
        .collect();
    let file = "mcp://forge/runs/run-1/files/a%20b.csv";
    let environment = "mcp://forge/environment/info";
    assert_eq!(uris, [environment, "mcp://forge/runs/run-1/log", file]);
    assert!(list["result"].get("nextCursor").is_none());
    let rest = client
        .request("resources/list", json!({"cursor": "1"}))
        .await;
    assert_eq!(rest["result"]["resources"][0]["uri"], file);
    let read = client
        .request("resources/read", json!({"uri": environment}))
        .await;
    let contents = &read["result"]["contents"][0];
    assert_eq!(contents["mimeType"], "application/json");
    let told: Value = serde_json::from_str(contents["text"].as_str().unwrap()).unwrap();
    assert_eq!(
        told,
        json!({
            "runtime": {"kind": "scripted", "version": "1", "image": "host"},
            "languages": ["r"],
            "limits": {"memory_bytes": 1 << 20, "cpu_quota": 7, "pids": 8, "timeout_s": 12},
            "weak": ["memory: told by nobody"],
            "verdict": "WeakSandboxMode",
        })
    );
    let templates = client.request("resources/templates/list", json!({})).await;
    let templates = templates["result"]["resourceTemplates"].as_array().unwrap();
    assert_eq!(templates.len(), 3);

    let read = client.request("resources/read", json!({"uri": file})).await;
    let contents = &read["result"]["contents"][0];
    assert_eq!(contents["text"], "1,2\n");
    assert_eq!(
        (&contents["uri"], &contents["mimeType"]),
        (&json!(file), &json!("text/csv"))
    );
    let ranged = format!("{file}?offset=1&length=2");
    client
        .request("resources/read", json!({"uri": ranged}))
        .await;
    let asked = runs.asked();
    assert_eq!(
        asked[0],
        format!("read run-1 File(\"a b.csv\") {}", 4 << 20)
    );
    assert_eq!(asked[1], "read run-1 File(\"a b.csv\") 2");
}

#[tokio::test]
async fn a_file_of_an_earlier_run_is_an_input() {
    let runs = Arc::new(TwoRuns::default());
    let (mut client, execution) = client(runs).await;
    let arguments = json!({"code": "1", "files": [
        {"path": "in.csv", "uri": "mcp://forge/runs/run-1/files/a%20b.csv"},
        {"path": "x", "text": "y"},
    ]});
    let params = json!({
        "name": "execute_python", "arguments": arguments, "_meta": {"idempotencyKey": "k"},
    });
    client.request("tools/call", params).await;
    let request = &execution.requests()[0];
    assert_eq!(request.files[0].data, b"1,2\n");
    assert_eq!(request.files[1].path, "x");
    assert_eq!(request.idempotency_key.as_deref(), Some("k"));
}

#[tokio::test]
async fn who_waits_for_a_run_hears_of_it() {
    let (mut client, _) = client(Arc::new(TwoRuns::default())).await;
    let call = |meta: Value| {
        json!({
            "name": "get_run", "arguments": {"run_id": "run-2", "wait": 1}, "_meta": meta,
        })
    };
    let id = client
        .start("tools/call", call(json!({"progressToken": 9})))
        .await;
    let mut messages = Vec::new();
    let answer = loop {
        let message = client.next().await.unwrap();
        if message["id"] == id {
            break message;
        }
        assert_eq!(message["params"]["progressToken"], 9);
        assert_eq!(message["params"]["progress"], messages.len() as f64 + 1.0);
        messages.push(message["params"]["message"].clone());
    };
    // The pace of the test is 50 ms.
    assert_eq!(messages.len(), 19);
    assert_eq!(
        messages[0],
        "run run-2 (python) has been going on for 7 s, last line: 50%"
    );
    assert_eq!(answer["result"]["structuredContent"]["state"], "running");
    // The control: who did not ask hears nothing.
    let id = client.start("tools/call", call(json!({}))).await;
    assert_eq!(client.next().await.unwrap()["id"], id);
}

#[tokio::test]
async fn ids_of_the_caller_must_be_texts() {
    let (mut client, execution) = client(Arc::new(NoRuns)).await;
    for (name, field) in [
        ("idempotencyKey", "idempotency_key"),
        ("correlationId", "correlation_id"),
    ] {
        let call = |value: Value| {
            json!({
                "name": "execute_python", "arguments": {"code": "1"}, "_meta": {name: value},
            })
        };
        let refused = client.request("tools/call", call(json!(7))).await;
        let error = &refused["result"]["structuredContent"]["error"];
        assert_eq!(error["field"], field);
        assert_eq!(
            error["message"],
            format!("`_meta.{name}` must be a string, not the number 7")
        );
        for sound in [json!("k"), Value::Null] {
            let answer = client.request("tools/call", call(sound)).await;
            assert_eq!(answer["result"]["isError"], false, "{answer}");
        }
    }
    assert_eq!(execution.refused().len(), 2);
    assert_eq!(execution.requests().len(), 4);
}

/// One run that left many files, of which the first have long names.
struct Many;

fn many_files() -> Vec<OutputFile> {
    let file = |n: usize| OutputFile {
        path: format!("{n}{}", "é".repeat(if n < 100 { 2000 } else { 1 })),
        size: 1,
        mime_type: "text/plain".to_owned(),
        kept: true,
    };
    (0..1200).map(file).collect()
}

#[async_trait]
impl Runs for Many {
    async fn get(&self, _: &str, _: Duration) -> Result<RunStatus, Refusal> {
        unreachable!()
    }

    async fn list(&self) -> Vec<RunStatus> {
        let outcome = ExecutionOutcome {
            files: many_files(),
            ..completed()
        };
        let answer = Some(Ok(Arc::new(outcome)));
        vec![RunStatus {
            answer,
            ..status("run-1")
        }]
    }

    async fn cancel(&self, _: &str) -> Result<RunStatus, Refusal> {
        unreachable!()
    }

    async fn read(&self, _: &str, _: RunPart, _: Range<u64>) -> Result<RunBytes, Refusal> {
        unreachable!()
    }
}

#[tokio::test]
async fn a_long_list_comes_in_pages() {
    let (mut client, _) = client(Arc::new(Many)).await;
    let (mut params, mut names, mut pages) = (json!({}), Vec::new(), 0);
    loop {
        let answer = client.request("resources/list", params).await;
        assert!(answer.to_string().len() < 512 << 10);
        let page = answer["result"]["resources"].as_array().unwrap();
        names.extend(
            page.iter()
                .map(|it| it["name"].as_str().unwrap().to_owned()),
        );
        pages += 1;
        match answer["result"].get("nextCursor") {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => break,
        }
    }
    let files = many_files().into_iter().map(|file| file.path);
    let all: Vec<_> = std::iter::once("environment".to_owned())
        .chain(files)
        .collect();
    assert_eq!(names, all);
    assert!((4..20).contains(&pages), "{pages}");
    let beyond = client
        .request("resources/list", json!({"cursor": "5000"}))
        .await;
    assert_eq!(beyond["result"]["resources"], json!([]));
}

/// A run that left pictures, of which each holds its own name.
struct Pictures(Vec<OutputBlock>);

#[async_trait]
impl Runs for Pictures {
    async fn get(&self, _: &str, _: Duration) -> Result<RunStatus, Refusal> {
        let file = |path: &str, size: u64| OutputFile {
            path: path.to_owned(),
            size,
            mime_type: format!("image/{}", path.split_once('.').unwrap().1),
            kept: size < 10 << 20,
        };
        let outcome = ExecutionOutcome {
            files: vec![
                file("big.png", (3 << 20) + 1),
                file("drawing.svg+xml", 9),
                file("huge.png", 10 << 20),
                file("lie.png", 9),
                file("one.png", 9),
                file("two.jpeg", 9),
            ],
            blocks: self.0.clone(),
            ..completed()
        };
        let answer = Some(Ok(Arc::new(outcome)));
        Ok(RunStatus {
            answer,
            ..status("run-1")
        })
    }

    async fn list(&self) -> Vec<RunStatus> {
        unreachable!()
    }

    async fn cancel(&self, _: &str) -> Result<RunStatus, Refusal> {
        unreachable!()
    }

    async fn read(&self, _: &str, part: RunPart, _: Range<u64>) -> Result<RunBytes, Refusal> {
        let data = match part {
            RunPart::File(path) if path.ends_with(".jpeg") => b"\xff\xd8\xff".to_vec(),
            RunPart::File(path) if path == "lie.png" => b"<html>".to_vec(),
            _ => b"\x89PNG\r\n\x1a\n".to_vec(),
        };
        Ok(RunBytes {
            mime_type: String::new(),
            total: 9,
            data,
        })
    }
}

#[tokio::test]
async fn pictures_that_were_saved_and_not_shown_are_shown() {
    let images = async |blocks| {
        let (mut client, _) = client(Arc::new(Pictures(blocks))).await;
        let result = call(&mut client, "get_run", json!({"run_id": "run-1"})).await;
        let content = result["content"].as_array().unwrap().clone();
        let types = content.iter().filter(|block| block["type"] == "image");
        types
            .map(|block| block["mimeType"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(images(Vec::new()).await, ["image/png", "image/jpeg"]);
    let shown = OutputBlock::Image {
        picture: Picture {
            mime_type: "image/gif".to_owned(),
            data: b"GIF89a"[..].into(),
        },
        text: None,
    };
    assert_eq!(images(vec![shown]).await, ["image/gif"]);
}
