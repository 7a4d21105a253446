//! The engine on MySQL and MariaDB: many machines, one database that the team already runs.
//!
//! A lease table, never GET_LOCK: that ends with a connection, has no token, and is one server's alone.
//! What the engine promises, and when it does not, is on its page, `docs/engines/mysql.md`.
//!
//! The client is the engine's own (`client/wire.rs`): it speaks as much of the protocol as texts and their rows take, and
//! drops a connection on which anything went wrong.
//!
//! # Examples
//! `tenure::connect(url)` does this for programs:
//! ```no_run
//! # async fn f() -> tenure_core::Result<()> {
//! let config = tenure_mysql::Config::parse("mysql://me@127.0.0.1/db")?;
//! let tenure = tenure_core::Tenure::new(config).await?;
//! let lease = tenure.mutex("billing/4711").acquire().await?;
//! # Ok(()) }
//! ```

mod client;
mod config;
mod connect;
mod dialect;
mod doctor;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod migrate;
mod plain;
mod queues;

pub use config::Config;
pub use engine::{MySql, connect};
