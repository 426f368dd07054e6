//! When sandboxes and slots are given back.

use mcp_forge_ports::PortErrorKind;
use mcp_forge_ports::testing::RuntimeCall;
use mcp_forge_ports::vocabulary::{EndedBy, Severity};

use super::*;

#[tokio::test]
async fn the_order_of_a_whole_run() {
    within(async {
        let world = World::new(good());
        world.outcome().await;
        assert_eq!(
            world.journal.lines(),
            [
                "audit execution.request",
                "info -",
                "observe starting",
                "create run-1",
                "create run-1 done",
                "audit container.create",
                "start run-1",
                "start run-1 done",
                "audit container.start",
                "guest run",
                "audit sandbox.verdict",
                "observe running",
                "observe output",
                "usage run-1",
                "usage run-1 done",
                "audit execution.result",
                "remove run-1",
                "remove run-1 done",
                "audit container.stop",
                "audit container.remove",
            ]
        );
    })
    .await;
}

#[tokio::test]
async fn the_answer_comes_before_the_removal_and_the_slot_after_it() {
    within(async {
        let world = World::with_policy(good(), |p| {
            p.concurrency = 1;
            p.queue = 1;
        });
        world.runtime.hold(RuntimeCall::Remove);
        let cancel = CancellationToken::new();
        let outcome = world.start(python(), &cancel).await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Completed);
        world.journal.until("remove run-1").await;
        assert!(!world.called("remove run-1 done"));

        // The next run has to wait for the removal, and only for that.
        let next = world.start(python(), &cancel);
        world.journal.until("observe queued").await;
        assert!(!world.called("create run-2"));
        world.runtime.release(RuntimeCall::Remove);
        assert_eq!(next.await.unwrap().unwrap().ended_by, EndedBy::Completed);
        let lines = world.journal.lines();
        let at = |line: &str| lines.iter().position(|known| known == line).unwrap();
        assert!(at("remove run-1 done") < at("create run-2"));
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_removal_that_fails_is_audited_and_hides_nothing() {
    within(async {
        let world = World::new(good());
        world
            .runtime
            .fail(RuntimeCall::Remove, PortErrorKind::Internal);
        let outcome = world
            .start(python(), &CancellationToken::new())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Completed);
        world.background.idle().await;
        let entry = world.entry(AuditKind::ContainerRemove);
        assert_eq!(entry.severity, Severity::Error);
        assert_eq!(entry.success, Some(false));
        assert!(entry.error.unwrap().contains("told to fail"));
        assert_eq!(world.service.core.slots.free(), 8);
    })
    .await;
}

#[tokio::test]
async fn a_removal_that_hangs_keeps_its_slot_for_a_bounded_time() {
    within(async {
        let world = World::new(good());
        world.runtime.hold(RuntimeCall::Remove);
        let outcome = world.start(python(), &CancellationToken::new()).await;
        assert!(outcome.unwrap().is_ok());
        world.journal.until("remove run-1").await;
        assert_eq!(world.service.core.slots.free(), 7);
        world.clock.pass(s(30)).await;
        world.background.idle().await;
        assert_eq!(world.service.core.slots.free(), 8);
        let entry = world.entry(AuditKind::ContainerRemove);
        assert_eq!(entry.success, Some(false));
        assert!(entry.error.unwrap().contains("takes too long"));
    })
    .await;
}

#[tokio::test]
async fn making_a_sandbox_that_never_ends_keeps_its_slot_for_a_bounded_time() {
    within(async {
        let world = World::new(good());
        world.runtime.hold(RuntimeCall::Create);
        let cancel = CancellationToken::new();
        let answer = world.start(python(), &cancel);
        world.journal.until("create run-1").await;
        cancel.cancel();
        assert_eq!(answer.await.unwrap().unwrap().ended_by, EndedBy::Cancelled);
        world.clock.pass(s(30)).await;
        world.idle().await;
        assert!(world.called("remove run-1 done"));
    })
    .await;
}

#[tokio::test]
async fn a_panic_in_an_adapter_costs_neither_sandbox_nor_slot() {
    within(async {
        let world = World::new([GuestStep::hello(), GuestStep::Panic]);
        let refusal = world.run(python()).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Internal);
        assert_eq!(refusal.correlation_id, "correlation-1");
        assert!(world.called("remove run-1 done"));
        assert_eq!(
            world.entry(AuditKind::ExecutionRefused).severity,
            Severity::Error
        );
    })
    .await;
}

#[tokio::test]
async fn no_more_run_at_once_than_there_are_slots() {
    within(async {
        let gate = CancellationToken::new();
        let script = [
            GuestStep::hello(),
            GuestStep::Until(gate.clone()),
            GuestStep::exit(0),
        ];
        let world = World::with_policy(script, |p| p.concurrency = 2);
        let cancel = CancellationToken::new();
        let runs: Vec<_> = (0..5).map(|_| world.start(python(), &cancel)).collect();
        world.journal.until("start run-2 done").await;
        while world
            .journal
            .lines()
            .iter()
            .filter(|line| *line == "observe queued")
            .count()
            < 3
        {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.runtime.existing(), ["run-1", "run-2"]);
        gate.cancel();
        for run in runs {
            assert_eq!(run.await.unwrap().unwrap().ended_by, EndedBy::Completed);
        }
        world.idle().await;
        assert_eq!(world.runtime.specs().len(), 5);
    })
    .await;
}

#[tokio::test]
async fn two_runs_share_nothing() {
    within(async {
        let world = World::new(good());
        let (first, second) = (world.outcome().await, world.outcome().await);
        assert_ne!(first.run_id, second.run_id);
        let specs = world.runtime.specs();
        assert_ne!(specs[0].id, specs[1].id);
        // What the runtime is was asked only once.
        let asked = world
            .journal
            .lines()
            .iter()
            .filter(|line| *line == "info -")
            .count();
        assert_eq!(asked, 1);
    })
    .await;
}
