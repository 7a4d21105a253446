//! The `redis` engine: a single server, Sentinel and Cluster.

mod address;
mod answer;
mod check;
mod cluster;
mod config;
mod dial;
mod drift;
mod engine;
mod error;
mod inspect;
mod keys;
mod link;
mod observe;
mod pause;
#[doc(hidden)]
pub mod raw;
mod replicated;
mod script;
mod sentinel;
mod topology;
mod wake;
mod wire;

pub use config::Config;
pub use engine::Redis;
