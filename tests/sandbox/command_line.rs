//! `mcp-forge run`, as a person and as a script use it.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::home::{Home, finish};

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
            "time limit of 1 s",
        ),
        (
            &["--memory", "64m", "-c", "bytearray(512 << 20)"],
            137,
            "memory limit of 64m",
        ),
        (
            &["-c", "import ctypes; ctypes.string_at(0)"],
            139,
            "SIGSEGV",
        ),
        (
            &["-c", "import os; os.kill(os.getpid(), 15)"],
            143,
            "SIGTERM",
        ),
        // What mcp-forge itself does not do, and why.
        (&["--memory", "1x", "-c", "1"], 125, "1x"),
        (
            &["--memory", "3g", "-c", "1"],
            125,
            "exceeds the maximum of 2g",
        ),
        (&["--timeout", "0", "-c", "1"], 125, "timeout"),
        (&["--language", "cobol", "-c", "1"], 125, "cobol"),
        (&["--runtime", "podman", "-c", "1"], 125, "podman"),
        (&["no-such-file.py"], 125, "no-such-file.py"),
        (&["-c", ""], 125, "code is empty"),
    ] {
        let finished = home.run(arguments);
        assert_eq!(finished.code(), code, "{arguments:?}: {finished:?}");
        assert!(
            finished.stderr.contains(says),
            "{arguments:?}: {finished:?}"
        );
        assert_eq!(finished.stdout, "", "{arguments:?}");
    }
    home.expect_nothing_left();
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
    assert_eq!(refused.code(), 1);
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
    home.expect_nothing_left();
}
