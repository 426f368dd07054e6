//! The rules of mcp-forge: which limits a run gets, what is kept of its output, how its end is
//! told, and the course of one run from request to answer.
//!
//! This crate does no I/O. It reads no clock, file or environment variable, starts no process and
//! opens no socket: all of that comes through the ports (`mcp_forge_ports::driven`), and its
//! tests pass offline, with no adapter, in seconds.

mod attestation;
mod byte_size;
pub mod decision;
mod ending;
pub mod limits;
pub mod output;
pub mod policy;
pub mod request;
pub mod service;
mod violation;

pub use ending::{ProgramEnd, classify, signal_name};
pub use policy::{ExecutionPolicy, PolicyFault, PolicyFaults};
pub use service::{RunPorts, RunService};
pub use violation::Violation;
