//! mcp-forge as a contestant: a server that lives on, one call for each program.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::engines::{ALL_FRESH, ENGINE_FRESH, forge_command, nonce};
use crate::mcp::Client;
use crate::procs::{self, Process};
use crate::proof::{DIRECTORIES, Judge, PLAIN, Proof, program};

/// After this time a server whose last run was answered is idle.
const SETTLING: Duration = Duration::from_millis(300);
/// Longest wait until the last run is cleared away.
const CLEARING: Duration = Duration::from_secs(10);

/// The server, and how to judge its runs.
pub(crate) struct Forge {
    pub(crate) client: Client,
    judge: Judge,
}

impl Forge {
    /// Starts a server with its defaults and the given settings, and waits until it has run
    /// something.
    pub(crate) fn start(program: &Path, state: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        Self::start_with(program, state, settings, &ALL_FRESH)
    }

    /// The same; `fresh` names the namespaces that must be new.
    pub(crate) fn start_with(
        program: &Path,
        state: &Path,
        settings: &[(&str, &str)],
        fresh: &'static [&'static str],
    ) -> Result<Self> {
        let mut command = forge_command(program, state);
        command.arg("serve").envs(settings.iter().copied());
        let (client, _) = Client::start(command, &state.join("stderr"))?;
        let judge = Judge::new(fresh)?;
        let judge = match fresh == ENGINE_FRESH {
            true => judge.of_engine(),
            false => judge,
        };
        let mut forge = Self { client, judge };
        forge.run()?;
        Ok(forge)
    }

    /// The program with its proof, once.
    pub(crate) fn run(&mut self) -> Result<Duration> {
        let nonce = nonce();
        let code = program(&nonce, DIRECTORIES);
        let answer = self
            .client
            .call("execute_python", &json!({ "code": code }))?;
        self.judge
            .check(&Proof::parse(completed(&answer.value)?)?, &nonce, true)?;
        Ok(answer.took)
    }

    /// `print(42)` and nothing else, once.
    pub(crate) fn run_plain(&mut self) -> Result<Duration> {
        let answer = self
            .client
            .call("execute_python", &json!({ "code": PLAIN }))?;
        let stdout = completed(&answer.value)?;
        ensure!(stdout == "42\n", "not the output: {stdout:?}");
        Ok(answer.took)
    }

    /// Keeps `in_flight` calls under way for `time`. Gives how long each of them took, until its
    /// answer.
    pub(crate) fn sustain(&mut self, in_flight: usize, time: Duration) -> Result<Vec<Duration>> {
        let begun = Instant::now();
        let mut open: Vec<(u64, Instant, String)> = Vec::new();
        let mut took = Vec::new();
        loop {
            while open.len() < in_flight && begun.elapsed() < time {
                let nonce = nonce();
                let code = program(&nonce, DIRECTORIES);
                let (id, sent) = self
                    .client
                    .call_later("execute_python", &json!({ "code": code }))?;
                open.push((id, sent, nonce));
            }
            if open.is_empty() {
                return Ok(took);
            }
            let (id, answer) = self.client.any_answer()?;
            let Some(place) = open.iter().position(|(open, ..)| *open == id) else {
                bail!("an answer nobody asked for");
            };
            let (_, sent, nonce) = open.swap_remove(place);
            took.push(answer.at - sent);
            self.judge
                .check(&Proof::parse(completed(&answer.value)?)?, &nonce, false)?;
        }
    }

    pub(crate) fn judged(&self) -> usize {
        self.judge.judged
    }

    /// What the server consists of when it is idle.
    pub(crate) fn idle(&self) -> Result<Parts> {
        std::thread::sleep(SETTLING);
        Parts::of(self.client.pid())
    }

    /// Ends the server and tells what it left behind, first of its runs, then of itself.
    pub(crate) fn finish(self, idle: &Parts) -> Result<Vec<String>> {
        let server = self.client.pid();
        let (processes, groups) = idle.surplus(server, CLEARING)?;
        let mut notes = vec![format!(
            "After the last run the server had {processes} processes and {groups} control groups \
             more than when it was idle at first."
        )];
        let last = Parts::of(server)?;
        if let Err(e) = self.client.close() {
            notes.push(format!("**{e:#}.**"));
        }
        let (processes, groups) = last.left();
        notes.push(format!(
            "Of all it had, {processes} processes and {groups} control groups were there after \
             its end."
        ));
        Ok(notes)
    }
}

/// Standard output of a run that completed under limits that the kernel enforces.
pub(crate) fn completed(result: &Value) -> Result<&str> {
    let told = &result["structuredContent"];
    ensure!(
        told["ended_by"] == "completed" && told["limits"]["enforced"] == true,
        "not a completed run under enforced limits: {result}"
    );
    match told["stdout"].as_str() {
        Some(stdout) => Ok(stdout),
        None => bail!("no output: {result}"),
    }
}

/// Processes and control groups below a server.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) processes: Vec<Process>,
    roots: BTreeSet<PathBuf>,
    groups: BTreeSet<PathBuf>,
}

impl Parts {
    fn of(server: u32) -> Result<Self> {
        let processes = procs::descendants(server)?;
        let roots = procs::instance_groups(&processes);
        let groups = procs::groups_below(&roots);
        Ok(Self {
            processes,
            roots,
            groups,
        })
    }

    /// Waits until there are no more processes and control groups than there were, for at most
    /// `patience`. Gives how many there are too many.
    fn surplus(&self, server: u32, patience: Duration) -> Result<(usize, usize)> {
        let until = Instant::now() + patience;
        loop {
            let now = Self::of(server)?;
            let surplus = (
                now.processes.len().saturating_sub(self.processes.len()),
                now.groups.len().saturating_sub(self.groups.len()),
            );
            if surplus == (0, 0) || Instant::now() > until {
                return Ok(surplus);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many of the processes and control groups are still there, after the server has ended.
    fn left(&self) -> (usize, usize) {
        let processes = self
            .processes
            .iter()
            .filter(|process| process.exists())
            .count();
        (processes, procs::groups_below(&self.roots).len())
    }
}
