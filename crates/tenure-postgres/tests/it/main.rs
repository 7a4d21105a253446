//! The tests of the engine on real servers.

mod commit;
mod conformance;
mod crew;
mod faults;
mod load;
mod pool;
mod queue;
mod trust;
mod way;
