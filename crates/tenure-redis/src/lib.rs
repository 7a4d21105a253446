//! The `redis` engine: a single server, Sentinel and Cluster.
#![allow(dead_code, reason = "tried before the engine uses it")]

mod answer;
mod keys;
mod script;
