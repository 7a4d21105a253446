//! The model: what is right, as pure functions on plain data. It knows no store, no client and no clock.
//!
//! No example here or below: users meet none of it but by a client. Each promise is a story that can be read in `tests/it/examples.rs`.

pub mod claim;
pub mod inspect;
pub mod line;
pub mod queue;
pub mod record;
pub mod step;
pub mod token;
pub mod window;
