//! Builds images. An engine builds what a Containerfile says ([`EngineBuilder`]); without one, and without a registry,
//! Debian packages are put together ([`DebianBuilder`]). What comes out is an archive, which the store of images imports
//! like any other: nothing of a build is used where it was made.

mod client;
mod debian;
mod engine;
mod lines;

use mcp_forge_ports::{PortError, PortErrorKind};

pub use debian::DebianBuilder;
pub use engine::{BuildEngine, EngineBuilder};

/// A recipe for another builder.
fn not_for(builder: &str, what: &str, instead: &str) -> PortError {
    let why = format!("{builder} does not build {what}");
    PortError::new(PortErrorKind::Unsupported, why).with_hint(instead)
}
