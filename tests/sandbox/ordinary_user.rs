//! Users who are not root and have no control group of their own: refused with the reason and the
//! way out, or, where the operator accepts it, weaker and said so.
//!
//! `newuidmap` gives ranges to users who have an account and a line in /etc/subuid. So the tests
//! make one account by a fixed name and remove it again; one that a killed test left is used.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::client::Server;
use crate::home::{Alone, BINARY, Finished, Home, alone, finish};
use crate::host::{is_root, skip};
use crate::verdict::{ALL, FACTS, expect_nobody};

const NAME: &str = "mcp-forge-test";
const ACCEPT: (&str, &str) = ("MCP_FORGE_SECURITY__ACCEPT_UNENFORCED_LIMITS", "true");

/// An account that nobody can log in to, with subordinate ids.
struct Account {
    user: u32,
    group: u32,
    range: Range<u32>,
}

impl Account {
    fn make() -> Self {
        if find().is_none() {
            let made = [
                "--no-create-home",
                "--shell",
                "/usr/sbin/nologin",
                "--user-group",
                NAME,
            ];
            run("useradd", &made);
        }
        if range().is_none() {
            // Where useradd does not hand out ranges.
            let ids = [
                "--add-subuids",
                "900000-965535",
                "--add-subgids",
                "900000-965535",
                NAME,
            ];
            run("usermod", &ids);
        }
        let (user, group) = find().expect("the account");
        Self {
            user,
            group,
            range: range().expect("subordinate ids"),
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = Command::new("userdel").arg(NAME).output();
    }
}

fn find() -> Option<(u32, u32)> {
    let user = nix::unistd::User::from_name(NAME).unwrap()?;
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

/// The account's range in /etc/subuid.
fn range() -> Option<Range<u32>> {
    let text = fs::read_to_string("/etc/subuid").ok()?;
    let mut fields = text
        .lines()
        .find_map(|line| line.strip_prefix(NAME)?.strip_prefix(':'))?
        .split(':');
    let (start, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(start..start + count)
}

fn run(program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments);
    let finished = finish(command, b"");
    assert_eq!(finished.code(), 0, "{program} {arguments:?}: {finished:?}");
}

/// A home that belongs to a user, with a copy of the program that the user may read.
struct Place {
    // Goes first: the home holds the right to be the only test.
    account: Account,
    home: Home,
    program: PathBuf,
}

impl Place {
    /// A home of the account; none where the account cannot be.
    fn of_account(test: &str) -> Option<Self> {
        if !is_root() {
            skip(test, "only root can make the account that it needs");
            return None;
        }
        if !Path::new("/usr/bin/newuidmap").exists() {
            skip(test, "newuidmap is missing (package uidmap)");
            return None;
        }
        let alone = alone();
        Some(Self::furnished(alone, Account::make()))
    }

    fn furnished(alone: Alone, account: Account) -> Self {
        let mut home = Home::new(alone, account.range.clone());
        let open = |path: &Path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        open(home.path());
        let program = home.file("mcp-forge", "");
        fs::copy(BINARY, &program).unwrap();
        open(&program);
        for entry in fs::read_dir(home.path()).unwrap().flatten() {
            chown(entry.path(), Some(account.user), Some(account.group)).unwrap();
        }
        home.settle();
        Self {
            account,
            home,
            program,
        }
    }

    /// The program, as the user.
    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        self.home.furnish(&mut command);
        command
            .args([
                format!("--reuid={}", self.account.user),
                format!("--regid={}", self.account.group),
            ])
            .arg("--clear-groups")
            .arg(&self.program);
        command
    }

    fn run(&self, settings: &[(&str, &str)], arguments: &[&str]) -> Finished {
        let mut command = self.command();
        command.envs(settings.iter().copied()).args(arguments);
        finish(command, b"")
    }

    #[track_caller]
    fn expect_verdict(&self, accepted: bool) {
        let audit = self.home.audit();
        let verdicts: Vec<&Value> = audit
            .iter()
            .filter(|line| line["event"] == "sandbox.verdict")
            .collect();
        let [verdict] = verdicts.as_slice() else {
            panic!("{audit:#?}")
        };
        assert_eq!(verdict["details"]["verdict"], "WeakSandboxMode");
        assert_eq!(verdict["details"]["accepted"], accepted);
        assert_eq!(verdict["severity"], "warning");
        let reasons = verdict["details"]["reasons"].as_array().unwrap();
        assert!(!reasons.is_empty(), "{verdict:#}");
    }
}

#[test]
fn limits_that_nothing_enforces_are_refused() {
    let Some(place) = Place::of_account("a refusal of weak sandboxes") else {
        return;
    };
    let finished = place.run(&[], &["run", "-c", "print('ran')"]);
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (125, ""),
        "{finished:?}"
    );
    for part in ["does not enforce every limit", "cgroup", ACCEPT.0, "hint"] {
        assert!(
            finished.stderr.contains(part),
            "{part:?} is not in {finished:?}"
        );
    }
    place.expect_verdict(false);
    let ran = |line: &Value| line["event"] == "container.start";
    assert!(
        !place.home.audit().iter().any(ran),
        "{:#?}",
        place.home.audit()
    );
    let doctor = place.run(&[], &["doctor"]);
    assert_ne!(doctor.code(), 0, "{doctor:?}");
    assert!(doctor.stdout.contains("cgroup"), "{doctor:?}");
    place.home.expect_nothing_left();
}

#[test]
fn a_weak_sandbox_is_told_as_such() {
    let Some(place) = Place::of_account("accepted weak sandboxes") else {
        return;
    };
    let finished = place.run(&[ACCEPT], &["run", "--json", "-c", "6*7"]);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let told: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(
        (&told["result"], &told["success"]),
        (&json!(42), &json!(true)),
        "{told:#}"
    );
    assert_eq!(told["limits"]["enforced"], false, "{told:#}");
    let weak = told["limits"]["weak"].as_array().unwrap();
    for limit in ["memory", "cpu", "pids"] {
        let named = |line: &Value| line.as_str().is_some_and(|line| line.contains(limit));
        assert!(weak.iter().any(named), "{limit} is not in {weak:?}");
    }
    for limit in ["memory_bytes", "cpu_quota", "pids"] {
        assert_eq!(told["limits"]["effective"][limit], Value::Null, "{told:#}");
    }
    place.expect_verdict(true);

    // What does not hang on control groups is as for root, and memory is bounded in each process.
    for (arguments, code, says) in [
        (
            &["--timeout", "1", "-c", "while True: pass"][..],
            124,
            "time limit",
        ),
        (
            &["--memory", "64m", "-c", "bytearray(512 << 20)"],
            1,
            "MemoryError",
        ),
        (&["-c", "import os; os._exit(os.fork() and 3)"], 3, ""),
    ] {
        let finished = place.run(&[ACCEPT], &[&["run"], arguments].concat());
        assert_eq!(finished.code(), code, "{arguments:?}: {finished:?}");
        assert!(
            finished.stderr.contains(says),
            "{arguments:?}: {finished:?}"
        );
    }
    place.home.expect_nothing_left();
}

#[test]
fn a_weak_sandbox_isolates_as_any_other() {
    let Some(place) = Place::of_account("isolation of weak sandboxes") else {
        return;
    };
    let probe = |name: &str, source: &str| -> Value {
        let file = place.home.file(name, source);
        let finished = place.run(&[ACCEPT], &["run", file.to_str().unwrap()]);
        serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished:?}"))
    };
    let facts = probe("facts.py", FACTS);
    expect_nobody(&facts, false);
    for attempts in ALL {
        let told = probe(&format!("{}.py", attempts.name), &attempts.python());
        let wrong = attempts.wrong_answers(&told);
        assert!(wrong.is_empty(), "{}: {wrong:#?}", attempts.name);
    }
    place.home.expect_nothing_left();
}

#[test]
fn nothing_outlives_the_server_of_an_ordinary_user() {
    let Some(place) = Place::of_account("SIGKILL of an ordinary user's server") else {
        return;
    };
    let mut command = place.command();
    command.env(ACCEPT.0, ACCEPT.1).arg("serve");
    let mut server = Server::spawn(&place.home, command);
    assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
    server.begin_call(json!({"code": "import time; time.sleep(1000)"}));
    // With an id of the user's range: others are not looked at.
    server.expect_programs(1);
    server.signal(Signal::SIGKILL);
    place.home.expect_nothing_left();
}

#[test]
fn a_user_without_subordinate_ids_is_told_how_to_get_them() {
    let test = "a user without subordinate ids";
    if !is_root() {
        skip(test, "only root can become another user");
        return;
    }
    // An id that no system gives to a user.
    let stranger = Account {
        user: 61_184,
        group: 61_184,
        range: 61_184..61_185,
    };
    let place = Place::furnished(alone(), stranger);
    // Several times: who tells it and who goes away are different processes.
    for _ in 0..5 {
        let finished = place.run(&[ACCEPT], &["run", "-c", "print('ran')"]);
        assert_eq!(
            (finished.code(), finished.stdout.as_str()),
            (125, ""),
            "{finished:?}"
        );
        for part in [
            "/etc/subuid",
            "61184",
            "--add-subuids 100000-165535 --add-subgids 100000-165535 61184",
        ] {
            assert!(
                finished.stderr.contains(part),
                "{part:?} is not in {finished:?}"
            );
        }
    }
    place.home.expect_nothing_left();
}
