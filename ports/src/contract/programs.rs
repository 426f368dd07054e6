//! How programs run and end.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::subject::{file, job, limits, ok};
use super::{Subject, contract};
use crate::vocabulary::{GuestJob, Language, SandboxExit};

contract! {
    a_value_comes_back: Programs,
    an_exit_status_comes_back: Programs,
    a_signal_comes_back: Programs,
    an_exception_comes_back: Programs,
    an_interrupt_is_an_exception: Programs,
    a_kill_by_the_agent_ends_the_program: Programs,
    a_kill_ends_every_process: Programs,
    what_outlives_the_program_ends_with_it: Programs,
    the_end_of_the_program_is_the_end_of_the_sandbox: Programs,
    the_clock_is_that_of_the_host: Programs,
    files_go_in: Programs,
    files_come_out: Programs,
    files_of_odd_names_come_out: Programs,
    a_run_in_r: Programs,
    several_programs_run_at_once: Programs,
    cpu_time_is_counted: Limits,
    memory_is_counted: Limits,
}

async fn a_value_comes_back(s: Subject) {
    assert_eq!(s.run("6 * 7").await.value.as_deref(), Some("42"));
}

async fn an_exit_status_comes_back(s: Subject) {
    for status in [0, 1, 3, 125, 137, 255] {
        let ran = s
            .run_job(job(&format!("import sys\nsys.exit({status})")))
            .await;
        assert_eq!(ran.status(), SandboxExit::Exited(status));
    }
}

async fn a_signal_comes_back(s: Subject) {
    for signal in [9, 11, 15] {
        let code = format!(
            "import os, signal\nsignal.signal({signal}, signal.SIG_DFL) if {signal} != 9 else 0\nos.kill(os.getpid(), {signal})"
        );
        let ran = s.run_job(job(&code)).await;
        assert_eq!(ran.status(), SandboxExit::Signaled(signal));
    }
}

async fn an_exception_comes_back(s: Subject) {
    let ran = s.run_job(job("raise ValueError('no such thing')")).await;
    assert_eq!(ran.error.as_deref(), Some("ValueError: no such thing"));
    assert_eq!(ran.status(), SandboxExit::Exited(1));
}

const SLEEPS: &str = "import time\nprint('up', flush=True)\ntime.sleep(60)";

async fn an_interrupt_is_an_exception(s: Subject) {
    let mut live = s.begin(limits(), job(SLEEPS)).await;
    live.printed("up").await;
    ok(live.run.interrupt().await);
    let ran = live.rest().await;
    assert!(
        ran.error
            .as_deref()
            .is_some_and(|e| e.starts_with("KeyboardInterrupt")),
        "{ran:?}"
    );
    s.remove(&live.id).await;
}

async fn a_kill_by_the_agent_ends_the_program(s: Subject) {
    let mut live = s.begin(limits(), job(SLEEPS)).await;
    live.printed("up").await;
    ok(live.run.kill().await);
    assert_eq!(live.rest().await.status(), SandboxExit::Signaled(9));
    s.remove(&live.id).await;
}

/// Processes that leave their parent, their group and their session, and hold the streams.
const TREE: &str = "import os, signal, time\n\
    for _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n        \
    if os.fork() == 0: time.sleep(600)\n        time.sleep(600)\n\
    time.sleep(0.2)\nprint('up', flush=True)\n";

async fn a_kill_ends_every_process(s: Subject) {
    let mut live = s
        .begin(limits(), job(&format!("{TREE}time.sleep(600)")))
        .await;
    live.printed("up").await;
    // Returns when none is left: the streams, which they hold, have ended.
    ok(s.runtime.kill(&live.id).await);
    live.rest().await;
    ok(s.runtime.wait(&live.id).await);
    s.remove(&live.id).await;
}

async fn what_outlives_the_program_ends_with_it(s: Subject) {
    let ran = s.run_job(job(TREE)).await;
    assert_eq!(ran.status(), SandboxExit::Exited(0));
}

async fn the_end_of_the_program_is_the_end_of_the_sandbox(s: Subject) {
    let mut live = s.begin(limits(), job("1")).await;
    live.rest().await;
    let exit = tokio::time::timeout(Duration::from_secs(10), s.runtime.wait(&live.id)).await;
    assert_eq!(ok(exit.expect("it has ended")), SandboxExit::Exited(0));
    s.remove(&live.id).await;
}

async fn the_clock_is_that_of_the_host(s: Subject) {
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64()
    };
    let before = now();
    let inside: f64 = s
        .prints("import time\nprint(time.time())")
        .await
        .trim()
        .parse()
        .unwrap();
    // Engines may run in a machine of their own, whose clock drifts.
    assert!(
        inside > before - 2.0 && inside < now() + 2.0,
        "{before} {inside}"
    );
}

async fn files_go_in(s: Subject) {
    let all: Vec<u8> = (0..=255).collect();
    let code = "import os\nprint(open('a.bin', 'rb').read() == bytes(range(256)), open('d/e/f').read())\n\
                print(sorted(os.listdir('.')), os.getcwd())";
    let ran = s
        .run_with_files(code, vec![file("a.bin", all), file("d/e/f", "text")])
        .await;
    assert_eq!(ran.text(), "True text\n['a.bin', 'd'] /workspace\n");
}

async fn files_come_out(s: Subject) {
    let code = "import os\nos.makedirs('d/e')\nopen('d/e/big', 'wb').write(b'z' * 1000000)\nopen('x', 'w')";
    let ran = s.run_with_files(code, vec![file("unchanged", "u")]).await;
    let files: Vec<(&str, usize)> = ran.files.iter().map(|(p, d)| (&**p, d.len())).collect();
    assert_eq!(files, [("d/e/big", 1_000_000), ("x", 0)]);
    assert!(ran.files["d/e/big"].iter().all(|byte| *byte == b'z'));
}

async fn files_of_odd_names_come_out(s: Subject) {
    let names = ["a b", "é ü", "-rf", "$(id)", "'\"", "..."];
    let code = format!("for n in {names:?}: open(n, 'w').write(n)");
    let ran = s.run_with_files(&code, Vec::new()).await;
    for name in names {
        assert_eq!(
            ran.files.get(name).map(Vec::as_slice),
            Some(name.as_bytes()),
            "{ran:?}"
        );
    }
}

async fn a_run_in_r(s: Subject) {
    let job = GuestJob {
        language: Language::R,
        source_name: "case.R".to_owned(),
        ..job("cat('r\\n')\n6 * 7")
    };
    let ran = s.run_job(job).await;
    assert_eq!(ran.value.as_deref(), Some("[1] 42"), "{ran:?}");
}

async fn several_programs_run_at_once(s: Subject) {
    let all: Vec<_> = (0..6)
        .map(|n| {
            let s = s.clone();
            tokio::spawn(async move { (n, s.prints(&format!("print({n} * 1000)")).await) })
        })
        .collect();
    for one in all {
        let (n, told) = one.await.unwrap();
        assert_eq!(told, format!("{}\n", n * 1000));
    }
}

/// What is counted of a program that waits for the end of its input before it ends.
async fn counted(s: &Subject, code: &str) -> crate::vocabulary::SandboxUsage {
    let mut live = s
        .begin(
            limits(),
            job(&format!(
                "{code}\nprint('up', flush=True)\nimport time\ntime.sleep(60)"
            )),
        )
        .await;
    live.printed("up").await;
    let usage = ok(s.runtime.usage(&live.id).await);
    s.remove(&live.id).await;
    usage
}

async fn cpu_time_is_counted(s: Subject) {
    let busy = counted(
        &s,
        "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass",
    )
    .await;
    let cpu = busy.cpu.expect("CPU time");
    assert!(
        cpu >= Duration::from_millis(450) && cpu < Duration::from_secs(20),
        "{cpu:?}"
    );
}

async fn memory_is_counted(s: Subject) {
    let usage = counted(&s, "x = b'x' * (64 << 20)\ndel x").await;
    let peak = usage.peak_memory_bytes.expect("peak memory");
    assert!((64 << 20..=256 << 20).contains(&peak), "{peak}");
}
