//! What goes in and comes out of a program.

use std::time::Duration;

use super::subject::{job, limits, ok};
use super::{Subject, contract};
use crate::vocabulary::{GuestEvent, GuestJob, SandboxExit};

contract! {
    the_agent_greets_first: Programs,
    both_streams_are_told_apart: Programs,
    every_byte_comes_out: Programs,
    a_big_stream_comes_out: Programs,
    a_reader_that_is_slow_gets_everything: Programs,
    a_reader_that_stops_holds_the_program_up: Programs,
    a_big_input_goes_in: Programs,
    every_byte_goes_in: Programs,
    an_empty_input_is_at_its_end: Programs,
    input_that_nobody_reads_harms_nothing: Programs,
    output_before_a_sudden_end_is_not_lost: Programs,
    many_small_writes_keep_their_order: Programs,
}

async fn the_agent_greets_first(s: Subject) {
    let mut live = s.begin(limits(), job("1")).await;
    let first = ok(live.run.next_event().await);
    assert!(matches!(first, Some(GuestEvent::Hello(_))), "{first:?}");
    live.rest().await;
    s.remove(&live.id).await;
}

async fn both_streams_are_told_apart(s: Subject) {
    let ran = s
        .run("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.stderr.flush()")
        .await;
    assert_eq!(
        (ran.text(), ran.stderr.as_slice()),
        ("out\n", &b"err\n"[..])
    );
}

async fn every_byte_comes_out(s: Subject) {
    let ran = s.run("import os\nos.write(1, bytes(range(256)) * 3)").await;
    let expected: Vec<u8> = (0..3).flat_map(|_| 0..=255).collect();
    assert_eq!(ran.stdout, expected);
}

/// Bytes that no compression and no repetition makes alike.
const NOISE: &str = "x = 1\ndef noise(n):\n    global x\n    out = bytearray()\n    for _ in range(n // 8):\n        \
    x = (x * 6364136223846793005 + 1442695040888963407) % 2**64\n        out += x.to_bytes(8, 'little')\n    return bytes(out)\n";

fn noise(bytes: usize) -> Vec<u8> {
    let mut x = 1_u64;
    let next = |_| {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        x.to_le_bytes()
    };
    (0..bytes / 8).flat_map(next).collect()
}

async fn a_big_stream_comes_out(s: Subject) {
    const BYTES: usize = 8 << 20;
    let code = format!("{NOISE}import sys\nsys.stdout.buffer.write(noise({BYTES}))");
    let ran = s.run(&code).await;
    assert_eq!(ran.stdout.len(), BYTES);
    assert!(ran.stdout == noise(BYTES));
}

async fn a_reader_that_is_slow_gets_everything(s: Subject) {
    let code = "import os\nfor _ in range(64): os.write(1, b'x' * 65536)";
    let mut live = s.begin(limits(), job(code)).await;
    let (mut bytes, mut events) = (0, 0);
    while let Some(event) = ok(live.run.next_event().await) {
        if let GuestEvent::Output { bytes: more, .. } = event {
            bytes += more.len();
            events += 1;
            if events % 16 == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    assert_eq!(bytes, 64 * 65536);
    s.remove(&live.id).await;
}

async fn a_reader_that_stops_holds_the_program_up(s: Subject) {
    // More than is on its way anywhere, and less than the memory of the sandbox.
    let code = "import os\nfor _ in range(1024): os.write(1, b'x' * 65536)";
    let mut live = s.begin(limits(), job(code)).await;
    ok(live.run.next_event().await);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let wait = s.runtime.wait(&live.id);
    let ended = tokio::time::timeout(Duration::from_millis(50), wait).await;
    assert!(ended.is_err(), "64 MiB that nobody reads are somewhere");
    let ran = live.rest().await;
    assert_eq!(ran.stdout.len(), 64 << 20);
    s.remove(&live.id).await;
}

fn with_input(code: &str, input: Vec<u8>) -> GuestJob {
    GuestJob {
        stdin: Some(input),
        ..job(code)
    }
}

async fn a_big_input_goes_in(s: Subject) {
    const BYTES: usize = 4 << 20;
    let code = "import sys, hashlib\nprint(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())";
    let there = s.run_job(with_input(code, noise(BYTES))).await;
    let here = format!("{NOISE}import hashlib\nprint(hashlib.sha256(noise({BYTES})).hexdigest())");
    assert_eq!(there.text(), s.prints(&here).await);
    assert_eq!(there.text().len(), 65);
}

async fn every_byte_goes_in(s: Subject) {
    let all: Vec<u8> = (0..=255).collect();
    let code = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())";
    let ran = s.run_job(with_input(code, all.clone())).await;
    assert_eq!(ran.stdout, all);
}

async fn an_empty_input_is_at_its_end(s: Subject) {
    let ran = s
        .run_job(with_input(
            "import sys\nprint(repr(sys.stdin.read()))",
            Vec::new(),
        ))
        .await;
    assert_eq!(ran.text(), "''\n");
}

async fn input_that_nobody_reads_harms_nothing(s: Subject) {
    let ran = s
        .run_job(with_input("print('done')", vec![b'x'; 1 << 20]))
        .await;
    assert_eq!(ran.text(), "done\n");
    assert_eq!(ran.status(), SandboxExit::Exited(0));
}

async fn output_before_a_sudden_end_is_not_lost(s: Subject) {
    let ran = s
        .run_job(job("import os\nos.write(1, b'x' * 300000)\nos._exit(7)"))
        .await;
    assert_eq!(
        (ran.stdout.len(), ran.status()),
        (300_000, SandboxExit::Exited(7))
    );
}

async fn many_small_writes_keep_their_order(s: Subject) {
    let told = s
        .prints("import os\nfor n in range(5000): os.write(1, b'%d\\n' % n)")
        .await;
    let expected: String = (0..5000).map(|n| format!("{n}\n")).collect();
    assert!(told == expected);
}
