//! Where a probe runs: in a sandbox of each runtime that the host has, and outside.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::{Finished, Home, finish};
use crate::host::{SOON, note, skip, wait_until};
use crate::verdict::{Attempts, FACTS};

/// A way to make sandboxes.
pub(crate) struct Runtime {
    pub(crate) name: &'static str,
    /// Settings that choose it: the names after `MCP_FORGE_`.
    settings: &'static [(&'static str, &'static str)],
    /// The engine that makes them; none of the embedded runtime.
    engine: Option<Engine>,
    /// Attempts that get another answer than the embedded runtime gives, and which: `SECURITY.md`
    /// says why each is harmless.
    answers: &'static [(&'static str, &'static str)],
    /// Tests that say nothing of it, and why.
    without: &'static [(&'static str, &'static str)],
}

/// An engine of the tests.
struct Engine {
    /// The variable with its address, set by who started it.
    variable: &'static str,
    /// The variable that names it to the product and to its own command line.
    host: &'static str,
    /// Its command line.
    program: &'static [&'static str],
}

/// Attempts that every engine answers otherwise.
const OF_ENGINES: [(&str, &str); 3] = [
    ("list /dev/mqueue", "done"),
    ("list /dev/pts", "done"),
    ("write projid_map", "done"),
];

/// The same of Podman, whose API takes no number of files: the memory that they are is limited.
const OF_PODMAN: [(&str, &str); 5] = {
    let [a, b, c] = OF_ENGINES;
    [
        a,
        b,
        c,
        ("files in /tmp", "done"),
        ("files in /dev/shm", "done"),
    ]
};

/// Tests that say nothing of any engine.
const WITHOUT_ENGINES: [(&str, &str); 4] = [
    (
        "users of two servers",
        "the engine numbers the users, SECURITY.md",
    ),
    (
        "counts of the kernel by user",
        "sandboxes share the range of the engine, SECURITY.md",
    ),
    (
        "memory and swap on the host",
        "its processes are no children of the server; tests/contract has the limit",
    ),
    (
        "sockets of engines",
        "the engine sees the host itself and not the furnished one",
    ),
];

/// The same of one that enforces no limits.
const WITHOUT_WEAK: [(&str, &str); 5] = {
    let [a, b, c, d] = WITHOUT_ENGINES;
    let bombs = (
        "bombs beside a neighbour",
        "nothing limits memory, which must be accepted",
    );
    [a, b, c, d, bombs]
};

/// Each runtime of the product.
const RUNTIMES: [Runtime; 4] = [
    Runtime {
        name: "libcontainer",
        settings: &[("RUNTIME__KIND", "libcontainer")],
        engine: None,
        answers: &[],
        without: &[],
    },
    Runtime {
        name: "podman as root",
        settings: &[("RUNTIME__KIND", "podman")],
        engine: Some(Engine {
            variable: "MCP_FORGE_TEST_PODMAN",
            host: "CONTAINER_HOST",
            program: &["podman", "--remote"],
        }),
        answers: &OF_PODMAN,
        without: &WITHOUT_ENGINES,
    },
    Runtime {
        name: "podman rootless",
        settings: &[
            ("RUNTIME__KIND", "podman"),
            // On control groups of version 1 it enforces none.
            ("SECURITY__ACCEPT_UNENFORCED_LIMITS", "true"),
        ],
        engine: Some(Engine {
            variable: "MCP_FORGE_TEST_PODMAN_ROOTLESS",
            host: "CONTAINER_HOST",
            program: &["podman", "--remote"],
        }),
        answers: &OF_PODMAN,
        without: &WITHOUT_WEAK,
    },
    Runtime {
        name: "docker",
        settings: &[("RUNTIME__KIND", "docker")],
        engine: Some(Engine {
            variable: "MCP_FORGE_TEST_DOCKER",
            host: "DOCKER_HOST",
            program: &["docker"],
        }),
        answers: &OF_ENGINES,
        without: &WITHOUT_ENGINES,
    },
];

/// A process of its own namespaces, so that the control of an attempt cannot touch the host's.
const APART: [&str; 10] = [
    "unshare",
    "--mount",
    "--pid",
    "--net",
    "--ipc",
    "--uts",
    "--cgroup",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

impl Engine {
    fn address(&self) -> Option<OsString> {
        std::env::var_os(self.variable)
    }
}

/// A home whose sandboxes one runtime makes.
pub(crate) struct Place {
    pub(crate) home: Home,
    pub(crate) runtime: &'static Runtime,
}

/// Probes the sandboxes of each runtime, of which nothing may be left.
pub(crate) fn everywhere(test: &str, probe: impl Fn(&Place)) {
    for runtime in &RUNTIMES {
        if let Some((_, why)) = runtime.without.iter().find(|(of, _)| *of == test) {
            note(&format!("WITHOUT {} {test}: {why}", runtime.name));
            continue;
        }
        let test = format!("{test} ({})", runtime.name);
        if let Some(engine) = &runtime.engine
            && engine.address().is_none()
        {
            let why = format!("{} names no engine, see tests/engines", engine.variable);
            skip(&test, &why);
            continue;
        }
        let Some(home) = Home::for_root(&test) else {
            return;
        };
        let place = Place { home, runtime };
        probe(&place);
        place.home.expect_nothing_left();
    }
}

impl Place {
    /// A server of this runtime; `settings` are names after `MCP_FORGE_`.
    pub(crate) fn server(&self, settings: &[(&str, &str)]) -> Server<'_> {
        let mut command = self.command();
        command.arg("serve");
        for (name, value) in settings {
            command.env(format!("MCP_FORGE_{name}"), value);
        }
        Server::spawn(&self.home, command)
    }

    /// The program under test, with this runtime.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.home.command();
        for (name, value) in self.runtime.settings {
            command.env(format!("MCP_FORGE_{name}"), value);
        }
        if let Some(engine) = &self.runtime.engine {
            let address = engine.address().unwrap().into_string().unwrap();
            command.env(engine.host, &address);
            // Where an engine of another user can read.
            let socket = Path::new(address.trim_start_matches("unix://"));
            command.env("XDG_CACHE_HOME", socket.with_file_name("cache"));
        }
        command
    }

    /// Whether an engine makes the sandboxes.
    pub(crate) fn is_engine(&self) -> bool {
        self.runtime.engine.is_some()
    }

    /// Waits until nothing of a run is left beside the server.
    pub(crate) fn expect_rest(&self, server: &Server<'_>) {
        let Some(engine) = &self.runtime.engine else {
            return server.expect_rest();
        };
        wait_until(SOON, || {
            let mut command = Command::new(engine.program[0]);
            command.env(engine.host, engine.address().unwrap());
            command.args(&engine.program[1..]).args([
                "ps",
                "--all",
                "--quiet",
                "--filter",
                "label=io.mcp-forge.owner",
            ]);
            let left = finish(command, b"");
            match left.stdout.lines().count() {
                0 if left.code() == 0 => Ok(()),
                _ => Err(format!("{left:?}")),
            }
        });
    }

    /// `mcp-forge run`.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        let mut command = self.command();
        command.arg("run").args(arguments);
        finish(command, b"")
    }

    /// The result of a run of some Python, which must end well.
    pub(crate) fn result(&self, code: &str) -> Value {
        let finished = self.run(&["--json", "-c", code]);
        let told: Value =
            serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished:?}"));
        assert_eq!(told["ended_by"], "completed", "{told:#}");
        told["result"].clone()
    }

    /// What a probe prints in a sandbox; the ending of its name tells the language.
    pub(crate) fn printed(&self, name: &str, source: &str) -> String {
        let file = self.home.file(name, source);
        let finished = self.run(&[file.to_str().unwrap()]);
        let ended = (finished.code(), finished.stderr.as_str());
        assert_eq!(ended, (0, ""), "{name}: {finished:?}");
        finished.stdout
    }

    /// The JSON that a probe in Python prints in a sandbox.
    pub(crate) fn inside(&self, name: &str, source: &str) -> Value {
        json_of(&self.printed(name, source))
    }

    /// What a program prints outside as root, in the same home; `wrapper` starts the interpreter.
    pub(crate) fn printed_outside(&self, name: &str, source: &str, wrapper: &[&str]) -> String {
        let file = self.home.file(name, source);
        let interpreter: &[&str] = if name.ends_with(".R") {
            &["Rscript", "--vanilla"]
        } else {
            &["/usr/bin/python3", "-B"]
        };
        let file = [file.to_str().unwrap(), "control"];
        let words = [wrapper, interpreter, &file].concat();
        let mut command = Command::new(words[0]);
        self.home.furnish(&mut command);
        command.args(&words[1..]);
        let finished = finish(command, b"");
        assert_eq!(finished.code(), 0, "{name} outside: {finished:?}");
        finished.stdout
    }

    /// The JSON that it prints outside, in the namespaces of the host.
    pub(crate) fn outside(&self, name: &str, source: &str) -> Value {
        json_of(&self.printed_outside(name, source, &[]))
    }

    /// The same apart from the host.
    pub(crate) fn apart(&self, name: &str, source: &str) -> Value {
        json_of(&self.printed_outside(name, source, &APART))
    }

    /// The facts, in a sandbox and outside.
    pub(crate) fn facts(&self) -> (Value, Value) {
        let inside = self.inside("facts.py", FACTS);
        (inside, self.outside("facts.py", FACTS))
    }

    /// Tries everything on a barrier, in Python and in R.
    #[track_caller]
    pub(crate) fn expect_refused(&self, attempts: &Attempts) {
        let name = format!("{}.py", attempts.name);
        let source = attempts.python();
        let mut wrong = self.judged(
            attempts,
            &self.inside(&name, &source),
            &self.apart(&name, &source),
        );
        let name = format!("{}.R", attempts.name);
        let source = attempts.r();
        let inside = table_of(&self.printed(&name, &source));
        let control = table_of(&self.printed_outside(&name, &source, &APART));
        wrong.extend(self.judged(attempts, &inside, &control));
        assert!(wrong.is_empty(), "{}: {wrong:#?}", self.runtime.name);
    }

    /// What is wrong with the answers inside, or with those outside as their control.
    fn judged(&self, attempts: &Attempts, inside: &Value, outside: &Value) -> Vec<String> {
        let mut wrong = attempts.wrong_answers(inside);
        wrong.retain(|told| {
            let known = |(attempt, got): &(&str, &str)| {
                told.starts_with(&format!("{attempt} got \"{got}\","))
            };
            !self.runtime.answers.iter().any(known)
        });
        let mut conclusive = 0;
        // By reason, since many lack the same.
        let mut inconclusive: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let told = inside.as_object().unwrap();
        for (attempt, of) in told {
            let (got, control) = (&of["got"], &outside[attempt]);
            let without = &control["got"];
            if self.runtime.answers.iter().any(|(of, _)| of == attempt) {
                continue;
            }
            if let Some(why) = control["control"].as_str() {
                inconclusive
                    .entry(why.to_owned())
                    .or_default()
                    .push(attempt);
            } else if !is_answer(without) {
                wrong.push(format!("{attempt} has no answer outside: {without}"));
            } else if got != without {
                conclusive += 1;
            } else if ["ENOSYS", "ENOENT", "EAFNOSUPPORT"]
                .iter()
                .any(|no| without == no)
            {
                // The kernel has no such thing, so nobody was asked for permission.
                let why = format!("{} outside too", without.as_str().unwrap());
                inconclusive.entry(why).or_default().push(attempt);
            } else {
                wrong.push(format!("{attempt} gets {got} inside and {without} outside"));
            }
        }
        for (why, attempts) in inconclusive {
            note(&format!("NO CONTROL ({why}): {}", attempts.join("; ")));
        }
        let (name, all) = (attempts.name, told.len());
        note(&format!(
            "{name}: {all} attempts, {conclusive} with a control"
        ));
        // A host that refuses everything to everybody would prove nothing.
        if conclusive * 2 < all {
            wrong.push(format!(
                "only {conclusive} attempts of {all} prove something"
            ));
        }
        wrong
    }
}

/// Whether it is the name of an errno or a signal, or a success: else the control itself is broken.
fn is_answer(got: &Value) -> bool {
    let name = |text: &str| {
        text.chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
    };
    got.as_str()
        .is_some_and(|text| text == "done" || text == "gone" || name(text))
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text:?}"))
}

/// What probes in R print, as those in Python do: a line for each attempt.
fn table_of(text: &str) -> Value {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, got, refusal, control] = fields[..] else {
            panic!("{line:?} in {text}")
        };
        let some = |field: &str| (!field.is_empty()).then(|| field.to_owned());
        let refusal: Vec<&str> = refusal.split(' ').collect();
        let of = json!({"got": some(got), "refusal": refusal, "control": some(control)});
        (format!("R: {name}"), of)
    };
    text.lines()
        .map(line)
        .collect::<serde_json::Map<_, _>>()
        .into()
}
