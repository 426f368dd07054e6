//! Whatever part of mcp-forge dies, and whoever goes away: no program goes on, nothing is left, and
//! a server that lives serves on.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::client::{Helpers, STOP, Server};
use crate::home::{BINARY, Finished, Home, collect, end_of};
use crate::host::{Process, SOON, wait_until};

/// A program that would go on for long; with a child that nobody else has.
const LASTING: &str = "import os, time\n\
                       if os.fork() == 0: os.setsid()\n\
                       print('begun', flush=True)\n\
                       time.sleep(1000)";

/// What the machine may take beyond the promise when it is busy with other things.
const SLACK: Duration = Duration::from_secs(2);

/// Starts as many lasting programs and waits until they run, each with its child.
fn begin_lasting(server: &mut Server<'_>, count: usize) -> Vec<u64> {
    let calls = (0..count)
        .map(|_| server.begin_call(json!({"code": LASTING})))
        .collect();
    server.expect_programs(2 * count);
    calls
}

fn kill_process(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

/// The next start clears away what a crash has left.
fn expect_clean_after_next_start(home: &Home) {
    assert_eq!(home.run(&["-c", "6*7"]).stdout, "42\n");
    home.expect_nothing_left();
}

fn no_program_runs(home: &Home) -> Result<(), String> {
    let census = home.census();
    let running: Vec<_> = census.ours().filter(|p| census.in_sandbox(p)).collect();
    if running.is_empty() {
        Ok(())
    } else {
        Err(format!("still there: {running:#?}"))
    }
}

#[test]
fn nothing_outlives_a_killed_server() {
    let Some(home) = Home::for_root("SIGKILL of the server") else {
        return;
    };
    let mut server = Server::start(&home);
    begin_lasting(&mut server, 4);
    server.signal(Signal::SIGKILL);
    wait_until(STOP + SLACK, || no_program_runs(&home));
    // The warden has seen it and has cleared up.
    home.expect_nothing_left();
    expect_clean_after_next_start(&home);
}

#[test]
fn nothing_outlives_a_server_killed_with_its_warden() {
    let Some(home) = Home::for_root("SIGKILL of server and warden") else {
        return;
    };
    let mut server = Server::start(&home);
    begin_lasting(&mut server, 4);
    let Helpers { warden, .. } = server.helpers();
    // It cannot clear up: stopped first, so that it sees nothing.
    kill(Pid::from_raw(warden), Signal::SIGSTOP).unwrap();
    server.signal(Signal::SIGKILL);
    kill_process(warden);
    wait_until(STOP + SLACK, || no_program_runs(&home));
    assert!(
        home.leftovers().is_err(),
        "control groups are there until the next start"
    );
    expect_clean_after_next_start(&home);
}

#[test]
fn a_server_survives_the_death_of_its_nursery() {
    survives("SIGKILL of the nursery", |helpers| helpers.nursery);
}

#[test]
fn a_server_survives_the_death_of_its_warden() {
    survives("SIGKILL of the warden", |helpers| helpers.warden);
}

fn survives(test: &str, victim: fn(Helpers) -> i32) {
    let Some(home) = Home::for_root(test) else {
        return;
    };
    let mut server = Server::start(&home);
    let calls = begin_lasting(&mut server, 3);
    kill_process(victim(server.helpers()));
    for call in calls {
        let told = server.told(call);
        let lost = told["ended_by"] == "runtime_lost"
            || (told["error"]["kind"] == "unavailable" && told["error"]["hint"].is_string());
        assert!(lost, "{told:#}");
    }
    server.expect_new_nursery();
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.expect_rest();
    server.close();
}

/// How long the helpers may owe an answer and say nothing.
const SILENCE: Duration = Duration::from_secs(15);

/// How long a creator may take.
const CREATION: Duration = Duration::from_secs(6);

/// How long the server waits for a warden that should end.
const FAREWELL: Duration = Duration::from_secs(5);

fn stop_process(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
}

#[test]
fn a_nursery_that_hangs_is_replaced() {
    outlasts("SIGSTOP of the nursery", |helpers| vec![helpers.nursery]);
}

#[test]
fn a_nursery_that_hangs_with_its_warden_is_replaced() {
    let both = |Helpers { warden, nursery }| vec![warden, nursery];
    outlasts("SIGSTOP of warden and nursery", both);
}

fn outlasts(test: &str, victims: fn(Helpers) -> Vec<i32>) {
    let Some(home) = Home::for_root(test) else {
        return;
    };
    let mut server = Server::start(&home);
    let call = begin_lasting(&mut server, 1)[0];
    let asked = Instant::now();
    victims(server.helpers()).into_iter().for_each(stop_process);
    let told = server.call(json!({"code": "6*7"}));
    assert_eq!(told["error"]["kind"], "unavailable", "{told:#}");
    assert!(told["error"]["hint"].is_string(), "{told:#}");
    let told = server.told(call);
    assert_eq!(told["ended_by"], "runtime_lost", "{told:#}");
    expect_within(asked, SILENCE + FAREWELL + SLACK);
    server.expect_new_nursery();
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.expect_rest();
    server.close();
}

#[test]
fn a_server_ends_although_its_helpers_hang() {
    let Some(home) = Home::for_root("the end of a server with stopped helpers") else {
        return;
    };
    let mut server = Server::start(&home);
    begin_lasting(&mut server, 1);
    let Helpers { warden, nursery } = server.helpers();
    [warden, nursery].into_iter().for_each(stop_process);
    let asked = Instant::now();
    server.hang_up();
    let (status, _) = server.end();
    expect_within(asked, STOP + SILENCE + FAREWELL + SLACK);
    assert!(status.success(), "{status}");
    home.expect_nothing_left();
}

/// The creator that waits; not this one.
fn waiting_creator(home: &Home, nursery: i32, not: &[i32]) -> i32 {
    wait_until(STOP + SLACK, || {
        let census = home.census();
        let mut below = census.below(nursery).into_iter().map(|process| process.pid);
        let creator = below.find(|pid| !not.contains(pid));
        creator.ok_or_else(|| "no creator waits".to_owned())
    })
}

#[test]
fn an_order_outlives_its_creator() {
    let Some(home) = Home::for_root("a creator that dies with its order") else {
        return;
    };
    let mut server = Server::start(&home);
    assert_eq!(server.call(json!({"code": "1"}))["result"], 1);
    let Helpers { nursery, .. } = server.helpers();
    server.expect_rest();
    // One is killed; one hangs, and is killed by the nursery.
    for hangs in [false, true] {
        let creator = waiting_creator(&home, nursery, &[]);
        stop_process(creator);
        let asked = Instant::now();
        let call = server.begin_call(json!({"code": "6*7"}));
        // Once another one waits, this one has its order.
        waiting_creator(&home, nursery, &[creator]);
        if !hangs {
            kill_process(creator);
        }
        let told = server.told(call);
        assert_eq!(told["result"], 42, "{told:#}");
        let limit = if hangs { CREATION } else { Duration::ZERO };
        expect_within(asked, limit + STOP + SLACK);
        server.expect_rest();
    }
    server.close();
}

#[test]
fn creators_that_die_at_once_are_not_replaced_at_once() {
    let Some(home) = Home::for_root("SIGKILL of each waiting creator") else {
        return;
    };
    let mut server = Server::start(&home);
    assert_eq!(server.call(json!({"code": "1"}))["result"], 1);
    let Helpers { nursery, .. } = server.helpers();
    server.expect_rest();
    let until = Instant::now() + Duration::from_secs(3);
    let mut killed = Vec::new();
    while Instant::now() < until {
        let census = home.census();
        let next = census.below(nursery).into_iter().map(|p| p.pid);
        for creator in next.filter(|pid| !killed.contains(pid)).collect::<Vec<_>>() {
            let _ = kill(Pid::from_raw(creator), Signal::SIGKILL);
            killed.push(creator);
        }
    }
    // 2 ms doubled ten times is 2 s.
    assert!((5..=12).contains(&killed.len()), "{}", killed.len());
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.expect_rest();
    server.close();
}

#[test]
fn a_creator_that_dies_is_replaced() {
    let Some(home) = Home::for_root("SIGKILL of the waiting creator") else {
        return;
    };
    let mut server = Server::start(&home);
    assert_eq!(server.call(json!({"code": "1"}))["result"], 1);
    let Helpers { nursery, .. } = server.helpers();
    let creator = wait_until(STOP, || {
        let census = home.census();
        let child = census.below(nursery).first().map(|process| process.pid);
        child.ok_or_else(|| "no creator waits".to_owned())
    });
    kill_process(creator);
    // Not before: an order that it has in hands when it dies cannot be carried out.
    wait_until(STOP, || match Process::read(creator) {
        None => Ok(()),
        Some(there) => Err(format!("{there:?}")),
    });
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.expect_rest();
    server.close();
}

/// The next order is not what makes the new one: it would have to wait for it.
#[test]
fn a_creator_that_dies_is_replaced_before_it_is_needed() {
    let Some(home) = Home::for_root("SIGKILL of the waiting creator, and no call") else {
        return;
    };
    let mut server = Server::start(&home);
    assert_eq!(server.call(json!({"code": "1"}))["result"], 1);
    let Helpers { nursery, .. } = server.helpers();
    server.expect_rest();
    let another_than = |dead: Option<i32>| {
        wait_until(STOP, || {
            let census = home.census();
            let mut waiting = census.below(nursery).into_iter().map(|process| process.pid);
            let creator = waiting.find(|pid| Some(*pid) != dead);
            creator.ok_or_else(|| "no creator waits".to_owned())
        })
    };
    let creator = another_than(None);
    kill_process(creator);
    another_than(Some(creator));
    server.expect_rest();
    server.close();
}

#[test]
fn sigterm_ends_a_server_in_good_order() {
    let Some(home) = Home::for_root("SIGTERM of the server") else {
        return;
    };
    let mut server = Server::start(&home);
    let calls = begin_lasting(&mut server, 2);
    let asked = Instant::now();
    server.signal(Signal::SIGTERM);
    let (status, rest) = server.end();
    expect_within(asked, STOP + SLACK);
    assert!(status.success(), "{status}");
    for message in rest
        .iter()
        .filter(|message| calls.iter().any(|id| message["id"] == *id))
    {
        assert_eq!(message["result"]["isError"], true, "{message}");
    }
    home.expect_nothing_left();
    expect_ended_as(&home, "cancelled", 2);
}

#[test]
fn a_server_whose_log_nobody_reads_serves_on() {
    let Some(home) = Home::for_root("standard error that nobody reads") else {
        return;
    };
    // Standard error is a full pipe whose other end is the server's own.
    let fill = "mkfifo given/log && exec 3<>given/log && \
                (dd if=/dev/zero bs=4096 count=64 >&3 2>/dev/null & sleep 1; kill $!) && \
                exec \"$0\" --log-level trace serve 2>&3";
    home.file("log.txt", "");
    let mut command = Command::new("/bin/bash");
    home.furnish(&mut command);
    command.args(["-c", fill, BINARY]);
    let mut server = Server::spawn(&home, command);
    for _ in 0..3 {
        assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    }
    server.hang_up();
    assert!(server.end().0.success());
    fs::remove_file(home.path().join("given/log")).unwrap();
    home.expect_nothing_left();
}

#[test]
fn a_signal_ends_a_command_in_good_order() {
    let Some(home) = Home::for_root("signals to mcp-forge run") else {
        return;
    };
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let _ = fs::remove_file(home.audit_path());
        let finished = signalled(&home, &[BINARY], signal, 1000);
        assert_eq!(finished.code(), 128 + signal as i32, "{finished:?}");
        let told: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(told["ended_by"], "cancelled", "{told:#}");
        assert_eq!(told["stdout"], "begun\n", "{told:#}");
        home.expect_nothing_left();
        let lines = home.audit();
        let events: Vec<_> = lines.iter().map(|line| &line["event"]).collect();
        assert_eq!(
            events[3..],
            [
                "sandbox.verdict",
                "execution.result",
                "container.stop",
                "container.remove"
            ],
            "{lines:#?}"
        );
        expect_ended_as(&home, "cancelled", 1);
    }
    // Whoever starts it may want one to be ignored.
    let finished = signalled(&home, &["nohup", BINARY], Signal::SIGHUP, 1);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let told: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(told["result"], 42, "{told:#}");
}

/// What `run --json` makes of a signal that comes while its program runs, which takes some seconds.
fn signalled(home: &Home, program: &[&str], signal: Signal, seconds: u32) -> Finished {
    let code = format!(
        "import os, time\n\
         print('begun', flush=True)\n\
         if os.fork() == 0: time.sleep({seconds}); os._exit(0)\n\
         time.sleep({seconds})\n\
         42"
    );
    let mut command = Command::new(program[0]);
    home.furnish(&mut command);
    command
        .args(&program[1..])
        .args(["run", "--json", "-c", &code])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    wait_until(SOON, || match home.census().programs() {
        2 => Ok(()),
        running => Err(format!("{running} programs run")),
    });
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    let status = end_of(&mut child);
    Finished {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

#[test]
fn a_client_that_hangs_up_ends_its_runs() {
    let Some(home) = Home::for_root("the end of standard input") else {
        return;
    };
    let mut server = Server::start(&home);
    begin_lasting(&mut server, 2);
    let asked = Instant::now();
    server.hang_up();
    let (status, _) = server.end();
    expect_within(asked, STOP + SLACK);
    assert!(status.success(), "{status}");
    home.expect_nothing_left();
    expect_ended_as(&home, "cancelled", 2);
}

#[test]
fn a_cancelled_call_ends_and_is_not_answered() {
    let Some(home) = Home::for_root("notifications/cancelled") else {
        return;
    };
    let mut server = Server::with(&home, &[("EXECUTION__CONCURRENCY", "1")]);
    let call = begin_lasting(&mut server, 1)[0];
    server.notify(
        "notifications/cancelled",
        json!({"requestId": call, "reason": "enough"}),
    );
    wait_until(STOP + SLACK, || no_program_runs(&home));
    // The slot is free, and the next answer is the next call's.
    let next = server.begin_call(json!({"code": "6*7"}));
    let (answered, message) = server.any_answer();
    assert_eq!(answered, next, "{message}");
    assert_eq!(message["result"]["structuredContent"]["result"], 42);
    server.expect_rest();
    server.hang_up();
    let (status, rest) = server.end();
    assert!(status.success(), "{status}");
    assert!(
        rest.iter().all(|message| message["id"] != call),
        "{rest:#?}"
    );
    home.expect_nothing_left();
    expect_ended_as(&home, "cancelled", 1);
}

#[test]
fn a_call_that_is_cancelled_while_it_waits_never_starts() {
    let Some(home) = Home::for_root("cancelling a call that waits") else {
        return;
    };
    let mut server = Server::with(&home, &[("EXECUTION__CONCURRENCY", "1")]);
    let first = begin_lasting(&mut server, 1)[0];
    let waiting = server.begin_call(json!({"code": "print('never')"}));
    for id in [waiting, first] {
        server.notify("notifications/cancelled", json!({"requestId": id}));
    }
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.close();
    let made = home
        .audit()
        .iter()
        .filter(|line| line["event"] == "container.create")
        .count();
    assert_eq!(made, 2, "the first and the last");
}

#[track_caller]
fn expect_within(since: Instant, limit: Duration) {
    let took = since.elapsed();
    assert!(took <= limit, "it took {took:?}, not {limit:?}");
}

/// The audit log has so many results of this kind.
#[track_caller]
fn expect_ended_as(home: &Home, ended_by: &str, count: usize) {
    let lines = home.audit();
    let ended = |line: &&Value| {
        line["event"] == "execution.result" && line["details"]["ended_by"] == ended_by
    };
    assert_eq!(lines.iter().filter(ended).count(), count, "{lines:#?}");
}
