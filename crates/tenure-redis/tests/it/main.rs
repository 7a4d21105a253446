//! The tests of the engine against real servers.

mod alone;
mod classic;
mod conformance;
mod crew;
mod faults;
mod foreign;
mod queues;
mod quorum;
mod redlock;
mod redlock_faults;
mod redlock_servers;
mod replicas;
mod round_trips;
