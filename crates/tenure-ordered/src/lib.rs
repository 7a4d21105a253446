//! What the engines of tenure on ordered stores share: etcd and ZooKeeper keep keys in the order in which they were
//! made, and end those of a client that is gone. A claim is such a key, an *entry* in the line of its resource, and
//! the entries before it decide whether it holds: the rule is [`tenure_core::model::line`], and nothing is written to
//! grant.
//!
//! [`Ordered`] is the engine; a [`Store`] says how entries are made, listed, watched and removed. What a client knows of
//! its own claims (`locks/own.rs`) is no truth: if it is lost, the client's [`SessionId`] ends in the store, and all its entries with it.
//!
//! A store is too long for an example here: `locks/store.rs` of `tenure-etcd` is one.
//!
//! | verb | calls, one after the other |
//! | --- | --- |
//! | a claim that is granted at once | 1 |
//! | a claim that waits | 1, and a watch on one entry |
//! | hand-over | the watch fires, 1 read |
//! | a release | 1 |
//! | a renewal | 1 for each batch, beside one heartbeat for each session |
//!
//! Sources: the recipe for locks in ZooKeeper's documentation (a sequential node each, watch the predecessor); etcd's
//! `concurrency` package (order by create revision); and what Jepsen found in etcd 3.4.3, that a waiter must ask for
//! its lease again after it was woken.
//!
//! No example of each type: they are what [`Ordered`] or [`Queues`] and one store say to each other, as they do there.

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod locks;
mod queues;
mod store;
mod wake;

pub use locks::ordered::Ordered;
pub use queues::{
    Change, Changed, Fit, Found, Key, KeyRange, Load, Missing, Moment, Page, Pages, QueueStore, Queues,
    Removal, Rewritten, Snapshot, Standing, Unread, Value, clock_of_head, is_apart,
};
pub use store::{
    Adopted, Entered, Entrance, Leaving, Left, Look, Mine, Presence, Resting, Rule, SessionId, Store, Wait,
};
pub use wake::Wakes;
