//! The claim model of tenure.
pub mod claim;
pub mod clock;
pub mod engine;
pub mod error;
pub mod failpoint;
pub mod inspect;
pub mod record;
pub mod step;
pub mod token;
