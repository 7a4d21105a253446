//! The tests of the engine on real servers.

mod commit;
mod conformance;
mod crew;
mod crowd;
mod faults;
mod functions;
mod limits;
mod load;
mod plans;
mod pool;
mod queue;
mod step;
mod trust;
mod versions;
mod way;
