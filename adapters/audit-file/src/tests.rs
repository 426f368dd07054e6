//! The log on real files.

mod chain;

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, SystemTime};

use mcp_forge_ports::PortErrorKind;
use mcp_forge_ports::vocabulary::{AuditKind, Severity};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::entry::MAX_ENTRY_BYTES;

fn open(path: impl Into<PathBuf>) -> Result<FileAuditLog, PortError> {
    FileAuditLog::open(path, FileAuditOptions::default())
}

fn event() -> AuditEvent {
    AuditEvent {
        time: SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_007_999),
        kind: AuditKind::ExecutionResult,
        severity: Severity::Warning,
        run_id: Some("run-1".to_owned()),
        session: None,
        client: Some("client".to_owned()),
        correlation_id: "corr-1".to_owned(),
        success: Some(false),
        details: serde_json::Map::from_iter([("code_sha256".to_owned(), json!("ab"))]),
        error: Some("timeout".to_owned()),
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a whole line"))
        .collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn log() -> (TempDir, PathBuf, FileAuditLog) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let log = open(&path).unwrap();
    (directory, path, log)
}

#[tokio::test]
async fn an_entry_is_one_line_with_every_member_in_order() {
    let (_directory, path, log) = log();
    log.record(event()).await.unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "{\"time\":\"2023-11-14T22:13:20.007Z\",\"event\":\"execution.result\",\
         \"severity\":\"warning\",\"session\":null,\"client\":\"client\",\"run_id\":\"run-1\",\
         \"correlation_id\":\"corr-1\",\"success\":false,\"details\":{\"code_sha256\":\"ab\"},\
         \"error\":\"timeout\",\"seq\":1,\"previous\":\
         \"0000000000000000000000000000000000000000000000000000000000000000\"}\n"
    );
}

#[tokio::test]
async fn whole_seconds_have_milliseconds_too() {
    let (_directory, path, log) = log();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    log.record(AuditEvent { time, ..event() }).await.unwrap();
    assert_eq!(lines(&path)[0]["time"], "2023-11-14T22:13:20.000Z");
}

#[test]
fn files_and_directories_are_for_the_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let path = directory.path().join("a/b/audit.jsonl");
    open(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(&directory.path().join("a")), 0o700);
    assert_eq!(
        mode(directory.path()),
        0o755,
        "what was there keeps its mode"
    );
}

#[tokio::test]
async fn what_is_in_the_file_stays() {
    let (_directory, path, log) = log();
    log.record(event()).await.unwrap();
    let again = open(&path).unwrap();
    again.record(event()).await.unwrap();
    log.record(event()).await.unwrap();
    assert_eq!(lines(&path).len(), 3);
}

#[tokio::test]
async fn a_line_torn_by_a_crash_stays_on_a_line_of_its_own() {
    let (_directory, path, log) = log();
    log.record(event()).await.unwrap();
    let mut file = fs::File::options().append(true).open(&path).unwrap();
    file.write_all(b"{\"time\":").unwrap();
    log.record(event()).await.unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[1], "{\"time\":");
    serde_json::from_str::<Value>(lines[2]).unwrap();
}

#[tokio::test]
async fn hostile_text_cannot_forge_a_line() {
    let (_directory, path, log) = log();
    let forged = "x\"}\n{\"event\":\"forged\"}\r\n\0\u{2028}\u{1b}[2J";
    let hostile = AuditEvent {
        client: Some(forged.to_owned()),
        correlation_id: forged.to_owned(),
        error: Some(forged.to_owned()),
        ..event()
    };
    log.record(hostile).await.unwrap();
    let lines = lines(&path);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["client"], forged);
    assert_eq!(lines[0]["event"], "execution.result");
}

#[tokio::test]
async fn a_long_line_loses_details_and_nothing_else() {
    let (_directory, path, log) = log();
    let mut long = event();
    long.details
        .insert("huge".to_owned(), json!("h".repeat(200_000)));
    for n in 0..1000 {
        long.details.insert(format!("n{n}"), json!("v".repeat(100)));
    }
    log.record(long).await.unwrap();
    let line = &lines(&path)[0];
    let details = line["details"].as_object().unwrap();
    assert_eq!(details["code_sha256"], "ab");
    assert!(!details.contains_key("huge"));
    assert_eq!(details["details_cut"], 1002 - (details.len() - 1));
    assert!(details.len() > 50, "{}", details.len());
    assert_eq!(line["error"], "timeout");
    assert!(fs::metadata(&path).unwrap().len() <= MAX_LINE_BYTES as u64);
}

#[tokio::test]
async fn no_entry_makes_a_longer_line() {
    let (_directory, path, log) = log();
    let text = "\0".repeat(300_000);
    let hostile = AuditEvent {
        client: Some(text.clone()),
        session: Some(text.clone()),
        run_id: Some(text.clone()),
        correlation_id: text.clone(),
        error: Some(text.clone()),
        details: (0..100)
            .map(|n| (format!("{n}\0"), json!("\0".repeat(160))))
            .collect(),
        ..event()
    };
    log.record(hostile).await.unwrap();
    log.record(event()).await.unwrap();
    let lines = lines(&path);
    assert_eq!(lines.len(), 2);
    assert!(lines[0]["error"].as_str().unwrap().ends_with('…'));
    let longest = fs::read(&path)
        .unwrap()
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::len)
        .max();
    assert!(longest < Some(MAX_LINE_BYTES), "{longest:?}");
}

#[tokio::test]
async fn a_line_of_exactly_the_bound_is_whole() {
    let (_directory, path, log) = log();
    let mut entry = event();
    let rest = entry::line(&entry).unwrap().len() - "ab".len();
    for (length, cut) in [
        (MAX_ENTRY_BYTES - rest, false),
        (MAX_ENTRY_BYTES - rest + 1, true),
    ] {
        entry.details["code_sha256"] = json!("h".repeat(length));
        log.record(entry.clone()).await.unwrap();
        let details = lines(&path).pop().unwrap()["details"].clone();
        assert_eq!(details.get("details_cut").is_some(), cut);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_and_many_logs_lose_and_tear_nothing() {
    let (_directory, path, log) = log();
    let mut tasks = Vec::new();
    for writer in 0..8 {
        // Half of them share a descriptor, the others have their own.
        let log = if writer % 2 == 0 {
            log.clone()
        } else {
            open(&path).unwrap()
        };
        tasks.push(tokio::spawn(async move {
            for n in 0..100 {
                let entry = AuditEvent {
                    correlation_id: format!("{writer}-{n}"),
                    details: std::iter::once(("x".to_owned(), json!("x".repeat(n * 100))))
                        .collect(),
                    ..event()
                };
                log.record(entry).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let ids: Vec<_> = lines(&path)
        .iter()
        .map(|line| line["correlation_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 800);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 800);
    for writer in 0..8 {
        let own: Vec<_> = ids
            .iter()
            .filter(|id| id.starts_with(&format!("{writer}-")))
            .collect();
        assert!(
            own.iter()
                .enumerate()
                .all(|(n, id)| **id == format!("{writer}-{n}"))
        );
    }
}

#[tokio::test]
async fn entries_that_nobody_waits_for_keep_no_other_waiting_and_are_written() {
    let (_directory, path, log) = log();
    let mut left: Vec<_> = (0..8).map(|_| Box::pin(log.record(event()))).collect();
    for one in &mut left {
        // Polled once, and then neither again nor dropped.
        std::future::poll_fn(|context| {
            let _ = one.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    let next = tokio::time::timeout(Duration::from_secs(3), log.record(event()));
    next.await.expect("it waits for the others").unwrap();
    assert_eq!(lines(&path).len(), 9);
}

/// Run by the test below in processes of their own.
#[tokio::test]
async fn writes_as_another_process() {
    let Ok(path) = std::env::var("AUDIT_TEST_PATH") else {
        return;
    };
    let log = open(path).unwrap();
    for n in 0..200 {
        let details = std::iter::once(("x".to_owned(), json!("x".repeat(n * 50)))).collect();
        log.record(AuditEvent { details, ..event() }).await.unwrap();
    }
}

#[test]
fn many_processes_lose_and_tear_nothing() {
    let (_directory, path, _log) = log();
    let writers: Vec<_> = (0..4)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tests::writes_as_another_process"])
                .env("AUDIT_TEST_PATH", &path)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    assert_eq!(lines(&path).len(), 800);
}

#[tokio::test]
async fn a_deleted_file_is_told() {
    let (_directory, path, log) = log();
    fs::remove_file(&path).unwrap();
    let error = log.record(event()).await.unwrap_err();
    assert_eq!(error.kind, PortErrorKind::NotFound);
    open(&path).unwrap().record(event()).await.unwrap();
    assert_eq!(lines(&path).len(), 1);
}

/// What opening the file says.
fn refused(path: &Path) -> (PortErrorKind, String) {
    let error = open(path).unwrap_err();
    (error.kind, error.chain())
}

#[test]
fn only_regular_files_by_their_real_path_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("real"), "").unwrap();
    symlink(path("real"), path("link")).unwrap();
    symlink(path("nowhere"), path("dangling")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    let fifo = Command::new("mkfifo").arg(path("fifo")).status().unwrap();
    assert!(fifo.success());
    for special in [
        path("link"),
        path("dangling"),
        path("socket"),
        path("fifo"),
        "/dev/null".into(),
    ] {
        let (kind, told) = refused(&special);
        assert_eq!(kind, PortErrorKind::Unsupported, "{told}");
        assert!(told.contains("not a regular file"), "{told}");
    }
    assert!(!path("nowhere").exists());
    for no_file in [
        directory.path(),
        Path::new("/"),
        &path("real").join("below"),
    ] {
        let (kind, told) = refused(no_file);
        assert_eq!(kind, PortErrorKind::Unsupported, "{told}");
    }
}

#[test]
fn a_file_with_several_names_is_refused() {
    let (directory, path, _log) = log();
    fs::hard_link(&path, directory.path().join("other")).unwrap();
    let (kind, told) = refused(&path);
    assert_eq!(kind, PortErrorKind::Unsupported, "{told}");
    assert!(told.contains("hard links"), "{told}");
}

#[test]
fn a_file_that_others_may_write_is_refused_and_one_that_they_may_read_is_closed() {
    let (_directory, path, _log) = log();
    for (before, after) in [
        (0o644, Some(0o600)),
        (0o640, Some(0o600)),
        (0o700, Some(0o600)),
        (0o602, None),
        (0o660, None),
        (0o666, None),
    ] {
        fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
        match after {
            Some(after) => {
                open(&path).unwrap();
                assert_eq!(mode(&path), after, "{before:o}");
            }
            None => {
                let (kind, told) = refused(&path);
                assert_eq!(kind, PortErrorKind::Denied, "{told}");
                assert!(told.contains("others may write the file"), "{told}");
                assert_eq!(mode(&path), before);
            }
        }
    }
}

#[test]
fn a_directory_in_which_others_may_write_is_refused_unless_it_is_sticky() {
    let (directory, path, _log) = log();
    for (mode, taken) in [
        (0o777, false),
        (0o720, false),
        (0o1777, true),
        (0o755, true),
    ] {
        fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        if taken {
            open(&path).unwrap();
        } else {
            let (kind, told) = refused(&path);
            assert_eq!(kind, PortErrorKind::Denied, "{told}");
            assert!(told.contains("others may replace the file"), "{told}");
        }
    }
}

#[test]
fn what_belongs_to_another_user_is_refused() {
    let (directory, path, _log) = log();
    let own = rustix::process::geteuid().as_raw();
    if own != 0 {
        let _ = writeln!(io::stderr(), "SKIPPED: only root can give files away");
        return;
    }
    let chown = |path: &Path, owner| std::os::unix::fs::chown(path, Some(owner), None).unwrap();
    chown(&path, 12345);
    let (kind, told) = refused(&path);
    assert_eq!(kind, PortErrorKind::Denied, "{told}");
    assert!(told.contains("belongs to user 12345"), "{told}");
    chown(&path, own);
    chown(directory.path(), 12345);
    let (kind, told) = refused(&path);
    assert_eq!(kind, PortErrorKind::Denied, "{told}");
    assert!(told.contains("others may replace the file"), "{told}");
}

#[tokio::test]
async fn a_time_before_all_calendars_is_an_error_and_no_panic() {
    let (_directory, path, log) = log();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::MAX / 4);
    let error = log
        .record(AuditEvent { time, ..event() })
        .await
        .unwrap_err();
    assert_eq!(error.kind, PortErrorKind::Internal);
    assert!(lines(&path).is_empty());
}

#[test]
fn every_failure_names_the_file_and_a_remedy() {
    let io = || io::Error::from(io::ErrorKind::PermissionDenied);
    for (error, kind) in [
        (FileAuditError::Open { source: io() }, PortErrorKind::Denied),
        (
            FileAuditError::Write { source: io() },
            PortErrorKind::Denied,
        ),
        (
            FileAuditError::Torn {
                source: io(),
                left: io(),
            },
            PortErrorKind::Denied,
        ),
        (FileAuditError::NotRegular, PortErrorKind::Unsupported),
        (FileAuditError::Linked, PortErrorKind::Unsupported),
        (
            FileAuditError::Foreign { owner: 1, own: 0 },
            PortErrorKind::Denied,
        ),
        (
            FileAuditError::Writable { mode: 0o666 },
            PortErrorKind::Denied,
        ),
        (
            FileAuditError::Directory {
                owner: 1,
                mode: 0o777,
            },
            PortErrorKind::Denied,
        ),
        (FileAuditError::Locked, PortErrorKind::TimedOut),
        (FileAuditError::Deleted, PortErrorKind::NotFound),
        (
            FileAuditError::Write {
                source: io::ErrorKind::QuotaExceeded.into(),
            },
            PortErrorKind::LimitExceeded,
        ),
        (
            FileAuditError::Write {
                source: io::Error::other("x"),
            },
            PortErrorKind::Internal,
        ),
    ] {
        let error = error.into_port(Path::new("/var/a.jsonl"));
        assert_eq!(error.kind, kind, "{}", error.chain());
        assert_eq!(
            error.chain().matches("/var/a.jsonl").count(),
            1,
            "{}",
            error.chain()
        );
        assert!(error.hint.is_some() && error.source.is_some());
    }
}
