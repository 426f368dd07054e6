//! The MCP server of mcp-forge: an rmcp server over the [`CodeExecution`] driving port.
//!
//! It turns JSON arguments into an `ExecutionRequest`, and the outcome or refusal into the public
//! result; it reports progress and passes cancellation on. It speaks stdio, or any other byte
//! stream of JSON lines, in every protocol revision that rmcp knows.
//!
//! It deliberately checks no policy (the domain does), writes no audit entry (a call that it refuses
//! itself it reports through the port), and logs nothing a client sent.
//!
//! [`CodeExecution`]: mcp_forge_ports::driving::CodeExecution

mod arguments;
mod catalog;
mod in_flight;
mod input_files;
mod line_scan;
mod line_transport;
mod newest_line;
mod one_line;
mod progress;
mod resources;
mod run_tools;
mod serve;
mod server;
mod settings;
#[cfg(feature = "stdio")]
mod stdio;
mod text;
mod tool_result;
mod uri;
mod value;
mod window;
pub mod wire;
mod written;

pub use serve::{ServeError, serve, serve_stdio};
pub use server::McpServer;
pub use settings::{ArgumentBounds, DEFAULT_MAX_MESSAGE_BYTES, McpSettings, ProgressPace};

/// Filter directive that the process must add to its log filter, whatever level the operator
/// asked for: below `error`, rmcp writes requests and answers, and with them programs, to the log.
pub const QUIET_LOG_DIRECTIVE: &str = "rmcp=error";
