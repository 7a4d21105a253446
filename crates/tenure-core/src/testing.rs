//! What tests need of the client: time that moves when they say so, and places where a process may end.

pub mod failpoint;
pub mod virtual_clock;
