//! Limits that bite.

use super::subject::{job, limits, ok};
use super::{Subject, contract};
use crate::vocabulary::{ResourceLimits, SandboxExit};

contract! {
    the_memory_limit_kills_and_is_counted: Limits,
    the_memory_limit_holds_for_all_processes_together: Limits,
    memory_within_the_limit_is_given: Programs,
    the_pids_limit_refuses_and_is_counted: Limits,
    threads_count_as_processes: Limits,
    the_cpu_limit_slows_down: Limits,
    the_descriptor_limit_refuses: Programs,
    a_full_tmp_is_told: Programs,
    a_full_workspace_is_told: Programs,
    empty_files_are_bounded: Limits,
    shared_memory_is_bounded: Programs,
    limits_of_one_are_not_those_of_another: Limits,
}

async fn the_memory_limit_kills_and_is_counted(s: Subject) {
    let limits = ResourceLimits {
        memory_bytes: 64 << 20,
        ..limits()
    };
    let mut live = s
        .begin(limits, job("x = bytearray(200 << 20)\nprint(len(x))"))
        .await;
    let ran = live.rest().await;
    let usage = ok(s.runtime.usage(&live.id).await);
    assert_eq!(
        ran.exit.map(|exit| exit.status),
        Some(SandboxExit::Signaled(9)),
        "{ran:?}"
    );
    assert!(usage.oom_kills >= 1, "{usage:?}");
    s.remove(&live.id).await;
}

async fn the_memory_limit_holds_for_all_processes_together(s: Subject) {
    let limits = ResourceLimits {
        memory_bytes: 96 << 20,
        ..limits()
    };
    let code = "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        x = bytearray(30 << 20)\n        \
                time.sleep(600)\ntime.sleep(2)\nprint('up', flush=True)\ntime.sleep(600)";
    let mut live = s.begin(limits, job(code)).await;
    // Whoever it hits, somebody is killed.
    for _ in 0..200 {
        if ok(s.runtime.usage(&live.id).await).oom_kills > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let next = live.run.next_event();
        let _ = tokio::time::timeout(std::time::Duration::from_millis(1), next).await;
    }
    assert!(ok(s.runtime.usage(&live.id).await).oom_kills >= 1);
    s.remove(&live.id).await;
}

async fn memory_within_the_limit_is_given(s: Subject) {
    assert_eq!(
        s.prints("print(len(b'x' * (150 << 20)))").await,
        "157286400\n"
    );
}

const FORKS: &str = "import os, time\nmade = 0\ntry:\n    for _ in range(100):\n        if os.fork() == 0: time.sleep(600)\n        \
    made += 1\nexcept BlockingIOError as e:\n    print(made, e.errno, flush=True)\n";

async fn the_pids_limit_refuses_and_is_counted(s: Subject) {
    let limits = ResourceLimits {
        pids: 16,
        ..limits()
    };
    let mut live = s
        .begin(limits, job(&format!("{FORKS}time.sleep(600)")))
        .await;
    live.printed(" 11\n").await;
    let usage = ok(s.runtime.usage(&live.id).await);
    assert!(usage.pids_refused >= 1, "{usage:?}");
    s.remove(&live.id).await;
}

async fn threads_count_as_processes(s: Subject) {
    let limits = ResourceLimits {
        pids: 16,
        ..limits()
    };
    let code = "import threading, time\nmade = 0\ntry:\n    for _ in range(100):\n        \
                threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n        made += 1\n\
                except RuntimeError: print(made < 16, flush=True)";
    let mut live = s.begin(limits, job(code)).await;
    let ran = live.rest().await;
    assert_eq!(ran.text(), "True\n", "{ran:?}");
    s.remove(&live.id).await;
}

/// How much CPU time a busy program gets of a second.
const BUSY: &str = "import time\nbegin, used = time.monotonic(), time.process_time()\n\
    while time.monotonic() < begin + 1: pass\nprint((time.process_time() - used) / (time.monotonic() - begin))";

async fn the_cpu_limit_slows_down(s: Subject) {
    let share = async |cpu_quota| -> f64 {
        let mut live = s
            .begin(
                ResourceLimits {
                    cpu_quota,
                    ..limits()
                },
                job(BUSY),
            )
            .await;
        let ran = live.rest().await;
        s.remove(&live.id).await;
        ran.text().trim().parse().unwrap()
    };
    // Of other loads the first would only become smaller.
    let bounded = share(20_000).await;
    assert!(bounded < 0.4, "{bounded}");
    let free = share(100_000).await;
    assert!(free > bounded, "{free} {bounded}");
}

async fn the_descriptor_limit_refuses(s: Subject) {
    let limits = ResourceLimits {
        descriptors: 32,
        ..limits()
    };
    let code = "import os\nheld = []\ntry:\n    while True: held.append(os.open('/', os.O_RDONLY))\n\
                except OSError as e: print(e.errno, len(held) < 32)";
    let mut live = s.begin(limits, job(code)).await;
    let ran = live.rest().await;
    assert_eq!(ran.text(), "24 True\n", "{ran:?}");
    s.remove(&live.id).await;
}

/// Fills a directory and tells the error and how many MiB were written.
async fn filled(s: &Subject, directory: &str) -> String {
    let code = format!(
        "n = 0\ntry:\n    with open('{directory}/big', 'wb', buffering=0) as f:\n        \
         while n < 100: n += f.write(b'x' * (1 << 20)) >> 20\nexcept OSError as e: print(e.errno, n)"
    );
    s.prints(&code).await
}

async fn a_full_tmp_is_told(s: Subject) {
    assert_eq!(filled(&s, "/tmp").await, "28 8\n");
}

async fn a_full_workspace_is_told(s: Subject) {
    assert_eq!(filled(&s, "/workspace").await, "28 16\n");
}

/// By their number, or by the memory that they are.
async fn empty_files_are_bounded(s: Subject) {
    let limits = ResourceLimits {
        memory_bytes: 64 << 20,
        ..limits()
    };
    let code = "import os\ntry:\n    for n in range(1000000): os.close(os.open(f'/tmp/{n}', os.O_CREAT))\nexcept OSError as e: print(e.errno)";
    let mut live = s.begin(limits, job(code)).await;
    let ran = live.rest().await;
    let usage = ok(s.runtime.usage(&live.id).await);
    let killed = ran.exit.as_ref().map(|exit| exit.status) == Some(SandboxExit::Signaled(9));
    assert!(
        ran.text() == "28\n" || (killed && usage.oom_kills > 0),
        "{ran:?} {usage:?}"
    );
    s.remove(&live.id).await;
}

async fn shared_memory_is_bounded(s: Subject) {
    let told = filled(&s, "/dev/shm").await;
    assert!(told.starts_with("28 ") || told.starts_with("13 "), "{told}");
}

async fn limits_of_one_are_not_those_of_another(s: Subject) {
    let small = ResourceLimits {
        memory_bytes: 64 << 20,
        ..limits()
    };
    let code = "x = b'x' * (100 << 20)\nprint(len(x))";
    let (mut one, mut other) =
        tokio::join!(s.begin(small, job(code)), s.begin(limits(), job(code)));
    let (killed, whole) = tokio::join!(one.rest(), other.rest());
    assert_eq!(
        killed.exit.map(|exit| exit.status),
        Some(SandboxExit::Signaled(9))
    );
    assert_eq!(whole.text(), "104857600\n");
    let usage = ok(s.runtime.usage(&other.id).await);
    assert_eq!(usage.oom_kills, 0);
    s.remove(&one.id).await;
    s.remove(&other.id).await;
}
