//! What users call: the primitives, and the leases that they give.

pub mod all_of;
pub mod any_of;
pub mod blocking;
pub mod detached;
pub mod election;
pub mod lease;
pub mod listing;
pub mod mutex;
pub mod observer;
pub mod queue;
pub mod rw_lock;
pub mod semaphore;
pub mod single_flight;
pub mod slot_pool;
pub mod tenure;

pub(crate) mod claimant;
