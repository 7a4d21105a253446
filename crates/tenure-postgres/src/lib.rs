//! The engine on PostgreSQL: many machines, one database that the team already runs.
//!
//! A lease table, never advisory locks: those end with a connection, have no token, and are another's behind a pooler.
//! What the engine promises, and when it does not, is on its page, `docs/engines/postgres.md`.
//!
//! # Examples
//! `tenure::connect(url)` does this for programs:
//! ```no_run
//! # async fn f() -> tenure_core::Result<()> {
//! let config = tenure_postgres::Config::parse("postgres://me@127.0.0.1/db")?;
//! let tenure = tenure_core::Tenure::new(config).await?;
//! let lease = tenure.mutex("billing/4711").acquire().await?;
//! # Ok(()) }
//! ```

mod client;
mod config;
mod connect;
mod dialect;
mod doctor;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod migrate;

mod engine;
mod functions;
mod plain;
mod queues;
mod statement;

pub use config::Config;
/// The pool that [`Config::from_pool`] takes.
pub use deadpool_postgres;
pub use engine::{Postgres, connect};
/// The client, whose settings [`Config::new`] takes.
pub use tokio_postgres;
