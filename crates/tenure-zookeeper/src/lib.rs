//! The engine on ZooKeeper: many machines, and an ensemble that goes on when one of its servers fails.
//!
//! A claim is an ephemeral sequential node below the container node of its resource, and holds if it fits beside those
//! before it. What the engine promises, and when it does not, is on its page, `docs/engines/zookeeper.md`.

mod client;
mod config;
mod connect;
mod doctor;
mod error;
mod locks;
mod name;

mod engine;
mod queues;

pub use config::Config;
pub use engine::{ZooKeeper, connect};
