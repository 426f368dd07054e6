//! The whole program, as a person and as an MCP client use it: the real binary, real sandboxes,
//! nothing stands in for anything.
//!
//! Each test has a home of its own and the machine to itself: what a test leaves behind is counted
//! over all of it, and there must be nothing. Where something cannot be tested here the test says
//! so by name; on a build server that is a failure.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod audit;
mod background;
mod bad_input;
mod builds;
mod client;
mod command_line;
mod configuration;
mod crashes;
mod endings;
mod files;
mod home;
mod host;
mod images;
mod leftovers;
mod many;
mod ordinary_user;
mod output;
mod pictures;
mod python_client;
mod r;
mod registry;
mod reports;
#[path = "../escape/verdict.rs"]
mod verdict;
