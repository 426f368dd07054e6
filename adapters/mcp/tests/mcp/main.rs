//! The MCP server as a client sees it: raw JSON lines and rmcp's own client over an in-process
//! stream, with hand-made executions behind it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod calls;
mod fakes;
mod flood;
mod lifecycle;
mod limits;
mod progress;
mod raw;
mod results;
mod runs;
mod stdio;
