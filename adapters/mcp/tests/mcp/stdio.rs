//! Standard input and output of a real process: pipes, sockets, files and a terminal.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::raw::DEADLINE;

/// The program in `examples/stdio_fixture.rs`, which cargo builds with the tests.
fn fixture() -> Command {
    let test = std::env::current_exe().unwrap();
    let target: PathBuf = test.parent().unwrap().parent().unwrap().into();
    let program = target.join("examples/stdio_fixture");
    assert!(program.exists(), "{} is not built", program.display());
    Command::new(program)
}

fn wait(mut child: Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("the server did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn opening() -> String {
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "n", "version": "1"},
    });
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    format!("{initialize}\n{initialized}\n")
}

fn call(id: u32, code: &str) -> String {
    let params = json!({"name": "execute_python", "arguments": {"code": code}});
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    format!("{call}\n")
}

/// Opens, calls with a large program, closes; everything on standard output is JSON-RPC.
fn converse(mut stdin: impl Write, stdout: impl Read, child: Child) {
    let mut answers = BufReader::new(stdout).lines().map(|line| {
        let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(answer["jsonrpc"], "2.0");
        answer
    });
    stdin.write_all(opening().as_bytes()).unwrap();
    assert_eq!(answers.next().unwrap()["id"], 0);
    let code = "x".repeat(1 << 20);
    for id in 1..=3 {
        stdin.write_all(call(id, &code).as_bytes()).unwrap();
        let answer = answers.next().unwrap();
        assert_eq!(answer["id"], id);
        assert_eq!(
            answer["result"]["structuredContent"]["stdout"],
            code.as_str()
        );
    }
    stdin.write_all(call(4, "wait").as_bytes()).unwrap();
    drop(stdin);
    if let Some(last) = answers.next() {
        assert_eq!(last["result"]["structuredContent"]["ended_by"], "cancelled");
    }
    assert!(answers.next().is_none());
    assert!(wait(child).success());
}

#[test]
fn pipes() {
    let mut child = fixture()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    converse(stdin, stdout, child);
}

#[test]
fn sockets() {
    let (stdin, server_in) = UnixStream::pair().unwrap();
    let (stdout, server_out) = UnixStream::pair().unwrap();
    let child = fixture()
        .stdin(OwnedFd::from(server_in))
        .stdout(OwnedFd::from(server_out))
        .spawn()
        .unwrap();
    converse(stdin, stdout, child);
}

#[test]
fn one_socket_for_both() {
    let (near, far) = UnixStream::pair().unwrap();
    let child = fixture()
        .stdin(OwnedFd::from(far.try_clone().unwrap()))
        .stdout(OwnedFd::from(far))
        .arg("300")
        .spawn()
        .unwrap();
    let mut writer = near.try_clone().unwrap();
    writer.write_all(opening().as_bytes()).unwrap();
    let mut answers = BufReader::new(near).lines();
    assert!(answers.next().unwrap().unwrap().contains("\"id\":0"));
    assert!(wait(child).success());
    assert!(answers.next().is_none());
}

#[test]
fn files() {
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(opening().as_bytes()).unwrap();
    input.write_all(call(1, "print(1)").as_bytes()).unwrap();
    input.rewind().unwrap();
    let mut output = tempfile::tempfile().unwrap();
    let child = fixture()
        .stdin(input)
        .stdout(output.try_clone().unwrap())
        .spawn()
        .unwrap();
    assert!(wait(child).success());
    output.rewind().unwrap();
    let ids: Vec<_> = BufReader::new(output)
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()["id"].clone())
        .collect();
    assert_eq!(ids, [0, 1]);
}

#[test]
fn the_shutdown_token_ends_the_process_while_every_kind_of_input_stays_open() {
    let (_socket, far) = UnixStream::pair().unwrap();
    let terminal = File::options()
        .read(true)
        .write(true)
        .open("/dev/ptmx")
        .unwrap();
    for (kind, stdin) in [
        ("pipe", Stdio::piped()),
        ("socket", OwnedFd::from(far).into()),
        ("terminal", terminal.into()),
    ] {
        let mut child = fixture()
            .arg("100")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let _held = child.stdin.take();
        assert!(wait(child).success(), "{kind}");
    }
}

#[test]
fn a_client_that_stops_reading_ends_the_server() {
    let mut child = fixture()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    drop(stdout);
    stdin.write_all(opening().as_bytes()).unwrap();
    assert!(wait(child).success());
}

#[test]
fn a_client_that_reads_nothing_and_hangs_up_ends_the_server() {
    let (near, far) = UnixStream::pair().unwrap();
    for (kind, stdin, socket) in [
        ("pipe", Stdio::piped(), None),
        ("socket", OwnedFd::from(far).into(), Some(near)),
    ] {
        let mut child = fixture()
            .stdin(stdin)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take();
        let mut stdin: Box<dyn Write + Send> = match (child.stdin.take(), &socket) {
            (Some(pipe), _) => Box::new(pipe),
            (None, Some(socket)) => Box::new(socket.try_clone().unwrap()),
            (None, None) => unreachable!(),
        };
        stdin.write_all(opening().as_bytes()).unwrap();
        stdin.write_all(call(1, "wait").as_bytes()).unwrap();
        // More than is answered unread: the rest stays in the pipe, and with it the end.
        let lists: String = (2..600)
            .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/list\"}}\n"))
            .collect();
        stdin.write_all(lists.as_bytes()).unwrap();
        drop(stdin);
        if let Some(socket) = socket {
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let hung_up = Instant::now();
        assert!(wait(child).success(), "{kind}");
        assert!(hung_up.elapsed() < Duration::from_secs(8), "{kind}");
        drop(stdout);
    }
}

#[test]
fn closed_standard_streams_end_the_server_at_once() {
    let status = Command::new("sh")
        .arg("-c")
        .arg("exec \"$0\" <&- >&- 2>/dev/null")
        .arg(fixture().get_program())
        .status()
        .unwrap();
    // The runtime of Rust opens /dev/null in their place, so the input ends at once.
    assert!(status.success());
}
