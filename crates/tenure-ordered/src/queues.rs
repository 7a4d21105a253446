//! Queues on an ordered store: the model of `tenure_core::model::queue::step` itself, on rows in the order of their keys.
//!
//! A queue has one small *head*, which every change of the queue changes. A client keeps what it has read or written
//! ([`row_cache`]) for as long as the head is the same. It does the model's step on that, reads what it lacks and begins anew, and
//! stores what the step changed in one transaction that asks whether the head is still the same. So nothing is handed out
//! twice, a client that has a queue to itself needs one round trip for a batch, and one whose transaction fails is given what
//! it has to know for the next try in the answer.
//!
//! A store may come to refuse all writes but deletions. Then a delivery lasts by a sign of its consumer's session, and is acknowledged by
//! what is not there any more ([`signs`]).
//!
//! Time is the store's ([`Moment`]): what is judged to be due is due by its earliest, and what is to last is counted from its
//! latest. How a store that shows no clock has one is its own affair.

mod deliveries;
mod engine;
mod pages;
mod row_cache;
mod rows;
mod signs;
mod sorted;
mod store;
#[cfg(test)]
mod tests;

pub use engine::Queues;
pub use pages::{Load, Missing, Page, Pages, Rewritten, Unread, is_apart};
pub use row_cache::{Found, Key, KeyRange, Value};
pub use rows::clock_of_head;
pub use store::{Change, Changed, Fit, Moment, QueueStore, Removal, Snapshot, Standing};
