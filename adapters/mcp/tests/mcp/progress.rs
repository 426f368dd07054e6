//! Progress notifications: when, how often, what they say, and that none follows the result.

use std::sync::Arc;
use std::time::Duration;

use mcp_forge_mcp::{McpServer, ProgressPace};
use mcp_forge_ports::driving::RunObserver;
use mcp_forge_ports::vocabulary::{OutputStream, RunEvent};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fakes::{Scripted, completed, server, settings, waiting};
use crate::raw::RawClient;

async fn wrote(observer: &Arc<dyn RunObserver>, stream: OutputStream, bytes: &[u8]) {
    let bytes = bytes.to_vec();
    observer.observe(RunEvent::Output { stream, bytes }).await;
}

/// Calls with a progress token; gives the notifications before the result, each with the moment
/// it came, and checks that none follows.
async fn watch(server: McpServer, token: Value) -> Vec<(Instant, Value)> {
    let mut client = RawClient::initialized(server).await;
    let id = client
        .start(
            "tools/call",
            json!({
                "_meta": {"progressToken": token},
                "name": "execute_python",
                "arguments": {"code": "1"},
            }),
        )
        .await;
    let mut notifications = Vec::new();
    loop {
        let message = client.next().await.unwrap();
        if message["id"] == id {
            break;
        }
        assert_eq!(message["method"], "notifications/progress");
        assert_eq!(message["params"]["progressToken"], token);
        notifications.push((Instant::now(), message["params"].clone()));
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(client.disconnect().await, Vec::<Value>::new());
    let progress: Vec<_> = notifications
        .iter()
        .map(|(_, params)| params["progress"].as_f64().unwrap())
        .collect();
    assert!(
        progress.is_sorted_by(|left, right| left < right),
        "{progress:?}"
    );
    notifications
}

fn messages(notifications: &[(Instant, Value)]) -> Vec<&str> {
    notifications
        .iter()
        .map(|(_, params)| params["message"].as_str().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_silent_run_is_heard_of_at_the_standard_pace() {
    let execution = Scripted::new(|_, observer, _| async move {
        observer.observe(RunEvent::Running).await;
        sleep(Duration::from_secs(35)).await;
        Ok(completed())
    });
    let mut settings = settings();
    settings.progress = ProgressPace::default();
    let started = Instant::now();
    let notifications = watch(
        McpServer::new(
            execution,
            std::sync::Arc::new(crate::fakes::NoRuns),
            settings,
        ),
        json!("t"),
    )
    .await;
    assert_eq!(
        messages(&notifications),
        [
            "running 0 s",
            "running 10 s",
            "running 20 s",
            "running 30 s"
        ]
    );
    let mut last = started;
    for (at, _) in notifications {
        assert!(at - last < Duration::from_secs(15));
        last = at;
    }
}

#[tokio::test(start_paused = true)]
async fn states_and_lines_are_told_as_they_come() {
    let execution = Scripted::new(|_, observer, _| async move {
        for event in [
            RunEvent::Queued { position: 2 },
            RunEvent::Starting,
            RunEvent::Running,
        ] {
            observer.observe(event).await;
            sleep(Duration::from_millis(30)).await;
        }
        wrote(
            &observer,
            OutputStream::Stdout,
            b"\x1b[32mepoch 1\x1b[0m\nepo",
        )
        .await;
        sleep(Duration::from_millis(30)).await;
        wrote(&observer, OutputStream::Stdout, b"ch 2\n").await;
        sleep(Duration::from_millis(30)).await;
        wrote(&observer, OutputStream::Stderr, b" 10%|#  |\r 20%|## |\r").await;
        sleep(Duration::from_millis(70)).await;
        Ok(completed())
    });
    let notifications = watch(server(execution), json!(7)).await;
    assert_eq!(
        messages(&notifications),
        [
            "queued: number 2 in the queue",
            "starting",
            "running 0 s",
            "epo",
            "epoch 2",
            "20%|## |",
            "running 0 s, last line: 20%|## |",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_output_is_told_at_most_once_per_gap() {
    let execution = Scripted::new(|_, observer, _| async move {
        observer.observe(RunEvent::Running).await;
        for n in 0..1000 {
            wrote(
                &observer,
                OutputStream::Stdout,
                format!("line {n}\n").as_bytes(),
            )
            .await;
            sleep(Duration::from_millis(1)).await;
        }
        Ok(completed())
    });
    let notifications = watch(server(execution), json!("t")).await;
    assert!(
        (40..=52).contains(&notifications.len()),
        "{}",
        notifications.len()
    );
    for pair in notifications.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= Duration::from_millis(20));
    }
    let last = messages(&notifications).last().copied().unwrap().to_owned();
    let number: u32 = last.strip_prefix("line ").unwrap().parse().unwrap();
    assert!(
        number >= 970,
        "the newest line is told, not a queued one: {number}"
    );
}

#[tokio::test(start_paused = true)]
async fn hostile_output_is_one_short_printable_line() {
    let execution = Scripted::new(|_, observer, _| async move {
        observer.observe(RunEvent::Running).await;
        sleep(Duration::from_millis(30)).await;
        let mut bytes = "\u{202e}\u{1b}]0;title\u{7}\0".repeat(100).into_bytes();
        bytes.extend(b"y".repeat(1 << 20));
        bytes.extend(b"\xff\xfe\x07");
        wrote(&observer, OutputStream::Stdout, &bytes).await;
        sleep(Duration::from_millis(30)).await;
        Ok(completed())
    });
    let notifications = watch(server(execution), json!("t")).await;
    let line = messages(&notifications)[1];
    assert_eq!(line.chars().count(), 200);
    assert!(
        line.starts_with("yyy") && !line.chars().any(char::is_control),
        "{line}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_token_nothing_is_told() {
    let execution = Scripted::new(|_, observer, _| async move {
        observer.observe(RunEvent::Running).await;
        wrote(&observer, OutputStream::Stdout, b"line\n").await;
        sleep(Duration::from_secs(20)).await;
        Ok(completed())
    });
    let mut client = RawClient::initialized(server(execution)).await;
    client.call(json!({"code": "1"})).await;
    assert_eq!(client.disconnect().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_client_that_does_not_read_does_not_slow_the_run() {
    let (done, ended) = tokio::sync::mpsc::unbounded_channel();
    let execution = Scripted::new(move |_, observer, _| {
        let done = done.clone();
        async move {
            for _ in 0..200 {
                wrote(&observer, OutputStream::Stdout, &[b'x'; 4096]).await;
                sleep(Duration::from_millis(1)).await;
            }
            done.send(()).unwrap();
            Ok(completed())
        }
    });
    let mut settings = settings();
    settings.progress.gap = Duration::ZERO;
    let mut client = RawClient::connect_with(
        McpServer::new(
            execution,
            std::sync::Arc::new(crate::fakes::NoRuns),
            settings,
        ),
        600,
    );
    client.initialize("2025-11-25").await;
    client
        .start(
            "tools/call",
            json!({
                "_meta": {"progressToken": 1}, "name": "execute_python",
                "arguments": {"code": "1"},
            }),
        )
        .await;
    let mut ended = ended;
    tokio::time::timeout(crate::raw::DEADLINE, ended.recv())
        .await
        .unwrap()
        .unwrap();
    client.shutdown.cancel();
    tokio::time::timeout(crate::raw::DEADLINE, client.serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_falls_silent() {
    let (started, cancelled) = Default::default();
    let mut client = RawClient::initialized(server(waiting(started, cancelled))).await;
    let id = client
        .start(
            "tools/call",
            json!({
                "_meta": {"progressToken": 1}, "name": "execute_python",
                "arguments": {"code": "1"},
            }),
        )
        .await;
    assert_eq!(
        client.next().await.unwrap()["params"]["message"],
        "accepted"
    );
    client
        .send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id},
        }))
        .await;
    client.request("ping", json!({})).await;
    sleep(Duration::from_secs(60)).await;
    let rest = client.disconnect().await;
    assert!(rest.len() <= 1, "only what was on its way: {rest:?}");
}
