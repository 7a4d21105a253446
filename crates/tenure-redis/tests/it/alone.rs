//! Tests that measure time: each gets the whole machine.

mod failover;
mod inbox;
mod queue_failover;
mod quorum;
