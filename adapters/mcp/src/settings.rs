//! What the operator's configuration says about the MCP server, as plain numbers and text.
//!
//! The bounds are mostly told to the client here, in schemas and hints. The domain keeps them.

use std::time::Duration;

use mcp_forge_ports::vocabulary::{Language, MIN_MEMORY};

/// Default of [`McpSettings::max_message_bytes`]: room for a program of 5 MB with every character
/// escaped once, so that the domain can refuse it by name.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// Settings of the MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpSettings {
    /// Languages that get a tool, in any order.
    pub languages: Vec<Language>,
    /// Defaults and maxima that schemas and hints name.
    pub bounds: ArgumentBounds,
    /// How often progress is reported.
    pub progress: ProgressPace,
    /// Longest message (one line) taken from a client, bytes. A longer request is answered with a
    /// protocol error.
    pub max_message_bytes: usize,
}

impl McpSettings {
    /// Settings with the standard pace and message size.
    pub fn new(languages: Vec<Language>, bounds: ArgumentBounds) -> Self {
        Self {
            languages,
            bounds,
            progress: ProgressPace::default(),
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
        }
    }
}

/// Defaults and maxima of the arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentBounds {
    /// Time limit of a call that names none, seconds.
    pub default_timeout_s: u64,
    /// Longest time limit, seconds.
    pub max_timeout_s: u64,
    /// Memory limit of a call that names none, as a caller would write it (`512m`).
    pub default_memory: String,
    /// Largest memory limit, as a caller would write it (`4g`).
    pub max_memory: String,
    /// CPU limit of a call that names none, µs per 100 ms.
    pub default_cpu_quota: u64,
    /// Largest CPU limit, µs per 100 ms.
    pub max_cpu_quota: u64,
    /// Longest program, bytes.
    pub max_code_bytes: u64,
    /// Longest standard input, bytes.
    pub max_stdin_bytes: u64,
    /// Most files of a call.
    pub max_files: u64,
    /// Bytes of all those files together.
    pub max_file_bytes: u64,
}

impl ArgumentBounds {
    /// What `memory` may be, in words.
    pub(crate) fn memory(&self) -> String {
        format!(
            "a size such as \"512m\", {} to {}",
            Self::min_memory(),
            self.max_memory
        )
    }

    /// The smallest memory limit, as a caller would write it.
    pub(crate) fn min_memory() -> String {
        format!("{}m", MIN_MEMORY >> 20)
    }
}

/// How often progress is reported to a client that asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgressPace {
    /// Longest time without a notification.
    pub silence: Duration,
    /// Shortest time between two notifications.
    pub gap: Duration,
}

impl Default for ProgressPace {
    /// After 10 s of silence (the contract is 15 s), and at most once per second.
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(10),
            gap: Duration::from_secs(1),
        }
    }
}
