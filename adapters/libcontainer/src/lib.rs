//! The embedded OCI runtime: the `ContainerRuntime` port on youki's libcontainer.
//!
//! libcontainer clones and changes the state of the calling process, so it never runs in the
//! server: a helper process, the *nursery*, does it in a user namespace of its own, and a second
//! one, the *warden*, stands between them and clears up. Both are this program, started with
//! [`HELPER_ARGUMENT`]; the composition root hands that start to [`helper_main`] before it makes
//! any thread.
//!
//! This crate decides nothing: it obeys the specification it gets.

mod bytecode;
mod cgroup;
mod creator;
mod executor;
mod ids;
mod nursery;
mod protocol;
mod rootfs;
mod runtime;
mod seccomp;
mod spec;
mod sys;
mod warden;

use mcp_forge_presentation::Placed;

pub use runtime::LibcontainerRuntime;

/// First argument of the program when it is to be the helper process.
pub const HELPER_ARGUMENT: &str = "__nursery";

/// The helper process: runs until the server is gone and returns the exit status.
///
/// `placed` are the files that every sandbox gets below `/run/forge`. The process must have one
/// thread only.
pub fn helper_main(placed: &[Placed]) -> i32 {
    warden::main(placed)
}

/// Whether this program was started without standard output, where /dev/null is by now.
pub fn stdout_was_closed() -> bool {
    sys::stdout_was_closed()
}
