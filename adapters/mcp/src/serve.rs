//! Serves one client over a pair of byte streams, from its first message to its last answer.
//!
//! It starts no process, installs no signal handler and never ends the process: the caller gives
//! a token to stop it by.

use std::time::Duration;

use futures::FutureExt;
use rmcp::service::{QuitReason, ServerInitializeError, serve_server_with_ct};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::line_transport::{HangUp, LineTransport};
use crate::server::McpServer;
#[cfg(feature = "stdio")]
use crate::stdio::Stdio;

/// Longest wait for cancelled calls after the connection has ended.
const LAST_CALLS: Duration = Duration::from_secs(10);

/// Why serving failed. A client that goes away is no failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Standard input or output cannot be used.
    #[error("cannot use standard input and output")]
    Stdio(#[source] std::io::Error),
    /// The feature `stdio` was left out.
    #[error("standard input and output are not built in")]
    CompiledOut,
    /// The client did not speak MCP when it opened the connection.
    #[error("the client did not open the connection as MCP asks: {0}")]
    Handshake(String),
    /// A defect: a task of the server panicked.
    #[error("a task of the MCP server panicked")]
    Panicked,
}

/// Serves one client until `reader` ends, the client stops reading, or `shutdown` is cancelled.
/// Then the calls in flight are cancelled, and it returns when they have ended, at the latest 10 s
/// after the connection (5 s more may have gone by for the last answers).
///
/// `writer` gets JSON-RPC messages, one per line, and nothing else.
///
/// # Errors
///
/// [`ServeError::Handshake`] when the connection could not be opened, [`ServeError::Panicked`]
/// for a defect.
pub async fn serve<R, W>(
    server: McpServer,
    reader: R,
    writer: W,
    shutdown: CancellationToken,
) -> Result<(), ServeError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let hang_up = std::future::pending().boxed().shared();
    serve_until(server, reader, writer, hang_up, shutdown).await
}

/// The same, which also ends when the client has hung up and does not read.
async fn serve_until<R, W>(
    server: McpServer,
    reader: R,
    writer: W,
    hang_up: HangUp,
    shutdown: CancellationToken,
) -> Result<(), ServeError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let connection = shutdown.child_token();
    let (server, calls) = server.for_connection();
    let max_bytes = server.settings().max_message_bytes;
    let transport = LineTransport::new(reader, writer, hang_up, max_bytes, connection.clone());
    let ended = match serve_server_with_ct(server, transport, connection.clone()).await {
        Ok(running) => match running.waiting().await {
            Ok(QuitReason::JoinError(_)) | Err(_) => Err(ServeError::Panicked),
            Ok(_) => Ok(()),
        },
        Err(
            ServerInitializeError::ConnectionClosed(_)
            | ServerInitializeError::Cancelled
            | ServerInitializeError::TransportError { .. },
        ) => Ok(()),
        Err(error) => Err(ServeError::Handshake(error.to_string())),
    };
    connection.cancel();
    calls.close();
    if tokio::time::timeout(LAST_CALLS, calls.wait())
        .await
        .is_err()
    {
        tracing::error!(calls = calls.len(), "calls go on after they were cancelled");
    }
    ended
}

/// Serves one client over standard input and output; see [`serve`]. Everything else in the process
/// must leave both alone.
///
/// A read of a terminal or a file may still be pending in a thread when this returns. It does not
/// hold up the end of the process or of the runtime.
///
/// # Errors
///
/// [`ServeError::Stdio`] when one of the streams cannot be used, and those of [`serve`].
#[cfg(feature = "stdio")]
pub async fn serve_stdio(server: McpServer, shutdown: CancellationToken) -> Result<(), ServeError> {
    let stdio = Stdio::open().map_err(ServeError::Stdio)?;
    let ended = serve_until(server, stdio.reader, stdio.writer, stdio.hang_up, shutdown).await;
    stdio.last_writes.wait().await;
    ended
}

/// Says that this build cannot do it.
///
/// # Errors
///
/// [`ServeError::CompiledOut`], always.
#[cfg(not(feature = "stdio"))]
pub async fn serve_stdio(_: McpServer, _: CancellationToken) -> Result<(), ServeError> {
    Err(ServeError::CompiledOut)
}
