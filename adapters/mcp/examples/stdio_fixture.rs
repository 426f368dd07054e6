//! Serves a canned execution over standard input and output, for the tests of `serve_stdio`.
//!
//! A program named `wait` runs until it is cancelled; everything else is echoed. With a number as
//! its argument the server shuts itself down after as many milliseconds.

#![allow(clippy::unwrap_used, dead_code, reason = "part of the tests")]

use std::time::Duration;

use mcp_forge_mcp::serve_stdio;
use mcp_forge_ports::vocabulary::EndedBy;
use tokio_util::sync::CancellationToken;

#[path = "../tests/mcp/fakes.rs"]
mod fakes;

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() {
    let shutdown = CancellationToken::new();
    if let Some(after) = std::env::args().nth(1) {
        let (after, shutdown) = (
            Duration::from_millis(after.parse().unwrap()),
            shutdown.clone(),
        );
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            shutdown.cancel();
        });
    }
    let execution = fakes::Scripted::new(|request, _, cancel| async move {
        if request.code == "wait" {
            cancel.cancelled().await;
            return Ok(fakes::ended(EndedBy::Cancelled));
        }
        let mut outcome = fakes::completed();
        outcome.stdout = request.code;
        Ok(outcome)
    });
    serve_stdio(fakes::server(execution), shutdown)
        .await
        .unwrap();
}
