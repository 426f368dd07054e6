//! `mcp-forge run`, as a person and as a script use it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::home::{BINARY, Finished, Home, alone, finish};
use crate::leftovers::RANGE;

/// The version that the host's interpreter tells, which is what the sandbox shows.
fn python_version() -> String {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", "import sys; print(sys.version)"]);
    finish(command, b"").stdout
}

#[test]
fn a_program_prints_and_its_value_is_shown() {
    let Some(home) = Home::for_root("mcp-forge run") else {
        return;
    };
    let code = "import sys; print(sys.version); 6*7";
    let finished = home.run(&["--language", "python", "-c", code]);
    assert_eq!(finished.stdout, format!("{}42\n", python_version()));
    assert_eq!((finished.code(), finished.stderr.as_str()), (0, ""));
    home.expect_nothing_left();
}

#[test]
fn the_whole_result_is_json() {
    let Some(home) = Home::for_root("mcp-forge run --json") else {
        return;
    };
    let code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n{'a': [1, None]}";
    let told = home.result(&[
        "-c",
        code,
        "--timeout",
        "60",
        "--memory",
        "256m",
        "--cpu-quota",
        "90000",
    ]);
    let limits = json!({
        "memory_bytes": 256 << 20, "cpu_quota": 90_000, "pids": 100, "timeout_s": 60,
    });
    for (field, value) in [
        ("success", json!(true)),
        ("ended_by", "completed".into()),
        ("language", "python".into()),
        ("session_id", Value::Null),
        ("stdout", "out\n".into()),
        ("stderr", "err\n".into()),
        ("stdout_truncated", false.into()),
        ("stderr_truncated", false.into()),
        ("stdout_not_utf8", false.into()),
        ("result", json!({"a": [1, null]})),
        ("result_repr", "{'a': [1, None]}".into()),
        ("error", Value::Null),
        ("exit_code", 0.into()),
        ("signal", Value::Null),
        ("files", json!([])),
        (
            "limits",
            json!({
                "requested": limits, "effective": limits, "enforced": true, "weak": [],
            }),
        ),
        (
            "runtime",
            json!({
                "kind": "libcontainer",
                "image": "host",
                "image_digest": null,
                "environment_digest": null,
            }),
        ),
    ] {
        assert_eq!(told[field], value, "{field} of {told:#}");
    }
    let kinds: Vec<_> = told["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| &b["type"])
        .collect();
    assert_eq!(kinds, ["stream", "stream", "value"], "{told:#}");
    for id in ["run_id", "correlation_id"] {
        assert!(
            told[id].as_str().is_some_and(|id| !id.is_empty()),
            "{id} of {told:#}"
        );
    }
    for number in ["/duration_ms", "/usage/cpu_ms", "/usage/peak_memory_bytes"] {
        assert!(
            told.pointer(number).and_then(|n| n.as_u64()) > Some(0),
            "{number} of {told:#}"
        );
    }
}

#[test]
fn the_exit_status_tells_how_it_ended() {
    let Some(home) = Home::for_root("exit statuses of mcp-forge run") else {
        return;
    };
    for (arguments, code, says) in [
        (&["-c", "pass"][..], 0, ""),
        (&["-c", "import sys; sys.exit(3)"], 3, ""),
        (&["-c", "1/0"], 1, "ZeroDivisionError: division by zero"),
        (&["-c", "x ="], 1, "SyntaxError: invalid syntax"),
        (
            &["--timeout", "1", "-c", "while True: pass"],
            124,
            "time limit of 1 s reached",
        ),
        (
            &["--memory", "64m", "-c", "bytearray(512 << 20)"],
            137,
            "memory limit of 64 MiB reached",
        ),
        (
            &["-c", "import ctypes; ctypes.string_at(0)"],
            139,
            "killed by signal SIGSEGV",
        ),
        (
            &["-c", "import os; os.kill(os.getpid(), 15)"],
            143,
            "killed by signal SIGTERM",
        ),
        // 137 as well, and not for the memory.
        (
            &["-c", "import os; os.kill(os.getpid(), 9)"],
            137,
            "killed by signal SIGKILL",
        ),
        (
            &["-c", "import sys; sys.exit(137)"],
            137,
            "the program exited with status 137",
        ),
        // What mcp-forge itself does not do, and why.
        (&["--memory", "1x", "-c", "1"], 125, "1x"),
        (
            &["--memory", "3g", "-c", "1"],
            125,
            "exceeds the maximum of 2g",
        ),
        (&["--timeout", "0", "-c", "1"], 125, "1 to 1800 seconds"),
        (
            &["--timeout", "1801", "-c", "1"],
            125,
            "give --timeout as 1 to 1800 seconds",
        ),
        (
            &["--timeout", "1.5", "-c", "1"],
            125,
            "--timeout is \"1.5\", must be 1 to 1800 whole seconds",
        ),
        (
            &["--timeout", "-1", "-c", "1"],
            125,
            "1 to 1800 whole seconds",
        ),
        (
            &["--cpu-quota", "half", "-c", "1"],
            125,
            "--cpu-quota is \"half\", must be 1000 to 100000 µs per 100 ms",
        ),
        (
            &["--cpu-quota", "999", "-c", "1"],
            125,
            "give --cpu-quota as 1000 to 100000 µs per 100 ms",
        ),
        (
            &["--memory", "15m", "-c", "1"],
            125,
            "give --memory as 16m to 2g",
        ),
        (&["--bogus", "-c", "1"], 125, "--bogus"),
        (&[], 125, "(-c CODE), its file (FILE), or - to"),
        (
            &["--language", "cobol", "-c", "1"],
            125,
            "cobol is not available in this version, which runs python and r",
        ),
        (
            &["--runtime", "warp", "-c", "1"],
            125,
            "unknown runtime \"warp\" (--runtime)",
        ),
        (&["no-such-file.py"], 125, "no-such-file.py"),
        (
            &["analysis.ipynb"],
            125,
            "the ending .ipynb tells no language",
        ),
        (
            &["-c", "1", "--input", "no-such-file.csv"],
            125,
            "cannot read the input no-such-file.csv: No such file",
        ),
        (
            &["-c", "1", "--input", "/"],
            125,
            "the input \"/\" has no name; give NAME=PATH",
        ),
        (&["-c", "1", "--input", "a=/"], 125, "it is a directory"),
        (
            &["-c", "1", "--input", "../a=/dev/null"],
            125,
            "\"../a\" is no path below the workspace",
        ),
        (
            &["-c", "1", "--input", "a=/dev/zero"],
            125,
            "the files exceed the maximum of 16m together",
        ),
        (
            &["-c", "1", "--save-files", "/dev/null"],
            125,
            "cannot save files in /dev/null (--save-files)",
        ),
        (&["-c", ""], 125, "code is empty"),
    ] {
        let finished = home.run(arguments);
        assert_eq!(finished.code(), code, "{arguments:?}: {finished:?}");
        assert!(
            finished.stderr.contains(says),
            "{arguments:?}: {finished:?}"
        );
        assert_eq!(finished.stdout, "", "{arguments:?}");
        let ours = finished.stderr.matches("mcp-forge: the program").count();
        assert!(ours <= 1, "{arguments:?}: {finished:?}");
    }
    home.expect_nothing_left();
}

/// `mcp-forge run -c CODE` in a shell, with what follows on its command line.
fn in_shell(home: &Home, options: &str, code: &str, rest: &str) -> Finished {
    let mut command = Command::new("/bin/bash");
    home.furnish(&mut command);
    let line = format!("set -o pipefail; \"$0\" {options} run -c \"$1\" {rest}");
    command.args(["-c", &line, BINARY, code]);
    finish(command, b"")
}

#[test]
fn output_that_cannot_be_written_is_told() {
    let Some(home) = Home::for_root("standard output of mcp-forge run that cannot be written")
    else {
        return;
    };
    let full = "mcp-forge: cannot write the output: No space left on device (os error 28)\n";
    let closed = "mcp-forge: cannot write the output: Bad file descriptor (os error 9)\n";
    let endless = "while True: print('x' * 1000)";
    for (code, rest, status, stderr) in [
        ("print(1)", ">/dev/full", 125, full),
        ("6*7", ">/dev/full", 125, full),
        ("1", "--json >/dev/full", 125, full),
        (endless, ">/dev/full", 125, full),
        ("print(1)", ">&-", 125, closed),
        ("6*7", ">&-", 125, closed),
        ("1", "--json >&-", 125, closed),
        // There is nothing to write.
        ("pass", ">&-", 0, ""),
        ("pass", ">/dev/full", 0, ""),
        // A filter whose reader is gone says nothing.
        (
            "import time; print(1, flush=True); time.sleep(1); print(2)",
            "| true",
            141,
            "",
        ),
        ("import time; time.sleep(1); 6*7", "| true", 141, ""),
        ("import time; time.sleep(1)", "--json | true", 141, ""),
        (endless, "| head -c 1 >/dev/null", 141, ""),
        // Nobody can be told, and nothing panics.
        (
            "import sys; print(1, file=sys.stderr)",
            "2>/dev/full",
            125,
            "",
        ),
        ("import sys; sys.exit(3)", "2>/dev/full", 3, ""),
        ("1/0", "2>/dev/full", 1, ""),
        ("1/0", "2>&-", 1, ""),
        ("1/0", ">&- 2>&-", 1, ""),
    ] {
        let finished = in_shell(&home, "", code, rest);
        assert_eq!(finished.code(), status, "{code} {rest}: {finished:?}");
        assert_eq!(finished.stderr, stderr, "{code} {rest}");
    }
    let logged = in_shell(&home, "--log-level trace", "6*7", "2>/dev/full");
    assert_eq!((logged.code(), logged.stdout.as_str()), (0, "42\n"));
    for closed in ["2>&-", ">/dev/full", ">&-"] {
        let mut command = Command::new("/bin/bash");
        home.furnish(&mut command);
        command.args(["-c", &format!("\"$0\" doctor {closed}"), BINARY]);
        let finished = finish(command, b"");
        let status = if closed == "2>&-" { 0 } else { 125 };
        assert_eq!(finished.code(), status, "{closed}: {finished:?}");
    }
    home.expect_nothing_left();
}

#[test]
fn help_names_what_there_is() {
    let Some(home) = Home::for_root("the help") else {
        return;
    };
    for arguments in [&["--help"][..], &["run", "--help"], &["doctor", "--help"]] {
        let mut command = home.command();
        command.args(arguments);
        let help = finish(command, b"");
        assert_eq!(help.code(), 0, "{help:?}");
        let kinds = "[libcontainer, podman, docker, auto]";
        assert!(help.stdout.contains(kinds), "{}", help.stdout);
    }
}

#[test]
fn a_traceback_names_the_file_and_shows_its_line() {
    let Some(home) = Home::for_root("mcp-forge run FILE") else {
        return;
    };
    let path = home.file("analysis.py", "def f(x):\n    return 1 / x\n\nf(0)\n");
    let path = path.to_str().unwrap();
    let finished = home.run(&[path]);
    assert_eq!(finished.code(), 1);
    for part in [
        &format!("File \"{path}\", line 4, in <module>"),
        &format!("File \"{path}\", line 2, in f"),
        "    return 1 / x\n",
        "ZeroDivisionError: division by zero",
    ] {
        assert!(
            finished.stderr.contains(part),
            "{part:?} is not in {}",
            finished.stderr
        );
    }
    // The user's frames and no others.
    assert_eq!(
        finished.stderr.matches("File \"").count(),
        2,
        "{}",
        finished.stderr
    );
}

#[test]
fn programs_and_their_input_come_from_files_and_pipes() {
    let Some(home) = Home::for_root("standard input of mcp-forge run") else {
        return;
    };
    let data = home.file("data.txt", "first\nsecond\n");
    let data = data.to_str().unwrap();
    let read = "import sys; print(sys.stdin.read().split())";
    for (arguments, input, stdout) in [
        (&["-"][..], "print(6 * 7)", "42\n"),
        (&["-c", "input()", "--stdin", data], "", "'first'\n"),
        (&["-c", read, "--stdin", "-"], "a b", "['a', 'b']\n"),
        (&["-", "--stdin", data], read, "['first', 'second']\n"),
    ] {
        let mut command = home.command();
        command.arg("run").args(arguments);
        let finished = finish(command, input.as_bytes());
        assert_eq!(finished.stdout, stdout, "{arguments:?}: {finished:?}");
        assert_eq!(finished.code(), 0, "{arguments:?}: {finished:?}");
    }
    let refused = home.run(&["-c", "input()"]);
    assert!(
        refused.stderr.contains("EOFError: no standard input"),
        "{refused:?}"
    );
    assert!(
        refused
            .stderr
            .ends_with("or mcp-forge's own with --stdin -\n"),
        "{refused:?}"
    );
    assert_eq!(refused.code(), 1);
    // Who gave some and read more is told nothing that is not so.
    let read_twice = home.run(&["-c", "input(); input()", "--stdin", data.trim()]);
    assert!(!read_twice.stderr.contains("--stdin"), "{read_twice:?}");
}

#[test]
fn output_passes_through_as_it_is() {
    let Some(home) = Home::for_root("output of mcp-forge run") else {
        return;
    };
    let code = "import os\nos.write(1, bytes(range(256)))\nos.write(2, b'\\xff\\x00');";
    let mut command = home.command();
    command.args(["run", "-c", code]).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(output.stdout, (0..=255).collect::<Vec<u8>>());
    assert_eq!(output.stderr, b"\xff\x00");
}

#[test]
fn what_mcp_forge_shows_begins_a_line_of_its_own() {
    let Some(home) = Home::for_root("an open line before a value") else {
        return;
    };
    let shown = home.run(&["-c", "print(1, end='')\n2"]);
    assert_eq!(
        (shown.stdout.as_str(), shown.stderr.as_str()),
        ("1\n2\n", "")
    );
    let failed = home.run(&["-c", "import sys\nsys.stderr.write('open')\n1/0"]);
    assert!(failed.stderr.starts_with("open\nTraceback"), "{failed:?}");
}

#[test]
fn a_terminal_is_not_changed_by_a_program() {
    let Some(home) = Home::for_root("mcp-forge run at a terminal") else {
        return;
    };
    let code = "print('\\x1b[31mred\\x1b]0;title\\x07\\x1b[2J', end='')\n\
                class Value:\n    __repr__ = lambda self: '\\x1b]52;c;YQ==\\x07value'\n\
                Value()";
    let mut command = Command::new("script");
    home.furnish(&mut command);
    // util-linux's: a terminal for a command, whose output is copied.
    let line = "\"$FORGE\" run -c \"$CODE\" 2>/dev/null";
    command.env("FORGE", BINARY).env("CODE", code);
    command.args(["-qec", line, "/dev/null"]);
    let finished = finish(command, b"");
    assert_eq!(
        finished.stdout, "\x1b[31mred\r\nvalue\r\n\x1b[0m",
        "{finished:?}"
    );
    assert_eq!(finished.code(), 0);
}

#[test]
fn doctor_finds_that_the_main_job_works() {
    let Some(home) = Home::for_root("mcp-forge doctor") else {
        return;
    };
    let mut command = home.command();
    command.arg("doctor");
    let finished = finish(command, b"");
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(
        finished.stdout.contains("every limit enforced"),
        "{finished:?}"
    );
    for told in [
        "SandboxConfirmed",
        "audit.jsonl, intact, ",
        "ok       disk",
        ": numpy",
    ] {
        assert!(finished.stdout.contains(told), "{told}: {finished:?}");
    }
    home.expect_nothing_left();
}

#[test]
fn doctor_tells_what_is_wrong_where_it_is_wrong() {
    let Some(home) = Home::for_root("mcp-forge doctor of what does not work") else {
        return;
    };
    let open = home.file("open.jsonl", "");
    fs::set_permissions(&open, Permissions::from_mode(0o666)).unwrap();
    let audit = ("MCP_FORGE_AUDIT__PATH", open.to_str().unwrap());
    for (arguments, variable, name, evidence, remedy) in [
        (
            &["--runtime", "docker"][..],
            Some(("DOCKER_HOST", "unix:///nowhere/docker.sock")),
            "runtime start",
            "cannot reach docker at /nowhere/docker.sock (DOCKER_HOST)",
            "start the engine (`systemctl start docker`)",
        ),
        (
            &["--runtime", "podman"],
            Some(("CONTAINER_HOST", "unix:///nowhere/podman.sock")),
            "runtime start",
            "cannot reach podman at /nowhere/podman.sock (CONTAINER_HOST)",
            "start it (`systemctl --user start podman.socket`",
        ),
        (
            &["--runtime", "podman"],
            Some(("CONTAINER_HOST", "ssh://a@b/podman.sock")),
            "runtime",
            "(CONTAINER_HOST) is no socket of this host",
            "mcp-forge doctor --runtime auto",
        ),
        (
            &["--runtime", "warp"],
            None,
            "runtime",
            "unknown runtime \"warp\" (--runtime)",
            "mcp-forge doctor --runtime auto",
        ),
        (&[], Some(audit), "audit log", "0666", "chmod 600"),
    ] {
        let mut command = home.command();
        command.arg("doctor").args(arguments).envs(variable);
        let told = finish(command, b"");
        assert_eq!((told.code(), told.stderr.as_str()), (1, ""), "{told:?}");
        let mut lines = told.stdout.lines().skip_while(|l| !l.starts_with("FAILED"));
        let failed = lines.next().unwrap();
        assert!(failed.starts_with(&format!("FAILED   {name}")), "{told:?}");
        assert!(failed.contains(evidence), "{told:?}");
        let mend = lines.next().unwrap();
        assert!(mend.contains("-> ") && mend.contains(remedy), "{told:?}");
        // It is told once.
        assert_eq!(lines.next(), None, "{told:?}");
    }
    home.expect_nothing_left();
}

#[test]
fn wrong_options_are_told_as_json_to_who_wants_json() {
    let home = Home::new(alone(), RANGE);
    let told = home.run(&["--json", "--bogus", "-c", "1"]);
    assert_eq!(told.code(), 125, "{told:?}");
    assert!(told.stderr.contains("--bogus"), "{told:?}");
    let error: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("unexpected argument '--bogus'"),
        "{told:?}"
    );
    // Help is no error.
    let help = home.run(&["--json", "--help"]);
    assert!(
        help.code() == 0 && help.stdout.starts_with("Runs one program"),
        "{help:?}"
    );
}
