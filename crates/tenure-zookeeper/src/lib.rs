//! The engine on ZooKeeper: many machines, and an ensemble that goes on when one of its servers fails.
//!
//! A claim is an ephemeral sequential node below the container node of its resource, and holds if it fits beside those
//! before it. What the engine promises, and when it does not, is on its page, `docs/engines/zookeeper.md`.
//!
//! # Examples
//! `tenure::connect(url)` does this for programs:
//! ```no_run
//! # async fn f() -> tenure_core::Result<()> {
//! let config = tenure_zookeeper::Config::parse("zookeeper://h1,h2,h3")?;
//! let tenure = tenure_core::Tenure::new(config).await?;
//! let lease = tenure.mutex("billing/4711").acquire().await?;
//! # Ok(()) }
//! ```

mod client;
mod config;
mod connect;
mod doctor;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod locks;
mod name;
mod quota;

mod engine;
mod queues;

pub use config::Config;
pub use engine::{ZooKeeper, connect};
