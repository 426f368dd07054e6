//! `mcp-forge doctor`: what works here, with evidence, and the command that mends what does not.
//!
//! Its last word is a real run: the checks before it explain, that one decides. Without R, which
//! is optional, the rest works.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mcp_forge_domain::limits::format_byte_size;
use mcp_forge_ports::driven::ImageStore;
use mcp_forge_ports::driving::{CodeExecution, NoObserver};
use mcp_forge_ports::vocabulary::{
    EndedBy, ExecutionEnvironment, ExecutionOutcome, ExecutionRequest, Language, Refusal,
    RefusalKind, SandboxVerdict,
};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{counted, print};
use crate::cli::Doctor;
use crate::compose::{Application, ENGINES, Runtime, engine_version, image_store, spool_directory};
use crate::settings::Settings;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    Warning,
    Failed,
}

#[derive(Debug, Clone, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    evidence: String,
    remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, evidence: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Ok,
            evidence: evidence.into(),
            remedy: None,
        }
    }

    fn not(
        name: &'static str,
        state: State,
        evidence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state,
            evidence: evidence.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// Checks everything and prints the report; status 0 when the main job works.
///
/// # Errors
///
/// None of what it checks: that is in the report.
pub(crate) async fn doctor(
    arguments: &Doctor,
    runtime: Option<&str>,
    settings: &Settings,
) -> anyhow::Result<ExitCode> {
    let mut checks = vec![
        kernel(),
        namespaces(),
        subordinate_ids(),
        seccomp(),
        python(),
        engines(settings).await,
        disk(settings),
        client_limits(settings),
        images(settings).await,
    ];
    let works = match Runtime::choose(runtime, settings) {
        Ok(chosen) => {
            checks.push(Check::ok("runtime", chosen.explain().await));
            let groups = control_groups(&chosen).await;
            let mut works = groups.state != State::Failed;
            checks.push(groups);
            // On one that does not start, a run would only say so again.
            if works {
                let runs = trials(runtime, settings).await;
                works = runs.iter().all(|run| run.state != State::Failed);
                checks.extend(runs);
            }
            works
        }
        Err(e) => {
            let remedy = "mcp-forge doctor --runtime auto";
            checks.push(Check::not(
                "runtime",
                State::Failed,
                format!("{e:#}"),
                remedy,
            ));
            false
        }
    };
    if arguments.json {
        let report = serde_json::json!({ "works": works, "checks": checks });
        print(&format!("{report:#}\n"))
    } else {
        print(&report(&checks))
    }
    .context("cannot write the report")?;
    Ok(if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn report(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let mark = match check.state {
            State::Ok => "ok     ",
            State::Warning => "warning",
            State::Failed => "FAILED ",
        };
        text.push_str(&format!("{mark}  {:16}  {}\n", check.name, check.evidence));
        if let Some(remedy) = &check.remedy {
            text.push_str(&format!("{:27}-> {remedy}\n", ""));
        }
    }
    text
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

fn kernel() -> Check {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 10) {
        Check::ok("kernel", release)
    } else {
        Check::not(
            "kernel",
            State::Warning,
            release,
            "apt-get dist-upgrade (Linux 5.10 or newer is what is tested)",
        )
    }
}

fn namespaces() -> Check {
    const NAME: &str = "user namespaces";
    let zero = |path: &str| read(path).is_some_and(|value| value == "0");
    if zero("/proc/sys/user/max_user_namespaces") {
        return Check::not(
            NAME,
            State::Failed,
            "user.max_user_namespaces is 0",
            "sysctl -w user.max_user_namespaces=15000",
        );
    }
    if nix::unistd::geteuid().is_root() {
        return Check::ok(NAME, "allowed (root)");
    }
    if zero("/proc/sys/kernel/unprivileged_userns_clone") {
        return Check::not(
            NAME,
            State::Failed,
            "kernel.unprivileged_userns_clone is 0",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        );
    }
    let restricted = read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    if restricted.is_some_and(|value| value == "1") {
        return Check::not(
            NAME,
            State::Warning,
            "AppArmor restricts them to programs with a profile",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or a profile with `userns,`",
        );
    }
    Check::ok(NAME, "allowed")
}

fn subordinate_ids() -> Check {
    const NAME: &str = "user-id range";
    let user = nix::unistd::getuid();
    if user.is_root() {
        return Check::ok(NAME, "a range of its own (root)");
    }
    let name = nix::unistd::User::from_uid(user)
        .ok()
        .flatten()
        .map_or_else(|| user.to_string(), |u| u.name);
    let has = |file: &str| {
        read(file).unwrap_or_default().lines().any(|line| {
            line.split(':')
                .next()
                .is_some_and(|who| who == name || who == user.to_string())
        })
    };
    let helpers = ["newuidmap", "newgidmap"].iter().all(|helper| {
        ["/usr/bin", "/bin"]
            .iter()
            .any(|dir| Path::new(dir).join(helper).exists())
    });
    if !helpers {
        return Check::not(
            NAME,
            State::Failed,
            "newuidmap and newgidmap are missing",
            "apt-get install uidmap (shadow-utils on Fedora)",
        );
    }
    if has("/etc/subuid") && has("/etc/subgid") {
        Check::ok(NAME, format!("/etc/subuid and /etc/subgid name {name}"))
    } else {
        Check::not(
            NAME,
            State::Failed,
            format!("/etc/subuid or /etc/subgid does not name {name}"),
            format!(
                "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}"
            ),
        )
    }
}

fn seccomp() -> Check {
    match read("/proc/sys/kernel/seccomp/actions_avail") {
        Some(actions) if actions.contains("errno") && actions.contains("kill_process") => {
            Check::ok("seccomp", actions)
        }
        found => Check::not(
            "seccomp",
            State::Failed,
            found.unwrap_or_else(|| "this kernel has no seccomp filters".to_owned()),
            "a kernel with CONFIG_SECCOMP_FILTER, 4.14 or newer",
        ),
    }
}

fn python() -> Check {
    let found = ["/usr/local/bin/python3", "/usr/bin/python3", "/bin/python3"]
        .into_iter()
        .find(|path| fs::canonicalize(path).is_ok_and(|real| real.starts_with("/usr")));
    match found {
        Some(path) => {
            let real = fs::canonicalize(path).unwrap_or_default();
            Check::ok("python", format!("{path} ({})", real.display()))
        }
        None => Check::not(
            "python",
            State::Failed,
            "no python3 below /usr that a sandbox could see",
            "apt-get install python3",
        ),
    }
}

/// Longest wait for an engine that is only looked at.
const ENGINE: Duration = Duration::from_secs(5);

/// Whether those that could be used answer. None is needed.
async fn engines(settings: &Settings) -> Check {
    let ask = |engine| async move {
        match tokio::time::timeout(ENGINE, engine_version(engine, settings)).await {
            Ok(Ok(version)) => format!("{engine} {version} answers (`--runtime {engine}`)"),
            Ok(Err(why)) => format!("no {engine}: {why}"),
            Err(_) => format!("{engine} does not answer for {} s", ENGINE.as_secs()),
        }
    };
    let told = futures::future::join_all(ENGINES.map(ask)).await;
    Check::ok("engines", told.join("; "))
}

/// Room below which a disk is told of.
const LITTLE: u64 = 1 << 30;

fn disk(settings: &Settings) -> Check {
    const NAME: &str = "disk";
    let audit = settings.audit_path().ok();
    let places = audit
        .iter()
        .filter_map(|path| path.parent())
        .map(Path::to_owned)
        .chain([spool_directory()]);
    let room = places.filter_map(|place| {
        // What is not there yet is on the disk of what is above it.
        let there = place.ancestors().find(|above| above.exists())?;
        let stat = nix::sys::statvfs::statvfs(there).ok()?;
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        Some((free, there.display().to_string()))
    });
    match room.min() {
        None => Check::ok(NAME, "not known"),
        Some((free, place)) if free >= LITTLE => {
            let free = format_byte_size(free & !(LITTLE - 1));
            Check::ok(NAME, format!("at least {free} free in {place}"))
        }
        Some((free, place)) => Check::not(
            NAME,
            State::Warning,
            format!("{} MiB free in {place}", free >> 20),
            "free space there: logs and files of runs go to TMPDIR, and without room for the audit \
             log nothing runs",
        ),
    }
}

/// Time after which a client on the TypeScript SDK gives a call up unless it is told otherwise
/// (`DEFAULT_REQUEST_TIMEOUT_MSEC`); by default progress does not prolong it.
const CLIENT_LIMIT: Duration = Duration::from_secs(60);

fn client_limits(settings: &Settings) -> Check {
    const NAME: &str = "clients";
    let default = settings
        .policy()
        .map(|policy| policy.limits.default_timeout);
    let default = default.unwrap_or_default();
    let (limit, default_s) = (CLIENT_LIMIT.as_secs(), default.as_secs());
    let evidence = format!(
        "those on the TypeScript SDK give a call up after {limit} s, runs end after {default_s} s"
    );
    if default <= CLIENT_LIMIT {
        return Check::ok(NAME, evidence);
    }
    Check::ok(
        NAME,
        format!("{evidence}: for longer ones `background` and `get_run`, or a longer limit there"),
    )
}

async fn control_groups(runtime: &Runtime) -> Check {
    const NAME: &str = "control groups";
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let kind = if v2 { "v2" } else { "v1" };
    let info = runtime.port.info().await;
    runtime.shut_down().await;
    let embedded = info.as_ref().is_ok_and(|info| info.kind == "libcontainer");
    let mend = match (v2, nix::unistd::geteuid().is_root()) {
        _ if !embedded => "see the engine's own documentation for what is named here",
        (true, true) => "systemd-run --scope -p Delegate=yes mcp-forge doctor",
        (true, false) => "systemd-run --user --scope -p Delegate=yes mcp-forge doctor",
        (false, _) => "boot with systemd.unified_cgroup_hierarchy=1, which is cgroup v2",
    };
    match info {
        Ok(info) if info.weak.is_empty() => Check::ok(
            NAME,
            format!("{kind}: memory, cpu and pids limits are enforced"),
        ),
        Ok(info) => Check::not(
            NAME,
            State::Warning,
            format!("{kind}: limits are not enforced: {}", info.weak.join("; ")),
            format!("{mend} (or accept it: MCP_FORGE_SECURITY__ACCEPT_UNENFORCED_LIMITS=true)"),
        ),
        Err(e) => {
            let remedy = e
                .hint
                .clone()
                .unwrap_or_else(|| "mend what failed above".to_owned());
            // Nothing is known of control groups then.
            Check::not("runtime start", State::Failed, e.chain(), remedy)
        }
    }
}

/// What tells more.
const DEBUG: &str = "mcp-forge --log-level debug run -c '6 * 7'";
const DEBUG_R: &str = "mcp-forge --log-level debug run --language r -c '6 * 7'";

/// A run, and if that worked one in R.
async fn trials(flag: Option<&str>, settings: &Settings) -> Vec<Check> {
    let application = match Application::new(flag, settings) {
        Ok(application) => application,
        // The runtime and the policy were found sound before.
        Err(e) => {
            let told = format!("{e:#}");
            let (what, remedy) = told.split_once("; ").unwrap_or((&told, DEBUG));
            return vec![Check::not("audit log", State::Failed, what, remedy)];
        }
    };
    let run = |language, code: &str| {
        let request = ExecutionRequest::new(language, code);
        let execution = &application.execution;
        execution.execute(request, Arc::new(NoObserver), CancellationToken::new())
    };
    let mut checks = vec![python_run(run(Language::Python, "6 * 7").await)];
    let python_runs = checks[0].state != State::Failed;
    if python_runs {
        let environment = application.execution.environment().await;
        checks.extend(environment.ok().and_then(|found| verdict(&found)));
    }
    checks.extend(settings.audit_path().ok().map(|path| audit_log(&path)));
    if python_runs {
        let packages = run(Language::Python, PYTHON_PACKAGES).await;
        checks.extend(packages_of("python packages", packages));
        let r = r_run(run(Language::R, "6 * 7").await);
        if r.state == State::Ok {
            let packages = run(Language::R, R_PACKAGES).await;
            checks.extend(packages_of("R packages", packages));
        }
        checks.push(r);
    }
    application.shut_down().await;
    checks
}

/// The images that runs may use, where the policy allows them.
async fn images(settings: &Settings) -> Check {
    const NAME: &str = "images";
    let store = match image_store(settings) {
        Ok(store) => store,
        Err(error) => {
            let remedy = "set HOME, or images.directory";
            return Check::not(NAME, State::Warning, format!("{error:#}"), remedy);
        }
    };
    match store.list().await {
        Ok(all) => {
            let named = all.iter().filter(|image| !image.names.is_empty()).count();
            let told = format!(
                "{}, {named} with a name",
                counted(all.len() as u64, "image", "images")
            );
            Check::ok(NAME, told)
        }
        Err(error) => {
            let remedy = error.hint.as_deref().unwrap_or(DEBUG);
            Check::not(NAME, State::Failed, error.chain(), remedy)
        }
    }
}

/// What is asked of Python and of R: a version and what is there of what results are shown with.
const PYTHON_PACKAGES: &str = "import sys, importlib.util as u\n\
    have = [n for n in ('numpy', 'pandas', 'matplotlib', 'PIL', 'IPython') if u.find_spec(n)]\n\
    print('Python ' + sys.version.split()[0] + ': ' + (', '.join(have) or 'none'))";
const R_PACKAGES: &str = "have <- Filter(function(n) length(find.package(n, quiet = TRUE)) > 0,\n\
    c('ggplot2', 'lattice', 'jsonlite', 'R6', 'rlang'))\n\
    cat('R ', as.character(getRversion()), ': ', if (length(have)) paste(have, collapse = ', ') else 'none', '\\n', sep = '')";

fn packages_of(
    name: &'static str,
    result: Result<Arc<ExecutionOutcome>, Refusal>,
) -> Option<Check> {
    let outcome = result.ok().filter(|outcome| outcome.success())?;
    Some(Check::ok(name, outcome.stdout.trim_end()))
}

fn verdict(environment: &ExecutionEnvironment) -> Option<Check> {
    const NAME: &str = "sandbox";
    match environment.verdict? {
        SandboxVerdict::Confirmed => Some(Check::ok(
            NAME,
            "SandboxConfirmed: ids, capabilities, seccomp, namespaces, mounts and limits are as asked for",
        )),
        weak @ SandboxVerdict::Weak => Some(Check::not(
            NAME,
            State::Warning,
            format!("{}: {}", weak.as_str(), environment.runtime.weak.join("; ")),
            "see control groups, or refuse it: security.require_strong_sandbox",
        )),
    }
}

/// Largest log that is read whole here, bytes.
const READ_WHOLE: u64 = 64 << 20;

fn audit_log(path: &Path) -> Check {
    const NAME: &str = "audit log";
    let shown = path.display();
    if fs::metadata(path).is_ok_and(|log| log.len() > READ_WHOLE) {
        return Check::ok(
            NAME,
            format!("{shown}; too large to verify here: mcp-forge audit verify"),
        );
    }
    match mcp_forge_audit_file::verify(path, None) {
        Ok(found) if found.intact => {
            let entries = counted(found.entries, "entry", "entries");
            let evidence = [format!("{shown}, intact, {entries}")];
            let evidence = evidence.into_iter().chain(found.remarks.iter().cloned());
            let evidence = evidence.collect::<Vec<_>>().join("; ");
            if found.remarks.is_empty() {
                Check::ok(NAME, evidence)
            } else {
                let remedy = "see that only you can write the log, its head and their directory";
                Check::not(NAME, State::Warning, evidence, remedy)
            }
        }
        Ok(found) => Check::not(
            NAME,
            State::Warning,
            format!(
                "{shown} is not as it was written: {}",
                counted(
                    found.findings.len() as u64 + found.more_findings,
                    "finding",
                    "findings"
                )
            ),
            "mcp-forge audit verify",
        ),
        Err(error) => Check::not(
            NAME,
            State::Warning,
            error.chain(),
            "mcp-forge audit verify",
        ),
    }
}

fn r_run(result: Result<Arc<ExecutionOutcome>, Refusal>) -> Check {
    const NAME: &str = "R";
    let not = |what: String, remedy| Check::not(NAME, State::Warning, what, remedy);
    match result {
        Ok(outcome) if outcome.result_repr.as_deref() == Some("[1] 42") => {
            let time = outcome.duration.as_millis();
            Check::ok(NAME, format!("6 * 7 gave 42 in {time} ms"))
        }
        Ok(outcome) => {
            let (ended, stderr) = (outcome.ended_by.as_str(), outcome.stderr.trim_end());
            not(format!("{ended}: {stderr}"), DEBUG_R)
        }
        Err(refusal) if refusal.kind == RefusalKind::PolicyViolation => {
            Check::ok(NAME, format!("not asked for: {}", refusal.message))
        }
        // Python ran, so it is R that could not be started.
        Err(refusal) => not(refusal.message, "apt-get install r-base-core"),
    }
}

fn python_run(result: Result<Arc<ExecutionOutcome>, Refusal>) -> Check {
    const NAME: &str = "a run";
    match result {
        Ok(outcome) if outcome.result_repr.as_deref() == Some("42") => {
            let time = outcome.duration.as_millis();
            if outcome.limits.enforced() {
                Check::ok(
                    NAME,
                    format!("6 * 7 gave 42 in {time} ms, every limit enforced"),
                )
            } else {
                Check::not(
                    NAME,
                    State::Warning,
                    format!("6 * 7 gave 42 in {time} ms, without enforced limits (accepted)"),
                    "see control groups",
                )
            }
        }
        Ok(outcome) if outcome.ended_by == EndedBy::RuntimeLost => {
            Check::not(NAME, State::Failed, "the sandbox was lost", DEBUG)
        }
        Ok(outcome) => Check::not(
            NAME,
            State::Failed,
            format!(
                "{}: {}",
                outcome.ended_by.as_str(),
                outcome.stderr.trim_end()
            ),
            DEBUG,
        ),
        Err(refusal) => Check::not(NAME, State::Failed, refusal.message, refusal.hint),
    }
}
