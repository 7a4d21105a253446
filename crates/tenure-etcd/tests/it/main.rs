//! The tests of the engine on real servers.

mod conformance;
mod crew;
mod etcdctl;
mod faults;
mod late;
mod load;
mod marks;
mod queue;
