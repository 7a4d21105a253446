//! The wire: the protocol, and connections for transactions. The rules of locks are in `tenure-sql`.

pub(crate) mod auth;
pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod wire;
