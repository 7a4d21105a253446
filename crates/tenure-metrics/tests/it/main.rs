//! The tests of the metrics, in one binary.

mod bridge;
mod page;
mod run_file;
mod server;
