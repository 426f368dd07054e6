//! What the protocol costs when nothing is run: the no-op of three servers (goal G13).
//!
//! mcp-forge has no tool that does nothing. Its `ping` stands against the `ping` of the others;
//! a call that it refuses because it asks for too much memory goes through arguments, policy and
//! audit log, with everything but a sandbox, and stands against their no-op tool.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Plan;
use crate::engines::{clean, forge_command};
use crate::mcp::Client;
use crate::procs;
use crate::round::{Entrant, Pace, Row, rounds};
use crate::stats::Shuffler;

const FASTMCP: &str = include_str!("../noop_server.py");

/// Calls between two readings of the clock; one is too short to stand out of the noise.
const CALLS: usize = 50;
/// Requests handed over at once.
const PIPELINED: usize = 1000;
/// Calls before memory is read.
const WARMING: usize = 200;

pub(crate) struct Noop {
    pub(crate) latency: Vec<Row>,
    pub(crate) throughput: Vec<Row>,
    pub(crate) start: Vec<Row>,
    pub(crate) memory: Vec<Row>,
}

pub(crate) const FORGE: &str = "mcp-forge";
pub(crate) const RMCP: &str = "rmcp";
pub(crate) const FAST: &str = "FastMCP";
const SERVERS: [&str; 3] = [FORGE, RMCP, FAST];

pub(crate) const PING: &str = "ping";
pub(crate) const TOOL: &str = "tool call";

/// How to start each of the servers.
struct Servers<'a> {
    plan: &'a Plan,
    state: tempfile::TempDir,
    script: PathBuf,
    python: PathBuf,
}

impl<'a> Servers<'a> {
    fn new(plan: &'a Plan) -> Result<Self> {
        let state = tempfile::tempdir()?;
        let script = state.path().join("noop_server.py");
        std::fs::write(&script, FASTMCP)?;
        let python = plan.cache.join("fastmcp/bin/python");
        Ok(Self {
            plan,
            state,
            script,
            python,
        })
    }

    fn present(&self, name: &str) -> Result<(), String> {
        let needed: &Path = match name {
            FORGE => &self.plan.forge,
            RMCP => &self.plan.noop_server,
            _ => &self.python,
        };
        if needed.exists() {
            Ok(())
        } else {
            Err("not there; see the preparation".to_owned())
        }
    }

    fn command(&self, name: &str) -> Command {
        match name {
            FORGE => {
                let mut command = forge_command(&self.plan.forge, self.state.path());
                command.arg("serve");
                command
            }
            RMCP => clean(&self.plan.noop_server),
            _ => {
                let mut command = clean(&self.python);
                command.arg(&self.script).env("FASTMCP_LOG_LEVEL", "ERROR");
                // It looks for a newer version of itself otherwise.
                command.env("FASTMCP_CHECK_FOR_UPDATES", "off");
                command
            }
        }
    }

    fn start(&self, name: &str) -> Result<(Client, Duration)> {
        Client::start(
            self.command(name),
            &self.state.path().join(format!("{name}.stderr")),
        )
    }
}

/// The request of a kind for a server, and what its result must have.
fn request(server: &str, kind: &str) -> (&'static str, Value) {
    match (server, kind) {
        (_, PING) => ("ping", json!({})),
        (FORGE, _) => (
            "tools/call",
            json!({
                "name": "execute_python",
                "arguments": { "code": "print(42)", "memory": "1024g" },
            }),
        ),
        _ => ("tools/call", json!({ "name": "noop", "arguments": {} })),
    }
}

fn sound(server: &str, kind: &str, result: &Value) -> Result<()> {
    let expected = match (server, kind) {
        (_, PING) => result.is_object(),
        (FORGE, _) => result["structuredContent"]["error"]["kind"] == "limit_exceeded",
        _ => result["content"][0]["text"] == "ok" && result["isError"] != true,
    };
    ensure!(expected, "not the answer of a no-op: {result}");
    Ok(())
}

fn warm(client: &mut Client, server: &str) -> Result<()> {
    for kind in [PING, TOOL] {
        let (method, params) = request(server, kind);
        for _ in 0..WARMING {
            sound(server, kind, &client.request(method, &params)?.value)?;
        }
    }
    Ok(())
}

pub(crate) fn measure(plan: &Plan, shuffler: &mut Shuffler) -> Result<Noop> {
    let servers = Servers::new(plan)?;
    let mut running = Vec::new();
    for name in SERVERS {
        let client = servers.present(name).and_then(|()| {
            let started = servers.start(name).and_then(|(mut client, _)| {
                warm(&mut client, name)?;
                Ok(client)
            });
            started.map_err(|e| format!("failed: {e:#}"))
        });
        running.push((name, client.map(RefCell::new)));
    }
    let pace = Pace {
        warm_up: 1,
        rounds: plan.rounds,
        settle: Duration::from_millis(10),
    };

    let mut entrants = Vec::new();
    for (server, client) in &running {
        for kind in [PING, TOOL] {
            let name = format!("{server} {kind}");
            entrants.push(match client {
                Ok(client) => Entrant::new(&name, move || {
                    latency(&mut client.borrow_mut(), server, kind)
                }),
                Err(reason) => Entrant::absent(&name, reason.clone()),
            });
        }
    }
    let latency = rounds(
        "no-op, one call",
        &[("time", "ms")],
        entrants,
        pace,
        shuffler,
    );

    let mut entrants = Vec::new();
    for (server, client) in &running {
        for kind in [PING, TOOL] {
            let name = format!("{server} {kind}");
            entrants.push(match client {
                Ok(client) => Entrant::new(&name, move || {
                    let (method, params) = request(server, kind);
                    let took = client.borrow_mut().pipeline(method, &params, PIPELINED)?;
                    Ok(vec![PIPELINED as f64 / took.as_secs_f64()])
                }),
                Err(reason) => Entrant::absent(&name, reason.clone()),
            });
        }
    }
    let few = Pace {
        rounds: plan.few(),
        ..pace
    };
    let rate = [("rate", "calls/s")];
    let throughput = rounds("no-op, pipelined", &rate, entrants, few, shuffler);
    drop(running);

    let mut entrants = Vec::new();
    for name in SERVERS {
        entrants.push(match servers.present(name) {
            Ok(()) => Entrant::new(name, || {
                let (client, took) = servers.start(name)?;
                client.close()?;
                Ok(vec![millis(took)])
            }),
            Err(reason) => Entrant::absent(name, reason),
        });
    }
    let calm = Pace {
        settle: Duration::from_millis(100),
        ..few
    };
    let start = rounds("start", &[("time", "ms")], entrants, calm, shuffler);

    let mut entrants = Vec::new();
    for name in SERVERS {
        entrants.push(match servers.present(name) {
            Ok(()) => Entrant::new(name, || memory(&servers, name)),
            Err(reason) => Entrant::absent(name, reason),
        });
    }
    let metrics = [
        ("resident", "MB"),
        ("proportional", "MB"),
        ("processes", ""),
    ];
    let memory = rounds(
        "memory",
        &metrics,
        entrants,
        Pace { rounds: 6, ..calm },
        shuffler,
    );
    Ok(Noop {
        latency,
        throughput,
        start,
        memory,
    })
}

/// Mean of some calls one after the other, ms.
fn latency(client: &mut Client, server: &str, kind: &str) -> Result<Vec<f64>> {
    let (method, params) = request(server, kind);
    let mut total = Duration::ZERO;
    for _ in 0..CALLS {
        let answer = client.request(method, &params)?;
        sound(server, kind, &answer.value)?;
        total += answer.took;
    }
    Ok(vec![millis(total) / CALLS as f64])
}

/// Memory after some calls, of the server and all processes below it.
fn memory(servers: &Servers<'_>, name: &str) -> Result<Vec<f64>> {
    let (mut client, _) = servers.start(name)?;
    warm(&mut client, name)?;
    if name == FORGE {
        for _ in 0..10 {
            let code = json!({ "code": "print(42)" });
            crate::forge::completed(&client.call("execute_python", &code)?.value)?;
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let mut pids = vec![client.pid()];
    pids.extend(
        procs::descendants(client.pid())?
            .iter()
            .map(|process| process.pid),
    );
    let (mut resident, mut proportional) = (0, 0);
    for pid in &pids {
        let (rss, pss) = procs::memory(*pid).with_context(|| format!("memory of {name}"))?;
        resident += rss;
        proportional += pss;
    }
    client.close()?;
    Ok(vec![
        resident as f64 / 1e6,
        proportional as f64 / 1e6,
        pids.len() as f64,
    ])
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
