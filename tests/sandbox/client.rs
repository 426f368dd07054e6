//! `mcp-forge serve` and a client that writes lines and reads lines, and takes nothing but
//! JSON-RPC messages.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::home::{Home, collect, end_of};
use crate::host::{LATER, Process, SOON, note, wait_until};
use crate::leftovers::{entries, mounts};

/// Helper processes of a server that does nothing: the warden, the nursery, and the creator that
/// waits for the next run.
const HELPERS_AT_REST: usize = 3;

/// Control groups per hierarchy below that of the instance: the waiting creator's.
const GROUPS_AT_REST: usize = 1;

/// A running server and its one client.
pub(crate) struct Server<'home> {
    home: &'home Home,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    /// Messages that nobody has asked for yet.
    kept: VecDeque<Value>,
    next_id: u64,
    /// The mounts of the nursery when it rested for the first time.
    mounts: RefCell<Option<BTreeSet<String>>>,
}

/// The helpers of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Helpers {
    pub(crate) warden: i32,
    pub(crate) nursery: i32,
}

impl<'home> Server<'home> {
    /// A server with the default settings, opened with `initialize`.
    pub(crate) fn start(home: &'home Home) -> Self {
        Self::with(home, &[])
    }

    /// The same with settings: the names after `MCP_FORGE_`.
    pub(crate) fn with(home: &'home Home, settings: &[(&str, &str)]) -> Self {
        let mut command = home.command();
        command.arg("serve");
        for (name, value) in settings {
            command.env(format!("MCP_FORGE_{name}"), value);
        }
        Self::spawn(home, command)
    }

    /// A server started by this command.
    pub(crate) fn spawn(home: &'home Home, mut command: Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let line = line.unwrap_or_else(|e| format!("unreadable: {e}"));
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut server = Self {
            home,
            stdin: child.stdin.take(),
            stderr: Some(collect(child.stderr.take())),
            child,
            lines,
            kept: VecDeque::new(),
            next_id: 1,
            mounts: RefCell::default(),
        };
        let opened = server.request(
            "initialize",
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "end-to-end", "version": "1"},
            }),
        );
        assert_eq!(opened["result"]["serverInfo"]["name"], "mcp-forge");
        server.notify("notifications/initialized", json!({}));
        server
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("an open server");
        stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request and gives its id.
    pub(crate) fn begin(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    /// Calls `execute_python` and gives the id of the request.
    pub(crate) fn begin_call(&mut self, arguments: Value) -> u64 {
        self.begin(
            "tools/call",
            json!({"name": "execute_python", "arguments": arguments}),
        )
    }

    /// Calls `execute_python` and waits until the program has printed this line.
    pub(crate) fn begin_until(&mut self, code: &str, line: &str) -> u64 {
        let id = self.begin(
            "tools/call",
            json!({
                "name": "execute_python",
                "arguments": {"code": code},
                "_meta": {"progressToken": line},
            }),
        );
        let deadline = Instant::now() + SOON;
        loop {
            let message = self.receive(deadline).expect("progress before the end");
            assert_ne!(message["id"], id, "an answer before {line:?}: {message}");
            let params = &message["params"];
            if params["progressToken"] == line && params["message"] == line {
                return id;
            }
        }
    }

    /// Calls `execute_python` and gives its structured content: the result of a run, or a refusal.
    pub(crate) fn call(&mut self, arguments: Value) -> Value {
        let id = self.begin_call(arguments);
        self.told(id)
    }

    /// Waits for the structured content of a call.
    pub(crate) fn told(&mut self, id: u64) -> Value {
        let answer = self.answer(id);
        let told = answer["result"]["structuredContent"].clone();
        assert!(told.is_object(), "no structured content: {answer}");
        let failed = told["success"] != true;
        assert_eq!(answer["result"]["isError"], failed, "{answer}");
        let content = answer["result"]["content"].as_array();
        let mut content = content.into_iter().flatten();
        assert!(
            content.any(|part| part["text"].as_str().is_some_and(|text| !text.is_empty())),
            "no text: {answer}"
        );
        told
    }

    /// Calls a tool with members of `_meta`, and gives the id of the request.
    pub(crate) fn begin_tool(&mut self, name: &str, arguments: Value, meta: Value) -> u64 {
        let params = json!({"name": name, "arguments": arguments, "_meta": meta});
        self.begin("tools/call", params)
    }

    /// Calls a tool and gives its structured content, whatever it tells.
    pub(crate) fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.begin_tool(name, arguments, json!({}));
        self.content(id)
    }

    /// Waits for the structured content of any call of a tool.
    pub(crate) fn content(&mut self, id: u64) -> Value {
        let answer = self.answer(id);
        let told = answer["result"]["structuredContent"].clone();
        assert!(told.is_object(), "no structured content: {answer}");
        told
    }

    /// Reads a resource; its one contents, or the error.
    pub(crate) fn read(&mut self, uri: &str) -> Result<Value, Value> {
        let mut answer = self.request("resources/read", json!({"uri": uri}));
        if answer["error"].is_object() {
            return Err(answer["error"].take());
        }
        let contents = answer["result"]["contents"].take();
        assert_eq!(contents.as_array().map(Vec::len), Some(1), "{contents}");
        assert_eq!(contents[0]["uri"], uri);
        Ok(contents[0].clone())
    }

    /// Waits until a notification of progress for this token has this message.
    pub(crate) fn expect_progress(&mut self, token: &str, message: &str) {
        let is_it = |told: &Value| {
            told["params"]["progressToken"] == token && told["params"]["message"] == message
        };
        if self.kept.iter().any(is_it) {
            return;
        }
        let deadline = Instant::now() + SOON;
        loop {
            let next = self.receive(deadline).expect("progress before the end");
            let found = is_it(&next);
            self.kept.push_back(next);
            if found {
                return;
            }
        }
    }

    /// The messages that came beside the answers.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Value> {
        self.kept.iter()
    }

    /// Waits for the answer to a request; what else comes is kept.
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        if let Some(at) = self.kept.iter().position(|message| message["id"] == id) {
            return self.kept.remove(at).unwrap();
        }
        let deadline = Instant::now() + LATER;
        loop {
            let message = self.receive(deadline).expect("an answer before the end");
            if message["id"] == id {
                return message;
            }
            self.kept.push_back(message);
        }
    }

    /// The next answer to any request, with its id.
    pub(crate) fn any_answer(&mut self) -> (u64, Value) {
        let deadline = Instant::now() + LATER;
        loop {
            let message = self.receive(deadline).expect("an answer before the end");
            if let Some(id) = message["id"].as_u64() {
                return (id, message);
            }
        }
    }

    /// The next message on standard output; none when it has ended.
    fn receive(&mut self, deadline: Instant) -> Option<Value> {
        let patience = deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(patience) {
            Ok(line) => Some(json_rpc(&line)),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no message within {LATER:?}"),
        }
    }

    /// Stops being a client: closes the server's standard input.
    pub(crate) fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// Waits for the end of the server; gives its exit status and what it had still to say.
    pub(crate) fn end(&mut self) -> (ExitStatus, Vec<Value>) {
        let status = end_of(&mut self.child);
        let deadline = Instant::now() + SOON;
        let mut rest: Vec<Value> = self.kept.drain(..).collect();
        while let Some(message) = self.receive(deadline) {
            rest.push(message);
        }
        (status, rest)
    }

    /// Hangs up, and expects that the server ends well and leaves nothing.
    pub(crate) fn close(mut self) {
        self.hang_up();
        let (status, _) = self.end();
        assert!(status.success(), "the server ended with {status}");
        self.home.expect_nothing_left();
    }

    /// The helpers, as soon as they are there.
    pub(crate) fn helpers(&self) -> Helpers {
        wait_until(SOON, || {
            self.find_helpers()
                .ok_or_else(|| "no helpers yet".to_owned())
        })
    }

    fn find_helpers(&self) -> Option<Helpers> {
        let census = self.home.census();
        let child_of = |pid| {
            let helper = |p: &&&Process| p.parent == pid && p.state != 'Z';
            census
                .ours()
                .collect::<Vec<_>>()
                .iter()
                .find(helper)
                .map(|p| p.pid)
        };
        let warden = child_of(self.pid())?;
        Some(Helpers {
            warden,
            nursery: child_of(warden)?,
        })
    }

    /// Waits until this many Python programs run in sandboxes.
    pub(crate) fn expect_programs(&self, count: usize) {
        wait_until(SOON, || match self.home.census().programs() {
            running if running == count => Ok(()),
            running => Err(format!("{running} programs run, not {count}")),
        });
    }

    /// Waits until the server holds nothing more than one that has nothing to do: no process in a
    /// sandbox, no control group or file of a run, no mount.
    pub(crate) fn expect_rest(&self) {
        wait_until(SOON, || self.rests());
    }

    fn rests(&self) -> Result<(), String> {
        let Some(Helpers { nursery, .. }) = self.find_helpers() else {
            return Err("no helpers".to_owned());
        };
        // So the mounts that the home counts are those of the server too.
        let space = |pid| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
        assert_eq!(space(self.pid()), space(std::process::id().cast_signed()));
        let census = self.home.census();
        let ours: Vec<&Process> = census.ours().collect();
        let sandboxed: Vec<_> = ours.iter().filter(|p| census.in_sandbox(p)).collect();
        if !sandboxed.is_empty() {
            return Err(format!("in sandboxes: {sandboxed:#?}"));
        }
        if ours.len() > HELPERS_AT_REST {
            return Err(format!("helpers: {ours:#?}"));
        }
        let below = census.below(self.pid());
        if below.len() != ours.len() {
            return Err(format!("below the server: {below:#?}, of ours: {ours:#?}"));
        }
        let groups = self.home.new_groups(&census);
        let within = |top: &Path| groups.iter().filter(|g| g.parent() == Some(top)).count();
        if let Some(full) = groups.iter().find(|group| within(group) > GROUPS_AT_REST) {
            return Err(format!("control groups in {}: {groups:#?}", full.display()));
        }
        self.nursery_rests(nursery)?;
        self.home.leftovers_beside(&below)
    }

    /// The nursery's private files and mounts: those of the waiting creator, and no more as time
    /// goes on.
    fn nursery_rests(&self, nursery: i32) -> Result<(), String> {
        let work = format!("/proc/{nursery}/root/tmp");
        for (name, most) in [("state", 0), ("bundle", 1)] {
            let found = entries(&Path::new(&work).join(name), 0);
            if found.len() > most {
                return Err(format!("files of runs: {found:#?}"));
            }
        }
        let now: BTreeSet<String> = mounts(nursery).into_iter().collect();
        let mut first = self.mounts.borrow_mut();
        let more = &now - first.get_or_insert_with(|| now.clone());
        if more.is_empty() {
            Ok(())
        } else {
            Err(format!("mounts: {more:#?}"))
        }
    }

    /// Forgets what the nursery was like: it is another one now.
    pub(crate) fn expect_new_nursery(&self) {
        self.mounts.take();
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // After `end` there is nothing to do; a failed test must not leave a server.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self
            .stderr
            .take()
            .and_then(|log| log.join().ok())
            .unwrap_or_default();
        if std::thread::panicking() && !log.is_empty() {
            note(&format!("the server's log:\n{log}"));
        }
    }
}

/// A line of standard output. Each has to be one message of JSON-RPC.
#[track_caller]
fn json_rpc(line: &str) -> Value {
    let message: Value =
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} on standard output: {line:?}"));
    assert_eq!(message["jsonrpc"], "2.0", "{line}");
    let kinds = ["result", "error", "method"].map(|kind| message.get(kind).is_some());
    assert_eq!(kinds.iter().filter(|there| **there).count(), 1, "{line}");
    message
}

/// Longest time between a stop and the end of everything.
pub(crate) const STOP: Duration = Duration::from_secs(2);
