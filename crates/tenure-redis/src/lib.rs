//! The engines on Redis: `redis` (a single server, Sentinel and Cluster), and `redlock` (a majority of independent servers).

mod address;
mod answer;
mod check;
mod cluster;
mod config;
mod connect;
mod dial;
mod drift;
mod engine;
mod error;
mod inspect;
mod keys;
mod link;
mod observe;
mod pause;
mod queue;
mod quorum;
#[doc(hidden)]
pub mod raw;
mod redlock;
mod replicated;
mod script;
mod sentinel;
mod topology;
mod wake;
mod wire;

pub use config::Config;
pub use engine::Redis;
pub use redlock::Redlock;
