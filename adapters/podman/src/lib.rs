//! `ContainerRuntime` on Podman, over its local socket: the libpod API.
//!
//! A sandbox is a container of the host presentation, as on other engines, in a user namespace of its
//! own range of ids. The agent's stream is the attached standard input and output. It decides nothing:
//! what a field of the specification cannot be made of is refused.

#![recursion_limit = "256"] // The request is one `json!`.

mod client;
mod endpoint;
mod engine;
mod profile;
mod request;
mod stream;

pub use endpoint::{Endpoint, EndpointError};
pub use engine::{Containers, Podman, PodmanRuntime};
