//! The tests of the engine on real servers.

mod conformance;
mod crew;
mod dropped;
mod ensemble;
mod failures;
mod faults;
mod foreign;
mod many;
mod queues;
mod quota;
