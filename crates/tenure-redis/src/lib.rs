//! The `redis` engine: a single server, Sentinel and Cluster.
#![allow(dead_code, reason = "the engine above the links is not there yet")]

mod address;
mod cluster;
mod config;
mod dial;
mod error;
mod link;
mod pause;
mod sentinel;
mod topology;
mod wire;

pub use config::Config;
