//! What a connected client remembers, batches, sends and renews: all behind the face that users call.

pub(crate) mod adoption;
mod alarm;
pub(crate) mod backoff;
pub(crate) mod batch;
mod call;
pub(crate) mod connection;
pub(crate) mod floors;
pub(crate) mod handed_out;
pub(crate) mod lease_state;
pub(crate) mod ledger;
pub(crate) mod log_relay;
pub(crate) mod queue_client;
pub(crate) mod queue_requests;
mod renewal;
pub(crate) mod scopes;
pub(crate) mod settings;
pub(crate) mod teller;
pub(crate) mod thread;
pub(crate) mod trace;
