//! The engine on etcd: a line of keys for each resource, in the order of their create revisions.
//!
//! What the engine promises, and when it does not, is on its page, `docs/engines/etcd.md`.

mod check;
mod clock;
mod config;
mod connect;
mod endpoints;
mod engine;
mod error;
mod etcd_leases;
mod keys;
mod lease;
mod look;
mod proto;
mod queue;
#[doc(hidden)]
pub mod raw;
mod rpc;
mod store;
#[cfg(test)]
mod trial;
mod wake;
mod watch;

pub use config::Config;
pub use engine::{Etcd, connect};
