//! Files into the workspace and out of it, and the log: what lies there comes back exactly, and
//! whatever a program makes there, nothing else is read, nothing hangs, and what is left out is
//! counted.

use std::fs;

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::Home;

/// Whatever the file, its path with what `field` says of it.
fn told(result: &Value, field: &str) -> Vec<(String, Value)> {
    let files = result["files"].as_array().unwrap();
    files
        .iter()
        .map(|file| {
            (
                file["path"].as_str().unwrap().to_owned(),
                file[field].clone(),
            )
        })
        .collect()
}

fn paths(result: &Value) -> Vec<String> {
    told(result, "size")
        .into_iter()
        .map(|(path, _)| path)
        .collect()
}

/// The address of a file of a result.
fn uri(result: &Value, path: &str) -> String {
    let uris = told(result, "uri");
    let found = uris.iter().find(|(known, _)| known == path);
    let uri = found.unwrap_or_else(|| panic!("no {path:?}: {result:#}"));
    uri.1
        .as_str()
        .unwrap_or_else(|| panic!("{path:?} is not kept: {result:#}"))
        .to_owned()
}

/// Prints what a program finds in its workspace.
const LOOK: &str = r#"
import base64, json, os
found = {}
for top, _, names in os.walk("/workspace"):
    for name in names:
        path = os.path.join(top, name)
        with open(path, "rb") as file:
            found[os.path.relpath(path, "/workspace")] = base64.b64encode(file.read()).decode()
found
"#;

#[test]
fn a_person_gives_files_and_saves_those_that_are_left() {
    let Some(home) = Home::for_root("--input and --save-files") else {
        return;
    };
    let data = home.file("some data.csv", "a,b\n1,2\n");
    let renamed = format!("in/x.csv={}", data.display());
    let directory = home.path().join("saved files");
    let named = directory.to_str().unwrap();
    let code = "import os\n\
                print(open('some data.csv').read() == open('in/x.csv').read())\n\
                os.makedirs('a b'); open('a b/é', 'w').write('new')\n\
                open('large', 'wb').write(bytes(3 << 20))\n\
                os.symlink('/etc/passwd', 'link'); open('in/x.csv', 'a').write('3,4\\n');";
    let arguments = [
        "-c",
        code,
        "--input",
        data.to_str().unwrap(),
        "--input",
        &renamed,
    ];
    let finished = home.run(&[&arguments[..], &["--save-files", named]].concat());
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (0, "True\n"),
        "{finished:?}"
    );
    let told: String = ["a b/é", "in/x.csv", "large"]
        .map(|name| format!("mcp-forge: saved {named}/{name}\n"))
        .concat();
    assert_eq!(finished.stderr, told);
    assert_eq!(fs::read(directory.join("a b/é")).unwrap(), b"new");
    assert_eq!(fs::read(directory.join("large")).unwrap(), vec![0; 3 << 20]);
    assert_eq!(
        fs::read(directory.join("in/x.csv")).unwrap(),
        b"a,b\n1,2\n3,4\n"
    );
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 3);
    let told = home.result(&["-c", "open('a', 'w').write('x')", "--save-files", named]);
    assert_eq!(told["files"][0]["saved_as"], format!("{named}/a"));

    let hint = home.run(&["-c", "open('a', 'w').write('x');"]);
    assert_eq!(
        hint.stderr,
        "mcp-forge: files left in the workspace and not kept: 1; --save-files DIR saves them\n"
    );
    let large = "f = open('big', 'wb'); f.truncate(1 << 30);";
    let unsaved = home.run(&["-c", large, "--save-files", named]);
    assert_eq!(unsaved.code(), 125, "{unsaved:?}");
    let told = format!("cannot save the file {named}/big: its 1073741824 bytes are too many");
    assert!(unsaved.stderr.contains(&told), "{unsaved:?}");
    fs::remove_dir_all(&directory).unwrap();
    home.expect_nothing_left();
}

#[test]
fn files_come_in_as_they_were_given() {
    let Some(home) = Home::for_root("files in") else {
        return;
    };
    let mut server = Server::start(&home);
    let made = server
        .call(json!({"code": "open('made \\u00e9.bin', 'wb').write(bytes(range(256)) * 999)"}));
    assert_eq!(
        told(&made, "size"),
        [("made é.bin".to_owned(), json!(255_744))]
    );
    let deep = "d/".repeat(30) + "end";
    let bytes = server.call(json!({
        "code": format!("import base64\nbase64.b64encode(open('x', 'rb').read()).decode()"),
        "files": [{"path": "x", "uri": uri(&made, "made é.bin")}],
    }));
    let whole = bytes["result"].as_str().unwrap();
    assert_eq!(whole.len(), 340_992);
    let looked = server.call(json!({"code": LOOK, "files": [
        {"path": "text", "text": "é\r\n\u{0}"},
        {"path": "with space/and é/🦀.csv", "text": ""},
        {"path": ".hidden/.file", "base64": "/wA="},
        {"path": "-rf", "text": "a"},
        {"path": "..a/b..", "text": "a"},
        {"path": deep, "text": "a"},
        {"path": "again", "uri": uri(&made, "made é.bin")},
        {"path": "part", "uri": format!("{}?offset=255&length=2", uri(&made, "made é.bin"))},
    ]}));
    assert_eq!(
        looked["result"],
        json!({
            "text": "w6kNCgA=",
            "with space/and é/🦀.csv": "",
            ".hidden/.file": "/wA=",
            "-rf": "YQ==",
            "..a/b..": "YQ==",
            deep: "YQ==",
            "again": whole,
            "part": "/wA=",
        }),
        "{looked:#}"
    );
    assert_eq!(paths(&looked), [""; 0], "nothing was changed");
    server.expect_rest();
    server.close();
}

#[test]
fn files_that_cannot_be_placed_are_refused_and_nothing_runs() {
    let Some(home) = Home::for_root("files refused") else {
        return;
    };
    let mut server = Server::with(&home, &[("EXECUTION__INPUT_SIZE", "4m")]);
    let made = server.call(json!({"code": "open('a', 'w').write('a')"}));
    let a = uri(&made, "a");
    let gone = format!("{a}b");
    let run = made["run_id"].as_str().unwrap();
    let kept = "x".repeat(3 << 20);
    let text = |path: &str| json!({"path": path, "text": "x"});
    let no_path = |path: &str| format!("\"{path}\" is no path below the workspace");
    let cases = [
        (json!([text("..")]), "invalid_argument", no_path("..")),
        (
            json!([text("a/../../etc/passwd")]),
            "invalid_argument",
            no_path("a/../../etc/passwd"),
        ),
        (
            json!([text("/etc/passwd")]),
            "invalid_argument",
            no_path("/etc/passwd"),
        ),
        (json!([text("")]), "invalid_argument", no_path("")),
        (json!([text(".")]), "invalid_argument", no_path(".")),
        (json!([text("a//b")]), "invalid_argument", no_path("a//b")),
        (json!([text("a/")]), "invalid_argument", no_path("a/")),
        (json!([text("a\u{0}")]), "invalid_argument", no_path("a\\0")),
        (json!([text("a\nb")]), "invalid_argument", no_path("a\\nb")),
        (
            json!([text("a"), text("a")]),
            "invalid_argument",
            "\"a\" is there twice".to_owned(),
        ),
        (
            json!([text("a/b"), text("a")]),
            "invalid_argument",
            "\"a\" is a file and a directory".to_owned(),
        ),
        (
            json!([{"path": "a", "text": kept}, {"path": "b", "text": kept}]),
            "limit_exceeded",
            "the files exceed the maximum of 4m together".to_owned(),
        ),
        (
            Value::Array((0..101).map(|n| text(&n.to_string())).collect()),
            "limit_exceeded",
            "101 files are more than 100".to_owned(),
        ),
        (
            json!([{"path": "a", "uri": gone}]),
            "invalid_argument",
            format!("no file \"ab\" is kept of the run {run}"),
        ),
        (
            json!([{"path": "a", "uri": "file:///etc/passwd"}]),
            "invalid_argument",
            "`files[0].uri` is no part of a run: \"file:///etc/passwd\"".to_owned(),
        ),
    ];
    for (files, kind, message) in cases {
        let refused = server.call(json!({"code": "1", "files": files}));
        assert_eq!(refused["error"]["kind"], kind, "{refused:#}");
        assert_eq!(refused["error"]["message"], message, "{refused:#}");
        assert_eq!(refused["error"]["field"], "files", "{refused:#}");
    }
    let started = home
        .audit()
        .iter()
        .filter(|entry| entry["event"] == "execution.request")
        .count();
    assert_eq!(started, 1);
    server.expect_rest();
    server.close();
}

#[test]
fn what_a_program_made_or_changed_comes_back() {
    let Some(home) = Home::for_root("files out") else {
        return;
    };
    let mut server = Server::start(&home);
    let code = r#"
import os, mmap
os.makedirs("deep/é ü")
open("deep/é ü/100% #?&.csv", "w").write("a,é\n")
open(".hidden", "wb").write(b"\xff\0")
open("empty", "w")
open("zeros.bin", "wb").write(bytes(70_000) + b"end")
open("changed", "a").write("!")
with open("mapped", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    mapped[0:1] = b"M"
st = os.stat("same size")
open("same size", "w").write("AB")
os.utime("same size", ns=(st.st_atime_ns, st.st_mtime_ns))
os.rename("moved", "to here")
os.remove("removed")
open("read").read()
"#;
    let names = [
        "changed",
        "mapped",
        "same size",
        "moved",
        "removed",
        "read",
        "untouched",
    ];
    let files: Vec<_> = names.map(|path| json!({"path": path, "text": "ab"})).into();
    let made = server.call(json!({"code": code, "files": files}));
    assert_eq!(made["success"], true, "{made:#}");
    let expected = [
        (".hidden", 2, "application/octet-stream"),
        ("changed", 3, "text/plain"),
        ("deep/é ü/100% #?&.csv", 5, "text/csv"),
        ("empty", 0, "text/plain"),
        ("mapped", 2, "text/plain"),
        ("same size", 2, "text/plain"),
        ("to here", 2, "text/plain"),
        ("zeros.bin", 70_003, "application/octet-stream"),
    ];
    let sizes = told(&made, "size");
    let types = told(&made, "mime_type");
    let all: Vec<_> = sizes
        .iter()
        .zip(&types)
        .map(|((path, size), (_, kind))| {
            (
                path.as_str(),
                size.as_i64().unwrap(),
                kind.as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(all, expected, "{made:#}");
    assert_eq!(made["files_omitted"], 0);

    let csv = server.read(&uri(&made, "deep/é ü/100% #?&.csv")).unwrap();
    assert_eq!(
        (&csv["text"], &csv["mimeType"]),
        (&json!("a,é\n"), &json!("text/csv"))
    );
    assert_eq!(server.read(&uri(&made, ".hidden")).unwrap()["blob"], "/wA=");
    assert_eq!(server.read(&uri(&made, "empty")).unwrap()["text"], "");
    assert_eq!(server.read(&uri(&made, "mapped")).unwrap()["text"], "Mb");
    assert_eq!(server.read(&uri(&made, "same size")).unwrap()["text"], "AB");
    let end = format!("{}?offset=69999&length=100", uri(&made, "zeros.bin"));
    let end = server.read(&end).unwrap();
    assert_eq!(end["blob"], "AGVuZA==", "{end}");
    assert_eq!(
        end["_meta"],
        json!({"offset": 69_999, "length": 4, "total": 70_003})
    );

    // Only what is listed can be read, and under its own name alone.
    let run = made["run_id"].as_str().unwrap();
    let base = format!("mcp://forge/runs/{run}/files");
    for odd in [
        "untouched",
        "read",
        "..",
        "../log",
        "%2e%2e/log",
        "./empty",
        "%2Fetc%2Fpasswd",
        "/etc/passwd",
        "deep",
        "deep/",
        "deep//%C3%A9%20%C3%BC/100%25%20%23%3F%26.csv",
        "empty%00",
        "",
        "empty/",
        "EMPTY",
    ] {
        let refused = server.read(&format!("{base}/{odd}")).unwrap_err();
        assert_eq!(refused["code"], -32002, "{odd}: {refused}");
    }
    for odd in [
        "%ff",
        "empty?offset=-1",
        "empty?offset=99999999999999999999",
        "empty?x=1",
        "empty?offset",
    ] {
        let refused = server.read(&format!("{base}/{odd}")).unwrap_err();
        assert_eq!(refused["code"], -32002, "{odd}: {refused}");
    }
    let past = format!("{base}/empty?offset=18446744073709551615&length=18446744073709551615");
    assert_eq!(server.read(&past).unwrap()["text"], "");
    // Another spelling of the same characters.
    assert_eq!(server.read(&format!("{base}/%65mpty")).unwrap()["text"], "");
    server.close();
}

#[test]
fn a_workspace_made_to_mislead_gives_its_own_files_only() {
    let Some(home) = Home::for_root("hostile workspaces") else {
        return;
    };
    let mut server = Server::start(&home);
    let code = r#"
import os, socket
secret = "secret-" + "of-tmp"
open("/tmp/outside", "w").write(secret)
os.mkdir("/tmp/beside"); open("/tmp/beside/outside", "w").write(secret)
open("real", "w").write("real")
for name, target in {"passwd": "/etc/passwd", "etc": "/etc", "proc": "/proc/self", "root": "/", "up": "..",
                     "self": "self", "loop": ".", "out": "/tmp/outside", "beside": "/tmp/beside", "gone": "nowhere",
                     "to real": "real"}.items():
    os.symlink(target, name)
os.link("real", "hard")
for source in "/tmp/outside", "/etc/passwd":
    try:
        os.link(source, "linked")
    except OSError:
        pass
try:
    os.mkfifo("fifo")  # refused by the filter of system calls
except OSError:
    pass
s = socket.socket(socket.AF_UNIX); s.bind("socket")
open("unreadable", "w").write("mine"); os.chmod("unreadable", 0)
for mode in 0, 0o400, 0o200, 0o100:
    os.mkdir(f"closed {mode:o}"); open(f"closed {mode:o}/file", "w").write("mine"); os.chmod(f"closed {mode:o}", mode)
os.mkdir(b"bytes \xff"); open(b"bytes \xff/\xfe", "w").write("mine")
open("line\nfeed", "w").write("mine")
os.truncate(os.open("sparse", os.O_CREAT | os.O_RDWR), 1 << 40)
os.truncate(os.open("large", os.O_CREAT | os.O_RDWR), (16 << 20) + 1)
os.chmod("/workspace", 0)
"#;
    let made = server.call(json!({"code": code}));
    assert_eq!(made["success"], true, "{made:#}");
    assert_eq!(
        paths(&made),
        [
            "bytes \u{fffd}/\u{fffd}",
            "closed 0/file",
            "closed 100/file",
            "closed 200/file",
            "closed 400/file",
            "hard",
            "large",
            "line\nfeed",
            "real",
            "sparse",
            "unreadable",
        ],
        "{made:#}"
    );
    assert_eq!(made["files_omitted"], 0);
    for path in paths(&made) {
        let uris = told(&made, "uri");
        let (_, uri) = uris.iter().find(|(known, _)| *known == path).unwrap();
        let Some(uri) = uri.as_str() else {
            assert!(path == "sparse" || path == "large", "{path} is not kept");
            continue;
        };
        let expected = if path == "real" || path == "hard" {
            "real"
        } else {
            "mine"
        };
        assert_eq!(server.read(uri).unwrap()["text"], expected, "{path:?}");
    }
    assert!(!made.to_string().contains("secret-of-tmp"));
    server.expect_rest();
    server.close();
}

#[test]
fn more_than_is_brought_back_is_counted() {
    let Some(home) = Home::for_root("many files") else {
        return;
    };
    let mut server = Server::start(&home);
    let count = |told: &Value| {
        assert_eq!(told["success"], true, "{told:#}");
        (
            told["files"].as_array().unwrap().len(),
            told["files_omitted"].as_u64().unwrap(),
        )
    };
    let many = server.call(json!({
        "code": "for n in range(10_000): open(f'{n:05}', 'w').write(str(n))", "cpu_quota": 100_000,
    }));
    assert_eq!(count(&many), (256, 9744));
    assert_eq!(server.read(&uri(&many, "00255")).unwrap()["text"], "255");

    let deep = server.call(json!({"code": "\
import os
os.makedirs('a'); open('a/near', 'w').write('near')
os.chdir('a')
for _ in range(199):
    os.mkdir('a'); os.chdir('a')
open('far', 'w').write('far')
"}));
    assert_eq!(paths(&deep), ["a/near"]);
    assert_eq!(deep["files_omitted"], 1, "{deep:#}");

    // Names that get longer than any path when they are told.
    let long = server.call(json!({"code": "\
import os
open('near', 'w').write('near')
os.mkdir('a'); os.chdir('a')
for _ in range(15):
    os.mkdir(b'\\xff' * 255); os.chdir(b'\\xff' * 255)
open('far', 'w').write('far')
os.chdir('/workspace'); os.mkdir('z'); open('z/after', 'w').write('after')
"}));
    assert_eq!(paths(&long), ["near", "z/after"], "{long:#}");
    assert_eq!(long["files_omitted"], 1, "{long:#}");

    let large = server.call(json!({"memory": "512m", "code": "\
for n in range(6): open(f'{n}', 'wb').write(bytes([n]) * (15 << 20))
"}));
    let kept = told(&large, "uri")
        .iter()
        .filter(|(_, uri)| uri.is_string())
        .count();
    assert_eq!((count(&large), kept), ((6, 0), 4), "64 MiB together");

    let crowd = server.call(json!({"timeout": 120, "cpu_quota": 100_000, "code": "\
import os
open('0', 'w').write('0')
os.mkdir('crowd'); os.chdir('crowd')
try:
    for n in range(110_000): os.close(os.open(str(n), os.O_CREAT))
except OSError as e: print(e)
"}));
    assert_eq!(crowd["files"][0]["path"], "0", "{}", crowd["stdout"]);
    assert!(
        crowd["files_omitted"].as_u64().unwrap() > 10_000,
        "{}",
        crowd["files_omitted"]
    );
    server.expect_rest();
    server.close();
}

#[test]
fn however_a_program_ends_its_files_are_there() {
    let Some(home) = Home::for_root("files of runs that failed") else {
        return;
    };
    let mut server = Server::start(&home);
    let first = "open('a', 'w').write('partial')\n";
    for (ended_by, rest, with) in [
        ("error", "1/0", json!({})),
        ("timeout", "while True: pass", json!({"timeout": 1})),
        (
            "timeout",
            "import signal, os\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
             import subprocess; subprocess.Popen(['sleep', '99'], start_new_session=True)\n\
             while True: pass",
            json!({"timeout": 1}),
        ),
        ("oom", "x = bytearray(1 << 30)", json!({"memory": "64m"})),
        ("crashed", "import os; os.kill(os.getpid(), 11)", json!({})),
        ("output_limit", "while True: print('x' * 99_999)", json!({})),
    ] {
        let mut arguments = with;
        arguments["code"] = format!("{first}{rest}").into();
        let told = server.call(arguments);
        assert_eq!(told["ended_by"], ended_by, "{told:#}");
        assert_eq!(paths(&told), ["a"], "{told:#}");
        assert_eq!(server.read(&uri(&told, "a")).unwrap()["text"], "partial");
    }
    let id = server.begin_until(
        &format!("{first}print('made', flush=True)\nwhile True: pass"),
        "made",
    );
    server.notify("notifications/cancelled", json!({"requestId": id}));
    server.expect_rest();
    let runs = server.tool("list_runs", json!({}));
    let cancelled = &runs["runs"][0];
    assert_eq!(cancelled["ended_by"], "cancelled", "{cancelled}");
    let told = server.tool("get_run", json!({"run_id": cancelled["run_id"]}));
    assert_eq!(paths(&told), ["a"], "{told:#}");
    server.close();
}

#[test]
fn the_log_is_what_was_written() {
    let Some(home) = Home::for_root("the log") else {
        return;
    };
    let mut server = Server::start(&home);
    let bar = server.call(json!({"code": "\
import os, time
for n in 0, 50, 100:
    os.write(1, b'\\r\\x1b[2K\\x1b[32m%d%%\\x1b[0m' % n)
os.write(1, b'\\n')
for byte in 'é€'.encode():
    os.write(1, bytes([byte])); time.sleep(.05)
os.write(1, b'\\n')
"}));
    assert_eq!(bar["stdout"], "100%\né€\n", "{bar:#}");
    let log = bar["log"]["uri"].as_str().unwrap().to_owned();
    let exact = "\r\u{1b}[2K\u{1b}[32m0%\u{1b}[0m\r\u{1b}[2K\u{1b}[32m50%\u{1b}[0m\r\u{1b}[2K\u{1b}[32m100%\u{1b}[0m\né€\n";
    let read = server.read(&log).unwrap();
    assert_eq!(
        (&read["text"], &read["mimeType"]),
        (&json!(exact), &json!("text/plain"))
    );
    assert_eq!(
        bar["log"],
        json!({"bytes": exact.len(), "complete": true, "uri": log})
    );
    let at = exact.find('é').unwrap();
    let part = server
        .read(&format!("{log}?offset={}&length=3", at + 1))
        .unwrap();
    assert_eq!(
        part["blob"], "qeKC",
        "the rest of one character and two thirds of another: {part}"
    );

    let code = "import os\nos.write(1, bytes(range(256)) * 512 + b'a\\xc3')";
    let binary = server.call(json!({"code": code}));
    assert_eq!(
        (&binary["stdout_not_utf8"], &binary["log"]["bytes"]),
        (&json!(true), &json!(131_074))
    );
    let log = binary["log"]["uri"].as_str().unwrap();
    let same = server.call(json!({
        "code": "import base64\ndata = open('log', 'rb').read()\n\
                 assert data == bytes(range(256)) * 512 + b'a\\xc3'\nbase64.b64encode(data).decode()",
        "files": [{"path": "log", "uri": log}],
    }));
    assert_eq!(same["success"], true, "{same:#}");
    assert_eq!(server.read(log).unwrap()["blob"], same["result"]);
    assert_eq!(
        server.read(&format!("{log}?offset=254&length=4")).unwrap()["blob"],
        "/v8AAQ=="
    );
    // What is no character is told as well, at the end and at the beginning.
    for bytes in ["a\\xc3", "\\x80a"] {
        let code = format!("import os\nos.write(1, b'{bytes}')\nopen('f', 'wb').write(b'{bytes}')");
        let cut = server.call(json!({"code": code}));
        let log = cut["log"]["uri"].as_str().unwrap();
        let expected = if bytes.starts_with('a') {
            "YcM="
        } else {
            "gGE="
        };
        assert_eq!(server.read(log).unwrap()["blob"], expected, "{bytes}");
        assert_eq!(
            server.read(&uri(&cut, "f")).unwrap()["blob"],
            expected,
            "{bytes}"
        );
    }
    server.close();
}
