//! Runs in the background, repeated requests, and what is kept of a run.

use futures::FutureExt;
use mcp_forge_ports::vocabulary::{
    EndedBy, GuestEvent, InputFile, OutputBlock, OutputFile, Picture, RunState, RunnerReport,
};

use super::*;

fn script(gate: &CancellationToken) -> Vec<GuestStep> {
    vec![
        GuestStep::hello(),
        GuestStep::stdout("working\n1%\r2%"),
        GuestStep::Until(gate.clone()),
        GuestStep::exit(0),
    ]
}

/// A program that ends when it is interrupted.
fn obedient() -> Vec<GuestStep> {
    vec![
        GuestStep::hello(),
        GuestStep::stdout("partial\n"),
        GuestStep::UntilInterrupt,
        GuestStep::exit(130),
    ]
}

fn keyed(key: &str, code: &str) -> ExecutionRequest {
    ExecutionRequest {
        idempotency_key: Some(key.to_owned()),
        ..ExecutionRequest::new(Language::Python, code)
    }
}

fn file(path: &str, size: u64) -> GuestStep {
    GuestStep::Event(GuestEvent::File {
        path: path.to_owned(),
        size,
    })
}

fn data(bytes: &[u8]) -> GuestStep {
    GuestStep::Event(GuestEvent::FileData(bytes.to_vec()))
}

fn collected(omitted: u64) -> GuestStep {
    GuestStep::Event(GuestEvent::Collected { omitted })
}

async fn read(world: &World, part: RunPart, range: Range<u64>) -> Result<RunBytes, Refusal> {
    world.service.read("run-1", part, range).await
}

#[tokio::test]
async fn a_run_in_the_background_is_looked_at_until_it_ends() {
    within(async {
        let gate = CancellationToken::new();
        let world = World::new(script(&gate));
        let status = world.service.launch(python()).await.unwrap();
        assert_eq!(status.run_id, "run-1");
        assert!(status.answer.is_none());
        while world.service.list().await[0].newest_line.is_none() {
            tokio::task::yield_now().await;
        }
        let status = &world.service.list().await[0];
        assert_eq!(status.state, RunState::Running);
        assert_eq!(status.newest_line.as_deref(), Some("2%"));

        let service = world.service.clone();
        let waiting = async { service.get("run-1", s(60)).await.unwrap() };
        let ending = async {
            assert_eq!(
                service.get("run-1", s(0)).await.unwrap().state,
                RunState::Running
            );
            gate.cancel();
        };
        let (status, ()) = tokio::join!(waiting, ending);
        assert_eq!(status.state, RunState::Ended);
        let outcome = status.answer.unwrap().unwrap();
        assert_eq!(outcome.stdout, "working\n2%");
        world.idle().await;
        let log = read(&world, RunPart::Log, 8..100).await.unwrap();
        assert_eq!((log.data.as_slice(), log.total), (&b"1%\r2%"[..], 13));
    })
    .await;
}

#[tokio::test]
async fn a_wait_ends_with_its_time() {
    within(async {
        let world = World::new(obedient());
        world.service.launch(python()).await.unwrap();
        let service = world.service.clone();
        let (status, ()) = tokio::join!(service.get("run-1", s(5)), world.clock.pass(s(5)));
        assert!(status.unwrap().answer.is_none());
        let status = world.service.cancel("run-1").await;
        let outcome = status.unwrap().answer.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Cancelled);
        // Cancelled twice is cancelled.
        assert!(world.service.cancel("run-1").await.is_ok());
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn what_may_not_run_is_refused_at_once_in_the_background_too() {
    within(async {
        let world = World::new(good());
        let request = ExecutionRequest::new(Language::Python, "");
        let refusal = world.service.launch(request).await.unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("code"));
        assert_eq!(world.audited(), ["execution.refused"]);
        world.idle().await;
        let request = ExecutionRequest::new(Language::Python, "");
        assert!(world.run(request).await.is_err());
        assert!(
            world.service.list().await.is_empty(),
            "refusals are not kept"
        );
    })
    .await;
}

#[tokio::test]
async fn shutting_down_ends_what_runs_in_the_background() {
    within(async {
        let world = World::new(obedient());
        world.service.launch(python()).await.unwrap();
        world.service.cancel_all();
        world.idle().await;
        let status = world.service.get("run-1", s(0)).await.unwrap();
        assert_eq!(status.answer.unwrap().unwrap().ended_by, EndedBy::Cancelled);
    })
    .await;
}

#[tokio::test]
async fn a_repeated_request_runs_once() {
    within(async {
        let gate = CancellationToken::new();
        let world = World::new(script(&gate));
        let first = CancellationToken::new();
        let one = world.start(keyed("k", "1"), &first);
        world.journal.until("observe output").await;
        let other = world.start(keyed("k", "1"), &CancellationToken::new());
        while world.service.core.registry.all()[0].waiters() < 2 {
            tokio::task::yield_now().await;
        }
        // The first one gives up; the second one still waits.
        first.cancel();
        one.abort();
        gate.cancel();
        let outcome = other.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Completed);
        // And one that comes later.
        let later = world.run(keyed("k", "1")).await.unwrap();
        assert!(Arc::ptr_eq(&later, &outcome));
        assert_eq!(world.service.list().await.len(), 1);

        let refusal = world.run(keyed("k", "2")).await.unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("idempotency_key"));
        let fresh = world.run(keyed("l", "1")).await.unwrap();
        assert_ne!(fresh.run_id, later.run_id);
        let refusal = world.run(keyed("not ascii é", "1")).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::InvalidArgument);
    })
    .await;
}

#[tokio::test]
async fn a_run_that_was_cancelled_may_be_asked_for_again() {
    within(async {
        let world = World::new(obedient());
        for run in ["run-1", "run-2"] {
            let cancel = CancellationToken::new();
            let answer = world.start(keyed("k", "1"), &cancel);
            let created = format!("create {run}");
            world.journal.until(&created).await;
            cancel.cancel();
            let outcome = answer.await.unwrap().unwrap();
            assert_eq!(outcome.ended_by, EndedBy::Cancelled);
            assert_eq!(outcome.run_id, run);
            world.idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_run_that_is_being_cancelled_is_nobody_elses() {
    within(async {
        let gate = CancellationToken::new();
        let world = World::new([
            GuestStep::hello(),
            GuestStep::UntilInterrupt,
            GuestStep::Until(gate.clone()),
            GuestStep::exit(0),
        ]);
        let first = world.service.launch(keyed("k", "1")).await.unwrap();
        let same = world.service.launch(keyed("k", "1")).await.unwrap();
        assert_eq!(same.run_id, first.run_id);
        let cancelling = world.service.cancel(&first.run_id);
        assert!(cancelling.now_or_never().is_none(), "it has not ended");
        let fresh = world.service.launch(keyed("k", "1")).await.unwrap();
        assert_ne!(fresh.run_id, first.run_id);
        world.service.cancel_all();
        gate.cancel();
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_waiting_run_knows_its_position() {
    within(async {
        let gate = CancellationToken::new();
        let world = World::with_policy(script(&gate), |policy| policy.concurrency = 1);
        for _ in 0..3 {
            world.service.launch(python()).await.unwrap();
        }
        let states = |list: Vec<RunStatus>| list.iter().map(|run| run.state).collect::<Vec<_>>();
        let queued = |position| RunState::Queued { position };
        let now = states(world.service.list().await);
        assert_eq!(now[..2], [queued(2), queued(1)]);
        world.service.cancel("run-2").await.unwrap();
        while states(world.service.list().await)[0] != queued(1) {
            tokio::task::yield_now().await;
        }
        gate.cancel();
        world.idle().await;
        assert_eq!(states(world.service.list().await), [RunState::Ended; 3]);
    })
    .await;
}

#[tokio::test]
async fn files_and_pictures_are_read_as_long_as_the_run_is_kept() {
    within(async {
        let gif = Picture {
            mime_type: "image/gif".to_owned(),
            data: b"GIF89a..".to_vec().into(),
        };
        let shown = mcp_forge_ports::vocabulary::Display {
            picture: Some(gif),
            ..Default::default()
        };
        let world = World::new([
            GuestStep::hello(),
            GuestStep::report(RunnerReport::Display(shown)),
            GuestStep::exit(0),
            file("b.csv", 4),
            data(b"1,2\n"),
            file("a/ü.bin", 2),
            data(b"\0\0"),
            file("huge", 1 << 40),
            collected(7),
        ]);
        let request = ExecutionRequest {
            files: vec![InputFile {
                path: "in.txt".to_owned(),
                data: b"x".to_vec(),
            }],
            ..python()
        };
        let outcome = world.run(request).await.unwrap();
        let named = |path: &str, size, mime_type: &str, kept| OutputFile {
            path: path.to_owned(),
            size,
            mime_type: mime_type.to_owned(),
            kept,
        };
        assert_eq!(
            outcome.files,
            [
                named("a/ü.bin", 2, "application/octet-stream", true),
                named("b.csv", 4, "text/csv", true),
                named("huge", 1 << 40, "text/plain", false),
            ]
        );
        assert_eq!(outcome.files_omitted, 7);
        assert_eq!(outcome.log, None);
        assert!(matches!(outcome.blocks[..], [OutputBlock::Image { .. }]));
        let of = |path: &str| RunPart::File(path.to_owned());
        assert_eq!(read(&world, of("b.csv"), 2..3).await.unwrap().data, b"2");
        assert_eq!(
            read(&world, of("a/ü.bin"), 0..9).await.unwrap().data,
            b"\0\0"
        );
        let picture = read(&world, RunPart::Picture(0), 0..6).await.unwrap();
        assert_eq!(
            (picture.data.as_slice(), picture.total),
            (&b"GIF89a"[..], 8)
        );
        for part in [of("huge"), of("none"), RunPart::Picture(1), RunPart::Log] {
            let refusal = read(&world, part, 0..9).await.unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::NotFound);
        }

        world.clock.advance(s(3600));
        let refusal = read(&world, of("b.csv"), 0..9).await.unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("run_id"));
        assert!(world.service.list().await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn files_that_never_end_do_not_keep_the_answer() {
    within(async {
        let GuestStep::Event(more) = file("again", 1) else {
            unreachable!()
        };
        let world = World::new([
            GuestStep::hello(),
            GuestStep::exit(0),
            file("a", 1),
            data(b"a"),
            GuestStep::Forever(more),
        ]);
        let answer = world.start(python(), &CancellationToken::new());
        world.journal.until("observe running").await;
        world.clock.pass(s(10)).await;
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Completed);
        assert_eq!(outcome.duration, s(0), "the time of the program alone");
        assert!(outcome.files[0].kept);
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_message_stands_in_the_log_as_it_stands_in_standard_error() {
    within(async {
        let report = RunnerReport::Message {
            text: "note\n".to_owned(),
        };
        let world = World::new([
            GuestStep::hello(),
            GuestStep::stdout("a\n"),
            GuestStep::Event(GuestEvent::Report {
                bytes: 9,
                report: Some(report),
            }),
            GuestStep::stderr("b\n"),
            GuestStep::exit(0),
        ]);
        assert_eq!(world.outcome().await.stderr, "note\nb\n");
        let log = read(&world, RunPart::Log, 0..100).await.unwrap();
        assert_eq!(log.data, b"a\nnote\nb\n");
    })
    .await;
}

#[tokio::test]
async fn files_that_stop_coming_are_not_all() {
    within(async {
        let world = World::new([
            GuestStep::hello(),
            GuestStep::exit(0),
            file("a", 1),
            data(b"a"),
            GuestStep::Until(CancellationToken::new()),
        ]);
        let answer = world.start(python(), &CancellationToken::new());
        world.journal.until("observe running").await;
        world.clock.pass(s(10)).await;
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.files.len(), 1);
        assert_eq!(outcome.files_omitted, 1);
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_loses_the_log_and_not_the_run() {
    within(async {
        let world = World::new([
            GuestStep::hello(),
            GuestStep::stdout("a"),
            GuestStep::exit(0),
            file("a", 1),
            data(b"a"),
            collected(0),
        ]);
        world.blobs.fail();
        let outcome = world.outcome().await;
        assert_eq!(outcome.ended_by, EndedBy::Completed);
        assert_eq!(outcome.stdout, "a");
        assert_eq!(outcome.log.map(|log| log.complete), Some(false));
        assert!(!outcome.files[0].kept);
    })
    .await;
}

#[tokio::test]
async fn only_so_much_is_kept_of_old_runs() {
    within(async {
        let world = World::with_policy(good(), |policy| policy.retention.runs = 2);
        for _ in 0..3 {
            world.run(python()).await.unwrap();
        }
        let ids = |list: Vec<RunStatus>| list.into_iter().map(|run| run.run_id).collect::<Vec<_>>();
        assert_eq!(ids(world.service.list().await), ["run-3", "run-2"]);

        let world = World::with_policy(good(), |policy| policy.retention.bytes = 1024);
        for _ in 0..3 {
            world.run(python()).await.unwrap();
        }
        assert_eq!(ids(world.service.list().await), ["run-3"]);
    })
    .await;
}
