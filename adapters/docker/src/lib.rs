//! `ContainerRuntime` on an engine that speaks the Docker Engine API, over its local socket.
//!
//! A sandbox is a container of the host presentation: an image that holds the agent and nothing of
//! the host, under read-only binds of the host's system directories. The agent's stream is the
//! attached standard input and output. It decides nothing: what a field of the specification
//! cannot be made of is refused.

mod endpoint;
mod engine;
mod error;
mod request;
mod stream;

pub use endpoint::{Endpoint, EndpointError};
pub use engine::{Containers, Docker, DockerRuntime};
pub use mcp_forge_engine::{Connect, EngineRuntime};
