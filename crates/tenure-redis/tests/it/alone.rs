//! Tests that measure time: each gets the whole machine.

mod failover;
mod hung_shard;
mod inbox;
mod queue_failover;
