//! How programs end by themselves, and what is told of them.

use mcp_forge_ports::PortErrorKind;
use mcp_forge_ports::testing::RuntimeCall;
use mcp_forge_ports::vocabulary::{
    EndedBy, GuestEvent, OutputBlock, OutputStream, RunEvent, SandboxExit, SandboxUsage, Severity,
};
use serde_json::json;

use super::*;

fn counted(oom_kills: u64, pids_refused: u64) -> SandboxUsage {
    SandboxUsage {
        oom_kills,
        pids_refused,
        ..SandboxUsage::default()
    }
}

#[tokio::test]
async fn every_end_is_told_with_its_status() {
    use EndedBy::{Completed, Crashed, Error, Oom, Pids};
    let raised = || GuestStep::error("ValueError", "no");
    type Case = (
        Vec<GuestStep>,
        SandboxUsage,
        EndedBy,
        Option<i32>,
        Option<&'static str>,
    );
    let cases: [Case; 9] = [
        (
            vec![GuestStep::exit(0)],
            counted(0, 0),
            Completed,
            Some(0),
            None,
        ),
        (
            vec![GuestStep::exit(3)],
            counted(0, 0),
            Error,
            Some(3),
            None,
        ),
        (
            vec![raised(), GuestStep::exit(1)],
            counted(0, 0),
            Error,
            Some(1),
            None,
        ),
        (
            vec![GuestStep::signal(11)],
            counted(0, 0),
            Crashed,
            None,
            Some("SIGSEGV"),
        ),
        (
            vec![GuestStep::signal(9)],
            counted(0, 0),
            Crashed,
            None,
            Some("SIGKILL"),
        ),
        (
            vec![GuestStep::signal(9)],
            counted(1, 0),
            Oom,
            None,
            Some("SIGKILL"),
        ),
        (vec![GuestStep::exit(1)], counted(1, 0), Oom, Some(1), None),
        (
            vec![raised(), GuestStep::exit(1)],
            counted(0, 5),
            Pids,
            Some(1),
            None,
        ),
        (
            vec![GuestStep::exit(0)],
            counted(1, 5),
            Completed,
            Some(0),
            None,
        ),
    ];
    within(async {
        for (steps, usage, ended_by, exit_code, signal) in cases {
            let mut script = vec![GuestStep::hello(), GuestStep::stdout("out")];
            script.extend(steps);
            let world = World::new(script);
            world.runtime.set_usage(usage);
            let outcome = world.outcome().await;
            assert_eq!(outcome.ended_by, ended_by, "{outcome:?}");
            assert_eq!(outcome.exit_code, exit_code, "{outcome:?}");
            assert_eq!(outcome.signal.as_deref(), signal, "{outcome:?}");
            assert_eq!(outcome.stdout, "out");
            assert_eq!(outcome.success(), ended_by == Completed);
            let entry = world.entry(AuditKind::ExecutionResult);
            assert_eq!(entry.details["ended_by"], ended_by.as_str());
            assert_eq!(entry.success, Some(ended_by == Completed));
            let routine = matches!(ended_by, Completed | Error);
            assert_eq!(entry.severity == Severity::Info, routine);
        }
    })
    .await;
}

#[tokio::test]
async fn an_outcome_holds_everything_in_order() {
    within(async {
        let world = World::new([
            GuestStep::hello(),
            GuestStep::stdout("a\n"),
            GuestStep::stderr("w\n"),
            GuestStep::stdout(b"\xff".to_vec()),
            GuestStep::value(Some(json!([1])), "[1]"),
            GuestStep::error("E", "m"),
            GuestStep::exit(1),
        ]);
        let outcome = world.outcome().await;
        let error = outcome.error.clone().unwrap();
        assert_eq!((error.name.as_str(), error.message.as_str()), ("E", "m"));
        assert_eq!(
            outcome.blocks,
            [
                OutputBlock::Stream {
                    stream: OutputStream::Stdout,
                    text: "a\n".into()
                },
                OutputBlock::Stream {
                    stream: OutputStream::Stderr,
                    text: "w\n".into()
                },
                OutputBlock::Stream {
                    stream: OutputStream::Stdout,
                    text: "\u{fffd}".into()
                },
                OutputBlock::Value {
                    json: Some(json!([1])),
                    repr: "[1]".into()
                },
                OutputBlock::Error(error),
            ]
        );
        assert_eq!(outcome.stdout, "a\n\u{fffd}");
        assert_eq!(outcome.stderr, "w\n");
        assert!(outcome.stdout_not_utf8 && !outcome.stderr_not_utf8);
        assert!(!outcome.stdout_truncated && !outcome.stderr_truncated);
        assert_eq!(outcome.result, Some(json!([1])));
        assert_eq!(outcome.result_repr.as_deref(), Some("[1]"));
        assert_eq!(outcome.run_id, "run-1");
        assert_eq!(outcome.correlation_id, "correlation-1");
        assert_eq!(outcome.runtime.kind, "fake");
        let entry = world.entry(AuditKind::ExecutionResult);
        assert_eq!(entry.details["stdout_bytes"], 3);
        assert_eq!(entry.details["stderr_bytes"], 2);
        assert_eq!(
            entry.details["stderr_sha256"],
            crate::output::sha256_hex(b"w\n").as_str()
        );
    })
    .await;
}

#[tokio::test]
async fn usage_is_the_kernels_or_else_the_agents() {
    within(async {
        let world = World::new(good());
        let outcome = world.outcome().await;
        assert_eq!(outcome.usage.cpu, ms(7));
        assert_eq!(outcome.usage.peak_memory_bytes, 7_000_000);

        let world = World::new(good());
        world.runtime.set_usage(SandboxUsage {
            cpu: Some(ms(11)),
            peak_memory_bytes: Some(12),
            ..SandboxUsage::default()
        });
        let outcome = world.outcome().await;
        assert_eq!(outcome.usage.cpu, ms(11));
        assert_eq!(outcome.usage.peak_memory_bytes, 12);

        // A runtime that does not tell costs no outcome.
        let world = World::new(good());
        world
            .runtime
            .fail(RuntimeCall::Usage, PortErrorKind::Internal);
        assert_eq!(world.outcome().await.usage.cpu, ms(7));
        let world = World::new(good());
        world.runtime.hold(RuntimeCall::Usage);
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(s(5)).await;
        assert_eq!(answer.await.unwrap().unwrap().ended_by, EndedBy::Completed);
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn duration_counts_from_the_start_of_the_sandbox() {
    within(async {
        let gate = CancellationToken::new();
        let world = World::new([
            GuestStep::hello(),
            GuestStep::Until(gate.clone()),
            GuestStep::exit(0),
        ]);
        world.runtime.hold(RuntimeCall::Create);
        let answer = world.start(python(), &CancellationToken::new());
        world.journal.until("create run-1").await;
        world.clock.advance(s(9));
        world.runtime.release(RuntimeCall::Create);
        // The time limit counts from here as well.
        world.clock.until_sleeping(s(300)).await;
        world.clock.advance(s(42));
        gate.cancel();
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.duration, s(42));
        assert_eq!(
            world.entry(AuditKind::ExecutionResult).details["duration_ms"],
            42_000
        );
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_ends_without_a_word_is_looked_into() {
    within(async {
        // Killed for memory together with its agent.
        let world = World::new([GuestStep::hello(), GuestStep::stdout("out")]);
        world.runtime.set_usage(counted(1, 0));
        let outcome = world.outcome().await;
        assert_eq!(outcome.ended_by, EndedBy::Oom);
        assert_eq!(outcome.exit_code, None);
        assert_eq!(outcome.stdout, "out");

        // Killed by somebody else.
        let world = World::new(endless());
        let answer = world.start(python(), &CancellationToken::new());
        world.journal.until("observe output").await;
        world.runtime.set_exit(SandboxExit::Signaled(9));
        world.runtime.end_all();
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::RuntimeLost);
        assert_eq!(outcome.exit_code, None);
        assert_eq!(outcome.signal.as_deref(), Some("SIGKILL"));
        assert_eq!(outcome.stdout, "partial\n");
        world.idle().await;

        // Removed by somebody else.
        let world = World::new(endless());
        let answer = world.start(python(), &CancellationToken::new());
        world.journal.until("observe output").await;
        world.runtime.vanish_all();
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::RuntimeLost);
        assert_eq!((outcome.exit_code, &outcome.signal), (None, &None));
        world.idle().await;

        // The stream is closed but something runs on: it is ended before the answer.
        let world = World::new([GuestStep::hello()]);
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(ms(500)).await;
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::RuntimeLost);
        assert!(world.called("kill run-1 done"));
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_that_vanishes_before_its_program_is_lost() {
    within(async {
        let world = World::new(good());
        world
            .runtime
            .fail(RuntimeCall::Start, PortErrorKind::NotFound);
        let outcome = world.outcome().await;
        assert_eq!(outcome.ended_by, EndedBy::RuntimeLost);
        assert_eq!(outcome.duration, Duration::ZERO);

        let world = World::new(good());
        world.guest.fail(PortErrorKind::Unreachable);
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(ms(500)).await;
        assert_eq!(
            answer.await.unwrap().unwrap().ended_by,
            EndedBy::RuntimeLost
        );
        world.idle().await;

        // A sandbox too small for its agent.
        let world = World::new(good());
        world.guest.fail(PortErrorKind::Unreachable);
        world.runtime.set_usage(counted(1, 0));
        assert_eq!(world.outcome().await.ended_by, EndedBy::Oom);

        // The control: a defect is no outcome.
        let world = World::new(good());
        world.guest.fail(PortErrorKind::Internal);
        let refusal = world.run(python()).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Internal);
    })
    .await;
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_no_outcome_unless_its_limits_are_why() {
    let script = || {
        vec![
            GuestStep::hello(),
            GuestStep::Event(GuestEvent::StartFailed {
                message: "no python3".into(),
            }),
        ]
    };
    within(async {
        let world = World::new(script());
        let refusal = world.run(python()).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Unavailable);
        assert!(refusal.message.contains("no python3"), "{refusal:?}");
        assert!(refusal.hint.contains("mcp-forge doctor"));

        for (usage, ended_by) in [
            (counted(0, 1), EndedBy::Pids),
            (counted(1, 0), EndedBy::Oom),
        ] {
            let world = World::new(script());
            world.runtime.set_usage(usage);
            assert_eq!(world.outcome().await.ended_by, ended_by);
        }
    })
    .await;
}

#[tokio::test]
async fn the_observer_is_told_everything_in_order() {
    within(async {
        let world = World::new([
            GuestStep::hello(),
            GuestStep::stdout("a"),
            GuestStep::stderr("b"),
            GuestStep::exit(0),
        ]);
        world.outcome().await;
        let output = |stream, text: &str| RunEvent::Output {
            stream,
            bytes: text.into(),
        };
        assert_eq!(
            world.observer.events(),
            [
                RunEvent::Starting,
                RunEvent::Running,
                output(OutputStream::Stdout, "a"),
                output(OutputStream::Stderr, "b"),
            ]
        );
    })
    .await;
}

#[tokio::test]
async fn the_agent_gets_the_job_as_asked_for() {
    within(async {
        let world = World::new(good());
        let request = ExecutionRequest {
            source_name: Some("main.py".into()),
            stdin: Some("line\n".into()),
            memory: Some("64m".into()),
            ..python()
        };
        world.run(request).await.unwrap();
        let job = world.guest.jobs().remove(0);
        assert_eq!(job.source_name, "main.py");
        assert_eq!(job.stdin.as_deref(), Some(&b"line\n"[..]));
        assert_eq!(job.code, SECRET_CODE);
        let spec = world.runtime.specs().remove(0);
        assert_eq!(spec.limits.memory_bytes, 64 << 20);
        assert_eq!(spec.limits.pids, 100);
    })
    .await;
}
