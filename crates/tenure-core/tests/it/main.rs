//! The tests of the core, in one binary.

mod client;
mod examples;
mod handover;
mod kinds;
mod oracle;
mod record;
mod step;
mod window;
mod world;
