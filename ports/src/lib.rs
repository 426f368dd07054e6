//! The contracts of mcp-forge: what a client may ask ([`driving`]), what the core needs
//! ([`driven`]), and the plain data that crosses both ([`vocabulary`]).
//!
//! This crate is the leaf of the workspace. It holds no policy, does no I/O and names no wire
//! type of any adapter.

#[cfg(feature = "testing")]
pub mod contract;
pub mod driven;
pub mod driving;
mod error;
#[cfg(feature = "testing")]
pub mod testing;
pub mod vocabulary;

pub use error::{PortError, PortErrorKind};
