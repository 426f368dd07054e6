//! Runs in the background, repetitions, the queue, and what a server that goes leaves of them.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::client::{STOP, Server};
use crate::home::Home;
use crate::host::SOON;

/// A program with children of its own that ends for nobody.
const STUBBORN: &str = "\
import os, signal, subprocess, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
for _ in range(3): subprocess.Popen(['sleep', '999'], start_new_session=True)
print('up', flush=True)
while True: time.sleep(99)";

fn launch(server: &mut Server<'_>, code: &str) -> String {
    let begun = Instant::now();
    let told = server.tool("execute_python", json!({"code": code, "background": true}));
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "it was waited for"
    );
    assert!(
        ["queued", "starting", "running"].contains(&told["state"].as_str().unwrap()),
        "{told:#}"
    );
    told["run_id"].as_str().unwrap().to_owned()
}

fn get(server: &mut Server<'_>, run_id: &str, wait: u64) -> Value {
    server.tool("get_run", json!({"run_id": run_id, "wait": wait}))
}

/// Waits until the program has printed `up`.
fn expect_up(server: &mut Server<'_>, run_id: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        let told = server.tool("get_run", json!({"run_id": run_id}));
        if told["newest_line"] == "up" {
            assert_eq!(told["state"], "running");
            return;
        }
        assert!(Instant::now() < deadline, "{told:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn requests(home: &Home) -> usize {
    home.audit()
        .iter()
        .filter(|entry| entry["event"] == "execution.request")
        .count()
}

#[test]
fn a_run_in_the_background_can_be_followed_and_stopped() {
    let Some(home) = Home::for_root("runs in the background") else {
        return;
    };
    let mut server = Server::start(&home);
    let short = launch(&mut server, "import time\ntime.sleep(1)\nprint('done')\n42");
    let begun = Instant::now();
    assert_eq!(
        server.tool("get_run", json!({"run_id": short}))["run_id"],
        *short
    );
    assert!(
        begun.elapsed() < Duration::from_millis(800),
        "without `wait` it does not wait"
    );
    let told = get(&mut server, &short, 60);
    assert_eq!(
        (&told["ended_by"], &told["result"]),
        (&json!("completed"), &json!(42)),
        "{told:#}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "it returns at the end of the run"
    );

    let long = launch(&mut server, STUBBORN);
    expect_up(&mut server, &long);
    let begun = Instant::now();
    let told = get(&mut server, &long, 1);
    assert_eq!(told["state"], "running", "{told:#}");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let listed = server.tool("list_runs", json!({}));
    let states: Vec<_> = listed["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (&run["run_id"], &run["state"]))
        .collect();
    assert_eq!(
        states,
        [
            (&json!(long), &json!("running")),
            (&json!(short), &json!("ended"))
        ]
    );

    let begun = Instant::now();
    let told = server.tool("cancel_run", json!({"run_id": long}));
    assert!(begun.elapsed() < STOP, "{:?}", begun.elapsed());
    assert_eq!(
        (&told["ended_by"], &told["stdout"]),
        (&json!("cancelled"), &json!("up\n")),
        "{told:#}"
    );
    server.expect_rest();
    let again = server.tool("cancel_run", json!({"run_id": long}));
    assert_eq!(again["ended_by"], "cancelled");
    for tool in ["get_run", "cancel_run"] {
        let told = server.tool(tool, json!({"run_id": "run-0"}));
        assert_eq!(told["error"]["kind"], "not_found", "{told:#}");
    }
    server.close();
}

#[test]
fn a_client_that_goes_takes_its_background_along() {
    let Some(home) = Home::for_root("the end of runs in the background") else {
        return;
    };
    let mut server = Server::start(&home);
    let runs = [launch(&mut server, STUBBORN), launch(&mut server, STUBBORN)];
    for run in &runs {
        expect_up(&mut server, run);
    }
    server.begin_tool(
        "get_run",
        json!({"run_id": runs[0], "wait": 300}),
        json!({}),
    );
    let begun = Instant::now();
    server.hang_up();
    let (status, _) = server.end();
    assert!(status.success(), "{status}");
    assert!(begun.elapsed() < STOP, "{:?}", begun.elapsed());
    home.expect_nothing_left();

    // A server that is killed leaves neither a run nor what it kept of one.
    let mut server = Server::start(&home);
    let run = launch(
        &mut server,
        "print('x' * 999_999)\nopen('a', 'wb').write(bytes(9_999_999))",
    );
    let told = get(&mut server, &run, 60);
    assert_eq!(
        (&told["log"]["bytes"], &told["files"][0]["size"]),
        (&json!(1_000_000), &json!(9_999_999)),
        "{}",
        told["stderr"]
    );
    let run = launch(&mut server, STUBBORN);
    expect_up(&mut server, &run);
    server.signal(Signal::SIGKILL);
    server.end();
    home.expect_nothing_left();
}

#[test]
fn a_repeated_key_runs_nothing_twice() {
    let Some(home) = Home::for_root("idempotency keys") else {
        return;
    };
    let mut server = Server::start(&home);
    let code = "import os, time\ntime.sleep(1)\nos.urandom(8).hex()";
    let key = |key: &str| json!({"idempotencyKey": key});
    let call = |code: &str| json!({"code": code});
    let ids = [0; 3].map(|_| server.begin_tool("execute_python", call(code), key("k")));
    let mut told: Vec<_> = ids.map(|id| server.told(id)).into();
    let id = server.begin_tool("execute_python", call(code), key("k"));
    told.push(server.told(id));
    let mut launched = call(code);
    launched["background"] = true.into();
    let id = server.begin_tool("execute_python", launched, key("k"));
    let started = server.content(id);
    told.push(get(&mut server, started["run_id"].as_str().unwrap(), 60));
    let values: BTreeSet<_> = told
        .iter()
        .map(|told| told["result"].as_str().unwrap())
        .collect();
    let names: BTreeSet<_> = told
        .iter()
        .map(|told| told["run_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (values.len(), names.len(), requests(&home)),
        (1, 1, 1),
        "{told:#?}"
    );

    for arguments in [
        call("1"),
        json!({"code": code, "timeout": 9}),
        json!({"code": code, "files": [{"path": "a", "text": ""}]}),
    ] {
        let id = server.begin_tool("execute_python", arguments, key("k"));
        let refused = server.told(id);
        assert_eq!(refused["error"]["kind"], "invalid_argument", "{refused:#}");
        assert_eq!(refused["error"]["field"], "idempotency_key");
        assert_eq!(
            refused["error"]["message"],
            "the idempotency key was used for another request"
        );
    }
    assert_eq!(requests(&home), 1);
    let id = server.begin_tool("execute_python", call(code), key("another"));
    assert!(!values.contains(server.told(id)["result"].as_str().unwrap()));
    let id = server.begin_tool("execute_python", call("1"), key("not a key"));
    assert_eq!(server.told(id)["error"]["kind"], "invalid_argument");

    // What was cancelled runs again, also when its end is not there yet.
    let loops = "import time\nprint('up', flush=True)\ntime.sleep(3)\n'slept'";
    let token = json!({"idempotencyKey": "c", "progressToken": "t"});
    let id = server.begin_tool("execute_python", call(loops), token);
    server.expect_progress("t", "up");
    server.notify("notifications/cancelled", json!({"requestId": id}));
    let id = server.begin_tool("execute_python", call(loops), key("c"));
    let told = server.told(id);
    assert_eq!(
        (&told["ended_by"], &told["result"]),
        (&json!("completed"), &json!("slept")),
        "{told:#}"
    );
    server.expect_rest();
    server.close();
}

#[test]
fn who_waits_knows_its_place_and_who_finds_none_is_told() {
    let Some(home) = Home::for_root("the queue") else {
        return;
    };
    let settings = [("EXECUTION__CONCURRENCY", "1"), ("EXECUTION__QUEUE", "2")];
    let mut server = Server::with(&home, &settings);
    let first = launch(&mut server, STUBBORN);
    expect_up(&mut server, &first);
    let second = server.begin_tool(
        "execute_python",
        json!({"code": "2"}),
        json!({"progressToken": "second"}),
    );
    server.expect_progress("second", "queued: number 1 in the queue");
    let third = server.begin_tool(
        "execute_python",
        json!({"code": "3"}),
        json!({"progressToken": "third"}),
    );
    server.expect_progress("third", "queued: number 2 in the queue");
    let listed = server.tool("list_runs", json!({}));
    let places: Vec<_> = listed["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["position"])
        .collect();
    assert_eq!(places, [&json!(2), &json!(1), &Value::Null], "{listed:#}");
    for background in [true, false] {
        let told = server.tool(
            "execute_python",
            json!({"code": "4", "background": background}),
        );
        assert_eq!(told["error"]["kind"], "busy", "{told:#}");
        assert_eq!(
            told["error"]["message"],
            "1 runs are going on and 2 are waiting"
        );
    }
    server.notify("notifications/cancelled", json!({"requestId": second}));
    server.expect_progress("third", "queued: number 1 in the queue");
    server.tool("cancel_run", json!({"run_id": first}));
    assert_eq!(server.told(third)["result"], 3);
    server.expect_rest();
    server.close();
}

#[test]
fn two_servers_know_nothing_of_each_other() {
    let Some(home) = Home::for_root("two servers") else {
        return;
    };
    let mut one = Server::start(&home);
    let mut other = Server::start(&home);
    let made = one.call(json!({"code": "print('mine')\nopen('a', 'w').write('mine')"}));
    let environment = one.read("mcp://forge/environment/info").unwrap();
    let environment: Value = serde_json::from_str(environment["text"].as_str().unwrap()).unwrap();
    assert_eq!(
        environment["verdict"], "SandboxConfirmed",
        "{environment:#}"
    );
    assert_eq!(environment["runtime"]["kind"], "libcontainer");
    let uris = [&made["log"]["uri"], &made["files"][0]["uri"]].map(|uri| uri.as_str().unwrap());
    for uri in uris {
        assert!(
            one.read(uri).unwrap()["text"]
                .as_str()
                .unwrap()
                .starts_with("mine")
        );
        assert_eq!(other.read(uri).unwrap_err()["code"], -32002);
        let refused = other.call(json!({"code": "1", "files": [{"path": "a", "uri": uri}]}));
        assert_eq!(refused["error"]["kind"], "invalid_argument", "{refused:#}");
    }
    let told = other.tool("get_run", json!({"run_id": made["run_id"]}));
    assert_eq!(told["error"]["kind"], "not_found");
    let listed = other.request("resources/list", json!({}));
    let listed = listed["result"]["resources"].as_array().unwrap();
    let uris: Vec<_> = listed.iter().map(|resource| &resource["uri"]).collect();
    assert_eq!(uris, ["mcp://forge/environment/info"]);
    other.hang_up();
    other.end();
    drop(other);
    one.close();
}

#[test]
fn a_silent_run_is_heard_of_within_15_seconds() {
    let Some(home) = Home::for_root("progress of a real run") else {
        return;
    };
    let mut server = Server::start(&home);
    let code = "import time\nprint('line', flush=True)\ntime.sleep(12)";
    let call = json!({
        "name": "execute_python",
        "arguments": {"code": code},
        "_meta": {"progressToken": 7},
    });
    let id = server.begin("tools/call", call);
    assert_eq!(server.told(id)["success"], true);
    let messages: Vec<_> = server.kept().map(|it| &it["params"]["message"]).collect();
    for expected in ["line", "running 10 s, last line: line"] {
        assert!(messages.contains(&&json!(expected)), "{messages:?}");
    }
    server.close();
}

#[test]
fn a_full_disk_costs_the_log_and_the_files_and_nothing_else() {
    let Some(mut home) = Home::for_root("a full disk") else {
        return;
    };
    let small = home.path().join("given/small");
    std::fs::create_dir_all(&small).unwrap();
    let mount = |program: &str, arguments: &[&str]| {
        let done = Command::new(program)
            .args(arguments)
            .arg(&small)
            .status()
            .unwrap();
        assert!(done.success());
    };
    mount("mount", &["-t", "tmpfs", "-o", "size=256k", "none"]);
    home.settle();
    let mut command = home.command();
    command.arg("serve").env("TMPDIR", &small);
    let mut server = Server::spawn(&home, command);
    let code = "print('x' * 499_999)\nopen('a', 'w').write('small')\nopen('b', 'wb').write(bytes(999_999))\n\
                open('c', 'w').write('after')\n42";
    let told = server.call(json!({"code": code}));
    assert_eq!(
        (&told["result"], &told["ended_by"]),
        (&json!(42), &json!("completed")),
        "{told:#}"
    );
    assert_eq!(told["stdout"].as_str().map(str::len), Some(500_000));
    assert_eq!(told["log"]["complete"], false);
    let log = server.read(told["log"]["uri"].as_str().unwrap()).unwrap();
    assert_eq!(
        log["text"].as_str().map(str::len),
        told["log"]["bytes"]
            .as_u64()
            .and_then(|n| n.try_into().ok())
    );
    let kept: Vec<_> = told["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| (&file["path"], file["uri"].is_string()))
        .collect();
    assert_eq!(
        kept,
        [
            (&json!("a"), true),
            (&json!("b"), false),
            (&json!("c"), false)
        ],
        "{told:#}"
    );
    assert_eq!(
        server
            .read(told["files"][0]["uri"].as_str().unwrap())
            .unwrap()["text"],
        "small"
    );
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.hang_up();
    assert!(server.end().0.success());
    drop(server);
    mount("umount", &[]);
}
