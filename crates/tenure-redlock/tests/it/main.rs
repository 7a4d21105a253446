//! The tests of the engine against real servers.

mod alone;
mod conformance;
mod faults;
mod listing;
mod servers;
mod servers_fail;
#[path = "../../../tenure-redis/tests/it/take_turns.rs"]
mod take_turns;
