//! The engine on a quorum: three, five or more independent Redis servers, of which a majority decides.
//!
//! `quorum` counts votes and decides, `rounds` asks the servers, and `boot` says which of them count.

mod boot;
mod config;
mod connect;
mod doctor;
mod engine;
mod library;
mod quorum;
mod rounds;

pub use config::Config;
pub use engine::Redlock;
