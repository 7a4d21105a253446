//! The command from outside: real processes on an engine of their own.

mod death;
mod look;
mod run;
mod snapshots;
mod terminal;
mod world;
