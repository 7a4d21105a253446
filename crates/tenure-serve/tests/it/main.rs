//! The tests of the server, by real sockets.

mod access;
mod claims;
mod dashboard;
mod drain;
mod events;
mod health;
mod http;
mod http2;
mod instances;
mod limits;
mod matrix;
mod metrics;
mod openapi;
mod queues;
mod resources;
mod schemathesis;
mod streams;
mod tls;
mod waiting;
