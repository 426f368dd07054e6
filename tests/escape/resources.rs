//! Resources: bounded for each sandbox, told truthfully, and no neighbour is harmed.
//!
//! Not repeated here: `tests/sandbox/endings.rs` has fork bombs (also beside a neighbour, and on a
//! small CPU quota), children that stay, threads, zombies, memory in objects, files, unnamed files
//! and children, full disks and empty files, floods of output, every way to ignore a time limit;
//! `tests/sandbox/reports.rs` forged and endless reports; `tests/sandbox/files.rs` sparse files on
//! their way out.

use std::fs;

use serde_json::{Value, json};

use crate::host::note;
use crate::place::everywhere;
use crate::verdict::RESOURCES;

#[test]
fn what_is_counted_ends() {
    everywhere("counted resources", |place| {
        place.expect_refused(&RESOURCES)
    });
}

/// Works for some seconds and tells the longest pause between two steps.
const NEIGHBOUR: &str = "
import os, time
print('here', flush=True)
start, last, pause, steps = time.monotonic(), time.monotonic(), 0, 0
while os.path.exists('/tmp') and time.monotonic() - start < 12:
    with open('/tmp/file', 'w') as file: file.write(str(steps))
    assert open('/tmp/file').read() == str(steps)
    if os.fork() == 0: os._exit(0)
    assert os.wait()[1] == 0
    now = time.monotonic()
    last, pause, steps = now, max(pause, now - last), steps + 1
[steps > 100, pause < 5]
";

/// Bombs, and what must be told of each.
const BOMBS: [(&str, &str, &str, &str); 7] = [
    (
        "memory",
        "x = []\nwhile True: x.append(bytes(1 << 20) + b'x')",
        "oom",
        "",
    ),
    (
        "memory and swap",
        "import mmap\nx = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096): x[at] = 1",
        "oom",
        "",
    ),
    (
        "descriptors",
        "import os\nwhile True: os.dup(0)",
        "error",
        "[Errno 24]",
    ),
    (
        "bytes in /tmp",
        "open('/tmp/x', 'wb').write(bytes(70 << 20))",
        "error",
        "[Errno 28]",
    ),
    (
        "threads",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "pids",
        "",
    ),
    (
        "output",
        "while True: print('x' * 65_536)",
        "output_limit",
        "",
    ),
    (
        "a zip bomb",
        "import zipfile\n\
         with zipfile.ZipFile('/tmp/z', 'w', 8, compresslevel=1) as z, z.open('x', 'w') as m:\n\
         \x20   for _ in range(80): m.write(bytes(1 << 20))\n\
         zipfile.ZipFile('/tmp/z').extractall('/tmp')",
        "error",
        "[Errno 28]",
    ),
];

#[test]
fn bombs_leave_a_neighbour_alone() {
    everywhere("bombs beside a neighbour", |place| {
        let mut server = place.server(&[]);
        let neighbour = server.begin_until(NEIGHBOUR, "here");
        for (name, code, ended_by, message) in BOMBS {
            // Enough for a full /tmp, which counts as memory.
            let told = server.call(json!({"code": code, "memory": "128m", "timeout": 30}));
            assert_eq!(told["ended_by"], ended_by, "{name}: {told:#}");
            assert_eq!(told["success"], false, "{name}: {told:#}");
            let said = told["error"]["message"].as_str().unwrap_or_default();
            assert!(said.contains(message), "{name}: {told:#}");
            let peak = told["usage"]["peak_memory_bytes"].as_u64();
            // After the end an engine tells nothing more, and what counts then is the memory of the
            // largest process, with pages that are charged to others.
            let most = if place.is_engine() { 160 } else { 128 };
            assert!(peak <= Some(most << 20), "{name}: {told:#}");
        }
        let told = server.told(neighbour);
        assert_eq!(told["result"], json!([true, true]), "{told:#}");
        place.expect_rest(&server);
        server.close();
    });
}

/// Limits as the kernel has them, read on the host.
#[test]
fn memory_is_limited_together_with_swap() {
    everywhere("memory and swap on the host", |place| {
        let mut server = place.server(&[("EXECUTION__CONCURRENCY", "1")]);
        let code = "print('here', flush=True)\nimport time; time.sleep(1000)";
        let running = server.begin_until(code, "here");
        let census = place.home.census();
        let found: Vec<Value> = census
            .ours()
            .filter(|process| census.in_sandbox(process))
            .filter_map(|process| {
                let groups = fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).ok()?;
                groups.lines().find_map(swap)
            })
            .collect();
        assert!(
            !found.is_empty(),
            "no process in a sandbox has a memory group"
        );
        for limits in &found {
            assert_eq!(limits["memory"], 512 << 20, "{found:?}");
            if limits["with swap"].is_null() {
                note("NO CONTROL swap: this kernel does not count it");
            } else {
                assert_eq!(limits["with swap"], 512 << 20, "{found:?}");
            }
        }
        server.notify("notifications/cancelled", json!({"requestId": running}));
        place.expect_rest(&server);
        server.close();
    });
}

/// The limits of the group in a line of /proc/PID/cgroup, when it is one of memory.
fn swap(line: &str) -> Option<Value> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let number = |dir: &str, name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/sys/fs/cgroup{dir}{path}/{name}")).ok()?;
        text.trim().parse().ok()
    };
    if controllers.split(',').any(|name| name == "memory") {
        let memory = number("/memory", "memory.limit_in_bytes")?;
        let both = number("/memory", "memory.memsw.limit_in_bytes");
        return Some(json!({"memory": memory, "with swap": both}));
    }
    let memory = number("", "memory.max")?;
    let both = number("", "memory.swap.max").map(|swap| memory + swap);
    Some(json!({"memory": memory, "with swap": both}))
}
