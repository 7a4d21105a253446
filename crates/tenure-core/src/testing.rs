//! What tests need of the client: time that moves when they say so, places where a process may end, what a busy machine
//! costs, how much is tried, and bytes for whoever reads what others wrote.
//!
//! No example here or below, but for [`VirtualClock`](virtual_clock::VirtualClock): for the tests of tenure's own crates, which show them.

pub mod busy;
pub mod failpoint;
pub mod fuzz;
pub mod random;
pub mod virtual_clock;
