//! Redis servers.

mod cluster;
mod run;
mod sentinel;
mod single;
