//! The engine on etcd: a line of keys for each resource, in the order of their create revisions.
//!
//! What the engine promises, and when it does not, is on its page, `docs/engines/etcd.md`.
//!
//! # Examples
//! `tenure::connect(url)` does this for programs:
//! ```no_run
//! # async fn f() -> tenure_core::Result<()> {
//! let config = tenure_etcd::Config::parse("etcd://h1,h2,h3")?;
//! let tenure = tenure_core::Tenure::new(config).await?;
//! let lease = tenure.mutex("billing/4711").acquire().await?;
//! # Ok(()) }
//! ```

mod client;
mod config;
mod connect;
mod doctor;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
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
