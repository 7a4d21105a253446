//! The wire: the session of a client, and how long it is known to go on.

pub(crate) mod heartbeat;
pub(crate) mod session;
