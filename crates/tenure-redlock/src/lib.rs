//! The engine on a quorum: three, five or more independent Redis servers, of which a majority decides.
//!
//! `quorum` counts votes and decides, `rounds` asks the servers, and `boot` says which of them count.
//!
//! # Examples
//! `tenure::connect(url)` does this for programs:
//! ```no_run
//! # async fn f() -> tenure_core::Result<()> {
//! let config = tenure_redlock::Config::parse("redlock://h1,h2,h3")?;
//! let tenure = tenure_core::Tenure::new(config).await?;
//! let lease = tenure.mutex("billing/4711").acquire().await?;
//! # Ok(()) }
//! ```

mod boot;
mod config;
mod connect;
mod doctor;
mod engine;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod library;
mod quorum;
mod rounds;
#[cfg(test)]
mod simulation;

pub use config::Config;
pub use engine::Redlock;
