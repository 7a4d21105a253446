//! The tests of the engine on real servers.

mod conformance;
mod crew;
mod faults;
mod load;
mod way;
mod wire;
