//! What is done to a log, and whether it is found.

use super::*;
use crate::{Entry, Follower, Verification, entries, newest, verify};

fn small(keep: Option<u32>) -> FileAuditOptions {
    FileAuditOptions {
        // Four entries a file.
        max_bytes: 1500,
        keep,
        sync: true,
    }
}

async fn write(path: &Path, options: FileAuditOptions, count: usize) {
    let log = FileAuditLog::open(path, options).unwrap();
    for _ in 0..count {
        log.record(event()).await.unwrap();
    }
}

fn verified(path: &Path) -> Verification {
    verify(path, None).unwrap()
}

fn findings(path: &Path) -> Vec<String> {
    let found = verified(path);
    assert_eq!(found.intact, found.findings.is_empty());
    let told = found
        .findings
        .into_iter()
        .map(|finding| match finding.line {
            Some(line) => format!("{line}: {}", finding.what),
            None => finding.what,
        });
    told.collect()
}

fn head(path: &Path) -> PathBuf {
    path.with_file_name("audit.jsonl.head")
}

/// Runs a test of this module in a process with a limit, and gives it the path in a variable.
fn limited(limit: &str, test: &str, variable: &str, path: &Path) {
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!("{limit}; exec \"$0\" --exact tests::chain::{test}"))
        .arg(std::env::current_exe().unwrap())
        .env(variable, path)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

/// The files of a log, oldest first.
fn files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|file| *file != head(path) && file != path)
        .collect();
    files.sort();
    files.push(path.to_owned());
    files
}

/// Changes the lines of a log.
fn change(path: &Path, change: impl FnOnce(&mut Vec<String>)) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    change(&mut lines);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path, text).unwrap();
}

#[tokio::test]
async fn what_was_written_is_intact_and_what_it_says_can_be_kept() {
    let (_directory, path, log) = log();
    let empty = verified(&path);
    assert_eq!((empty.intact, empty.entries, empty.last), (true, 0, None));
    for _ in 0..5 {
        log.record(event()).await.unwrap();
    }
    let found = verified(&path);
    assert_eq!((found.intact, found.files, found.entries), (true, 1, 5));
    assert_eq!((found.first, found.last, found.torn), (Some(1), Some(5), 0));
    let kept = found.hash.unwrap();
    log.record(event()).await.unwrap();
    assert!(verify(&path, Some((5, kept.as_str()))).unwrap().intact);
    for (number, hash) in [(4, kept.as_str()), (5, &"0".repeat(64)), (7, kept.as_str())] {
        assert!(
            !verify(&path, Some((number, hash))).unwrap().intact,
            "{number}"
        );
    }
}

#[tokio::test]
async fn every_change_is_found() {
    type Change = fn(&mut Vec<String>);
    let cases: [(Change, &[&str]); 12] = [
        // The control.
        (|_| {}, &[]),
        (
            |lines| lines[1] = lines[1].replace("client", "someone"),
            &["3: entry 2 before it was changed, or this one was"],
        ),
        (
            |lines| lines[0] = lines[0].replace("warning", "info"),
            &["2: entry 1 before it was changed, or this one was"],
        ),
        (
            |lines| lines[4] = lines[4].replace("false", "true"),
            &["5: entry 5 was changed: another hash of it was kept"],
        ),
        (
            |lines| drop(lines.remove(2)),
            &["3: entry 3 before it is missing"],
        ),
        (
            |lines| drop(lines.drain(1..3)),
            &["2: entries 2 to 3 before it are missing"],
        ),
        (
            |lines| drop(lines.remove(0)),
            &["1: entry 1 before it is missing"],
        ),
        (
            |lines| lines.truncate(4),
            &["entry 5 at the end is missing"],
        ),
        (
            |lines| lines.clear(),
            &["entries 1 to 5 at the end are missing"],
        ),
        (
            |lines| lines.swap(1, 2),
            &[
                "2: entry 2 before it is missing",
                "3: entry 2 is repeated or out of order: 4 was to come",
                "4: entry 3 before it is missing",
            ],
        ),
        (
            |lines| lines.insert(2, lines[1].clone()),
            &["3: entry 2 is repeated or out of order: 3 was to come"],
        ),
        (
            |lines| lines.insert(2, "{\"event\":\"forged\"}".to_owned()),
            &["3: no entry: it was changed or put there"],
        ),
    ];
    for (number, (alter, expected)) in cases.into_iter().enumerate() {
        let (_directory, path, log) = log();
        for _ in 0..5 {
            log.record(event()).await.unwrap();
        }
        change(&path, alter);
        assert_eq!(findings(&path), expected, "case {number}");
        if !expected.is_empty() {
            // The next entry does not cover it up.
            log.record(event()).await.unwrap();
            open(&path).unwrap().record(event()).await.unwrap();
            assert!(!verified(&path).intact, "case {number}");
        }
    }
}

#[tokio::test]
async fn what_follows_a_cut_is_not_lost() {
    for cut in [1, 2, 100] {
        let (_directory, path, log) = log();
        for _ in 0..4 {
            log.record(event()).await.unwrap();
        }
        let size = fs::metadata(&path).unwrap().len();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(size - cut).unwrap();
        for _ in 0..3 {
            log.record(event()).await.unwrap();
        }
        let found = verified(&path);
        assert!(!found.intact, "{cut}");
        // Three whole ones before and all after; the one that lacks but its break is there too.
        let expected = if cut == 1 { 7 } else { 6 };
        assert!(
            found.entries >= 6 && found.entries <= expected,
            "{cut}: {found:?}"
        );
        assert_eq!(found.last, Some(7));
    }
}

#[tokio::test]
async fn numbers_that_cannot_be_are_refused_and_no_panic() {
    let (_directory, path, log) = log();
    log.record(event()).await.unwrap();
    let line = fs::read_to_string(&path).unwrap();
    let forged = line.replace("\"seq\":1,", "\"seq\":18446744073709551615,");
    assert_ne!(forged, line);
    fs::write(&path, forged).unwrap();
    for content in [
        "",
        "{\"first\":0,\"seq\":18446744073709551615,\"hash\":\"\",\"size\":0}",
    ] {
        fs::write(head(&path), format!("{content:255}\n")).unwrap();
        let error = log.record(event()).await.unwrap_err();
        assert_eq!(error.kind, PortErrorKind::Unsupported, "{}", error.chain());
        assert!(!verified(&path).intact);
    }
    // Zero is before the first.
    fs::write(&path, line.replace("\"seq\":1,", "\"seq\":0,")).unwrap();
    let zero = "{\"first\":0,\"seq\":0,\"hash\":\"\",\"size\":0}";
    fs::write(head(&path), format!("{zero:255}\n")).unwrap();
    assert!(!verified(&path).intact);
}

#[tokio::test]
async fn each_byte_counts() {
    let (_directory, path, log) = log();
    for _ in 0..3 {
        log.record(event()).await.unwrap();
    }
    let sound = fs::read(&path).unwrap();
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(!verified(&path).intact, "byte {at}");
        fs::write(&path, &sound[..at]).unwrap();
        assert!(!verified(&path).intact, "cut at {at}");
    }
    fs::write(&path, &sound).unwrap();
    assert!(verified(&path).intact);
}

#[tokio::test]
async fn a_head_that_is_lost_or_changed_is_found_also_later() {
    for content in [None, Some(""), Some("{}"), Some("\0\0")] {
        let (_directory, path, _log) = log();
        write(&path, FileAuditOptions::default(), 3).await;
        match content {
            None => fs::remove_file(head(&path)).unwrap(),
            Some(content) => fs::write(head(&path), content).unwrap(),
        }
        let lost = "the head is missing or unreadable: entries at the end may be missing";
        assert_eq!(findings(&path), [lost]);
        write(&path, FileAuditOptions::default(), 2).await;
        assert_eq!(
            findings(&path)[0],
            "1: entry 1 is older than the head of the log (4): the head was lost"
        );
    }
    // The log of a version without a chain.
    let (_directory, path, _log) = log();
    fs::write(&path, "{\"event\":\"old\"}\n").unwrap();
    write(&path, FileAuditOptions::default(), 2).await;
    assert_eq!(
        findings(&path),
        ["1: no entry: it was changed or put there"]
    );
}

#[tokio::test]
async fn a_torn_line_is_told_and_is_no_change() {
    let (_directory, path, log) = log();
    log.record(event()).await.unwrap();
    let tear = |text: &[u8]| {
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        file.write_all(text).unwrap();
    };
    tear(b"{\"time\":");
    let found = verified(&path);
    assert_eq!((found.intact, found.torn, found.entries), (true, 1, 1));
    log.record(event()).await.unwrap();
    // All but the line break.
    let whole = fs::read(&path).unwrap();
    let last = whole.split(|byte| *byte == b'\n').nth_back(1).unwrap();
    tear(last);
    log.record(event()).await.unwrap();
    tear(b"{\"t");
    let found = verified(&path);
    assert_eq!((found.intact, found.torn, found.entries), (true, 3, 3));
    // Accounted for, it cannot be changed either.
    change(&path, |lines| lines[1].push('!'));
    assert_eq!(
        findings(&path)[0],
        "2: no entry: it was changed or put there"
    );
}

#[tokio::test]
async fn what_no_writer_begins_with_is_not_torn() {
    for junk in [&b"junk"[..], b"{\"event\":\"x\"", b"\0\0"] {
        let (_directory, path, log) = log();
        log.record(event()).await.unwrap();
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        file.write_all(junk).unwrap();
        let told = "2: no entry: it was changed or put there";
        assert_eq!(findings(&path), [told]);
        log.record(event()).await.unwrap();
        assert_eq!(findings(&path), [told]);
    }
}

#[tokio::test]
async fn the_newest_entries_are_found_from_the_end() {
    let (_directory, path, log) = log();
    let options = FileAuditOptions {
        // More than one look into each file.
        max_bytes: 150_000,
        ..FileAuditOptions::default()
    };
    drop(log);
    write(&path, options, 1000).await;
    assert_eq!(verified(&path).files, 3);
    let numbers = |most| -> Vec<u64> {
        let found = newest(&path, most).unwrap();
        let number = |entry: &Entry| entry.members["seq"].as_u64().unwrap();
        found.iter().map(number).collect()
    };
    for most in [0, 1, 2, 50, 300, 301, 999, 1000, 2000] {
        let from = 1001 - most.min(1000) as u64;
        assert_eq!(numbers(most), (from..=1000).collect::<Vec<_>>(), "{most}");
    }
}

#[tokio::test]
async fn what_lets_others_change_the_log_is_told() {
    let (_directory, path, log) = log();
    log.record(event()).await.unwrap();
    assert_eq!(verified(&path).remarks, Vec::<String>::new());
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&path, 0o666);
    mode(&head(&path), 0o620);
    fs::hard_link(&path, path.with_extension("link")).unwrap();
    mode(path.parent().unwrap(), 0o777);
    let found = verified(&path);
    assert!(found.intact);
    let name = path.file_name().unwrap().display();
    assert_eq!(
        found.remarks[..3],
        [
            format!("others may write {name} (mode 0666)"),
            format!("{name} has other names (hard links)"),
            format!("others may write {name}.head (mode 0620)"),
        ]
    );
    assert!(
        found.remarks[3].starts_with("others may replace"),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_writer_that_was_killed_before_the_head_loses_nothing() {
    let (_directory, path, log) = log();
    for _ in 0..2 {
        log.record(event()).await.unwrap();
    }
    let before = fs::read(head(&path)).unwrap();
    for _ in 0..3 {
        log.record(event()).await.unwrap();
    }
    fs::write(head(&path), before).unwrap();
    assert_eq!(verified(&path).entries, 5);
    assert!(verified(&path).intact);
    log.record(event()).await.unwrap();
    let found = verified(&path);
    assert_eq!((found.intact, found.last), (true, Some(6)));
}

#[tokio::test]
async fn full_files_are_put_away_and_the_chain_goes_through_them() {
    let (_directory, path, _log) = log();
    write(&path, small(None), 10).await;
    write(&path, small(None), 3).await;
    let all = files(&path);
    assert!(all.len() >= 4, "{all:?}");
    for file in &all {
        assert_eq!(mode(file), 0o600);
        assert!(fs::metadata(file).unwrap().len() <= 1500);
    }
    let found = verified(&path);
    assert_eq!((found.intact, found.entries), (true, 13));
    assert_eq!(found.files, all.len());
    let mut seen = 0;
    entries(&path, |entry| {
        seen += 1;
        assert_eq!(entry.members["seq"], seen);
    })
    .unwrap();
    assert_eq!(seen, 13);
    // A whole file is missing, and an old one has come back.
    let away = fs::read(&all[1]).unwrap();
    fs::remove_file(&all[1]).unwrap();
    assert!(findings(&path)[0].contains("before it are missing"));
    fs::write(&all[1], away).unwrap();
    assert!(verified(&path).intact);
    fs::remove_file(&all[0]).unwrap();
    assert!(findings(&path)[0].contains("entries 1 to"));
}

/// Run by the test below in a process of its own.
#[test]
fn reads_with_few_descriptors() {
    let Ok(path) = std::env::var("AUDIT_TEST_FEW") else {
        return;
    };
    let path = Path::new(&path);
    assert_eq!(verified(path).entries, 200);
    let mut seen = 0;
    entries(path, |_| seen += 1).unwrap();
    assert_eq!(seen, 200);
}

#[tokio::test]
async fn there_may_be_more_files_than_descriptors() {
    let (_directory, path, _log) = log();
    let options = FileAuditOptions {
        sync: false,
        ..small(None)
    };
    write(&path, options, 200).await;
    assert!(files(&path).len() > 40);
    limited(
        "ulimit -n 24",
        "reads_with_few_descriptors",
        "AUDIT_TEST_FEW",
        &path,
    );
}

#[tokio::test]
async fn no_more_files_are_kept_than_asked_and_what_is_gone_is_known() {
    let (_directory, path, _log) = log();
    write(&path, small(Some(2)), 30).await;
    assert_eq!(files(&path).len(), 3);
    let found = verified(&path);
    assert!(found.intact, "{:?}", found.findings);
    assert_eq!(found.last, Some(30));
    assert!(found.first > Some(10));
    fs::remove_file(&files(&path)[0]).unwrap();
    assert!(!verified(&path).intact);
}

#[tokio::test]
async fn a_name_that_is_taken_is_not_overwritten() {
    let (_directory, path, _log) = log();
    let taken = |number: u64| path.with_file_name(format!("audit.jsonl.{number:020}"));
    for number in 1..8 {
        fs::write(taken(number), "other").unwrap();
    }
    let log = FileAuditLog::open(&path, small(None)).unwrap();
    let mut refused = None;
    for _ in 0..7 {
        if let Err(error) = log.record(event()).await {
            refused = Some(error);
        }
    }
    let error = refused.unwrap();
    assert!(
        error.chain().contains("cannot begin a new file"),
        "{}",
        error.chain()
    );
    for number in 1..8 {
        assert_eq!(fs::read_to_string(taken(number)).unwrap(), "other");
    }
}

#[tokio::test]
async fn a_log_is_followed_through_its_files() {
    let (_directory, path, _log) = log();
    write(&path, small(None), 2).await;
    let mut follower = Follower::at_end(&path).unwrap();
    assert!(follower.news().unwrap().is_empty());
    let mut numbers = Vec::new();
    for count in [1, 5, 2] {
        write(&path, small(None), count).await;
        let news = follower.news().unwrap();
        numbers.extend(
            news.iter()
                .map(|entry| entry.members["seq"].as_u64().unwrap()),
        );
    }
    assert_eq!(numbers, (3..=10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_writers_with_small_files_lose_nothing_and_break_no_chain() {
    let (_directory, path, _log) = log();
    let writers = (0..4).map(|_| {
        let path = path.clone();
        tokio::spawn(async move { write(&path, small(None), 40).await })
    });
    let reading = path.clone();
    let reader = tokio::task::spawn_blocking(move || {
        for _ in 0..20 {
            let found = verified(&reading);
            assert!(found.intact, "while it is written: {:?}", found.findings);
        }
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    reader.await.unwrap();
    let found = verified(&path);
    assert_eq!((found.intact, found.entries), (true, 160));
}

/// Run by the test below in processes of their own.
#[tokio::test]
async fn writes_until_it_is_killed() {
    let Ok(path) = std::env::var("AUDIT_TEST_KILLED") else {
        return;
    };
    let log = FileAuditLog::open(path, small(None)).unwrap();
    loop {
        log.record(event()).await.unwrap();
    }
}

#[tokio::test]
async fn killed_writers_lose_nothing_that_was_recorded() {
    let (_directory, path, _log) = log();
    write(&path, small(None), 1).await;
    for round in 0..20 {
        let mut writers: Vec<_> = (0..2)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "tests::chain::writes_until_it_is_killed"])
                    .env("AUDIT_TEST_KILLED", &path)
                    .stdout(std::process::Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let before = verified(&path).last;
        while verified(&path).last < before.map(|last| last + 5 + round % 3) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for writer in &mut writers {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        let found = verified(&path);
        assert!(found.intact, "{:?}", found.findings);
        write(&path, small(None), 1).await;
    }
    let found = verified(&path);
    assert!(found.intact, "{:?}", found.findings);
    assert!(found.entries >= 120);
}

#[tokio::test]
async fn a_full_disk_leaves_the_log_as_it_was() {
    // Run as another process, since the limit is of the process.
    let (_directory, path, _log) = log();
    write(&path, FileAuditOptions::default(), 2).await;
    // Blocks of 512 bytes in POSIX, of 1024 in some shells; the signal would end it.
    let limit = "trap '' XFSZ; ulimit -f 4";
    limited(limit, "writes_until_it_is_full", "AUDIT_TEST_FULL", &path);
    let found = verified(&path);
    assert!(found.intact && found.torn == 0, "{found:?}");
    assert!(found.entries > 3);
    write(&path, FileAuditOptions::default(), 1).await;
    assert!(verified(&path).intact);
}

/// Run by the test above in a process of its own.
#[tokio::test]
async fn writes_until_it_is_full() {
    let Ok(path) = std::env::var("AUDIT_TEST_FULL") else {
        return;
    };
    let log = open(path).unwrap();
    for _ in 0..100 {
        if let Err(error) = log.record(event()).await {
            assert_eq!(
                error.kind,
                PortErrorKind::LimitExceeded,
                "{}",
                error.chain()
            );
            assert!(error.hint.unwrap().contains("free space"));
            return;
        }
    }
    panic!("the file took everything");
}

#[test]
fn where_there_is_no_log_it_is_told() {
    let directory = tempfile::tempdir().unwrap();
    for path in ["none.jsonl", "no/where.jsonl"] {
        let path = directory.path().join(path);
        let error = verify(&path, None).unwrap_err();
        assert_eq!(error.kind, PortErrorKind::NotFound, "{}", error.chain());
        let error = entries(&path, drop).unwrap_err();
        assert_eq!(error.kind, PortErrorKind::NotFound, "{}", error.chain());
    }
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
}
