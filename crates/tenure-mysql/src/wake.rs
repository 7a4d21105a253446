//! How waiters hear of a release: they ask. Neither server can tell a client anything.
//!
//! Rejected: `SELECT SLEEP(…)` and GET_LOCK to be woken by `KILL` or by a release (a connection for each waiter, and another
//! user's rights), reading the binary log (the rights of a replica), and more frequent heartbeats (each is a transaction). A
//! waiter's heartbeat comes each third of its confirm window; waiters of the client that releases are told at once.

use tenure_core::engine::Capability;

/// Says so to whoever chooses an engine.
pub(crate) fn limit(capability: &mut Capability) {
    capability.tells_waiters = false;
}
