//! Redis servers.

mod clock;
mod cluster;
mod run;
mod sentinel;
mod single;
