//! The tests of the metrics, in one binary.

mod bridge;
mod dashboard;
mod page;
mod prometheus;
mod promql;
mod rules;
mod run_file;
mod server;
