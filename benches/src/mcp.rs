//! A client of MCP over stdio that costs next to nothing: blocking lines over two pipes.
//!
//! The clock runs from the moment the request is handed to the pipe until the whole line of the
//! answer was read; making and parsing JSON is outside.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

/// Longest wait for any answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for a server whose standard input was closed.
const FAREWELL: Duration = Duration::from_secs(20);

/// An answer and how long it took.
pub(crate) struct Timed {
    pub(crate) value: Value,
    pub(crate) took: Duration,
    /// When its line was complete.
    pub(crate) at: Instant,
}

/// A server started as a child, initialized.
pub(crate) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines,
    last_id: u64,
    /// Answers that came while another one was waited for.
    early: HashMap<u64, Timed>,
    log: PathBuf,
}

impl Client {
    /// Starts the server and opens the connection. Gives the time until `initialize` was answered.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<(Self, Duration)> {
        let begun = Instant::now();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a child without stdout")?;
        let mut client = Self {
            child,
            stdin,
            lines: Lines::new(stdout),
            last_id: 0,
            early: HashMap::new(),
            log: log.to_owned(),
        };
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "forge-bench", "version": env!("CARGO_PKG_VERSION") },
        });
        let hello = client.request("initialize", &hello)?;
        let took = hello.at - begun;
        ensure!(
            hello.value["protocolVersion"] == "2025-11-25",
            "another protocol version: {}",
            hello.value
        );
        client.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        Ok((client, took))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends one request and waits for its result.
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> Result<Timed> {
        let (id, text) = self.compose(method, params);
        let sent = Instant::now();
        self.send(&text)?;
        self.answer(id, sent)
    }

    /// Calls a tool; the same clock.
    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Result<Timed> {
        self.request(
            "tools/call",
            &json!({ "name": tool, "arguments": arguments }),
        )
    }

    /// Sends a call and does not wait.
    pub(crate) fn call_later(&mut self, tool: &str, arguments: &Value) -> Result<(u64, Instant)> {
        let params = json!({ "name": tool, "arguments": arguments });
        let (id, text) = self.compose("tools/call", &params);
        let sent = Instant::now();
        self.send(&text)?;
        Ok((id, sent))
    }

    /// Cancels a call; it is not answered then.
    pub(crate) fn cancel(&mut self, id: u64) -> Result<()> {
        let text = json!({
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": { "requestId": id },
        });
        self.send(&format!("{text}\n"))
    }

    /// Waits for the result with this id; others are kept.
    pub(crate) fn answer(&mut self, id: u64, sent: Instant) -> Result<Timed> {
        loop {
            let timed = match self.early.remove(&id) {
                Some(timed) => timed,
                None => {
                    let (got, timed) = self.any_answer()?;
                    if got != id {
                        self.early.insert(got, timed);
                        continue;
                    }
                    timed
                }
            };
            return Ok(Timed {
                took: timed.at - sent,
                ..timed
            });
        }
    }

    /// Waits for whichever result comes first; `took` is not known here.
    pub(crate) fn any_answer(&mut self) -> Result<(u64, Timed)> {
        loop {
            let line = match self.lines.next(Instant::now() + PATIENCE) {
                Ok(line) => line,
                Err(e) => return Err(e.context(self.last_words())),
            };
            let at = Instant::now();
            let mut message: Value = serde_json::from_slice(line)
                .with_context(|| format!("no JSON: {}", String::from_utf8_lossy(line)))?;
            let Some(id) = message["id"]
                .as_u64()
                .filter(|_| message.get("method").is_none())
            else {
                continue;
            };
            if let Some(error) = message.get("error") {
                bail!("the server refused: {error}");
            }
            let value = message["result"].take();
            return Ok((
                id,
                Timed {
                    value,
                    took: Duration::ZERO,
                    at,
                },
            ));
        }
    }

    /// Hands over `count` requests at once and takes their answers in whatever order. Gives the
    /// time until the last one.
    pub(crate) fn pipeline(
        &mut self,
        method: &str,
        params: &Value,
        count: usize,
    ) -> Result<Duration> {
        let mut text = String::new();
        let first = self.last_id + 1;
        for _ in 0..count {
            text.push_str(&self.compose(method, params).1);
        }
        let mut stdin = self.stdin.take().context("the connection is closed")?;
        let begun = Instant::now();
        // A thread, because both pipes may be full at once.
        let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).map(|()| stdin));
        let mut answers = Vec::with_capacity(count);
        for _ in 0..count {
            answers.push(self.lines.next(Instant::now() + PATIENCE)?.to_vec());
        }
        let took = begun.elapsed();
        match writer.join() {
            Ok(stdin) => self.stdin = Some(stdin?),
            Err(_) => bail!("the writing thread panicked"),
        }
        let mut ids = Vec::with_capacity(count);
        for answer in &answers {
            let message: Value = serde_json::from_slice(answer)?;
            ensure!(message.get("result").is_some(), "no result: {message}");
            ids.extend(message["id"].as_u64());
        }
        ids.sort_unstable();
        let expected: Vec<u64> = (first..first + count as u64).collect();
        ensure!(
            ids == expected,
            "not every request was answered exactly once"
        );
        Ok(took)
    }

    /// Closes standard input and waits until the server has ended.
    pub(crate) fn close(mut self) -> Result<()> {
        ensure!(
            self.ended_by_itself(FAREWELL),
            "the server did not end within {} s of its input",
            FAREWELL.as_secs()
        );
        Ok(())
    }

    fn ended_by_itself(&mut self, patience: Duration) -> bool {
        drop(self.stdin.take());
        let until = Instant::now() + patience;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    fn compose(&mut self, method: &str, params: &Value) -> (u64, String) {
        self.last_id += 1;
        let id = self.last_id;
        let text = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        (id, format!("{text}\n"))
    }

    fn send(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the connection is closed")?;
        stdin
            .write_all(text.as_bytes())
            .context("the server does not read")
    }

    /// The end of its standard error.
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        format!(
            "the server's last lines on standard error: {:?}",
            lines.join("\n")
        )
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It clears up when its input ends; a kill is the last resort.
        if !self.ended_by_itself(Duration::from_secs(5)) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Lines of a pipe, each with a deadline.
struct Lines {
    pipe: ChildStdout,
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Lines {
    fn new(pipe: ChildStdout) -> Self {
        Self {
            pipe,
            buffer: vec![0; 64 * 1024],
            begin: 0,
            end: 0,
        }
    }

    fn next(&mut self, deadline: Instant) -> Result<&[u8]> {
        let mut seen = self.begin;
        loop {
            let fresh = &self.buffer[seen..self.end];
            if let Some(found) = fresh.iter().position(|byte| *byte == b'\n') {
                let line = self.begin..seen + found;
                self.begin = line.end + 1;
                return Ok(&self.buffer[line]);
            }
            seen = self.end;
            if self.end == self.buffer.len() {
                self.buffer.copy_within(self.begin..self.end, 0);
                seen -= self.begin;
                self.end -= self.begin;
                self.begin = 0;
                if self.end * 2 > self.buffer.len() {
                    self.buffer.resize(self.buffer.len() * 2, 0);
                }
            }
            self.wait(deadline)?;
            let count = self.pipe.read(&mut self.buffer[self.end..])?;
            ensure!(count > 0, "the server closed its output");
            self.end += count;
        }
    }

    fn wait(&self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs().try_into()?,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&left)))?;
        ensure!(ready > 0, "no answer in time");
        Ok(())
    }
}
