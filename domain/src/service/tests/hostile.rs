//! Sandboxes that are not what they must be, or send what they must not.

use mcp_forge_ports::PortErrorKind;
use mcp_forge_ports::testing::sound_hello;
use mcp_forge_ports::vocabulary::{EndedBy, GuestEvent, GuestHello, SandboxUsage, Severity};

use super::*;

fn after_hello(hello: GuestHello) -> World {
    World::new([
        GuestStep::Event(GuestEvent::Hello(hello)),
        GuestStep::stdout("ran"),
        GuestStep::exit(0),
    ])
}

#[tokio::test]
async fn a_sandbox_without_one_of_its_barriers_is_killed_and_reported() {
    type Change = fn(&mut GuestHello);
    let cases: [(Change, &str); 5] = [
        (|h| h.no_new_privs = false, "no_new_privs is off"),
        (|h| h.seccomp_mode = 0, "seccomp mode is 0"),
        (|h| h.seccomp_mode = 1, "seccomp mode is 1"),
        (|h| h.capabilities = 1 << 21, "capabilities are 0x200000"),
        (|h| h.uid = 0, "user id is 0"),
    ];
    within(async {
        for (change, reason) in cases {
            let mut hello = sound_hello();
            change(&mut hello);
            let world = after_hello(hello);
            let refusal = world.run(python()).await.unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Internal);
            assert_eq!(refusal.field, None);
            assert!(refusal.message.contains(reason), "{refusal:?}");
            assert!(world.called("kill run-1 done"));
            let violation = world.entry(AuditKind::SecurityViolation);
            assert_eq!(violation.severity, Severity::Critical);
            assert_eq!(violation.success, Some(false));
            assert!(violation.error.unwrap().contains(reason));
            assert!(world.audit.of(AuditKind::ExecutionResult).is_empty());
            assert_eq!(world.audit.of(AuditKind::ExecutionRefused).len(), 1);
            assert!(!world.called("observe output"));
        }
        // The control.
        let world = after_hello(sound_hello());
        assert_eq!(world.outcome().await.stdout, "ran");
        assert!(world.audit.of(AuditKind::SecurityViolation).is_empty());
    })
    .await;
}

#[tokio::test]
async fn nothing_counts_before_the_agent_has_spoken() {
    within(async {
        for first in [
            GuestStep::stdout("x"),
            GuestStep::value(None, "x"),
            GuestStep::exit(0),
            GuestStep::Event(GuestEvent::StartFailed {
                message: "x".into(),
            }),
        ] {
            let world = World::new([first, GuestStep::hello(), GuestStep::exit(0)]);
            let refusal = world.run(python()).await.unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Internal);
            assert!(
                refusal.message.contains("not the agent's hello"),
                "{refusal:?}"
            );
            assert_eq!(
                world.entry(AuditKind::SecurityViolation).severity,
                Severity::Critical
            );
            assert!(world.called("kill run-1 done"));
        }
    })
    .await;
}

#[tokio::test]
async fn a_broken_stream_is_lost_killed_and_reported() {
    let broken = [
        GuestStep::Fail(PortErrorKind::Protocol),
        GuestStep::hello(),
        GuestStep::Event(GuestEvent::StartFailed {
            message: "late".into(),
        }),
    ];
    within(async {
        for step in broken {
            let world = World::new([
                GuestStep::hello(),
                GuestStep::stdout("before"),
                step,
                GuestStep::stdout("after"),
                GuestStep::exit(0),
            ]);
            let outcome = world.outcome().await;
            assert_eq!(outcome.ended_by, EndedBy::RuntimeLost);
            assert_eq!(outcome.stdout, "before");
            assert_eq!(outcome.exit_code, None);
            assert!(world.called("kill run-1 done"));
            assert_eq!(
                world.entry(AuditKind::SecurityViolation).severity,
                Severity::Critical
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_the_kernel_or_a_stop_cut_off_is_no_violation() {
    within(async {
        let world = World::new([GuestStep::hello(), GuestStep::Fail(PortErrorKind::Protocol)]);
        world.runtime.set_usage(SandboxUsage {
            oom_kills: 1,
            ..SandboxUsage::default()
        });
        assert_eq!(world.outcome().await.ended_by, EndedBy::Oom);
        assert!(world.audit.of(AuditKind::SecurityViolation).is_empty());

        let world = World::new([
            GuestStep::hello(),
            GuestStep::UntilInterrupt,
            GuestStep::Fail(PortErrorKind::Protocol),
        ]);
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(s(300)).await;
        assert_eq!(answer.await.unwrap().unwrap().ended_by, EndedBy::Timeout);
        assert!(world.audit.of(AuditKind::SecurityViolation).is_empty());
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_failing_stream_is_an_ended_one() {
    within(async {
        let world = World::new([
            GuestStep::hello(),
            GuestStep::Fail(PortErrorKind::Unreachable),
        ]);
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(ms(500)).await;
        assert_eq!(
            answer.await.unwrap().unwrap().ended_by,
            EndedBy::RuntimeLost
        );
        assert!(world.called("kill run-1 done"));
        assert!(world.audit.of(AuditKind::SecurityViolation).is_empty());
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn forged_reports_change_no_end_that_the_agent_saw() {
    within(async {
        let world = World::new([
            GuestStep::hello(),
            GuestStep::error("Fake", "not raised"),
            GuestStep::signal(11),
        ]);
        let outcome = world.outcome().await;
        assert_eq!(outcome.ended_by, EndedBy::Crashed);
        assert_eq!(outcome.signal.as_deref(), Some("SIGSEGV"));
    })
    .await;
}
