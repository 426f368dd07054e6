//! A client that sends more than it reads, sends it faster than it is done, or sends ids twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_forge_ports::vocabulary::EndedBy;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio_util::sync::CancellationToken;

use crate::fakes::{Scripted, completed, ended, server};
use crate::raw::{DEADLINE, RawClient};

const FLOOD: usize = 100_000;

/// Size of the stream in between, and of the buffer that it is read into.
const BUFFERS: usize = 2 * 64 * 1024;

/// What the server holds unanswered, see `window`.
const MAX_PASSING: usize = 256;
const MAX_CALLS: usize = 1024;

fn call(id: usize, code: &str) -> Value {
    let params = json!({"name": "execute_python", "arguments": {"code": code}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

/// Sends all lines without reading; when the server takes no more, looks at how many it took, and
/// then reads everything. Gives the answers but that to `initialize`.
async fn flood(
    execution: Arc<Scripted>,
    count: usize,
    line: impl Fn(usize) -> String,
    most: usize,
) -> Vec<Value> {
    let (near, far) = tokio::io::duplex(BUFFERS / 2);
    let (reader, writer) = tokio::io::split(far);
    let serving = tokio::spawn(mcp_forge_mcp::serve(
        server(execution.clone()),
        reader,
        writer,
        CancellationToken::new(),
    ));
    let (reader, mut writer) = tokio::io::split(near);
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "flood", "version": "1"},
    });
    let initialize = json!({"jsonrpc": "2.0", "id": -1, "method": "initialize", "params": params});
    let lines: Vec<String> = std::iter::once(initialize.to_string())
        .chain((0..count).map(line))
        .collect();
    let length = lines.last().unwrap().len();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        for line in lines {
            writer.write_all(line.as_bytes()).await.unwrap();
            writer.write_all(b"\n").await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        }
        writer
    });
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = sent.load(Ordering::Relaxed);
        if now == before && now > 0 {
            break;
        }
        before = now;
    }
    assert!(before <= most + BUFFERS / length, "{before} of {count}");
    assert!(execution.requests().len() <= most);

    let mut answers = Vec::new();
    let mut lines = BufReader::new(reader).lines();
    while answers.len() <= count {
        let line = tokio::time::timeout(DEADLINE, lines.next_line()).await;
        answers.push(serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap());
    }
    sending.await.unwrap().shutdown().await.unwrap();
    tokio::time::timeout(DEADLINE, serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(lines.next_line().await.unwrap(), None, "one answer each");
    answers.retain(|answer: &Value| answer["id"] != -1);
    answers
}

fn each_once(answers: &[Value], count: usize) {
    assert!(answers.iter().all(|answer| answer["error"].is_null()));
    let ids = answers.iter().map(|answer| answer["id"].as_u64().unwrap());
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), count);
    assert_eq!(answers.len(), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_pings_wait_outside_until_the_answers_are_read() {
    let line = |id| json!({"jsonrpc": "2.0", "id": id, "method": "ping"}).to_string();
    // An answer is small: this many more are in the stream.
    let most = MAX_PASSING + BUFFERS / 30;
    let execution = Scripted::answering(Ok(completed()));
    each_once(&flood(execution, FLOOD, line, most).await, FLOOD);
}

#[tokio::test]
async fn lists_wait_outside_until_the_answers_are_read() {
    let line = |id| json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"}).to_string();
    let execution = Scripted::answering(Ok(completed()));
    let most = MAX_PASSING + 100;
    each_once(&flood(execution, 5_000, line, most).await, 5_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_outside_until_the_answers_are_read() {
    let execution = Scripted::answering(Ok(completed()));
    let line = |id| call(id, "1").to_string();
    let most = MAX_CALLS + MAX_PASSING + 100;
    let answers = flood(execution, 10_000, line, most).await;
    each_once(&answers, 10_000);
    let refused = answers.iter().filter(|a| a["result"]["isError"] == true);
    assert_eq!(refused.count(), 0, "none of them lasts");
}

#[tokio::test]
async fn large_results_are_counted_by_bytes() {
    let mut outcome = completed();
    outcome.stdout = "x".repeat(1 << 20);
    let execution = Scripted::answering(Ok(outcome));
    // 16 MiB of results of 2 MiB and more, and those that were on their way.
    let line = |id| call(id, &"#".repeat(10_000)).to_string();
    each_once(&flood(execution, 60, line, 8 + 24).await, 60);
}

#[tokio::test]
async fn noise_waits_outside_until_the_answers_are_read() {
    let execution = Scripted::answering(Ok(completed()));
    let most = BUFFERS / 100;
    let answers = flood(execution, 20_000, |_| "x".repeat(100), most).await;
    let parse_errors = answers.iter().filter(|a| a["error"]["code"] == -32700);
    assert_eq!(parse_errors.count(), 20_000);
}

#[tokio::test]
async fn who_has_as_many_calls_as_it_may_can_still_cancel_one() {
    let (running, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (started, stopped) = (Arc::clone(&running), Arc::clone(&over));
    let execution = Scripted::new(move |_, _, cancel| {
        let (started, stopped) = (Arc::clone(&started), Arc::clone(&stopped));
        async move {
            started.fetch_add(1, Ordering::Relaxed);
            cancel.cancelled().await;
            stopped.fetch_add(1, Ordering::Relaxed);
            Ok(ended(EndedBy::Cancelled))
        }
    });
    let mut client = RawClient::initialized(server(execution.clone())).await;
    for id in 1000..1000 + MAX_CALLS {
        client.send(&call(id, "1")).await;
    }
    let answer = client.call(json!({"code": "1"})).await;
    let content = &answer["result"]["structuredContent"];
    assert_eq!(content["error"]["kind"], "busy", "{answer}");
    assert_eq!(execution.refused().len(), 1);
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
    assert_eq!(running.load(Ordering::Relaxed), MAX_CALLS);

    let params = json!({"requestId": 1000});
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
        .await;
    let wait = async {
        while over.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.send(&call(1000, "1")).await;
        while running.load(Ordering::Relaxed) == MAX_CALLS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap();
    // The end of the stream cancels, and each is answered, but the one that was cancelled before.
    each_once(&client.disconnect().await, MAX_CALLS);
    assert_eq!(over.load(Ordering::Relaxed), MAX_CALLS + 1);
}

#[tokio::test]
async fn the_second_request_of_an_id_is_refused_and_the_first_goes_on() {
    let go_on = CancellationToken::new();
    let waiting = go_on.clone();
    let execution = Scripted::new(move |request, _, _| {
        let waiting = waiting.clone();
        async move {
            if request.code == "first" {
                waiting.cancelled().await;
            }
            let mut outcome = completed();
            outcome.stdout = request.code;
            Ok(outcome)
        }
    });
    let mut client = RawClient::initialized(server(execution.clone())).await;
    client.send(&call(7, "first")).await;
    let ping = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
    let broken = json!({"jsonrpc": "1.0", "id": 7, "method": "ping"});
    for again in [call(7, "second"), ping, broken] {
        client.send(&again).await;
        let answer = client.next().await.unwrap();
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        // Not that of the first.
        assert_eq!(answer.get("id"), Some(&Value::Null));
        assert_eq!(answer["error"]["data"]["requestId"], 7);
    }
    // Text and number are two ids.
    let mut other = call(0, "other");
    other["id"] = json!("7");
    client.send(&other).await;
    assert_eq!(client.next().await.unwrap()["id"], "7");

    go_on.cancel();
    let first = client.answer(7).await;
    assert_eq!(first["result"]["structuredContent"]["stdout"], "first");
    client.send(&call(7, "third")).await;
    let third = client.answer(7).await;
    assert_eq!(third["result"]["structuredContent"]["stdout"], "third");
    assert_eq!(client.disconnect().await.len(), 0);
    assert_eq!(execution.requests().len(), 3);
}

#[tokio::test]
async fn the_id_of_a_cancelled_call_is_free_although_its_clean_up_goes_on() {
    let cleaned_up = CancellationToken::new();
    let done = cleaned_up.clone();
    let execution = Scripted::new(move |request, _, cancel| {
        let done = done.clone();
        async move {
            if request.code == "first" {
                cancel.cancelled().await;
                done.cancelled().await;
                return Ok(ended(EndedBy::Cancelled));
            }
            done.cancel();
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(completed())
        }
    });
    let mut client = RawClient::initialized(server(execution)).await;
    client.send(&call(7, "first")).await;
    let params = json!({"requestId": 7});
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
        .await;
    client.send(&call(7, "second")).await;
    let answer = client.answer(7).await;
    let told = &answer["result"]["structuredContent"]["ended_by"];
    assert_eq!(told, "completed", "{answer}");
    assert_eq!(client.disconnect().await.len(), 0);
}
