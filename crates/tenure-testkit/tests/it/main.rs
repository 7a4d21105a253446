//! The test kit keeps its own promises.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod etcd;
mod mysql;
mod postgres;
mod prometheus;
mod proxy;
mod redis;
mod zookeeper;
