//! The queues: what is the same on every database. Each verb is statements of the database's own, made for sets of rows:
//! to load and write records around [`step`](tenure_core::model::queue::step) would cost a queue half of its speed.
//!
//! # Rows
//! An item is a row, and the state of its lane stands in the row of the lane's first item: that one has a `ready_at`. So an
//! item without a group is one row, from its push to its end. A group with items has a row beside them, which is its lock.
//!
//! # Locks
//! A transaction that puts an item into a group or takes one out of it locks the group's row first, and only then
//! reads the group. A push that waits for an acknowledgement of the last item finds the group gone, and makes it
//! again; an acknowledgement that waits for a push finds the item that was pushed. The order is: dedup ids, dead
//! letters, groups (by queue and name), items (by number). A take locks items alone, and never waits: it passes over
//! rows that another transaction has locked. So it may not end an item's life, which would need the group's lock: a
//! client that finds an item that was handed out too often ends it in a transaction of its own, and polls again.
//!
//! # Waking
//! A client that took less than it wanted notes itself in the table of idle clients, *and then polls again*; a client
//! that makes something ready commits, *and then reads that table*. So at least one of the two sees the other. A push
//! may read it within its own statement, and wake the clients that it finds when it is committed; then it reads once
//! more a moment later, for many pushes together, since a client may have become idle between the two.

mod forget;
mod idle;
mod look;
mod schema;
mod verbs;

use std::future::Future;
use std::time::Duration;

use tenure_core::engine::queue::{
    Dispatched, ItemId, Push, Pushed, QueueCapability, Settle, SettleAnswer, Take, Which,
};
use tenure_core::model::claim::{ClaimId, Name};

pub(crate) use idle::Idle;
pub use schema::{QUEUE_VERSION, QueueTables};
pub use verbs::queue_capability;
pub(crate) use verbs::{Queued, Queues};

use crate::database::Database;
use crate::fault::Fault;

/// The clients to wake, behind a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// In these queues something may be ready: one idle client of each is woken, and is not idle any more.
    pub one: Vec<Name>,
    /// In these something will be: the clients that watch for what is due are woken.
    pub watchers: Vec<Name>,
}

impl Calls {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.one.is_empty() && self.watchers.is_empty()
    }
}

/// What became of pushes.
#[derive(Clone, Debug, Default)]
pub struct Entered {
    /// The answers, in order.
    pub pushed: Vec<Pushed>,
    /// No client was idle when this began, and none was woken: clients that became idle before it was committed are
    /// to be called yet.
    pub calls_later: bool,
}

/// What a take found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// What was handed out, in order.
    pub items: Vec<Dispatched>,
    /// What has been handed out too often, and stands in the way.
    pub worn: Vec<ItemId>,
    /// After how long something else can be taken, as far as it is known.
    pub next_in: Option<Duration>,
    /// More is ready, and another client is idle.
    pub is_for_others: bool,
}

/// What became of settlements.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// The answers, in order.
    pub answers: Vec<SettleAnswer>,
    /// In these queues something has become ready.
    pub ready: Vec<Name>,
}

/// A database with queues beside its locks: [`Hosted::with_queues`](crate::Hosted::with_queues). All of these are done wholly or not at all.
pub trait QueueDatabase: Database {
    /// What its queues can do.
    fn queue_capability(&self) -> &QueueCapability;

    /// The names of the queues' tables.
    fn queue_tables(&self) -> &QueueTables;

    /// Makes the tables of the queues if they are not there, gives those of an older version what they lack, if this user may, and refuses
    /// those of another version.
    fn ensure_queues(&self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Whether the tables keep contexts: those that an older version made do not before [`ensure_queues`](Self::ensure_queues) has changed them.
    fn keeps_contexts(&self) -> bool;

    /// Puts items in line, and wakes the clients that it concerns. No dedup id comes twice.
    fn enter(&self, pushes: &[&Push], calls: &Calls) -> impl Future<Output = Result<Entered, Fault>> + Send;

    /// Hands out what is ready, under some of the claims of a take.
    fn hand_out(&self, take: &Take, claims: &[ClaimId]) -> impl Future<Output = Result<Found, Fault>> + Send;

    /// Extends deliveries, and returns for how long those that had not ended.
    fn extend(
        &self,
        claims: &[ClaimId],
    ) -> impl Future<Output = Result<Vec<(ClaimId, Duration)>, Fault>> + Send;

    /// Ends deliveries. No claim comes twice.
    fn settle_all(&self, settlements: &[&Settle]) -> impl Future<Output = Result<Settled, Fault>> + Send;

    /// Makes those of these items dead letters that are ready and have been handed out so often.
    fn dead_letter(
        &self,
        queue: &Name,
        items: &[ItemId],
        attempts: u32,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Puts the oldest dead letters in line again, or one.
    fn replay_some(
        &self,
        queue: &Name,
        item: Option<ItemId>,
        most: usize,
    ) -> impl Future<Output = Result<usize, Fault>> + Send;

    /// Removes those of these items that no consumer has.
    fn remove(
        &self,
        queue: &Name,
        which: Which,
        items: &[ItemId],
    ) -> impl Future<Output = Result<usize, Fault>> + Send;

    /// Notes that this client is idle, and returns how many others are for longer: they poll before it when something is
    /// due. Not called where clients cannot be woken.
    fn note_idle(&self, queue: &Name) -> impl Future<Output = Result<usize, Fault>> + Send;

    /// Forgets that this client is idle.
    fn unnote_idle(&self, queue: &Name) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Forgets that those are idle who were noted before this client: they have not come for what was due. They are woken once more, and
    /// one that is only late is noted again then. Not called where clients cannot be woken.
    fn pass_over(&self, queue: &Name) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Wakes clients.
    fn call(&self, calls: &Calls) -> impl Future<Output = Result<(), Fault>> + Send;
}
