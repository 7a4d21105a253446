//! The wire: connections for transactions, and one that hears of releases. The rules of locks are in `tenure-sql`.

pub(crate) mod connection;
pub(crate) mod open;
pub(crate) mod tls;
pub(crate) mod wake;
