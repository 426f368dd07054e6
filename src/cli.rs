//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Runs programs for AI agents and people, safely: every run in a fresh sandbox.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, subcommand_required = true)]
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
    /// Runtime that makes the sandboxes [libcontainer, auto]
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
    Run(Box<Run>),
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
    override_usage = "mcp-forge run [OPTIONS] -c CODE\n       \
                      mcp-forge run [OPTIONS] FILE\n       \
                      mcp-forge run [OPTIONS] -",
    after_help = "Exit status: that of the program; 124 on its time limit, 137 on its memory \
                  limit, 128+N when signal N ended it (137 is SIGKILL too) or asked mcp-forge to \
                  end (130 for ^C), \
                  141 when nobody reads the output, 125 when mcp-forge itself fails. Unless the \
                  program itself exited, a line on standard error tells how it ended."
)]
pub(crate) struct Run {
    /// Program text
    #[arg(short = 'c', value_name = "CODE", conflicts_with = "file")]
    pub(crate) code: Option<String>,
    /// Program file; `-` reads it from standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Language [python, r]; told by the file's ending where there is one
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Time limit, whole seconds from 1 [default: 300, at most 1800 unless configured]
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    pub(crate) timeout: Option<String>,
    /// Memory limit, from 16m [default: 512m, at most 2g unless configured]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory: Option<String>,
    /// CPU time in µs per 100 ms, from 1000 [default: 50000, at most 100000 unless configured]
    #[arg(long, value_name = "µS", allow_hyphen_values = true)]
    pub(crate) cpu_quota: Option<String>,
    /// Standard input of the program, from a file; `-` takes it from mcp-forge's own
    #[arg(long, value_name = "FILE")]
    pub(crate) stdin: Option<PathBuf>,
    /// Put a file into the program's working directory, under its own name or another one; may be
    /// given several times
    #[arg(long = "input", value_name = "[NAME=]PATH")]
    pub(crate) inputs: Vec<String>,
    /// Save the files that the program leaves in its working directory, under their names in DIR;
    /// what is there is replaced
    #[arg(long, value_name = "DIR")]
    pub(crate) save_files: Option<PathBuf>,
    /// Save the program's pictures as DIR/plot-001.png and so on; files of the same names are
    /// replaced
    #[arg(long, value_name = "DIR")]
    pub(crate) save_plots: Option<PathBuf>,
    /// How to draw the program's pictures on standard output
    #[arg(long, value_enum, default_value_t = Plots::Auto, value_name = "HOW", conflicts_with = "json")]
    pub(crate) plots: Plots,
    /// Print the whole result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plots {
    /// In a terminal that is known to draw them
    Auto,
    /// By kitty's protocol, whatever standard output is
    Kitty,
    /// By iTerm2's protocol, whatever standard output is
    Iterm2,
    /// In sixels, whatever standard output is
    Sixel,
    /// Not at all
    None,
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
