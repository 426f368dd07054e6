//! Every way in which a program can end. What is told is true, the slot is free for the next run,
//! and nothing of the sandbox is left.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::Home;
use crate::host::{SOON, memory, note, wait_until};

/// A program and what must be told of it.
struct Case {
    name: &'static str,
    code: &'static str,
    /// Arguments beside the code.
    with: Value,
    ended_by: &'static str,
    exit_code: Option<i64>,
    signal: Option<&'static str>,
    /// What else to look at; names what is wrong.
    check: fn(&Value) -> bool,
}

const ONE_SLOT: (&str, &str) = ("EXECUTION__CONCURRENCY", "1");

/// Runs the cases one after another on one slot. If a run kept it, the next would never end.
fn each_ends_as_told(test: &str, cases: &[Case]) {
    let Some(home) = Home::for_root(test) else {
        return;
    };
    let mut server = Server::with(&home, &[ONE_SLOT]);
    assert_eq!(server.call(json!({"code": "1"}))["result"], 1);
    server.expect_rest();
    for case in cases {
        let mut arguments = case.with.clone();
        arguments["code"] = case.code.into();
        let told = server.call(arguments);
        let name = case.name;
        assert_eq!(told["ended_by"], case.ended_by, "{name}: {told:#}");
        assert_eq!(
            told["success"],
            case.ended_by == "completed",
            "{name}: {told:#}"
        );
        assert_eq!(told["exit_code"], json!(case.exit_code), "{name}: {told:#}");
        assert_eq!(told["signal"], json!(case.signal), "{name}: {told:#}");
        assert_eq!(told["limits"]["enforced"], true, "{name}: {told:#}");
        assert!((case.check)(&told), "{name}: {told:#}");
        server.expect_rest();
    }
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.close();
}

fn anything(_: &Value) -> bool {
    true
}

fn raised(told: &Value, name: &str) -> bool {
    told["error"]["name"] == name
}

#[test]
fn a_time_limit_ends_everything() {
    let one_second = || json!({"timeout": 1});
    each_ends_as_told(
        "time limits",
        &[
            Case {
                name: "a loop is interrupted, and tells where it was",
                code: "print('before')\nwhile True: pass",
                with: one_second(),
                ended_by: "timeout",
                exit_code: Some(130),
                signal: None,
                check: |told| raised(told, "KeyboardInterrupt") && told["stdout"] == "before\n",
            },
            Case {
                name: "a loop that ignores every signal it can is killed",
                code: "import signal\n\
                       for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n\
                       \x20   signal.signal(number, signal.SIG_IGN)\n\
                       print('deaf', flush=True)\n\
                       while True: pass",
                with: one_second(),
                ended_by: "timeout",
                exit_code: None,
                signal: Some("SIGKILL"),
                check: |told| told["stdout"] == "deaf\n",
            },
            Case {
                name: "a program that stops itself is killed",
                code: "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
                with: one_second(),
                ended_by: "timeout",
                exit_code: None,
                signal: Some("SIGKILL"),
                check: anything,
            },
            Case {
                name: "children in sessions of their own end with it",
                code: "import os, signal, time\n\
                       for _ in range(20):\n\
                       \x20   if os.fork() == 0:\n\
                       \x20       os.setsid()\n\
                       \x20       signal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                       \x20       while True: time.sleep(100)\n\
                       signal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                       while True: time.sleep(100)",
                with: one_second(),
                ended_by: "timeout",
                exit_code: None,
                signal: Some("SIGKILL"),
                check: anything,
            },
        ],
    );
}

const CHILDREN_WITH_MEMORY: &str = "import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(32 << 20)
        time.sleep(100)
        os._exit(0)
for _ in range(8):
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
";

#[test]
fn a_memory_limit_kills_and_a_full_disk_is_an_error() {
    let small = || json!({"memory": "64m"});
    let bounded = |told: &Value| told["usage"]["peak_memory_bytes"].as_u64() <= Some(64 << 20);
    let oom = |name, code| Case {
        name,
        code,
        with: small(),
        ended_by: "oom",
        exit_code: None,
        signal: Some("SIGKILL"),
        check: bounded,
    };
    let full = |name, code| Case {
        name,
        code,
        with: json!({}),
        ended_by: "error",
        exit_code: Some(1),
        signal: None,
        check: |told| {
            raised(told, "OSError")
                && told["error"]["message"]
                    .as_str()
                    .is_some_and(|m| m.contains("[Errno 28]"))
        },
    };
    each_ends_as_told(
        "memory limits",
        &[
            oom("one large object", "len(bytearray(512 << 20))"),
            oom(
                "many small objects",
                "x = []\nwhile True: x.append(b'x' * 100_000)",
            ),
            oom(
                "a file in the workspace",
                "with open('/workspace/x', 'wb') as f:\n for _ in range(512): f.write(b'x' * (1 << 20))",
            ),
            oom(
                "a file that has no name",
                "import os\nf = os.memfd_create('x')\nfor _ in range(512): os.write(f, b'x' * (1 << 20))",
            ),
            Case {
                name: "children together: the program lives, and tells of the one that was killed",
                exit_code: Some(1),
                signal: None,
                ..oom("", CHILDREN_WITH_MEMORY)
            },
            full("/tmp", "open('/tmp/x', 'wb').write(b'x' * (100 << 20))"),
            full(
                "/dev/shm",
                "open('/dev/shm/x', 'wb').write(b'x' * (100 << 20))",
            ),
            full(
                "empty files",
                "for n in range(1_000_000): open(f'/tmp/{n}', 'w').close()",
            ),
        ],
    );
}

#[test]
fn processes_and_threads_are_bounded() {
    let pids = |name, code, check| Case {
        name,
        code,
        with: json!({"timeout": 30}),
        ended_by: "pids",
        exit_code: Some(1),
        signal: None,
        check,
    };
    each_ends_as_told(
        "process limits",
        &[
            pids("a fork bomb", "import os\nwhile True: os.fork()", |told| {
                raised(told, "BlockingIOError")
            }),
            pids(
                "children that stay",
                "import os, time\nwhile True:\n if os.fork() == 0: time.sleep(100)",
                |told| raised(told, "BlockingIOError"),
            ),
            pids(
                "threads",
                "import threading, time\n\
                 while True: threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
                |told| raised(told, "RuntimeError"),
            ),
            pids(
                "zombies of its own",
                "import os\nwhile True:\n if os.fork() == 0: os._exit(0)",
                |told| raised(told, "BlockingIOError"),
            ),
            Case {
                name: "orphans that end are cleared away, so they fill no table",
                code: "import os\n\
                       for _ in range(500):\n\
                       \x20   if os.fork() == 0:\n\
                       \x20       if os.fork() == 0: os._exit(0)\n\
                       \x20       os._exit(0)\n\
                       \x20   os.wait()\n\
                       'done'",
                with: json!({"timeout": 60}),
                ended_by: "completed",
                exit_code: Some(0),
                signal: None,
                check: |told| told["result"] == "done",
            },
            Case {
                name: "descriptors",
                code: "import os\nwhile True: os.dup(0)",
                with: json!({}),
                ended_by: "error",
                exit_code: Some(1),
                signal: None,
                check: |told| raised(told, "OSError"),
            },
        ],
    );
}

#[test]
fn a_program_may_end_as_it_likes() {
    let case = |name, code, ended_by, exit_code, signal, check| Case {
        name,
        code,
        with: json!({"timeout": 30}),
        ended_by,
        exit_code,
        signal,
        check,
    };
    let nothing: fn(&Value) -> bool = |told| told["stdout"] == "" && told["stderr"] == "";
    each_ends_as_told(
        "endings",
        &[
            case(
                "sys.exit",
                "import sys; sys.exit(3)",
                "error",
                Some(3),
                None,
                nothing,
            ),
            case(
                "os._exit keeps what was written",
                "import os; print('a'); os._exit(7)",
                "error",
                Some(7),
                None,
                |told| told["stdout"] == "a\n",
            ),
            case(
                "os._exit(0) is an end like any other",
                "import os; os._exit(0)",
                "completed",
                Some(0),
                None,
                nothing,
            ),
            case(
                "a segmentation fault",
                "import ctypes; ctypes.string_at(0)",
                "crashed",
                None,
                Some("SIGSEGV"),
                nothing,
            ),
            case(
                "a signal to itself",
                "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
                "crashed",
                None,
                Some("SIGKILL"),
                nothing,
            ),
            case(
                "every descriptor closed",
                "import os; os.closerange(0, 256)",
                "completed",
                Some(0),
                None,
                nothing,
            ),
            case(
                "every descriptor closed, then an exception",
                "import os\nprint('a')\nos.closerange(0, 256)\n1/0",
                "error",
                Some(1),
                None,
                |told| told["stdout"] == "a\n",
            ),
            case(
                "a daemon thread does not hold it",
                "import threading, time\n\
                 threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n42",
                "completed",
                Some(0),
                None,
                |told| told["result"] == 42,
            ),
            case(
                "orphans end with it, also with its output in their hands",
                "import os, subprocess, time\n\
                 subprocess.Popen(['sleep', '1000'], start_new_session=True)\n\
                 if os.fork() == 0:\n\
                 \x20   os.setsid()\n\
                 \x20   if os.fork() == 0: time.sleep(1000)\n\
                 \x20   os._exit(0)\n\
                 os.wait()\n'done'",
                "completed",
                Some(0),
                None,
                |told| told["result"] == "done" && told["duration_ms"].as_u64() < Some(20_000),
            ),
            case(
                "nobody answers input()",
                "input('name? ')",
                "error",
                Some(1),
                None,
                |told| raised(told, "EOFError") && told["duration_ms"].as_u64() < Some(20_000),
            ),
            case(
                "every process that it may kill, and the first one",
                "import os, signal\n\
                 os.kill(1, signal.SIGKILL)\n\
                 try: os.kill(-1, signal.SIGKILL)\n\
                 except ProcessLookupError: print('alone')",
                "completed",
                Some(0),
                None,
                |told| told["stdout"] == "alone\n",
            ),
            Case {
                name: "input() is answered",
                code: "input() + '!' + input()",
                with: json!({"stdin": "hello\nyou\n"}),
                ended_by: "completed",
                exit_code: Some(0),
                signal: None,
                check: |told| told["result"] == "hello!you",
            },
        ],
    );
}

#[test]
fn a_flood_of_output_is_stopped_with_head_and_tail_kept() {
    let Some(home) = Home::for_root("output limits") else {
        return;
    };
    let mut server = Server::with(&home, &[ONE_SLOT]);
    assert_eq!(server.call(json!({"code": "1"}))["result"], 1);
    server.expect_rest();
    let before = memory(server.pid(), "VmHWM");
    // A gigabyte, if nobody stopped it.
    let code = "for line in range(1 << 14): print(f'{line:07}' + 'x' * 65_528)";
    let told = server.call(json!({"code": code, "timeout": 140, "cpu_quota": 100_000}));
    assert_eq!(told["ended_by"], "output_limit", "{:#}", told["limits"]);
    assert_eq!(told["stdout_truncated"], true);
    let kept = told["stdout"].as_str().unwrap();
    assert!(kept.len() < 1_100_000, "{} bytes are kept", kept.len());
    let lines: Vec<&str> = kept.lines().collect();
    let number = |line: &str| line.get(..7).and_then(|number| number.parse::<u64>().ok());
    assert_eq!(lines.first().copied().and_then(number), Some(0));
    let last = lines.iter().rev().find_map(|line| number(line)).unwrap();
    assert!(last > 900, "the last line kept is {last}");
    let cut = lines
        .iter()
        .position(|line| line.contains("omitted"))
        .expect("a word on what is gone");
    assert!(
        number(lines[cut - 2]) < number(lines[cut + 2]),
        "head and tail around {:?}",
        lines[cut]
    );
    let grown = memory(server.pid(), "VmHWM").saturating_sub(before);
    note(&format!(
        "the server grew by {} KiB over a flood",
        grown >> 10
    ));
    assert!(grown < 32 << 20, "the server grew by {grown} bytes");
    server.expect_rest();
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.close();
}

/// What a hostile program writes comes back as text, whatever it is.
#[test]
fn any_bytes_come_back_as_text() {
    let Some(home) = Home::for_root("output that is no text") else {
        return;
    };
    let mut server = Server::start(&home);
    let code = "import os\n\
                os.write(1, b'\\xff\\x00\\x1b]52;c;aGk=\\x07\\n{\"jsonrpc\": \"2.0\"}\\n' + bytes(range(128, 256)))\n\
                os.write(2, b'x' * 300_000)";
    let told = server.call(json!({"code": code}));
    assert_eq!(told["ended_by"], "completed");
    assert_eq!(told["stdout_not_utf8"], true);
    assert!(
        told["stdout"]
            .as_str()
            .unwrap()
            .contains("{\"jsonrpc\": \"2.0\"}\n")
    );
    assert_eq!(told["stderr_truncated"], true);
    server.close();
}

#[test]
fn a_fork_bomb_harms_nobody_else() {
    let Some(home) = Home::for_root("a fork bomb beside others") else {
        return;
    };
    let mut server = Server::start(&home);
    let code = "import os, time\n\
                while True:\n\
                \x20   try: os.fork()\n\
                \x20   except BlockingIOError: pass";
    let bomb = server.begin_call(json!({"code": code, "timeout": 4}));
    let sandboxed = || {
        let census = home.census();
        census
            .ours()
            .filter(|process| census.in_sandbox(process))
            .count()
    };
    // The limit counts the agent too.
    wait_until(SOON, || match sandboxed() {
        count if count >= 90 => Ok(()),
        count => Err(format!("{count} processes so far")),
    });
    for _ in 0..10 {
        let count = sandboxed();
        assert!(count <= 100, "{count} processes in the sandbox");
    }
    let listed = server.request("tools/list", json!({}));
    assert_eq!(listed["result"]["tools"][0]["name"], "execute_python");
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    assert!(Command::new("true").status().unwrap().success());
    assert_eq!(server.told(bomb)["ended_by"], "timeout");
    server.expect_rest();
    server.close();
}

/// Dying takes CPU time as well, and a crowd that has none left would keep its slot meanwhile.
#[test]
fn a_crowd_without_cpu_time_dies_as_soon_as_any() {
    let Some(home) = Home::for_root("a fork bomb on a small CPU quota") else {
        return;
    };
    let mut server = Server::start(&home);
    let code = "import os\n\
                while True:\n\
                \x20   try: os.fork()\n\
                \x20   except BlockingIOError: pass";
    let bomb = json!({"code": code, "timeout": 1, "cpu_quota": 2000});
    let bombs = [(); 4].map(|()| server.begin_call(bomb.clone()));
    for bomb in bombs {
        assert_eq!(server.told(bomb)["ended_by"], "timeout");
    }
    let answered = Instant::now();
    server.expect_rest();
    let took = answered.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "the slots were held for {took:?}"
    );
    server.close();
}

/// What is shown waits for the agent's word that it was taken.
#[test]
fn a_program_that_shows_something_goes_on() {
    let Some(home) = Home::for_root("displays") else {
        return;
    };
    let mut server = Server::start(&home);
    let code = "class Shown:\n\
                \x20   def _repr_html_(self): return '<b>shown</b>'\n\
                for count in range(3):\n\
                \x20   print(count)\n\
                \x20   display(Shown())\n\
                6*7";
    let told = server.call(json!({"code": code, "timeout": 20}));
    assert_eq!(told["ended_by"], "completed", "{told:#}");
    assert_eq!(
        (&told["stdout"], &told["stderr"], &told["result"]),
        (&json!("0\n1\n2\n"), &json!(""), &json!(42))
    );
    server.expect_rest();
    server.close();
}

/// A program that is asked to end gets the time to say so, and not more.
#[test]
fn an_interrupted_program_may_still_speak() {
    let Some(home) = Home::for_root("the grace of a time limit") else {
        return;
    };
    let mut server = Server::with(&home, &[ONE_SLOT]);
    let code = "import time\n\
                try: time.sleep(100)\n\
                finally:\n\
                \x20   print('tidied', flush=True)\n\
                \x20   time.sleep(100)\n\
                \x20   print('never')";
    let told = server.call(json!({"code": code, "timeout": 1}));
    assert_eq!(
        (&told["ended_by"], &told["stdout"]),
        (&json!("timeout"), &json!("tidied\n"))
    );
    let took = Duration::from_millis(told["duration_ms"].as_u64().unwrap());
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(20),
        "{took:?}"
    );
    server.expect_rest();
    server.close();
}
