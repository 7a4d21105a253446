//! The engine on PostgreSQL: many machines, one database that the team already runs.
//!
//! A lease table, never advisory locks: those end with a connection, have no token, and are another's behind a pooler.
//! What the engine promises, and when it does not, is on its page, `docs/engines/postgres.md`.

mod client;
mod config;
mod connect;
mod dialect;
mod doctor;
mod error;
mod migrate;

mod engine;
mod queues;

pub use config::Config;
/// The pool that [`Config::from_pool`] takes.
pub use deadpool_postgres;
pub use engine::{Postgres, connect};
/// The client, whose settings [`Config::new`] takes.
pub use tokio_postgres;
