//! The tests of the engine against real servers.

mod conformance;
mod crew;
mod failover;
mod faults;
mod foreign;
mod replicas;
