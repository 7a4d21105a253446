//! Tests that measure time: each gets the whole machine.

mod hung_server;
mod quorum;
