//! Pulls images from registries (OCI distribution-spec 1.1) into OCI layouts.
//!
//! A registry is hostile: nothing is read beyond its bound, every document and layer is checked against the digest that
//! led to it, credentials go to the registry and over TLS alone. Loopback addresses are spoken to without TLS, as engines do.

mod auth;
mod client;
mod error;
mod fetch;
#[cfg(test)]
mod tests;

pub use fetch::Registry;
