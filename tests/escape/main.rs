//! The escape suite: hostile programs in real sandboxes of the real binary, one file per barrier of
//! `SECURITY.md`, against every runtime that the host has (`place`).
//!
//! Each attempt must get the very errno that the barrier gives, and is held against the same attempt
//! outside, where it has to get something else; where there can be no such control the probe says
//! why. What ends by a limit, and what is left over on the host, is tested in `tests/sandbox`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod agent;
mod capabilities;
#[allow(
    dead_code,
    reason = "each test binary uses a part of the shared helpers"
)]
#[path = "../sandbox/client.rs"]
mod client;
mod devices;
#[allow(
    dead_code,
    reason = "each test binary uses a part of the shared helpers"
)]
#[path = "../sandbox/home.rs"]
mod home;
#[allow(
    dead_code,
    reason = "each test binary uses a part of the shared helpers"
)]
#[path = "../sandbox/host.rs"]
mod host;
mod host_files;
#[allow(
    dead_code,
    reason = "each test binary uses a part of the shared helpers"
)]
#[path = "../sandbox/leftovers.rs"]
mod leftovers;
mod mounts;
mod namespaces;
mod network;
mod place;
mod proc_sys;
mod resources;
mod seccomp;
mod traces;
mod verdict;
mod workspace;
