//! The tests of the claim model.

mod oracle;
mod step;
mod world;
