//! The command line.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp};
use mcp_forge_ports::vocabulary::AuditKind;

/// Runs programs for AI agents and people, safely: every run in a fresh sandbox.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, subcommand_required = true)]
pub(crate) struct Cli {
    /// Configuration file (YAML or TOML) [env: MCP_FORGE_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one value of the configuration, over file and environment; may be given several times
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
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

impl Cli {
    /// The configuration file that was named. An empty variable names none, as is usual; an empty
    /// option is a mistake.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os("MCP_FORGE_CONFIG").filter(|name| !name.is_empty());
        self.config
            .clone()
            .or_else(|| variable().map(PathBuf::from))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves MCP
    Serve(Serve),
    /// Runs one program and exits with its status
    Run(Box<Run>),
    /// Tells what works here, what does not, and how to mend it
    Doctor(Doctor),
    /// Shows, checks and describes the configuration
    #[command(subcommand)]
    Config(Config),
    /// Checks the policy of sandboxes and tells what it decides
    #[command(subcommand)]
    Policy(Policy),
    /// Verifies and reads the audit log
    #[command(subcommand)]
    Audit(Audit),
    /// Builds, imports, pulls, lists and removes the images that sandboxes may be made of
    #[command(subcommand)]
    Images(Images),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Images {
    /// Makes an image of a file or directory
    #[command(
        after_help = "It may be a tar of a root file system, what `docker save` or `podman save` writes, or an OCI layout, \
                      each as it is or compressed by gzip or zstd. Devices, set-user-id bits and owners are left out."
    )]
    Import {
        /// The archive, or the directory of an OCI layout
        #[arg(value_name = "PATH")]
        source: PathBuf,
        /// Its name, such as mcp-forge/python:3.13; by default what the archive calls it
        #[arg(long, value_name = "REFERENCE")]
        name: Option<String>,
    },
    /// Builds an image: Python, R or both with their usual packages, or what a Containerfile says
    #[command(
        after_help = "python, r and kernels are built by podman or docker on an official base, or, where no engine answers, of Debian 12 \
                      packages (with mmdebstrap). Their arguments: PYTHON=3.11, 3.12 or 3.13; R=4.4.2; BASE=REFERENCE; \
                      INSTALL=apt, pip, cran or none. A Containerfile has no files to copy."
    )]
    Build {
        /// python, r, kernels, or the path of a Containerfile
        #[arg(value_name = "IMAGE")]
        image: String,
        /// Its name; by default mcp-forge/IMAGE
        #[arg(long, value_name = "REFERENCE")]
        name: Option<String>,
        /// Who builds it; by default the engine of `runtime.kind`, else the first that answers, else debian
        #[arg(long, value_parser = ["podman", "docker", "debian"], value_name = "podman|docker|debian")]
        with: Option<String>,
        /// Value of an ARG of the Containerfile; may be given several times
        #[arg(long = "build-arg", value_name = "NAME=VALUE")]
        arguments: Vec<String>,
        /// Network of the build's commands, as the engine calls it, such as none or host
        #[arg(long, value_name = "MODE", value_parser = NonEmptyStringValueParser::new())]
        network: Option<String>,
    },
    /// Gets an image from a registry
    #[command(
        after_help = "Each part is checked against its digest; give NAME@sha256:... to get no other image than that. Credentials are those \
                      that `podman login` and `docker login` keep. A registry on this host is spoken to without TLS."
    )]
    Pull {
        /// The image, such as REGISTRY/NAME:TAG
        #[arg(value_name = "REFERENCE")]
        reference: String,
        /// Its name here; by default its reference
        #[arg(long, value_name = "REFERENCE")]
        name: Option<String>,
    },
    /// Prints each image: names, id, size and age
    List {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Removes images; of one with several names, the name
    Remove {
        /// Names or ids
        #[arg(value_name = "IMAGE", required = true)]
        images: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Prints each effective value and where it comes from
    Show {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Tells everything that is wrong with a configuration; exit status 1 then
    Check {
        /// The file to look at, alone; without, the configuration that would be used
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Prints the JSON Schema of the configuration file
    Schema,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Prints the decision for a proposed sandbox, with what every rule says, as JSON
    #[command(
        after_help = "A proposal is a JSON object; what is left out is as mcp-forge makes it:\n  \
        {\"image\": \"python:3.12\", \"language\": \"python\", \"session\": \"a\", \"network\": \"none\",\n   \
        \"mounts\": [{\"source\": \"/srv/forge/shared\", \"target\": \"/mnt/shared\", \"read_only\": true}],\n   \
        \"uid\": 1000, \"gid\": 1000, \"privileged\": false, \"capabilities\": [], \"devices\": [],\n   \
        \"shared\": [], \"read_only_root\": true, \"no_new_privileges\": true, \"seccomp\": true}\n\n\
        Exit status: 0 when it is allowed, 1 when it is not."
    )]
    Explain {
        /// File with the proposal; `-` reads it from standard input
        #[arg(value_name = "FILE")]
        proposal: PathBuf,
    },
    /// Tells everything that is wrong with a policy file, its examples included; exit status 1 then
    Check {
        /// The file; without, the configured one
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// The log that is read: the configured one unless a path is given.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// The audit log to read instead of the configured one
    #[arg(long, value_name = "FILE")]
    pub(crate) path: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Finds what was changed, removed or put elsewhere; exit status 1 then
    Verify {
        #[command(flatten)]
        log: Log,
        /// An entry whose number and hash were kept elsewhere, as this command prints them
        #[arg(long, value_name = "NUMBER:HASH", value_parser = number_and_hash)]
        expect: Option<(u64, String)>,
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Prints the newest entries
    Tail {
        #[command(flatten)]
        log: Log,
        /// How many
        #[arg(short = 'n', long, value_name = "N", default_value_t = 10,
              value_parser = clap::value_parser!(u32).range(0..=100_000))]
        lines: u32,
        /// Go on with those that come
        #[arg(short, long)]
        follow: bool,
        /// Print them as they are in the log
        #[arg(long)]
        json: bool,
    },
    /// Prints the entries that meet every condition
    Query(Box<Query>),
}

#[derive(Debug, Args)]
pub(crate) struct Query {
    #[command(flatten)]
    pub(crate) log: Log,
    /// Event, or the part of it before the dot [execution.request, container, ...]
    #[arg(long, value_name = "EVENT", value_parser = event)]
    pub(crate) event: Option<String>,
    /// Severity from which on
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub(crate) severity: Option<Severity>,
    /// Run
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<String>,
    /// Correlation id
    #[arg(long, value_name = "ID")]
    pub(crate) correlation_id: Option<String>,
    /// Client
    #[arg(long, value_name = "NAME")]
    pub(crate) client: Option<String>,
    /// Whether it went well
    #[arg(long, value_name = "BOOL")]
    pub(crate) success: Option<bool>,
    /// From this time on: 2026-12-31 (UTC), 2026-12-31T23:59:59Z, or so long ago: 90m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) since: Option<Timestamp>,
    /// Before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<Timestamp>,
    /// At most so many, the newest
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    /// Print them as they are in the log
    #[arg(long)]
    pub(crate) json: bool,
}

/// How much an entry matters, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Severity {
    Info,
    Warning,
    Error,
    Critical,
}

fn number_and_hash(text: &str) -> Result<(u64, String), String> {
    let told = || "must be an entry's number, a colon and its 64 hexadecimal digits".to_owned();
    let (number, hash) = text.split_once(':').ok_or_else(told)?;
    let number = number.parse().map_err(|_| told())?;
    if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(told());
    }
    Ok((number, hash.to_ascii_lowercase()))
}

/// The name of an event, or of several that begin with it.
fn event(text: &str) -> Result<String, String> {
    let begins = |name: &str| {
        let rest = name.strip_prefix(text);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let names = AuditKind::ALL.map(AuditKind::as_str);
    if names.into_iter().any(begins) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "must be one of {}, or what one begins with",
        names.join(", ")
    ))
}

fn time(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    if let Ok(day) = text.parse::<Date>()
        && let Ok(begin) = day.to_zoned(TimeZone::UTC)
    {
        return Ok(begin.timestamp());
    }
    let ago = text
        .parse::<Span>()
        .and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let ago = ago.ok().filter(|ago| !ago.is_negative()).ok_or(
        "must be a day such as 2026-12-31, a time such as 2026-12-31T23:59:59Z or an age such as 2h",
    )?;
    Timestamp::now()
        .checked_sub(ago)
        .map_err(|_| "is before all calendars".to_owned())
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
    /// Run it with the programs of an image instead of the host's own; see `mcp-forge images`
    #[arg(long, value_name = "REFERENCE")]
    pub(crate) image: Option<String>,
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

    #[test]
    fn times_are_given_as_such_or_as_an_age() {
        let time = |text| super::time(text).map(|time| time.as_second());
        assert_eq!(time("2026-12-02T00:00:00Z"), Ok(1_796_169_600));
        assert_eq!(time("2026-12-02T01:00:00+01:00"), Ok(1_796_169_600));
        assert_eq!(time("2026-12-02"), Ok(1_796_169_600));
        let now = jiff::Timestamp::now().as_second();
        for (text, seconds) in [
            ("90m", 5400),
            ("2h", 7200),
            ("1d", 86_400),
            ("1h 30m", 5400),
        ] {
            let ago = now - time(text).unwrap();
            assert!((seconds - 5..=seconds + 5).contains(&ago), "{text}: {ago}");
        }
        for text in [
            "",
            "yesterday",
            "9999999999999d",
            "-",
            "-5m",
            "5m ago",
            "2026-13-01T00:00:00Z",
        ] {
            time(text).unwrap_err();
        }
    }

    #[test]
    fn a_kept_hash_is_a_number_and_a_hash() {
        let hash = "0aB".repeat(21) + "f";
        let expected = Ok((7, hash.to_ascii_lowercase()));
        assert_eq!(super::number_and_hash(&format!("7:{hash}")), expected);
        for text in [
            "",
            "7",
            ":",
            &format!("x:{hash}"),
            "7:abc",
            &format!("7:{hash}0"),
        ] {
            super::number_and_hash(text).unwrap_err();
        }
    }
}
