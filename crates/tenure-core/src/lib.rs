//! The claim model of tenure: one protocol for locks, slots, elections and queues, and the client that keeps
//! its promises. Users add the crate `tenure`; engines build on this one.
//!
//! Every primitive is *a claim of some weight on a resource of some capacity, in FIFO order, with a lease and a
//! fencing token*. [`step`](mod@model::step) says what is right for all of them, as a pure function. An [`engine`] is
//! a store on which that is so. The client (`client.rs`, `client/ledger.rs`, `client/thread.rs`) sends claims in batches, renews
//! what it holds, and ends a lease by a local deadline even if the store is silent.
//!
//! This crate does no I/O but through an [`engine::Engine`], and takes time and randomness from a
//! [`clock::Clock`] only.
//!
//! # Examples
//! ```
//! # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
//! let tenure = tenure_core::memory::connect("core-example").await?;
//! let receipt = tenure.mutex("billing/4711").run(async |lease| format!("paid under {}", lease.token())).await?;
//! # drop(receipt);
//! # Ok(()) }) }
//! ```

// First, so that its macro is there for all.
#[doc(hidden)]
#[macro_use]
pub mod mutants;

mod client;
pub mod clock;
pub mod counts;
pub mod engine;
pub mod error;
pub mod event;
pub mod face;
pub mod memory;
pub mod model;
pub mod survey;
pub mod testing;

pub use client::ledger::QueuePosition;
pub use client::settings::Settings;
pub use counts::Counts;
pub use engine::{ReleaseAnswer, WithdrawAnswer};
pub use error::{Error, ErrorKind, LossReason, Result};
pub use event::{Event, Happened, Listener};
pub use face::all_of::{AllOf, Leases, LockRequest};
pub use face::any_of::AnyOf;
pub use face::blocking;
pub use face::detached::{Detached, DetachedClaims, Kept};
pub use face::election::{Election, Leader, Leaders, Term};
pub use face::lease::{Acquire, Lease};
pub use face::listing::Pages;
pub use face::mutex::Mutex;
pub use face::observer::Observer;
pub use face::queue::detached::{DetachedDeliveries, DetachedDelivery};
pub use face::queue::{Delivery, Push, Queue};
pub use face::rw_lock::{ReadLock, RwLock, WriteLock};
pub use face::semaphore::Semaphore;
pub use face::single_flight::{Fetched, FetchedFrom, LoadTurn, SingleFlight};
pub use face::slot_pool::{Slot, SlotPool};
pub use face::tenure::Tenure;
pub use model::claim::{Busy, ClaimId, Label, Name};
pub use model::token::Token;
