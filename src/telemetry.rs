//! Logs: to standard error only. Standard output belongs to MCP and to programs.

use std::io;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::cli::{LogFormat, LogLevel};

/// Lines that wait for whoever reads the log of a server; what comes on top is dropped.
const WAITING_LINES: usize = 4096;

/// Starts logging. Below `error`, rmcp would log requests and so the code in them.
///
/// A server must not wait for a client that does not read standard error, so its lines wait, until
/// the guard is dropped.
pub(crate) fn start(level: LogLevel, format: LogFormat, serves: bool) -> Option<WorkerGuard> {
    let (writer, guard) = if serves {
        let (writer, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(WAITING_LINES)
            .finish(io::stderr());
        (BoxMakeWriter::new(writer), Some(guard))
    } else {
        (BoxMakeWriter::new(io::stderr), None)
    };
    let filter =
        EnvFilter::new(level.as_str()).add_directive(quiet(mcp_forge_mcp::QUIET_LOG_DIRECTIVE));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        // It would tell them on standard error, and panic where that is full.
        .log_internal_errors(false)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()));
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    guard
}

fn quiet(directive: &str) -> tracing_subscriber::filter::Directive {
    directive
        .parse()
        .unwrap_or_else(|_| tracing::level_filters::LevelFilter::ERROR.into())
}
