//! The `etcd` engine.
// The engine above it comes next.
#![allow(dead_code, reason = "the client is here before the engine that uses it")]

mod config;
mod endpoints;
mod error;
mod lease;
mod proto;
#[doc(hidden)]
pub mod raw;
mod rpc;
#[cfg(test)]
mod trial;
mod watch;

pub use config::Config;
