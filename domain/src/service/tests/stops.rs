//! Programs that mcp-forge stops: for time, on request, for their output. The clock of these
//! tests stands still between the steps, so they also tell how long a stop takes.

use mcp_forge_ports::driven::Clock;
use mcp_forge_ports::testing::RuntimeCall;
use mcp_forge_ports::vocabulary::{EndedBy, RunEvent, SandboxExit, SandboxUsage};

use super::*;

/// A program that ends as it likes when it is interrupted.
fn obedient() -> Vec<GuestStep> {
    vec![
        GuestStep::hello(),
        GuestStep::stdout("partial\n"),
        GuestStep::UntilInterrupt,
        GuestStep::stdout("cleaning up\n"),
        GuestStep::error("KeyboardInterrupt", ""),
        GuestStep::exit(130),
    ]
}

#[tokio::test]
async fn a_program_that_obeys_the_interrupt_of_its_time_limit() {
    within(async {
        let world = World::new(obedient());
        let request = ExecutionRequest {
            timeout: Some(7),
            ..python()
        };
        let answer = world.start(request, &CancellationToken::new());
        world.clock.pass(s(7)).await;
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Timeout);
        assert_eq!(outcome.stdout, "partial\ncleaning up\n");
        assert_eq!(outcome.error.as_ref().unwrap().name, "KeyboardInterrupt");
        assert_eq!(outcome.exit_code, Some(130));
        assert_eq!(outcome.duration, s(7));
        assert!(world.called("guest interrupt"));
        assert!(!world.called("guest kill"));
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn even_an_exit_without_failure_is_a_timeout_once_it_was_stopped() {
    within(async {
        let world = World::new([
            GuestStep::hello(),
            GuestStep::UntilInterrupt,
            GuestStep::exit(0),
        ]);
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(s(300)).await;
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Timeout);
        assert!(!outcome.success());
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_program_that_ignores_the_interrupt_is_killed_after_the_grace() {
    within(async {
        let world = World::new(endless());
        world.runtime.set_usage(SandboxUsage {
            oom_kills: 1,
            ..SandboxUsage::default()
        });
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(s(300)).await;
        world.clock.pass(ms(500)).await;
        let outcome = answer.await.unwrap().unwrap();
        // Our own reason comes first, whatever the kernel counted meanwhile.
        assert_eq!(outcome.ended_by, EndedBy::Timeout);
        assert_eq!(outcome.stdout, "partial\n");
        assert_eq!(outcome.signal.as_deref(), Some("SIGKILL"));
        assert_eq!(outcome.exit_code, None);
        assert_eq!(outcome.duration, s(300) + ms(500));
        assert!(world.called("guest kill"));
        assert!(!world.called("kill run-1"));
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_does_not_kill_is_killed_from_outside() {
    within(async {
        let world = World::with(endless(), FakeGuest::ignoring_kill, |_| {});
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(s(300)).await;
        world.clock.pass(ms(500)).await;
        world.clock.pass(ms(500)).await;
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Timeout);
        assert_eq!(outcome.stdout, "partial\n");
        assert!(world.called("kill run-1 done"));
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_cannot_be_reached_is_killed_from_outside_at_once() {
    within(async {
        let world = World::with(endless(), FakeGuest::unreachable, |_| {});
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(s(300)).await;
        assert_eq!(answer.await.unwrap().unwrap().ended_by, EndedBy::Timeout);
        world.idle().await;
        let lines = world.journal.lines();
        let from = lines
            .iter()
            .position(|line| line == "guest interrupt")
            .unwrap();
        assert_eq!(
            lines[from..from + 3],
            ["guest interrupt", "guest kill", "kill run-1"]
        );
    })
    .await;
}

#[tokio::test]
async fn nothing_outlasts_the_last_stage() {
    let floods = [
        GuestStep::stdout("x"),
        GuestStep::value(None, "x"),
        GuestStep::error("E", "x"),
    ];
    within(async {
        for flood in floods {
            let GuestStep::Event(event) = flood else {
                unreachable!()
            };
            let script = [GuestStep::hello(), GuestStep::Forever(event)];
            let world = World::with(script, FakeGuest::deaf, |_| {});
            world.runtime.hold(RuntimeCall::Kill);
            world.runtime.hold(RuntimeCall::Usage);
            let cancel = CancellationToken::new();
            let answer = world.start(python(), &cancel);
            world.journal.until("observe running").await;
            let before = world.clock.monotonic();
            cancel.cancel();
            // Interrupt, kill, kill from outside, and what the kernel counted: none of it ends.
            for step in [500, 500, 250, 500] {
                world.clock.pass(ms(step)).await;
            }
            let outcome = answer.await.unwrap().unwrap();
            assert_eq!(outcome.ended_by, EndedBy::Cancelled);
            assert!(world.clock.monotonic() - before < s(2));
            world.runtime.release(RuntimeCall::Kill);
            world.runtime.release(RuntimeCall::Usage);
            world.idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_running_program_is_cancelled_like_one_whose_time_is_over() {
    within(async {
        let world = World::new(obedient());
        let cancel = CancellationToken::new();
        let answer = world.start(python(), &cancel);
        world.journal.until("observe output").await;
        cancel.cancel();
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Cancelled);
        assert_eq!(outcome.stdout, "partial\ncleaning up\n");
        assert_eq!(outcome.duration, Duration::ZERO);
        world.idle().await;

        let world = World::new(endless());
        let cancel = CancellationToken::new();
        let answer = world.start(python(), &cancel);
        world.journal.until("observe output").await;
        cancel.cancel();
        world.clock.pass(ms(500)).await;
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Cancelled);
        assert_eq!(outcome.stdout, "partial\n");
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_that_waits_is_cancelled_with_nothing_run() {
    within(async {
        let gate = CancellationToken::new();
        let script = [
            GuestStep::hello(),
            GuestStep::Until(gate.clone()),
            GuestStep::exit(0),
        ];
        let world = World::with_policy(script, |p| p.concurrency = 1);
        let first = world.start(python(), &CancellationToken::new());
        world.journal.until("observe running").await;
        let cancel = CancellationToken::new();
        let second = world.start(python(), &cancel);
        world.journal.until("observe queued").await;
        cancel.cancel();
        let outcome = second.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Cancelled);
        assert_eq!(outcome.duration, Duration::ZERO);
        assert_eq!(outcome.run_id, "run-2");
        assert_eq!(outcome.runtime.kind, "fake");
        assert!(!world.called("create run-2"));
        let entry = world.entry(AuditKind::ExecutionResult);
        assert_eq!(entry.run_id.as_deref(), Some("run-2"));
        assert_eq!(entry.details["started"], false);
        // The place in the queue is free again and the first run was not touched.
        gate.cancel();
        assert_eq!(first.await.unwrap().unwrap().ended_by, EndedBy::Completed);
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_cancelled_before_it_began_touches_nothing() {
    within(async {
        let world = World::new(good());
        let cancel = CancellationToken::new();
        cancel.cancel();
        let outcome = world.start(python(), &cancel).await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Cancelled);
        world.idle().await;
        assert_eq!(world.journal.lines(), ["audit execution.result"]);
        // A request that is refused is refused, cancelled or not.
        let refused = world.start(
            ExecutionRequest {
                timeout: Some(0),
                ..python()
            },
            &cancel,
        );
        assert!(refused.await.unwrap().is_err());
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_cancelled_while_its_sandbox_is_made_answers_at_once_and_removes_it_later() {
    within(async {
        for call in [RuntimeCall::Create, RuntimeCall::Start] {
            let world = World::new(good());
            world.runtime.hold(call);
            let cancel = CancellationToken::new();
            let answer = world.start(python(), &cancel);
            let line = match call {
                RuntimeCall::Create => "create run-1",
                _ => "start run-1",
            };
            world.journal.until(line).await;
            cancel.cancel();
            let outcome = answer.await.unwrap().unwrap();
            assert_eq!(outcome.ended_by, EndedBy::Cancelled, "{call:?}");
            assert_eq!(outcome.stdout, "");
            // Not removed while it is being made; the slot is still taken.
            assert!(!world.called("remove run-1"));
            assert_eq!(world.service.core.slots.free(), 7);
            world.runtime.release(call);
            world.idle().await;
            assert!(world.called("remove run-1 done"));
            assert!(world.guest.jobs().is_empty());
            // What was made late is in the audit log as well.
            assert_eq!(world.audit.of(AuditKind::ContainerCreate).len(), 1);
            assert_eq!(world.audit.of(AuditKind::ContainerRemove).len(), 1);
        }
    })
    .await;
}

#[tokio::test]
async fn dropping_the_future_cancels_and_removes() {
    within(async {
        let world = World::new(endless());
        let answer = world.start(python(), &CancellationToken::new());
        world.journal.until("observe output").await;
        answer.abort();
        assert!(answer.await.unwrap_err().is_cancelled());
        world.journal.until("guest interrupt").await;
        world.clock.pass(ms(500)).await;
        world.idle().await;
        assert!(world.called("remove run-1 done"));
        let entry = world.entry(AuditKind::ExecutionResult);
        assert_eq!(entry.details["ended_by"], "cancelled");
    })
    .await;
}

#[tokio::test]
async fn an_observer_that_is_stuck_stops_neither_the_clock_nor_a_cancel() {
    within(async {
        for by_time in [true, false] {
            let world = World::new(obedient());
            let observer = Arc::new(FakeObserver::stuck_on_output(&world.journal));
            let cancel = CancellationToken::new();
            let answer = world.start_with(python(), observer, &cancel);
            world.journal.until("observe output").await;
            if by_time {
                world.clock.pass(s(300)).await;
            } else {
                cancel.cancel();
            }
            // The observer is stuck on what the program says in its grace, too. After that the
            // kill finds a program that has exited.
            world.clock.pass(ms(500)).await;
            let outcome = answer.await.unwrap().unwrap();
            let expected = if by_time {
                EndedBy::Timeout
            } else {
                EndedBy::Cancelled
            };
            assert_eq!(outcome.ended_by, expected);
            assert_eq!(outcome.stdout, "partial\ncleaning up\n");
            world.idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_output_is_killed_and_costs_bounded_memory() {
    within(async {
        let chunk = vec![b'x'; 64 << 10];
        let GuestStep::Event(event) = GuestStep::stdout(chunk) else {
            unreachable!()
        };
        let world = World::new([
            GuestStep::hello(),
            GuestStep::stdout("first "),
            GuestStep::Forever(event),
        ]);
        // An observer that forgets, so that only the service's memory counts.
        let answer = world
            .service
            .execute(
                python(),
                Arc::new(mcp_forge_ports::driving::NoObserver),
                CancellationToken::new(),
            )
            .await;
        let outcome = answer.unwrap();
        world.idle().await;
        assert_eq!(outcome.ended_by, EndedBy::OutputLimit);
        assert!(outcome.stdout_truncated);
        assert!(outcome.stdout.len() < (1 << 20) + 100);
        assert!(outcome.stdout.starts_with("first xxx"));
        assert!(!world.called("guest interrupt"));
        assert!(world.called("guest kill"));
        let written = world.entry(AuditKind::ExecutionResult).details["stdout_bytes"]
            .as_u64()
            .unwrap();
        assert!((64 << 20..65 << 20).contains(&written), "{written}");
    })
    .await;
}

#[tokio::test]
async fn output_up_to_the_limit_is_no_reason_to_stop() {
    within(async {
        let script = |len: usize| {
            vec![
                GuestStep::hello(),
                GuestStep::stdout(vec![b'x'; 2048]),
                GuestStep::stderr(vec![b'y'; len]),
                GuestStep::UntilKill,
                GuestStep::exit(0),
            ]
        };
        let small = |p: &mut ExecutionPolicy| {
            p.stdout_limit = 1024;
            p.stderr_limit = 1024;
            p.output_stop_bytes = 4096;
        };
        // Both streams count together.
        let world = World::with_policy(script(2049), small);
        let outcome = world.outcome().await;
        assert_eq!(outcome.ended_by, EndedBy::OutputLimit);
        assert!(outcome.stdout_truncated && outcome.stderr_truncated);

        let mut fits = script(2048);
        fits.remove(3);
        let world = World::with_policy(fits, small);
        let outcome = world.outcome().await;
        assert_eq!(outcome.ended_by, EndedBy::Completed);
        assert!(outcome.stdout_truncated && outcome.stderr_truncated);
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_reports_is_an_output_flood() {
    within(async {
        let GuestStep::Event(event) = GuestStep::value(None, "x".repeat(100_000)) else {
            unreachable!()
        };
        let world = World::new([GuestStep::hello(), GuestStep::Forever(event)]);
        let outcome = world.outcome().await;
        assert_eq!(outcome.ended_by, EndedBy::OutputLimit);
        let kept: usize = outcome
            .blocks
            .iter()
            .map(|block| match block {
                mcp_forge_ports::vocabulary::OutputBlock::Value { repr, .. } => repr.len(),
                _ => 0,
            })
            .sum();
        assert!(kept <= 8 << 20, "{kept}");
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_reports_late_finds_a_stopped_run() {
    within(async {
        // The time is over before the agent has said anything.
        let world = World::new([GuestStep::UntilInterrupt, GuestStep::exit(130)]);
        let request = ExecutionRequest {
            timeout: Some(1),
            ..python()
        };
        let answer = world.start(request, &CancellationToken::new());
        world.clock.pass(s(1)).await;
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Timeout);
        assert_eq!(outcome.exit_code, Some(130));
        world.idle().await;
        assert!(!world.observer.events().contains(&RunEvent::Running));
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_ends_during_a_stop_keeps_our_reason() {
    within(async {
        let world = World::new([GuestStep::hello(), GuestStep::UntilInterrupt]);
        world.runtime.set_exit(SandboxExit::Exited(0));
        let cancel = CancellationToken::new();
        let answer = world.start(python(), &cancel);
        world.journal.until("observe running").await;
        cancel.cancel();
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Cancelled);
        assert!(
            world.called("kill run-1 done"),
            "nothing runs on after the answer"
        );
        world.idle().await;
    })
    .await;
}
