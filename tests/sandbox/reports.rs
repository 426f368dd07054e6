//! Reports that a program forges, and what it shows: nothing of them harms the server, and what is
//! no picture is not passed on as one.

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::Home;
use crate::host::{memory, note};

/// How much a server may grow for the reports of one run, bytes.
const GROWTH: u64 = 200 << 20;

/// Writes a report as the runner does.
const FORGE: &str = r#"
import os, struct, json, base64, threading
def send(data, length=None):
    data = struct.pack(">I", len(data) if length is None else length) + data
    while data:
        data = data[os.write(3, data):]
def report(**fields):
    send(json.dumps(fields).encode())
"#;

fn forge(rest: &str) -> Value {
    json!({"code": format!("{FORGE}{rest}"), "timeout": 60, "cpu_quota": 100_000})
}

#[test]
fn forged_reports_harm_nobody_else() {
    let Some(home) = Home::for_root("forged reports") else {
        return;
    };
    let mut server = Server::start(&home);
    assert_eq!(server.call(json!({"code": "1"}))["result"], 1);
    let before = memory(server.pid(), "VmHWM");
    let most = "(4 << 20) - 40";
    let cases = [
        (
            "malformed",
            "for data in b'', b'{', b'null', b'[]', b'\\xff', b'{}', b'\"': send(data)\n1",
            "completed",
        ),
        (
            "unknown",
            "report(type='x'); report(type=1); report(type='value'); report(type=['value'])\n1",
            "completed",
        ),
        (
            "a length beyond the bound",
            "send(b'x', 0x7fffffff)\n1",
            "completed",
        ),
        ("half a report", "send(b'x', 100)\n1", "completed"),
        (
            "zero length without end",
            "while True: os.write(3, bytes(1 << 16))",
            "output_limit",
        ),
        (
            "small without end",
            "while True: os.write(3, (struct.pack('>I', 2) + b'{}') * 9999)",
            "output_limit",
        ),
        (
            "lists",
            "while True: send(b'{\"type\":\"value\",\"repr\":\"\",\"json\":[' + b'[],' * ((MOST) // 3 - 9) + b'0]}')",
            "output_limit",
        ),
        (
            "objects",
            "while True: send(b'{\"type\":\"value\",\"repr\":\"\",\"json\":[' + b'{\"\":0},' * ((MOST) // 7 - 9) + b'0]}')",
            "output_limit",
        ),
        (
            "nested",
            "while True: send(b'{\"type\":\"value\",\"repr\":\"\",\"json\":' + b'[' * (1 << 20) + b']' * (1 << 20) + b'}')",
            "output_limit",
        ),
        (
            "unknown members",
            "while True: send(b'{\"type\":\"value\",\"repr\":\"\",\"more\":[' + b'{\"\":0},' * ((MOST) // 7 - 9) + b'0]}')",
            "output_limit",
        ),
        (
            "objects within the bound",
            "while True: send(b'{\"type\":\"value\",\"repr\":\"\",\"json\":[' + b'{\"\":0},' * 10_000 + b'0]}')",
            "output_limit",
        ),
        (
            "objects shown",
            "while True: send(b'{\"type\":\"display\",\"data\":{\"application/json\":[' + b'{\"\":0},' * 10_000 + b'0]}}')",
            "output_limit",
        ),
        (
            "long texts",
            "while True: report(type='error', name='x' * 999999, message='y' * 999999, traceback='z' * 999999)",
            "output_limit",
        ),
        (
            "pictures",
            "while True: report(type='display', data={'image/gif': base64.b64encode(b'GIF89a' + bytes(3_000_000)).decode()})",
            "output_limit",
        ),
    ];
    for (name, code, ended_by) in cases {
        let told = server.call(forge(&code.replace("MOST", most)));
        assert_eq!(told["ended_by"], ended_by, "{name}: {}", told["stderr"]);
        let grown = memory(server.pid(), "VmHWM").saturating_sub(before);
        note(&format!(
            "reports: {name}: the server has grown by {} KiB",
            grown >> 10
        ));
        assert!(
            grown < GROWTH,
            "{name}: the server has grown by {grown} bytes"
        );
        server.expect_rest();
    }
    let after = server.call(json!({"code": "def f(): 1/0\nprint('out')\nf()"}));
    assert_eq!(after["error"]["name"], "ZeroDivisionError", "{after:#}");
    let lines: Vec<_> = after["error"]["traceback"]
        .as_str()
        .unwrap()
        .lines()
        .collect();
    assert_eq!(lines.first(), Some(&"Traceback (most recent call last):"));
    assert!(
        lines.contains(&"  File \"<code>\", line 1, in f"),
        "{lines:?}"
    );
    let after = server.call(json!({"code": "print('out')\n{'a': [1, 2.5, None]}"}));
    assert_eq!(after["result"], json!({"a": [1, 2.5, null]}));
    server.close();
}

#[test]
fn many_runs_with_large_results_do_not_add_up() {
    let Some(home) = Home::for_root("results that are kept") else {
        return;
    };
    let mut server = Server::start(&home);
    assert_eq!(server.call(json!({"code": "1"}))["result"], 1);
    let before = memory(server.pid(), "VmHWM");
    let code = "for _ in range(6): send(b'{\"type\":\"value\",\"repr\":\"\",\"json\":[' + b'{\"\":0},' * 10_000 + b'0]}')";
    for _ in 0..40 {
        let mut arguments = forge(code);
        arguments["background"] = true.into();
        let id = server.tool("execute_python", arguments)["run_id"].clone();
        server.tool("get_run", json!({"run_id": id, "wait": 60}));
    }
    let grown = memory(server.pid(), "VmHWM").saturating_sub(before);
    note(&format!(
        "results of 40 runs: the server has grown by {} KiB",
        grown >> 10
    ));
    assert!(grown < 600 << 20, "the server has grown by {grown} bytes");
    server.close();
}

#[test]
fn pictures_arrive_and_what_is_none_does_not() {
    let Some(home) = Home::for_root("pictures") else {
        return;
    };
    let mut server = Server::start(&home);
    // The smallest PNG of one pixel.
    let pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
    let code =
        format!("report(type='display', data={{'image/png': '{pixel}', 'text/plain': 'a pixel'}})");
    let id = server.begin_call(forge(&code));
    let answer = server.answer(id);
    let told = &answer["result"]["structuredContent"];
    let image = &answer["result"]["content"][0];
    assert_eq!(image["type"], "image", "{answer:#}");
    assert_eq!(
        (&image["data"], &image["mimeType"]),
        (&json!(pixel), &json!("image/png"))
    );
    let block = &told["blocks"][0];
    assert_eq!(
        (&block["type"], &block["size"]),
        (&json!("image"), &json!(70)),
        "{block}"
    );
    let read = server.read(block["uri"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&read["blob"], &read["mimeType"]),
        (&json!(pixel), &json!("image/png"))
    );
    assert!(
        server
            .read(&block["uri"].as_str().unwrap().replace("/0", "/1"))
            .is_err()
    );

    let code = "for data in b'GIF89a', b'no picture', b'', b'\\x89PNG\\r\\n\\x1a\\n':\n\
                \x20   report(type='display', data={'image/png': base64.b64encode(data).decode()})\n\
                report(type='display', data={'image/png': 'no base64'})\n\
                report(type='display', data={'image/svg+xml': 'no drawing'})\n\
                report(type='display', data={'application/pdf': 'JVBERi0='})";
    let id = server.begin_call(forge(code));
    let answer = server.answer(id);
    assert!(!answer.to_string().contains("image/"), "{answer:#}");
    assert_eq!(answer["result"]["structuredContent"]["success"], true);

    let code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])";
    let id = server.begin_call(json!({"code": code, "timeout": 120, "cpu_quota": 100_000}));
    let answer = server.answer(id);
    let told = &answer["result"]["structuredContent"];
    if told["error"]["name"] == "ModuleNotFoundError" {
        crate::host::skip("figures of matplotlib", "there is no matplotlib in /usr");
    } else {
        let content = answer["result"]["content"].as_array().unwrap();
        let image = content.iter().find(|part| part["type"] == "image");
        let image = image.unwrap_or_else(|| panic!("no picture: {answer:#}"));
        let blocks = told["blocks"].as_array().unwrap();
        let block = blocks
            .iter()
            .find(|block| block["type"] == "image")
            .unwrap();
        let read = server.read(block["uri"].as_str().unwrap()).unwrap();
        assert_eq!(read["blob"], image["data"]);
        assert!(image["data"].as_str().unwrap().starts_with("iVBORw0KGgo"));
    }
    server.close();
}
