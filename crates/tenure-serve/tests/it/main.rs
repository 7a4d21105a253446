//! The tests of the server, by real sockets.

mod access;
mod claims;
mod drain;
mod events;
mod http;
mod instances;
mod limits;
mod queues;
mod resources;
mod tls;
mod waiting;
