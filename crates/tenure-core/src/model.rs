//! The model: what is right, as pure functions on plain data. It knows no store, no client and no clock.

pub mod claim;
pub mod inspect;
pub mod line;
pub mod queue;
pub mod record;
pub mod step;
pub mod token;
pub mod window;
