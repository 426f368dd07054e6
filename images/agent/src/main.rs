//! The agent: first process of every sandbox.
//!
//! It starts one program, carries its streams to the host in frames, reaps what the program
//! leaves behind, kills what outlives it, and tells how it ended. It trusts the host and nothing
//! else; it decides nothing, and what it says is hostile input to the host all the same.

#![forbid(unsafe_code)]
// The agent's only voice is its stream; its standard error is /dev/null.

mod facts;
mod program;
mod pump;
mod workspace;

use std::process::ExitCode;

fn main() -> ExitCode {
    // When the stream breaks there is nobody to tell; the end of process 1 ends the sandbox.
    match pump::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
