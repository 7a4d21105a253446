//! The engine on etcd: a line of keys for each resource, in the order of their create revisions.
//!
//! What the engine promises, and when it does not, is on its page, `docs/engines/etcd.md`.

mod client;
mod config;
mod connect;
mod doctor;
mod engine;
mod error;
mod keys;
mod locks;
mod queues;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod raw;
#[cfg(test)]
mod test_client;

pub use config::Config;
pub use engine::{Etcd, connect};
