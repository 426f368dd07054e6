//! Mixed load for a long time: four clients with a server each, and what is left of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Plan;
use crate::engines::forge_command;
use crate::mcp::Client;
use crate::noop::millis;
use crate::on_engines::{Engine, Runtime};
use crate::procs;
use crate::round::{Metric, Row};
use crate::stats::{Shuffler, Summary};
use crate::sustained::CLIENTS;

/// Between two looks at the servers.
const LOOK: Duration = Duration::from_secs(15);
/// Looks that are told of in a note.
const TOLD: usize = 5;
/// After this time a server whose last run was answered is idle.
const SETTLING: Duration = Duration::from_secs(5);
/// Before a call is cancelled.
const REGRET: Duration = Duration::from_millis(200);

/// One kind of call: the tool, the code, and how it must end.
struct Kind {
    name: &'static str,
    tool: &'static str,
    code: &'static str,
    ended_by: &'static [&'static str],
    /// What standard output is, where that is told.
    stdout: Option<&'static str>,
}

const PYTHON: &str = "execute_python";

const KINDS: [Kind; 7] = [
    Kind {
        name: "a value",
        tool: PYTHON,
        code: "print(6 * 7)",
        ended_by: &["completed"],
        stdout: Some("42\n"),
    },
    Kind {
        name: "R",
        tool: "execute_r",
        code: "cat(6 * 7)",
        ended_by: &["completed"],
        stdout: Some("42"),
    },
    Kind {
        name: "a megabyte of output",
        tool: PYTHON,
        code: "for _ in range(1024): print('x' * 1023)",
        ended_by: &["completed"],
        stdout: None,
    },
    Kind {
        name: "files and processes",
        tool: PYTHON,
        code: "import subprocess\n\
               for i in range(8):\n    open(f'{i}.txt', 'w').write('x' * 100_000)\n\
               print(subprocess.run(['wc', '-c', '7.txt'], capture_output=True, text=True).stdout)",
        ended_by: &["completed"],
        stdout: Some("100000 7.txt\n\n"),
    },
    Kind {
        name: "an exception",
        tool: PYTHON,
        code: "1 / 0",
        ended_by: &["error"],
        stdout: Some(""),
    },
    Kind {
        name: "an endless loop, 1 s",
        tool: PYTHON,
        code: "while True: pass",
        ended_by: &["timeout"],
        stdout: Some(""),
    },
    Kind {
        name: "more memory than there is",
        tool: PYTHON,
        code: "x = bytearray(2 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1",
        // Where nothing enforces the limit it gets what it asks for.
        ended_by: &["oom", "error", "completed"],
        stdout: Some(""),
    },
];

/// In place of a tool that takes its name: a call that nobody waits for.
const CANCELLED: &str = "a cancelled call";

/// What the servers have at one moment, all together.
#[derive(Debug, Clone, Copy)]
struct Sight {
    processes: usize,
    descriptors: usize,
    threads: usize,
    /// Bytes, what is shared counted once.
    memory: u64,
}

impl Sight {
    /// Of the servers with their helpers, without the sandboxes on the way.
    fn of(servers: &[u32]) -> Result<Self> {
        let mut sight = Self {
            processes: 0,
            descriptors: 0,
            threads: 0,
            memory: 0,
        };
        let entries = |pid: u32, what| std::fs::read_dir(format!("/proc/{pid}/{what}"));
        let program = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        for server in servers {
            let own = std::iter::once(*server);
            let helpers = procs::descendants(*server)?
                .into_iter()
                .map(|process| process.pid)
                .filter(|pid| program(*pid) == program(*server));
            for pid in own.chain(helpers) {
                // One that is gone meanwhile had nothing to keep.
                let (Ok(files), Ok(threads), Ok((_, memory))) =
                    (entries(pid, "fd"), entries(pid, "task"), procs::memory(pid))
                else {
                    continue;
                };
                sight.processes += 1;
                sight.descriptors += files.count();
                sight.threads += threads.count();
                sight.memory += memory;
            }
        }
        Ok(sight)
    }

    fn told(&self) -> String {
        format!(
            "{:.1} MiB, {} descriptors, {} threads, {} processes",
            self.memory as f64 / f64::from(1 << 20),
            self.descriptors,
            self.threads,
            self.processes
        )
    }
}

type Times = BTreeMap<&'static str, Vec<f64>>;

pub(crate) struct Soak {
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn measure(
    plan: &Plan,
    runtime: Runtime,
    time: Duration,
    shuffler: &mut Shuffler,
) -> Result<Soak> {
    let engine = Engine::find(runtime, &plan.cache)?;
    let before = engine.containers()?;
    let states = (0..CLIENTS)
        .map(|_| tempfile::tempdir())
        .collect::<Result<Vec<_>, _>>()?;
    let mut clients = Vec::new();
    for state in &states {
        clients.push(start(plan, &engine, state.path())?);
    }
    let servers: Vec<u32> = clients.iter().map(Client::pid).collect();
    // Everything that is made once is there when each kind was done once.
    let times = Mutex::new(Times::new());
    for client in &mut clients {
        for kind in 0..=KINDS.len() {
            call(client, kind, &times)?;
        }
    }
    times.lock().unwrap_or_else(PoisonError::into_inner).clear();
    std::thread::sleep(SETTLING);
    let idle = Sight::of(&servers)?;

    let (stop, begun) = (AtomicBool::new(false), Instant::now());
    let mut sights = Vec::new();
    let calls: Result<()> = std::thread::scope(|scope| {
        let workers: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                let (times, stop) = (&times, &stop);
                let mut order = Shuffler(shuffler.next());
                scope.spawn(move || {
                    let worked = work(client, &mut order, times, stop);
                    // One that failed ends the load of all.
                    stop.store(true, Ordering::Relaxed);
                    worked
                })
            })
            .collect();
        let mut next = LOOK;
        while begun.elapsed() < time && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
            if begun.elapsed() > next {
                sights.push((begun.elapsed(), Sight::of(&servers)));
                next += LOOK;
            }
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            match worker.join() {
                Ok(worked) => worked?,
                Err(_) => anyhow::bail!("a client panicked"),
            }
        }
        Ok(())
    });
    let took = begun.elapsed();
    calls?;
    std::thread::sleep(SETTLING);
    let after = Sight::of(&servers)?;
    let containers = engine.left()?;
    let times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count: usize = times.values().map(Vec::len).sum();
    let mut notes = vec![
        format!(
            "{}: {count} calls in {:.0} s by {CLIENTS} clients with a server each, every answer as expected.",
            runtime.forge(),
            took.as_secs_f64()
        ),
        format!("Servers and helpers before: {}.", idle.told()),
    ];
    let step = (sights.len() / TOLD).max(1);
    for (at, sight) in sights.into_iter().step_by(step).skip(1) {
        let at = at.as_secs();
        notes.push(format!("Under load after {at} s: {}.", sight?.told()));
    }
    notes.push(format!(
        "{} s after the last call: {}.",
        SETTLING.as_secs(),
        after.told()
    ));
    for client in clients {
        client.close()?;
    }
    notes.push(format!(
        "Containers of mcp-forge: {before} before, {containers} after the last call, {} after the \
         end of the servers; processes of the servers then: {}.",
        engine.left()?,
        servers
            .iter()
            .filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
            .count()
    ));
    let rows = times.into_iter().filter_map(|(name, times)| {
        Some(Row {
            name: name.to_owned(),
            fault: None,
            failed: false,
            metrics: vec![Metric {
                name: "time",
                unit: "ms",
                summary: Summary::of(&times)?,
            }],
        })
    });
    Ok(Soak {
        rows: rows.collect(),
        notes,
    })
}

fn start(plan: &Plan, engine: &Engine, state: &Path) -> Result<Client> {
    let mut command = forge_command(&plan.forge, state);
    command.arg("serve").envs(engine.settings());
    // Rootless Podman on control groups of version 1 has no limits.
    command.env("MCP_FORGE_SECURITY__ACCEPT_UNENFORCED_LIMITS", "true");
    Ok(Client::start(command, &state.join("stderr"))?.0)
}

/// Calls until it is told to stop.
fn work(
    client: &mut Client,
    order: &mut Shuffler,
    times: &Mutex<Times>,
    stop: &AtomicBool,
) -> Result<()> {
    loop {
        for kind in order.order(KINDS.len() + 1) {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            call(client, kind, times)?;
        }
    }
}

/// One call of the kind with this number; the last one is cancelled.
fn call(client: &mut Client, kind: usize, times: &Mutex<Times>) -> Result<()> {
    let (name, took) = match KINDS.get(kind) {
        Some(kind) => (kind.name, ask(client, kind).context(kind.name)?),
        None => {
            let code = "import time\ntime.sleep(60)";
            let (id, sent) = client.call_later(PYTHON, &json!({ "code": code }))?;
            std::thread::sleep(REGRET);
            client.cancel(id)?;
            (CANCELLED, sent.elapsed())
        }
    };
    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
    times.entry(name).or_default().push(millis(took));
    Ok(())
}

fn ask(client: &mut Client, kind: &Kind) -> Result<Duration> {
    let limit = if kind.ended_by == ["timeout"] { 1 } else { 60 };
    let answer = client.call(kind.tool, &json!({ "code": kind.code, "timeout": limit }))?;
    let told: &Value = &answer.value["structuredContent"];
    let as_expected = told["ended_by"]
        .as_str()
        .is_some_and(|ended_by| kind.ended_by.contains(&ended_by))
        && kind.stdout.is_none_or(|stdout| told["stdout"] == stdout);
    ensure!(as_expected, "not as expected: {}", answer.value);
    Ok(answer.took)
}
