//! The claim model of tenure: one protocol for locks, slots, elections and queues, and the client that keeps
//! its promises. Users add the crate `tenure`; engines build on this one.
//!
//! Every primitive is *a claim of some weight on a resource of some capacity, in FIFO order, with a lease and a
//! fencing token*. [`step`](mod@step) says what is right for all of them, as a pure function. An [`engine`] is
//! a store on which that is so. The client (`client.rs`, `ledger.rs`, `io.rs`) sends claims in batches, renews
//! what it holds, and ends a lease by a local deadline even if the store is silent.
//!
//! This crate does no I/O but through an [`engine::Engine`], and takes time and randomness from a
//! [`clock::Clock`] only.

pub mod blocking;
pub mod claim;
pub mod client;
pub mod clock;
pub mod election;
pub mod engine;
pub mod error;
pub mod event;
pub mod failpoint;
pub mod inspect;
pub mod lease;
pub mod line;
pub mod memory;
pub mod mutex;
pub mod queue;
pub mod record;
pub mod rw_lock;
pub mod semaphore;
pub mod all_of;
pub mod single_flight;
pub mod slot_pool;
pub mod step;
pub mod token;
pub mod virtual_clock;
pub mod window;

mod alarm;
mod backoff;
mod claimant;
mod floors;
mod io;
mod lease_state;
mod ledger;
mod listing;
mod renewal;

pub use claim::{Busy, ClaimId, Label, Name};
pub use client::{Observer, Settings, Tenure};
pub use election::{Election, Leader, Leaders, Term};
pub use engine::ReleaseAnswer;
pub use error::{Error, ErrorKind, Result};
pub use lease::{Acquire, Lease};
pub use ledger::QueuePosition;
pub use mutex::Mutex;
pub use queue::{Delivery, Push, Queue};
pub use rw_lock::{ReadLock, RwLock, WriteLock};
pub use semaphore::Semaphore;
pub use all_of::{AllOf, Leases, LockRequest};
pub use single_flight::{Fetched, FetchedFrom, SingleFlight};
pub use slot_pool::{Slot, SlotPool};
pub use token::Token;
