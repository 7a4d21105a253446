//! What tests need of the client: time that moves when they say so, places where a process may end, what a busy machine
//! costs, and how much is tried.

pub mod busy;
pub mod failpoint;
pub mod random;
pub mod virtual_clock;
