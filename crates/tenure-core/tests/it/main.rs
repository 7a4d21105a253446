//! The tests of the claim model.

mod examples;
mod oracle;
mod record;
mod step;
mod world;
