//! What the figures depend on: machine, kernel, versions, and how busy it was.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use crate::Plan;
use crate::engines::clean;

#[derive(Debug, Serialize)]
pub(crate) struct Host {
    date: String,
    machine: String,
    kernel: String,
    system: String,
    control_groups: &'static str,
    versions: Vec<(String, String)>,
    load_before: String,
    load_after: String,
}

impl Host {
    pub(crate) fn now(plan: &Plan) -> Self {
        let fastmcp = "import importlib.metadata as m; print(m.version('fastmcp'))";
        let storage = fs::read_to_string(plan.cache.join("storage.conf")).unwrap_or_default();
        let storage = value_of(&storage, "driver =")
            .unwrap_or("?")
            .trim_matches('"');
        let podman = version("podman", &["--version"]);
        let versions = [
            ("mcp-forge", version(&plan.forge, &["--version"])),
            ("podman", format!("{podman}, storage driver {storage}")),
            ("docker", version("docker", &["--version"])),
            ("runc", version("runc", &["--version"])),
            (
                "Python of the host",
                version("/usr/bin/python3", &["--version"]),
            ),
            (
                "FastMCP",
                version(plan.cache.join("fastmcp/bin/python"), &["-c", fastmcp]),
            ),
        ];
        Self {
            date: jiff::Timestamp::now().strftime("%F").to_string(),
            machine: machine(),
            kernel: kernel(),
            system: fs::read_to_string("/etc/os-release")
                .ok()
                .and_then(|text| {
                    value_of(&text, "PRETTY_NAME=").map(|v| v.trim_matches('"').into())
                })
                .unwrap_or_else(|| "?".to_owned()),
            control_groups: if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
                "version 2"
            } else {
                "version 1"
            },
            versions: versions
                .map(|(name, version)| (name.to_owned(), version))
                .into(),
            load_before: load(),
            load_after: String::new(),
        }
    }

    pub(crate) fn finished(&mut self) {
        self.load_after = load();
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("| | |\n|---|---|\n");
        let mut row = |name: &str, value: &str| {
            text.push_str(&format!("| {name} | {} |\n", value.replace('|', "\\|")));
        };
        row("date", &self.date);
        row("machine", &self.machine);
        row("system", &self.system);
        row("kernel", &self.kernel);
        row("control groups", self.control_groups);
        for (name, version) in &self.versions {
            row(name, version);
        }
        let loads = format!("{} before, {} after", self.load_before, self.load_after);
        row("load average of one minute", &loads);
        text
    }
}

fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = value_of(&cpu, "model name").map_or("?", |v| v.trim_start_matches(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory: u64 = value_of(&memory, "MemTotal:")
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let virtual_ = if cpu.contains("hypervisor") {
        ", virtual"
    } else {
        ""
    };
    format!(
        "{model}, {cores} CPUs{virtual_}, {:.0} GiB",
        memory as f64 / f64::from(1 << 20)
    )
}

fn kernel() -> String {
    let name = rustix::system::uname();
    let version = name.release().to_string_lossy();
    // The part behind the numbers names somebody's build.
    let numbers = version.split('-').next().unwrap_or_default();
    format!("Linux {numbers}")
}

fn version(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let mut command: Command = clean(program.as_ref());
    let output = command
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success());
    output
        .and_then(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = text.lines().next()?;
            let version = line
                .split_whitespace()
                .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
                .map(|word| word.trim_end_matches(','));
            Some(version.unwrap_or(line).to_owned())
        })
        .unwrap_or_else(|| "absent".to_owned())
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}
