//! The audit log of real runs.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::{CANARY, Home, finish};

fn sha256(text: &str) -> String {
    let finished = finish(Command::new("sha256sum"), text.as_bytes());
    finished
        .stdout
        .split_whitespace()
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn a_run_is_told_in_order_and_without_its_texts() {
    let Some(home) = Home::for_root("the audit log") else {
        return;
    };
    let code = "secret_of_the_program = input()\nprint('secret of the output')\n1/0";
    let mut server = Server::start(&home);
    let call = server.begin(
        "tools/call",
        json!({
            "name": "execute_python",
            "arguments": {"code": code, "stdin": "secret of the input\n"},
            "_meta": {"correlationId": "ticket-17"},
        }),
    );
    let told = server.told(call);
    assert_eq!(told["correlation_id"], "ticket-17");
    server.close();

    let lines = home.audit();
    let events: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["event"].as_str())
        .collect();
    let expected = [
        "execution.request",
        "container.create",
        "container.start",
        "sandbox.verdict",
        "execution.result",
        "container.stop",
        "container.remove",
    ];
    assert_eq!(events, expected, "{lines:#?}");
    for line in &lines {
        assert_eq!(line["run_id"], told["run_id"], "{line:#}");
        assert_eq!(line["correlation_id"], "ticket-17", "{line:#}");
        assert_eq!(line["client"], "end-to-end", "{line:#}");
        assert!(
            line["time"]
                .as_str()
                .is_some_and(|time| time.ends_with('Z')),
            "{line:#}"
        );
    }
    let times: Vec<_> = lines
        .iter()
        .map(|line| line["time"].as_str().unwrap())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
    let [request, .., result, _, _] = lines.as_slice() else {
        panic!("{lines:#?}")
    };
    assert_eq!(lines[3]["details"]["verdict"], "SandboxConfirmed");
    assert_eq!(lines[3]["details"]["found"]["mounts"]["/usr"], "read-only");
    assert_eq!(request["details"]["code_sha256"], sha256(code));
    assert_eq!(request["details"]["code_bytes"], code.len());
    assert_eq!(
        result["details"]["stdout_sha256"],
        sha256("secret of the output\n")
    );
    assert_eq!(result["details"]["ended_by"], "error");
    assert_eq!(result["success"], false);

    let text = std::fs::read_to_string(home.audit_path()).unwrap();
    for secret in ["secret of", "secret_of", "ZeroDivision", CANARY] {
        assert!(!text.contains(secret), "{secret:?} is in the audit log");
    }
    let mode = std::fs::metadata(home.audit_path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0, "others may read the audit log: {mode:o}");
}

#[test]
fn servers_and_commands_share_one_log() {
    let Some(home) = Home::for_root("an audit log with several writers") else {
        return;
    };
    let mut first = Server::start(&home);
    let mut second = Server::start(&home);
    let calls: Vec<(u64, u64)> = (0..5)
        .map(|_| {
            (
                first.begin_call(json!({"code": "1"})),
                second.begin_call(json!({"code": "1"})),
            )
        })
        .collect();
    assert_eq!(home.run(&["-c", "1"]).code(), 0);
    for (of_first, of_second) in calls {
        assert_eq!(first.told(of_first)["result"], 1);
        assert_eq!(second.told(of_second)["result"], 1);
    }
    for mut server in [first, second] {
        server.hang_up();
        assert!(server.end().0.success());
    }
    home.expect_nothing_left();
    // `audit` reads each line as JSON: none is torn.
    let finished = home.audit().iter().filter(|line| ended(line)).count();
    assert_eq!(finished, 11);
}

fn ended(line: &Value) -> bool {
    line["event"] == "container.remove" && line["success"] == true
}

#[test]
fn nothing_runs_where_nothing_can_be_recorded() {
    let Some(home) = Home::for_root("a log that cannot be written") else {
        return;
    };
    let given = home.file("in-the-way", "");
    let open = home.file("open.jsonl", "");
    std::fs::set_permissions(&open, Permissions::from_mode(0o666)).unwrap();
    let link = given.with_file_name("link.jsonl");
    std::os::unix::fs::symlink(&given, &link).unwrap();
    let fifo = given.with_file_name("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, why) in [
        (given.join("audit.jsonl"), "name a file in a directory"),
        (open, "others may write the file (mode 0666)"),
        (link, "name a regular file, by its real path"),
        (fifo, "name a regular file, by its real path"),
        ("/dev/null".into(), "name a regular file, by its real path"),
    ] {
        let mut command = home.command();
        command
            .env("MCP_FORGE_AUDIT__PATH", &path)
            .args(["run", "-c", "print(1)"]);
        let finished = finish(command, b"");
        assert_eq!(
            (finished.code(), finished.stdout.as_str()),
            (125, ""),
            "{finished:?}"
        );
        let path = path.to_str().unwrap();
        let told = format!("mcp-forge: audit log {path}: ");
        assert!(finished.stderr.starts_with(&told), "{finished:?}");
        assert!(finished.stderr.contains(why), "{finished:?}");
        assert_eq!(finished.stderr.matches(path).count(), 1, "{finished:?}");
    }
    home.expect_nothing_left();
}

#[test]
fn the_log_proves_itself_and_what_was_done_to_it() {
    let Some(home) = Home::for_root("verifying the audit log") else {
        return;
    };
    let audit = |arguments: &[&str]| {
        let mut command = home.command();
        command.arg("audit").args(arguments);
        finish(command, b"")
    };
    let none = audit(&["verify"]);
    assert_eq!(none.code(), 125, "{none:?}");
    assert!(none.stderr.contains("there is no audit log"), "{none:?}");

    assert_eq!(home.run(&["-c", "1"]).code(), 0);
    assert_eq!(home.run(&["-c", "1/0"]).code(), 1);
    let sound = audit(&["verify"]);
    assert_eq!(sound.code(), 0, "{sound:?}");
    assert!(sound.stdout.contains(": intact; "), "{sound:?}");
    let (_, kept) = sound.stdout.trim_end().rsplit_once(' ').unwrap();
    assert_eq!(home.run(&["-c", "2"]).code(), 0);
    assert_eq!(audit(&["verify", "--expect", kept]).code(), 0);

    let tail = audit(&["tail", "-n", "2"]);
    assert_eq!(tail.stdout.lines().count(), 2, "{tail:?}");
    assert!(tail.stdout.contains("container.remove"), "{tail:?}");
    let failed = audit(&[
        "query",
        "--event",
        "execution.result",
        "--success",
        "false",
        "--json",
    ]);
    let found: Vec<Value> = failed
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), 1, "{failed:?}");
    assert_eq!(found[0]["details"]["ended_by"], "error");
    let run_id = found[0]["run_id"].as_str().unwrap();
    let of_it = audit(&["query", "--run-id", run_id]);
    let expected = home
        .audit()
        .iter()
        .filter(|line| line["run_id"] == run_id)
        .count();
    assert_eq!(of_it.stdout.lines().count(), expected, "{of_it:?}");
    assert_eq!(audit(&["query", "--until", "1h"]).stdout, "");

    let text = std::fs::read_to_string(home.audit_path()).unwrap();
    let forged = text.replacen("\"success\":false", "\"success\":true", 1);
    assert_ne!(forged, text);
    std::fs::write(home.audit_path(), forged).unwrap();
    let found = audit(&["verify", "--json"]);
    assert_eq!(found.code(), 1, "{found:?}");
    let report: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(report["intact"], false);
    let what = report["findings"][0]["what"].as_str().unwrap();
    assert!(what.contains("before it was changed"), "{report:#}");
}

#[test]
fn a_log_is_followed_as_it_grows() {
    let Some(home) = Home::for_root("following the audit log") else {
        return;
    };
    assert_eq!(home.run(&["-c", "1"]).code(), 0);
    let mut command = home.command();
    command
        .args(["audit", "tail", "-n", "1", "--follow", "--json"])
        .stdout(std::process::Stdio::piped());
    let mut tail = command.spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut number = || {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        line["seq"].as_u64().unwrap()
    };
    let before = home.audit().len() as u64;
    assert_eq!(number(), before);
    assert_eq!(home.run(&["-c", "2"]).code(), 0);
    let after = home.audit().len() as u64;
    assert!(after > before);
    for expected in before + 1..=after {
        assert_eq!(number(), expected);
    }
    tail.kill().unwrap();
    tail.wait().unwrap();
    home.expect_nothing_left();
}

/// A file system with room for a few entries.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn at(path: std::path::PathBuf) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=16k,mode=0700", "tmpfs"])
            .arg(&path);
        assert!(mount.status().unwrap().success());
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_work_unless_the_operator_chose_otherwise() {
    let Some(mut home) = Home::for_root("a full disk") else {
        return;
    };
    let disk = SmallDisk::at(home.audit_path().parent().unwrap().to_owned());
    home.settle();
    let mut runs = 0;
    let refused = loop {
        let finished = home.run(&["-c", "6 * 7"]);
        if finished.code() != 0 {
            break finished;
        }
        runs += 1;
        assert!(runs < 20, "the disk takes everything");
    };
    assert!(runs > 0, "{refused:?}");
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (125, ""),
        "{refused:?}"
    );
    assert!(
        refused.stderr.contains("make room for the audit log"),
        "{refused:?}"
    );
    let choose = |choice: &str| {
        home.run(&[
            "--set",
            &format!("audit.on_failure={choice}"),
            "-c",
            "6 * 7",
        ])
    };
    assert_eq!(choose("refuse").code(), 125);
    let ran = choose("run");
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "42\n"), "{ran:?}");
    assert!(
        ran.stderr.contains("not audited: execution.request"),
        "{ran:?}"
    );
    // Nothing is torn, and nothing that was recorded is lost.
    let mut verify = home.command();
    verify.args(["audit", "verify"]);
    let verified = finish(verify, b"");
    assert_eq!(verified.code(), 0, "{verified:?}");
    assert!(!verified.stdout.contains("torn"), "{verified:?}");
    home.expect_nothing_left();
    drop(disk);
}
