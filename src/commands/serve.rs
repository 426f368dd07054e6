//! `mcp-forge serve`: MCP on standard input and output.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mcp_forge_domain::ExecutionPolicy;
use mcp_forge_domain::limits::format_byte_size;
use mcp_forge_mcp::{ArgumentBounds, McpServer, McpSettings};
use tokio_util::sync::CancellationToken;

use super::say;
use super::signals::{Endings, status};
use crate::cli::{Serve, Transport};
use crate::compose::Application;
use crate::settings::Settings;

/// How often it is looked after what is kept of runs for too long. `retention.time` is in seconds,
/// but what is asked for is looked after in any case.
const TIDY: Duration = Duration::from_secs(30);

/// Serves until the client or a signal ends it.
///
/// # Errors
///
/// What kept it from serving.
pub(crate) async fn serve(
    arguments: &Serve,
    runtime: Option<&str>,
    settings: &Settings,
) -> anyhow::Result<ExitCode> {
    let Transport::Stdio = arguments.transport;
    let application = Application::new(runtime, settings)?;
    let server = McpServer::new(
        Arc::clone(&application.execution) as _,
        Arc::clone(&application.execution) as _,
        McpSettings::new(
            application.policy.languages.clone(),
            bounds(&application.policy),
        ),
    );
    let shutdown = CancellationToken::new();
    end_on_signal(shutdown.clone())?;
    let warmed = Arc::clone(&application.runtime);
    tokio::spawn(async move {
        if let Err(e) = warmed.warm_up().await {
            tracing::warn!(error = e.chain(), hint = e.hint, "the runtime is not ready");
        }
    });
    let (cleaned, interval) = (
        Arc::clone(&application.runtime),
        settings.cleanup_interval(),
    );
    tokio::spawn(async move { cleaned.keep_clean(interval).await });
    let kept = Arc::clone(&application.execution);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TIDY).await;
            kept.forget_old();
        }
    });
    if std::io::stdin().is_terminal() {
        say("mcp-forge: serving MCP, one JSON message in a line; a client starts this, ^C ends it");
    }
    let served = mcp_forge_mcp::serve_stdio(server, shutdown).await;
    application.shut_down().await;
    served.context("serving MCP on standard input and output")?;
    Ok(ExitCode::SUCCESS)
}

fn bounds(policy: &ExecutionPolicy) -> ArgumentBounds {
    let limits = &policy.limits;
    ArgumentBounds {
        default_timeout_s: limits.default_timeout.as_secs(),
        max_timeout_s: limits.max_timeout.as_secs(),
        default_memory: format_byte_size(limits.default_memory),
        max_memory: format_byte_size(limits.max_memory),
        default_cpu_quota: limits.default_cpu_quota,
        max_cpu_quota: limits.max_cpu_quota,
        max_code_bytes: policy.max_code_bytes as u64,
        max_stdin_bytes: policy.max_stdin_bytes as u64,
        max_files: policy.max_files as u64,
        max_file_bytes: policy.max_file_bytes as u64,
    }
}

/// The first signal asks for the end, the second one is the end.
fn end_on_signal(shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut endings = Endings::catch()?;
    tokio::spawn(async move {
        endings.next().await;
        shutdown.cancel();
        // The helper processes see the socket close and clear up by themselves.
        std::process::exit(status(endings.next().await).into());
    });
    Ok(())
}
