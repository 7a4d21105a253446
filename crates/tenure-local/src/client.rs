//! What a client runs and says of itself: its thread, its life, its doorbell, and whose deaths it watches.

pub(crate) mod job;
pub(crate) mod liveness;
pub(crate) mod wake;
pub(crate) mod watch;
