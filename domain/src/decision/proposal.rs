//! A sandbox that somebody wants, and what is never given.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::table::tables;
use super::{Decision, Verdict};

/// A sandbox as it would be made. What is left out is as mcp-forge itself makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Proposal {
    /// Reference of the image; none for the host presentation.
    pub image: Option<String>,
    /// `python` or `r`.
    pub language: String,
    /// The session that it is for.
    pub session: Option<String>,
    /// What it reaches.
    pub network: Network,
    /// What of the host is put into it.
    #[serde(deserialize_with = "tables")]
    pub mounts: Vec<Mount>,
    /// User id inside, 1 to 65533.
    pub uid: u32,
    /// Group id inside, 1 to 65533.
    pub gid: u32,
    /// As engines know it.
    pub privileged: bool,
    /// Capabilities that are added.
    pub capabilities: Vec<String>,
    /// Devices of the host.
    pub devices: Vec<String>,
    /// Namespaces of the host that it shares.
    pub shared: Vec<Shared>,
    /// Whether its root can be read only.
    pub read_only_root: bool,
    /// Whether programs can gain no privileges.
    pub no_new_privileges: bool,
    /// Whether a list of system calls is in force.
    pub seccomp: bool,
}

impl Default for Proposal {
    fn default() -> Self {
        Self {
            image: None,
            language: "python".to_owned(),
            session: None,
            network: Network::None,
            mounts: Vec::new(),
            uid: 1000,
            gid: 1000,
            privileged: false,
            capabilities: Vec::new(),
            devices: Vec::new(),
            shared: Vec::new(),
            read_only_root: true,
            no_new_privileges: true,
            seccomp: true,
        }
    }
}

/// What a sandbox reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Itself.
    None,
    /// Other hosts.
    Egress,
    /// What the host reaches, and the host.
    Host,
}

/// A namespace of the host: namespaces(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Shared {
    Pid,
    Ipc,
    Net,
    User,
    Uts,
    Mnt,
    Cgroup,
}

/// What the source of a mount is, once it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// A directory. What is in it changes at any time, so that it says nothing.
    Directory,
    /// A regular file.
    File,
    /// A device, a pipe, a socket.
    Special,
}

/// A directory or file of the host in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// On the host, as it is after links and `..` were resolved.
    pub source: String,
    /// In the sandbox.
    pub target: String,
    /// Whether it can only be read.
    #[serde(default)]
    pub read_only: bool,
    /// What the source is: told by who resolved it, never by who proposes.
    #[serde(skip_deserializing)]
    pub kind: Option<SourceKind>,
}

/// Something that is done to a sandbox that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Action {
    Start,
    Stop,
    Kill,
    Remove,
}

impl Action {
    /// Only what this instance has made may be touched, whatever id is named.
    pub fn decide(self, made_here: bool) -> Decision {
        let (verdict, why) = if made_here {
            (Verdict::Allow, "this instance made it")
        } else {
            (Verdict::Forbid, "this instance did not make it")
        };
        Decision {
            verdict,
            rule: "ownership".to_owned(),
            justification: why.to_owned(),
        }
    }
}

fn forbid(rule: &str, justification: impl Into<String>) -> Decision {
    Decision {
        verdict: Verdict::Forbid,
        rule: rule.to_owned(),
        justification: justification.into(),
    }
}

impl Proposal {
    /// What is never given, whatever the operator says.
    pub(super) fn barriers(&self) -> Vec<Decision> {
        let mut said = Vec::new();
        let mut never = |wanted: bool, rule: &str, why: String| {
            if wanted {
                said.push(forbid(rule, why));
            }
        };
        let none = || "no sandbox gets this".to_owned();
        never(self.privileged, "privileged", none());
        for capability in &self.capabilities {
            never(
                true,
                "capabilities",
                format!("{capability:?}: no sandbox has any"),
            );
        }
        for device in &self.devices {
            never(true, "devices", format!("{device:?}: no sandbox gets any"));
        }
        for shared in &self.shared {
            let shared = serde_json::to_value(shared).unwrap_or_default();
            never(
                true,
                "namespaces",
                format!("{shared}: each sandbox has its own"),
            );
        }
        never(
            !IDS.contains(&self.uid) || !IDS.contains(&self.gid),
            "user",
            format!(
                "{}:{}: both must be {} to {}",
                self.uid,
                self.gid,
                IDS.start(),
                IDS.end()
            ),
        );
        never(
            !self.read_only_root,
            "read_only_root",
            "it is always so".to_owned(),
        );
        never(
            !self.no_new_privileges,
            "no_new_privileges",
            "it is always so".to_owned(),
        );
        never(!self.seccomp, "seccomp", "it is always in force".to_owned());
        let is_known = ["python", "r"].contains(&self.language.as_str());
        never(
            !is_known,
            "language",
            format!("{:?}: there are python and r", self.language),
        );
        if let Some(session) = &self.session {
            never(
                !is_session(session),
                "session",
                format!("{session:?}: [A-Za-z0-9._-]{{1,64}}"),
            );
        }
        said
    }
}

/// User and group ids in a sandbox: not root, and not the one that stands for all without a name
/// there (user_namespaces(7)).
const IDS: RangeInclusive<u32> = 1..=65_533;

/// The names of sessions. None leads out of its directory.
fn is_session(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// What of the host is in no sandbox, with all that is below.
const NEVER: [&str; 19] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/run",
];

/// Longest name and longest path (`NAME_MAX`, `PATH_MAX` without the NUL), bytes.
const MAX_NAME: usize = 255;
const MAX_PATH: usize = 4095;

/// Where a mount may be in a sandbox: below one of these, by a path that every engine takes for
/// one, in whatever form it is told of it.
const TARGETS: [&str; 2] = ["workspace", "mnt"];

fn is_target(path: &str) -> bool {
    let odd = |character: char| character.is_control() || ":,\\".contains(character);
    path.len() <= MAX_PATH
        && !path.contains(odd)
        && components(path).is_some_and(|path| {
            path.len() > 1 && TARGETS.contains(&path[0]) && path.iter().all(|c| c.len() <= MAX_NAME)
        })
}

/// The components of an absolute path without `.`, `..`, empty ones and NUL.
fn components(path: &str) -> Option<Vec<&str>> {
    let rest = path.strip_prefix('/')?;
    let all: Vec<&str> = if rest.is_empty() {
        Vec::new()
    } else {
        rest.split('/').collect()
    };
    let is_plain = |one: &&str| !["", ".", ".."].contains(one) && !one.contains('\0');
    all.iter().all(is_plain).then_some(all)
}

fn is_below(path: &[&str], above: &[&str]) -> bool {
    path.len() >= above.len() && path[..above.len()] == *above
}

fn of_host(path: &[&str]) -> Option<&'static str> {
    NEVER.into_iter().find(|never| {
        components(never).is_some_and(|never| is_below(path, &never) || is_below(&never, path))
    })
}

/// Whether mounts may be below this directory.
pub(super) fn check_root(root: &str) -> Result<(), String> {
    let Some(path) = components(root) else {
        return Err("must be an absolute path without `.`, `..` and empty components".to_owned());
    };
    if path.is_empty() {
        return Err("must not be the whole host".to_owned());
    }
    match of_host(&path) {
        Some(never) => Err(format!("must have nothing to do with {never}")),
        None => Ok(()),
    }
}

impl Mount {
    /// What may be mounted: below a root of the operator, `sessions/{id}` and `uploads/{id}` of the
    /// sandbox's own session, and `shared` to be read only.
    pub(super) fn decide(&self, proposal: &Proposal, roots: &[String]) -> Decision {
        let source = &self.source;
        let never = |why: &str| forbid("mounts", format!("{source:?}: {why}"));
        let Some(path) = components(source) else {
            return never("no absolute path that is resolved");
        };
        if path.is_empty() {
            return never("the whole host");
        }
        if let Some(of_host) = of_host(&path) {
            return never(&format!("{of_host} is in no sandbox"));
        }
        match self.kind {
            Some(SourceKind::Directory | SourceKind::File) => {}
            Some(SourceKind::Special) => return never("neither a directory nor a regular file"),
            None => return never("nobody looked what it is"),
        }
        if !is_target(&self.target) {
            return never(
                "its target must be a path below /workspace or /mnt, without `:` and `,`",
            );
        }
        let mut below = roots.iter().filter_map(|root| {
            let root = components(root)?;
            is_below(&path, &root).then(|| path[root.len()..].to_vec())
        });
        let Some(rest) = below.next() else {
            return never("below no directory in `volume_roots`");
        };
        let session = proposal.session.as_deref().filter(|name| is_session(name));
        match rest.as_slice() {
            ["shared", ..] if self.read_only => {}
            ["shared", ..] => return never("what is shared can be read only"),
            ["sessions" | "uploads", owner, ..] if Some(*owner) == session => {}
            ["sessions" | "uploads", ..] => return never("it is of another session"),
            _ => return never("not in sessions/{id}, uploads/{id} or shared"),
        }
        Decision {
            verdict: Verdict::Allow,
            rule: "mounts".to_owned(),
            justification: format!("{source:?} is below `volume_roots` and of this session"),
        }
    }
}
