//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Runs Python for AI agents and people, safely: every run in a fresh sandbox.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true, subcommand_required = true)]
pub(crate) struct Cli {
    /// Configuration file (YAML or TOML)
    #[arg(long, global = true, env = "MCP_FORGE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How much to log on standard error
    #[arg(long, global = true, value_enum, default_value_t = LogLevel::Warn, value_name = "LEVEL")]
    pub(crate) log_level: LogLevel,
    /// Form of the log
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, value_name = "FORM")]
    pub(crate) log_format: LogFormat,
    /// Runtime that makes the sandboxes [libcontainer, podman, docker, auto]
    #[arg(long, global = true, value_name = "KIND")]
    pub(crate) runtime: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves MCP
    Serve(Serve),
    /// Runs one program and exits with its status
    Run(Run),
    /// Tells what works here, what does not, and how to mend it
    Doctor(Doctor),
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Transport of MCP
    #[arg(long, value_enum, default_value_t = Transport::Stdio)]
    pub(crate) transport: Transport,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: that of the program; 124 on its time limit, 137 on its memory \
                        limit, 130 when interrupted, 128+N when signal N ended it, 125 when \
                        mcp-forge itself fails."
)]
pub(crate) struct Run {
    /// Program text
    #[arg(
        short = 'c',
        value_name = "CODE",
        conflicts_with = "file",
        required_unless_present = "file"
    )]
    pub(crate) code: Option<String>,
    /// Program file; `-` reads it from standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Language [python, r]; told by the file's ending where there is one
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Time limit in seconds
    #[arg(long, value_name = "S")]
    pub(crate) timeout: Option<u64>,
    /// Memory limit, such as 512m
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// CPU limit in µs per 100 ms
    #[arg(long, value_name = "µS")]
    pub(crate) cpu_quota: Option<u64>,
    /// Standard input of the program, from a file; `-` takes it from mcp-forge's own
    #[arg(long, value_name = "FILE")]
    pub(crate) stdin: Option<PathBuf>,
    /// Print the whole result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Standard input and output
    Stdio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
