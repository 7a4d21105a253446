//! What the engines of tenure on SQL databases share.
//!
//! The database gives atomic access to the rows of a resource, and its own clock. [`Hosted`] runs
//! [`step`](tenure_core::model::step::step) inside a transaction under the resource's row lock and writes what it changed, the
//! same for every database. What differs is a [`Database`]: how it is connected with, how a text is written in its
//! [`Dialect`], and what its errors mean. That is all for locks; [`QueueDatabase`] adds queues.
//!
//! The least that an engine has to write is a file of its own, which runs: `tests/it/sqlite.rs`, locks on SQLite. It is too long for an
//! example here.
//!
//! # A transaction
//! Two round trips, whatever the number of resources in the batch. The first begins, makes the rows of resources that
//! do not exist yet, locks those rows by name and then the rows of claims by id, and reads the clock last, when
//! nothing can make it wait any more. `step` runs. The second writes and commits. Where a record has more entries
//! than are loaded at first, a trip more fetches [what is needed](tenure_core::model::window); where others are to be
//! notified, a trip behind the commit does that, and may fail. A dialect that can claims and releases free mutexes by
//! one statement instead (`locks/plain.rs`).
//!
//! Renewals of holders need no resource's lock: one statement moves the ends of those that have not ended.
//!
//! # Repeats
//! A transaction that the database gives up (a deadlock, a serialization failure) was not executed, and is tried
//! again. One whose commit was not answered may have been: the client above repeats it with the same claim ids.
//!
//! A resource whose rows another transaction keeps locked fails by itself: when a batch could not lock all of its
//! rows in time, its resources are tried again one by one.
//!
//! No example of each type: they are what [`Hosted`] and one [`Database`] say to each other, as they do in that file.

mod database;
pub mod doctor;
mod fault;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod hosted;
mod locks;
mod pause;
mod queues;
mod room;
mod schema;
mod settings;
mod text;
mod versions;
mod wake;

pub use database::{Connection, Database, Left, Row};
pub use doctor::try_out;
pub use fault::Fault;
pub use hosted::Hosted;
pub use locks::load::read_name;
pub use locks::plain::{Plain, run_text};
pub use locks::purge::{FORGET_GRAIN, LOOK_AFTER};
pub use pause::pause;
pub use queues::{
    Calls, Entered, Found, QUEUE_VERSION, QueueDatabase, QueueTables, Settled, queue_capability,
};
pub use room::{Purpose, Room};
pub use schema::{Tables, VERSION, VERSION_WITH_HOLDS};
pub use settings::identifier;
pub use text::{Columns, Dialect, claim_bytes, client_number, micros, push_hex, signed};
pub use versions::{VERSIONS, Versions, known_version, present_version};
pub use wake::{Inbox, Notification};
