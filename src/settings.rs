//! The operator's configuration: file, then environment (`MCP_FORGE_SECTION__KEY`), over defaults.
//!
//! Every section has defaults, so no file is needed. Unknown keys are errors.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use mcp_forge_domain::ExecutionPolicy;
use mcp_forge_domain::limits::parse_byte_size;
use serde::Deserialize;
use std::time::Duration;

/// Prefix of the environment variables that set a value, such as
/// `MCP_FORGE_SECURITY__ACCEPT_UNENFORCED_LIMITS=true`.
const PREFIX: &str = "MCP_FORGE";

/// Everything that can be configured.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) runtime: RuntimeSettings,
    pub(crate) execution: ExecutionSettings,
    pub(crate) security: SecuritySettings,
    pub(crate) audit: AuditSettings,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RuntimeSettings {
    /// `libcontainer`, `podman`, `docker` or `auto`.
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ExecutionSettings {
    /// Seconds.
    pub(crate) default_timeout: Option<u64>,
    pub(crate) max_timeout: Option<u64>,
    /// Sizes such as `512m`.
    pub(crate) default_memory: Option<String>,
    pub(crate) max_memory: Option<String>,
    /// µs per 100 ms.
    pub(crate) default_cpu_quota: Option<u64>,
    pub(crate) max_cpu_quota: Option<u64>,
    pub(crate) pids: Option<u64>,
    pub(crate) descriptors: Option<u64>,
    pub(crate) tmp_size: Option<String>,
    pub(crate) workspace_size: Option<String>,
    pub(crate) stdout_limit: Option<String>,
    pub(crate) stderr_limit: Option<String>,
    /// A run that writes more is stopped.
    pub(crate) output_stop: Option<String>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) queue: Option<usize>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SecuritySettings {
    pub(crate) accept_unenforced_limits: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuditSettings {
    pub(crate) path: Option<PathBuf>,
}

impl Settings {
    /// Reads file and environment.
    ///
    /// # Errors
    ///
    /// What is wrong and where it was set.
    pub(crate) fn load(file: Option<&Path>) -> anyhow::Result<Self> {
        let mut builder = config::Config::builder();
        if let Some(file) = file {
            if !file.is_file() {
                bail!("configuration file {} does not exist", file.display());
            }
            builder = builder.add_source(config::File::from(file));
        }
        let environment = std::env::vars()
            // Others with the prefix, such as MCP_FORGE_CONFIG, are no settings.
            .filter(|(name, _)| name.contains("__"))
            .collect();
        let environment = config::Environment::with_prefix(PREFIX)
            .prefix_separator("_")
            .separator("__")
            .try_parsing(true)
            .source(Some(environment));
        builder
            .add_source(environment)
            .build()
            .and_then(config::Config::try_deserialize)
            .context("the configuration cannot be used")
    }

    /// The policy of execution that these settings make.
    ///
    /// # Errors
    ///
    /// A size that is none. What does not fit together is the domain's to tell.
    pub(crate) fn policy(&self) -> anyhow::Result<ExecutionPolicy> {
        let mut policy = ExecutionPolicy {
            accept_unenforced: self.security.accept_unenforced_limits,
            ..ExecutionPolicy::default()
        };
        let given = &self.execution;
        let limits = &mut policy.limits;
        set(
            &mut limits.default_timeout,
            given.default_timeout.map(Duration::from_secs),
        );
        set(
            &mut limits.max_timeout,
            given.max_timeout.map(Duration::from_secs),
        );
        set(
            &mut limits.default_memory,
            size("default_memory", &given.default_memory)?,
        );
        set(
            &mut limits.max_memory,
            size("max_memory", &given.max_memory)?,
        );
        set(&mut limits.default_cpu_quota, given.default_cpu_quota);
        set(&mut limits.max_cpu_quota, given.max_cpu_quota);
        set(&mut limits.pids, given.pids);
        set(&mut limits.descriptors, given.descriptors);
        set(&mut limits.tmp_bytes, size("tmp_size", &given.tmp_size)?);
        set(
            &mut limits.workspace_bytes,
            size("workspace_size", &given.workspace_size)?,
        );
        let narrow = |bytes: Option<u64>| bytes.map(|b| usize::try_from(b).unwrap_or(usize::MAX));
        set(
            &mut policy.stdout_limit,
            narrow(size("stdout_limit", &given.stdout_limit)?),
        );
        set(
            &mut policy.stderr_limit,
            narrow(size("stderr_limit", &given.stderr_limit)?),
        );
        set(
            &mut policy.output_stop_bytes,
            size("output_stop", &given.output_stop)?,
        );
        set(&mut policy.concurrency, given.concurrency);
        set(&mut policy.queue, given.queue);
        Ok(policy)
    }

    /// Where the audit log is: as configured, else below the state directory (XDG Base Directory
    /// Specification).
    ///
    /// # Errors
    ///
    /// When there is neither `XDG_STATE_HOME` nor `HOME`.
    pub(crate) fn audit_path(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.audit.path {
            return Ok(path.clone());
        }
        let set = |name: &str| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let state = set("XDG_STATE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".local/state")))
            .context(
                "no place for the audit log: set audit.path (MCP_FORGE_AUDIT__PATH), \
                 XDG_STATE_HOME or HOME",
            )?;
        Ok(state.join("mcp-forge/audit.jsonl"))
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn size(key: &str, text: &Option<String>) -> anyhow::Result<Option<u64>> {
    text.as_ref()
        .map(|text| parse_byte_size(text).with_context(|| format!("execution.{key} is {text:?}")))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_yaml(text: &str) -> anyhow::Result<Settings> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("forge.yaml");
        std::fs::write(&file, text)?;
        Settings::load(Some(&file))
    }

    #[test]
    fn a_file_sets_what_it_names_and_defaults_the_rest() {
        let settings = from_yaml("execution:\n  default_memory: 1g\n  concurrency: 2\n").unwrap();
        let policy = settings.policy().unwrap();
        assert_eq!(policy.limits.default_memory, 1 << 30);
        assert_eq!(policy.concurrency, 2);
        assert_eq!(policy.limits.pids, ExecutionPolicy::default().limits.pids);
    }

    #[test]
    fn unknown_keys_wrong_types_and_bad_sizes_are_named() {
        let unknown = format!("{:#}", from_yaml("execution:\n  tiemout: 1\n").unwrap_err());
        assert!(unknown.contains("tiemout"), "{unknown}");
        let typed = format!("{:#}", from_yaml("execution:\n  pids: many\n").unwrap_err());
        assert!(typed.contains("pids"), "{typed}");
        let settings = from_yaml("execution:\n  max_memory: 1x\n").unwrap();
        let bad = format!("{:#}", settings.policy().unwrap_err());
        assert!(
            bad.contains("execution.max_memory") && bad.contains("1x"),
            "{bad}"
        );
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(Settings::load(Some(Path::new("/nonexistent/forge.yaml"))).is_err());
    }
}
