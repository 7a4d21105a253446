//! The tests of the engine on real servers.

mod conformance;
mod crew;
mod crowd;
mod faults;
mod load;
mod plain;
mod queue;
mod settings;
mod step;
mod versions;
mod way;
mod wire;
