//! The audit log of real runs.

use std::fs::Permissions;
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
