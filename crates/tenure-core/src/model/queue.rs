//! Queues in the model: what a store keeps of one, and what it does.

pub mod item;
pub mod record;
pub mod step;
