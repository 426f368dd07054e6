//! Making, starting, watching, killing and removing.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::subject::{expect_kind, id, limits, ok, spec};
use super::{Subject, contract};
use crate::PortErrorKind::{AlreadyExists, NotFound, Unsupported};
use crate::vocabulary::{SandboxId, SandboxSpec};

contract! {
    info_names_the_runtime: Port,
    info_is_the_same_each_time: Port,
    create_reads_the_limits_back: Port,
    effective_limits_are_weak_where_info_is: Port,
    an_id_in_use_is_refused: Port,
    an_id_in_use_is_refused_while_it_runs: Port,
    an_id_is_free_after_removal: Port,
    odd_ids_are_taken: Port,
    wrong_ids_are_refused_and_make_nothing: Port,
    start_of_an_unknown_id_is_refused: Port,
    wait_for_an_unknown_id_is_refused: Port,
    usage_of_an_unknown_id_is_refused: Port,
    kill_of_an_unknown_id_is_nothing: Port,
    remove_of_an_unknown_id_is_nothing: Port,
    a_removed_id_is_unknown: Port,
    a_second_start_is_refused_and_harms_nothing: Port,
    kill_again_is_nothing: Port,
    remove_again_is_nothing: Port,
    what_was_never_started_is_removed: Port,
    what_was_never_started_is_killed: Port,
    what_was_killed_is_not_started: Port,
    wait_before_start_ends_with_the_sandbox: Port,
    wait_tells_the_same_again: Port,
    all_who_wait_are_told: Port,
    a_wait_that_is_given_up_harms_nothing: Port,
    wait_ends_when_the_sandbox_is_removed: Port,
    after_kill_nothing_is_waited_for: Port,
    the_stream_ends_with_a_kill: Port,
    the_stream_ends_with_a_removal: Port,
    a_stream_that_is_dropped_harms_nothing: Port,
    usage_is_told_before_start: Port,
    usage_is_told_after_the_end: Port,
    one_of_many_gets_an_id: Port,
    many_live_side_by_side: Port,
    many_removals_of_one_are_one: Port,
    kill_and_remove_at_once: Port,
    a_create_that_is_given_up_leaves_an_id_that_can_be_removed: Port,
    a_start_that_is_given_up_can_be_removed: Port,
    fifty_one_after_the_other: Port,
    what_is_taken_away_is_told: Outside,
    what_is_taken_away_can_be_removed: Outside,
}

async fn info_names_the_runtime(s: Subject) {
    let info = ok(s.runtime.info().await);
    for text in [&info.kind, &info.version] {
        assert!(!text.trim().is_empty() && text.len() < 100, "{info:?}");
    }
    assert!(
        info.kind.bytes().all(|b| b.is_ascii_lowercase()),
        "{info:?}"
    );
}

async fn info_is_the_same_each_time(s: Subject) {
    let first = ok(s.runtime.info().await);
    s.remove(&s.made().await).await;
    assert_eq!(ok(s.runtime.info().await), first);
}

async fn create_reads_the_limits_back(s: Subject) {
    let id = id();
    let effective = ok(s.runtime.create(&spec(&id)).await);
    let asked = limits();
    for (effective, asked) in [
        (effective.memory_bytes, asked.memory_bytes),
        (effective.cpu_quota, asked.cpu_quota),
        (effective.pids, asked.pids),
    ] {
        // Rounded at most, and then to less.
        let close = |effective| effective <= asked && effective >= asked - asked / 50;
        assert!(effective.is_none_or(close), "{effective:?}, asked {asked}");
    }
    s.remove(&id).await;
}

async fn effective_limits_are_weak_where_info_is(s: Subject) {
    let weak = ok(s.runtime.info().await).weak;
    let id = id();
    let effective = ok(s.runtime.create(&spec(&id)).await);
    assert_eq!(
        effective.weak.is_empty(),
        weak.is_empty(),
        "{effective:?} {weak:?}"
    );
    let all = [effective.memory_bytes, effective.cpu_quota, effective.pids];
    if weak.is_empty() {
        assert!(all.iter().all(Option::is_some), "{effective:?}");
    }
    s.remove(&id).await;
}

async fn an_id_in_use_is_refused(s: Subject) {
    let id = s.made().await;
    expect_kind(s.runtime.create(&spec(&id)).await, AlreadyExists);
    // The one that was there is as it was.
    let _stream = ok(s.runtime.start(&id).await);
    s.remove(&id).await;
}

async fn an_id_in_use_is_refused_while_it_runs(s: Subject) {
    let (id, _stream) = s.started().await;
    expect_kind(s.runtime.create(&spec(&id)).await, AlreadyExists);
    ok(s.runtime.kill(&id).await);
    expect_kind(s.runtime.create(&spec(&id)).await, AlreadyExists);
    s.remove(&id).await;
}

async fn an_id_is_free_after_removal(s: Subject) {
    let id = s.made().await;
    s.remove(&id).await;
    ok(s.runtime.create(&spec(&id)).await);
    let _stream = ok(s.runtime.start(&id).await);
    s.remove(&id).await;
    ok(s.runtime.create(&spec(&id)).await);
    s.remove(&id).await;
}

/// A name that begins as given and is unique as far as its length allows.
fn named(begin: &str) -> SandboxId {
    let unique = id().0;
    let room = 64 - begin.len();
    SandboxId(format!(
        "{begin}{}",
        &unique[unique.len().saturating_sub(room)..]
    ))
}

async fn odd_ids_are_taken(s: Subject) {
    let long = named(&"L".repeat(40));
    assert_eq!(long.0.len(), 64.min(40 + id().0.len()));
    for id in [
        named("-"),
        named("--"),
        named("_"),
        named("0"),
        named("A_b-C"),
        long,
    ] {
        ok(s.runtime.create(&spec(&id)).await);
        let _stream = ok(s.runtime.start(&id).await);
        s.remove(&id).await;
    }
}

async fn wrong_ids_are_refused_and_make_nothing(s: Subject) {
    for id in [
        "",
        ".",
        "..",
        "a/b",
        "../a",
        "a b",
        "a:b",
        "a.b",
        "é",
        "a\n",
        "a\0b",
        &"a".repeat(65),
    ] {
        let id = SandboxId(id.to_owned());
        expect_kind(s.runtime.create(&spec(&id)).await, Unsupported);
        expect_kind(s.runtime.start(&id).await.map(drop), NotFound);
        s.remove(&id).await;
    }
}

async fn start_of_an_unknown_id_is_refused(s: Subject) {
    expect_kind(s.runtime.start(&id()).await.map(drop), NotFound);
}

async fn wait_for_an_unknown_id_is_refused(s: Subject) {
    expect_kind(s.runtime.wait(&id()).await, NotFound);
}

async fn usage_of_an_unknown_id_is_refused(s: Subject) {
    expect_kind(s.runtime.usage(&id()).await, NotFound);
}

async fn kill_of_an_unknown_id_is_nothing(s: Subject) {
    ok(s.runtime.kill(&id()).await);
}

async fn remove_of_an_unknown_id_is_nothing(s: Subject) {
    s.remove(&id()).await;
}

async fn a_removed_id_is_unknown(s: Subject) {
    let (id, _stream) = s.started().await;
    s.remove(&id).await;
    expect_kind(s.runtime.start(&id).await.map(drop), NotFound);
    expect_kind(s.runtime.wait(&id).await, NotFound);
    expect_kind(s.runtime.usage(&id).await, NotFound);
    ok(s.runtime.kill(&id).await);
}

async fn a_second_start_is_refused_and_harms_nothing(s: Subject) {
    let (id, mut stream) = s.started().await;
    expect_kind(s.runtime.start(&id).await.map(drop), AlreadyExists);
    // It runs on.
    let wait = s.runtime.wait(&id);
    assert!(
        tokio::time::timeout(Duration::from_millis(50), wait)
            .await
            .is_err()
    );
    ok(s.runtime.kill(&id).await);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    s.remove(&id).await;
}

async fn kill_again_is_nothing(s: Subject) {
    let (id, _stream) = s.started().await;
    for _ in 0..3 {
        ok(s.runtime.kill(&id).await);
    }
    s.remove(&id).await;
}

async fn remove_again_is_nothing(s: Subject) {
    let (id, _stream) = s.started().await;
    for _ in 0..3 {
        s.remove(&id).await;
    }
}

async fn what_was_never_started_is_removed(s: Subject) {
    let id = s.made().await;
    s.remove(&id).await;
    expect_kind(s.runtime.usage(&id).await, NotFound);
}

async fn what_was_never_started_is_killed(s: Subject) {
    let id = s.made().await;
    ok(s.runtime.kill(&id).await);
    s.remove(&id).await;
}

async fn what_was_killed_is_not_started(s: Subject) {
    let id = s.made().await;
    ok(s.runtime.kill(&id).await);
    assert!(s.runtime.start(&id).await.is_err());
    s.remove(&id).await;
    let (id, _stream) = s.started().await;
    ok(s.runtime.kill(&id).await);
    assert!(s.runtime.start(&id).await.is_err());
    s.remove(&id).await;
}

async fn wait_before_start_ends_with_the_sandbox(s: Subject) {
    let id = s.made().await;
    let runtime = Arc::clone(&s.runtime);
    let of = id.clone();
    let waiting = tokio::spawn(async move { runtime.wait(&of).await });
    let _stream = ok(s.runtime.start(&id).await);
    ok(s.runtime.kill(&id).await);
    ok(waiting.await.unwrap());
    s.remove(&id).await;
}

async fn wait_tells_the_same_again(s: Subject) {
    let (id, _stream) = s.started().await;
    ok(s.runtime.kill(&id).await);
    let first = ok(s.runtime.wait(&id).await);
    for _ in 0..3 {
        assert_eq!(ok(s.runtime.wait(&id).await), first);
    }
    s.remove(&id).await;
}

async fn all_who_wait_are_told(s: Subject) {
    let (id, _stream) = s.started().await;
    let wait = || {
        let (runtime, id) = (Arc::clone(&s.runtime), id.clone());
        tokio::spawn(async move { runtime.wait(&id).await })
    };
    let waiting = [wait(), wait(), wait(), wait()];
    tokio::task::yield_now().await;
    ok(s.runtime.kill(&id).await);
    let mut told = Vec::new();
    for waiting in waiting {
        told.push(ok(waiting.await.unwrap()));
    }
    assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "{told:?}");
    s.remove(&id).await;
}

async fn a_wait_that_is_given_up_harms_nothing(s: Subject) {
    let (id, _stream) = s.started().await;
    for _ in 0..3 {
        let wait = s.runtime.wait(&id);
        assert!(
            tokio::time::timeout(Duration::from_millis(5), wait)
                .await
                .is_err()
        );
    }
    ok(s.runtime.kill(&id).await);
    ok(s.runtime.wait(&id).await);
    s.remove(&id).await;
}

async fn wait_ends_when_the_sandbox_is_removed(s: Subject) {
    let (id, _stream) = s.started().await;
    let (runtime, of) = (Arc::clone(&s.runtime), id.clone());
    let waiting = tokio::spawn(async move { runtime.wait(&of).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    s.remove(&id).await;
    // Which of the two comes first is chance.
    if let Err(error) = waiting.await.unwrap() {
        assert_eq!(error.kind, NotFound, "{}", error.chain());
    }
}

async fn after_kill_nothing_is_waited_for(s: Subject) {
    let (id, _stream) = s.started().await;
    ok(s.runtime.kill(&id).await);
    let wait = tokio::time::timeout(Duration::from_secs(5), s.runtime.wait(&id)).await;
    ok(wait.expect("it is dead"));
    s.remove(&id).await;
}

async fn the_stream_ends_with_a_kill(s: Subject) {
    let (id, mut stream) = s.started().await;
    ok(s.runtime.kill(&id).await);
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut rest).await;
    s.remove(&id).await;
}

async fn the_stream_ends_with_a_removal(s: Subject) {
    let (id, mut stream) = s.started().await;
    s.remove(&id).await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}

async fn a_stream_that_is_dropped_harms_nothing(s: Subject) {
    let (id, stream) = s.started().await;
    drop(stream);
    ok(s.runtime.kill(&id).await);
    ok(s.runtime.wait(&id).await);
    s.remove(&id).await;
}

async fn usage_is_told_before_start(s: Subject) {
    let id = s.made().await;
    let usage = ok(s.runtime.usage(&id).await);
    assert_eq!((usage.oom_kills, usage.pids_refused), (0, 0));
    s.remove(&id).await;
}

async fn usage_is_told_after_the_end(s: Subject) {
    let (id, _stream) = s.started().await;
    ok(s.runtime.kill(&id).await);
    let usage = ok(s.runtime.usage(&id).await);
    assert_eq!((usage.oom_kills, usage.pids_refused), (0, 0));
    s.remove(&id).await;
}

async fn one_of_many_gets_an_id(s: Subject) {
    let id = id();
    let create = || {
        let (runtime, spec) = (Arc::clone(&s.runtime), spec(&id));
        tokio::spawn(async move { runtime.create(&spec).await })
    };
    let all: Vec<_> = (0..6).map(|_| create()).collect();
    let mut made = 0;
    for one in all {
        match one.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(error.kind, AlreadyExists, "{}", error.chain()),
        }
    }
    assert_eq!(made, 1);
    let _stream = ok(s.runtime.start(&id).await);
    s.remove(&id).await;
}

async fn life(s: Subject) {
    let (id, _stream) = s.started().await;
    ok(s.runtime.usage(&id).await);
    ok(s.runtime.kill(&id).await);
    ok(s.runtime.wait(&id).await);
    s.remove(&id).await;
}

async fn many_live_side_by_side(s: Subject) {
    let all: Vec<_> = (0..8).map(|_| tokio::spawn(life(s.clone()))).collect();
    for one in all {
        one.await.unwrap();
    }
}

async fn many_removals_of_one_are_one(s: Subject) {
    let (id, _stream) = s.started().await;
    let remove = || {
        let (runtime, id) = (Arc::clone(&s.runtime), id.clone());
        tokio::spawn(async move { runtime.remove(&id).await })
    };
    let all: Vec<_> = (0..4).map(|_| remove()).collect();
    for one in all {
        ok(one.await.unwrap());
    }
    expect_kind(s.runtime.usage(&id).await, NotFound);
}

async fn kill_and_remove_at_once(s: Subject) {
    for _ in 0..5 {
        let (id, _stream) = s.started().await;
        let (killed, removed) = tokio::join!(s.runtime.kill(&id), s.runtime.remove(&id));
        ok(killed);
        ok(removed);
        expect_kind(s.runtime.wait(&id).await, NotFound);
    }
}

async fn a_create_that_is_given_up_leaves_an_id_that_can_be_removed(s: Subject) {
    for pause in [0, 1, 3, 10, 30] {
        let id = id();
        let spec = spec(&id);
        let create = s.runtime.create(&spec);
        let _ = tokio::time::timeout(Duration::from_millis(pause), create).await;
        s.remove(&id).await;
        ok(s.runtime.create(&spec).await);
        s.remove(&id).await;
    }
}

async fn a_start_that_is_given_up_can_be_removed(s: Subject) {
    for pause in [0, 1, 3, 10] {
        let id = s.made().await;
        let start = s.runtime.start(&id);
        let _ = tokio::time::timeout(Duration::from_millis(pause), start).await;
        s.remove(&id).await;
        expect_kind(s.runtime.usage(&id).await, NotFound);
    }
}

async fn fifty_one_after_the_other(s: Subject) {
    for _ in 0..50 {
        let id = id();
        ok(s.runtime
            .create(&SandboxSpec {
                limits: limits(),
                ..spec(&id)
            })
            .await);
        let _stream = ok(s.runtime.start(&id).await);
        s.remove(&id).await;
    }
}

async fn what_is_taken_away_is_told(s: Subject) {
    let outside = s.outside.clone().expect("somebody outside");
    let (id, mut stream) = s.started().await;
    let (runtime, of) = (Arc::clone(&s.runtime), id.clone());
    let waiting = tokio::spawn(async move { runtime.wait(&of).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    outside.take_away(&id).await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    // Killed, or gone: never an exit of its own.
    match waiting.await.unwrap() {
        Ok(exit) => assert_ne!(exit, crate::vocabulary::SandboxExit::Exited(0)),
        Err(error) => assert_eq!(error.kind, NotFound, "{}", error.chain()),
    }
    s.remove(&id).await;
}

async fn what_is_taken_away_can_be_removed(s: Subject) {
    let outside = s.outside.clone().expect("somebody outside");
    let (id, _stream) = s.started().await;
    outside.take_away(&id).await;
    ok(s.runtime.kill(&id).await);
    s.remove(&id).await;
    ok(s.runtime.create(&spec(&id)).await);
    s.remove(&id).await;
}
