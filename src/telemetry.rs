//! Logs: to standard error only. Standard output belongs to MCP and to programs.

use tracing_subscriber::EnvFilter;

use crate::cli::{LogFormat, LogLevel};

/// Starts logging. Below `error`, rmcp would log requests and so the code in them.
pub(crate) fn start(level: LogLevel, format: LogFormat) {
    let filter =
        EnvFilter::new(level.as_str()).add_directive(quiet(mcp_forge_mcp::QUIET_LOG_DIRECTIVE));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would tell them on standard error, and panic where that is full.
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

fn quiet(directive: &str) -> tracing_subscriber::filter::Directive {
    directive
        .parse()
        .unwrap_or_else(|_| tracing::level_filters::LevelFilter::ERROR.into())
}
