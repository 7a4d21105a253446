//! What a store keeps for each resource, and its versioned encoding.
//!
//! [`Record`] is what [`step`](crate::model::step::step) asks of a store: each question has an index behind it in a
//! store that must bear 100,000 waiters. [`PlainRecord`] answers from vectors: it is the oracle of the tests,
//! the whole of the `memory:` engine, and what a store may keep in one row while a record is small.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::model::claim::{ClaimId, ClientId, HoldLimits, Kind, Label};
use crate::model::token::Token;

/// Up to this place a waiter's position is exact; beyond it, claims that withdrew may still be counted. Counting
/// costs a read of each waiter ahead, on every heartbeat.
pub const POSITION_EXACT_MAX: u32 = 64;

/// The format of [`PlainRecord::encode`]. Readers refuse any other.
const FORMAT: u8 = 1;

/// The part of a record that every step reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// What the resource is.
    pub kind: Kind,
    /// How many units it has.
    pub capacity: u32,
    /// The largest token given.
    pub last_token: Token,
    /// How many units are held or rest. More than `capacity` after a resize.
    pub used: u32,
    /// How many claims wait.
    pub waiting: u32,
    /// The place in the queue that the next waiter gets. Never used twice.
    pub next_place: u64,
    /// Slots at and above this number have never been granted, so they have been free longest.
    pub fresh_slots: u32,
    /// When the record last became idle; meaningless while it is not.
    pub idle_since: Timestamp,
}

impl Head {
    /// The head of a record of which nothing is stored yet.
    pub fn new(kind: Kind, capacity: u32) -> Head {
        Head {
            kind,
            capacity,
            last_token: Token::ZERO,
            used: 0,
            waiting: 0,
            next_place: 1,
            fresh_slots: 0,
            idle_since: Timestamp::default(),
        }
    }

    /// Whether there are no holds, no resting units and no waiters.
    pub fn is_idle(&self) -> bool {
        self.used == 0 && self.waiting == 0
    }
}

/// Units that are not free: held by a claim, or resting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The claim that holds them. `None`: they rest.
    pub claim: Option<ClaimId>,
    /// The client of that claim.
    pub client: ClientId,
    /// How many units.
    pub weight: u32,
    /// Which slot, for a slot pool.
    pub slot: Option<u32>,
    /// The token of the grant: unique in the record, and so the key of a hold.
    pub token: Token,
    /// When it was granted.
    pub granted_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Timestamp,
    /// Whether its holder has been heard of since the grant.
    pub is_confirmed: bool,
    /// How far a renewal moves `expires_at`.
    pub ttl: Duration,
    /// Its other limits.
    pub limits: HoldLimits,
    /// The label of the holder, for operators.
    pub label: Label,
}

impl Hold {
    /// When renewal stops to help.
    pub fn max_until(&self) -> Option<Timestamp> {
        self.limits.max_hold.map(|max_hold| self.granted_at + max_hold)
    }
}

/// A claim in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its place: unique in the record, and so the key of a waiter. The smallest is the head.
    pub place: u64,
    /// The claim.
    pub claim: ClaimId,
    /// The client to wake.
    pub client: ClientId,
    /// How many units it wants.
    pub weight: u32,
    /// When it ends without a heartbeat.
    pub expires_at: Timestamp,
    /// The ttl of the hold it will get.
    pub ttl: Duration,
    /// The other limits of that hold.
    pub limits: HoldLimits,
    /// The label of the waiter, for operators.
    pub label: Label,
    /// Whether a fresh value answers it as well.
    pub unless_fresh: bool,
}

/// The value of a resource as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The bytes.
    pub bytes: Arc<[u8]>,
    /// The token under which they were published.
    pub token: Token,
    /// Until when they are fresh.
    pub fresh_until: Timestamp,
    /// Until when they are kept. `None`: as long as the hold with that token.
    pub keep_until: Option<Timestamp>,
}

/// A resource's record, as a store answers for it. Keys: a hold's token, a waiter's place, a claim id.
///
/// Every question should cost O(log n) but for the two that say otherwise.
pub trait Record {
    /// Why the store could not answer.
    type Error;

    /// Returns the head, none if nothing is stored.
    fn head(&self) -> Result<Option<Head>, Self::Error>;
    /// Stores the head.
    fn set_head(&mut self, head: Head) -> Result<(), Self::Error>;

    /// Returns the hold of a claim.
    fn hold_of(&self, claim: ClaimId) -> Result<Option<Hold>, Self::Error>;
    /// Returns the hold with a token.
    fn hold(&self, token: Token) -> Result<Option<Hold>, Self::Error>;
    /// Returns the hold that ends first; of several, the one with the smallest token.
    fn next_hold_to_end(&self) -> Result<Option<Hold>, Self::Error>;
    /// Returns up to `most` holds, by token.
    fn holds(&self, most: usize) -> Result<Vec<Hold>, Self::Error>;
    /// Stores a hold, in place of the one with its token.
    fn put_hold(&mut self, hold: Hold) -> Result<(), Self::Error>;
    /// Removes the hold with a token.
    fn remove_hold(&mut self, token: Token) -> Result<(), Self::Error>;
    /// Whether a slot is held or rests.
    fn is_slot_held(&self, slot: u32) -> Result<bool, Self::Error>;

    /// Returns the waiter of a claim.
    fn waiter_of(&self, claim: ClaimId) -> Result<Option<Waiter>, Self::Error>;
    /// Returns the first waiter behind a place; behind 0 is the head of the queue.
    fn waiter_behind(&self, place: u64) -> Result<Option<Waiter>, Self::Error>;
    /// Counts the waiters ahead of a place, up to `most` of them.
    fn waiters_ahead(&self, place: u64, most: u32) -> Result<u32, Self::Error>;
    /// Returns the waiter that ends first; of several, the one with the smallest place.
    fn next_waiter_to_end(&self) -> Result<Option<Waiter>, Self::Error>;
    /// Returns up to `most` waiters, by place.
    fn waiters(&self, most: usize) -> Result<Vec<Waiter>, Self::Error>;
    /// Stores a waiter, in place of the one at its place.
    fn put_waiter(&mut self, waiter: Waiter) -> Result<(), Self::Error>;
    /// Removes the waiter at a place.
    fn remove_waiter(&mut self, place: u64) -> Result<(), Self::Error>;

    /// Returns every claim of a client, holder or waiter. O(n): only the death of a client asks.
    fn claims_of(&self, client: ClientId) -> Result<Vec<ClaimId>, Self::Error>;

    /// Whether a claim is remembered as finished.
    fn is_finished(&self, claim: ClaimId) -> Result<bool, Self::Error>;
    /// Remembers a claim as finished.
    fn put_finished(&mut self, claim: ClaimId, until: Timestamp) -> Result<(), Self::Error>;
    /// Forgets finished claims whose time is over.
    fn forget_finished(&mut self, now: Timestamp) -> Result<(), Self::Error>;
    /// Returns until when the last of the finished claims is remembered.
    fn finished_until(&self) -> Result<Option<Timestamp>, Self::Error>;

    /// Adds a slot behind the others that are free again.
    fn push_free_slot(&mut self, slot: u32) -> Result<(), Self::Error>;
    /// Takes the slot that has been free again for longest.
    fn pop_free_slot(&mut self) -> Result<Option<u32>, Self::Error>;
    /// Removes the free slots at and above a number. O(n): only a resize, or another kind, asks.
    fn remove_free_slots(&mut self, from: u32) -> Result<(), Self::Error>;

    /// Returns the value.
    fn value(&self) -> Result<Option<Value>, Self::Error>;
    /// Stores or removes the value.
    fn set_value(&mut self, value: Option<Value>) -> Result<(), Self::Error>;
}

/// A record in vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainRecord {
    head: Option<Head>,
    /// By token.
    holds: Vec<Hold>,
    /// By place.
    waiters: Vec<Waiter>,
    finished: Vec<(ClaimId, Timestamp)>,
    free_slots: VecDeque<u32>,
    value: Option<Value>,
}

/// Why stored bytes are not a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// They were written by a version of tenure with another format.
    Format(u8),
    /// They are damaged.
    Damaged,
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecodeError::Format(format) => write!(f, "format {format}, this version reads {FORMAT}"),
            DecodeError::Damaged => f.write_str("the stored record is damaged"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl PlainRecord {
    /// Appends the stored form to `to`: one byte of format, then the fields in order (postcard).
    pub fn encode(&self, mut to: Vec<u8>) -> Vec<u8> {
        to.push(FORMAT);
        postcard::to_extend(self, to).expect("a vector takes any number of bytes")
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`DecodeError`] for what [`PlainRecord::encode`] did not write.
    pub fn decode(bytes: &[u8]) -> Result<PlainRecord, DecodeError> {
        match bytes.split_first() {
            Some((&FORMAT, rest)) => match postcard::take_from_bytes(rest) {
                Ok((record, [])) => Ok(record),
                Ok(_) | Err(_) => Err(DecodeError::Damaged),
            },
            Some((&format, _)) => Err(DecodeError::Format(format)),
            None => Err(DecodeError::Damaged),
        }
    }

    /// Counts what makes the record large: holds, waiters, finished claims and free slots.
    pub fn entries(&self) -> usize {
        self.holds.len() + self.waiters.len() + self.finished.len() + self.free_slots.len()
    }

    /// Copies everything into another record, which must be empty.
    pub fn copy_to<R: Record>(&self, other: &mut R) -> Result<(), R::Error> {
        if let Some(head) = &self.head {
            other.set_head(head.clone())?;
        }
        for hold in &self.holds {
            other.put_hold(hold.clone())?;
        }
        for waiter in &self.waiters {
            other.put_waiter(waiter.clone())?;
        }
        for &(claim, until) in &self.finished {
            other.put_finished(claim, until)?;
        }
        for &slot in &self.free_slots {
            other.push_free_slot(slot)?;
        }
        if self.value.is_some() {
            other.set_value(self.value.clone())?;
        }
        Ok(())
    }
}

impl Record for PlainRecord {
    type Error = Infallible;

    fn head(&self) -> Result<Option<Head>, Infallible> {
        Ok(self.head.clone())
    }

    fn set_head(&mut self, head: Head) -> Result<(), Infallible> {
        self.head = Some(head);
        Ok(())
    }

    fn hold_of(&self, claim: ClaimId) -> Result<Option<Hold>, Infallible> {
        Ok(self.holds.iter().find(|hold| hold.claim == Some(claim)).cloned())
    }

    fn hold(&self, token: Token) -> Result<Option<Hold>, Infallible> {
        Ok(self.holds.iter().find(|hold| hold.token == token).cloned())
    }

    fn next_hold_to_end(&self) -> Result<Option<Hold>, Infallible> {
        Ok(self.holds.iter().min_by_key(|hold| (hold.expires_at, hold.token)).cloned())
    }

    fn holds(&self, most: usize) -> Result<Vec<Hold>, Infallible> {
        Ok(self.holds.iter().take(most).cloned().collect())
    }

    fn put_hold(&mut self, hold: Hold) -> Result<(), Infallible> {
        match self.holds.binary_search_by_key(&hold.token, |hold| hold.token) {
            Ok(at) => self.holds[at] = hold,
            Err(at) => self.holds.insert(at, hold),
        }
        Ok(())
    }

    fn remove_hold(&mut self, token: Token) -> Result<(), Infallible> {
        self.holds.retain(|hold| hold.token != token);
        Ok(())
    }

    fn is_slot_held(&self, slot: u32) -> Result<bool, Infallible> {
        Ok(self.holds.iter().any(|hold| hold.slot == Some(slot)))
    }

    fn waiter_of(&self, claim: ClaimId) -> Result<Option<Waiter>, Infallible> {
        Ok(self.waiters.iter().find(|waiter| waiter.claim == claim).cloned())
    }

    fn waiter_behind(&self, place: u64) -> Result<Option<Waiter>, Infallible> {
        Ok(self.waiters.iter().find(|waiter| waiter.place > place).cloned())
    }

    fn waiters_ahead(&self, place: u64, most: u32) -> Result<u32, Infallible> {
        let ahead = self.waiters.iter().filter(|waiter| waiter.place < place).take(most as usize).count();
        Ok(ahead as u32)
    }

    fn next_waiter_to_end(&self) -> Result<Option<Waiter>, Infallible> {
        Ok(self.waiters.iter().min_by_key(|waiter| (waiter.expires_at, waiter.place)).cloned())
    }

    fn waiters(&self, most: usize) -> Result<Vec<Waiter>, Infallible> {
        Ok(self.waiters.iter().take(most).cloned().collect())
    }

    fn put_waiter(&mut self, waiter: Waiter) -> Result<(), Infallible> {
        match self.waiters.binary_search_by_key(&waiter.place, |waiter| waiter.place) {
            Ok(at) => self.waiters[at] = waiter,
            Err(at) => self.waiters.insert(at, waiter),
        }
        Ok(())
    }

    fn remove_waiter(&mut self, place: u64) -> Result<(), Infallible> {
        self.waiters.retain(|waiter| waiter.place != place);
        Ok(())
    }

    fn claims_of(&self, client: ClientId) -> Result<Vec<ClaimId>, Infallible> {
        let holds = self.holds.iter().filter(|hold| hold.client == client).filter_map(|hold| hold.claim);
        let waiters = self.waiters.iter().filter(|waiter| waiter.client == client);
        Ok(holds.chain(waiters.map(|waiter| waiter.claim)).collect())
    }

    fn is_finished(&self, claim: ClaimId) -> Result<bool, Infallible> {
        Ok(self.finished.iter().any(|(finished, _)| *finished == claim))
    }

    fn put_finished(&mut self, claim: ClaimId, until: Timestamp) -> Result<(), Infallible> {
        self.finished.retain(|(finished, _)| *finished != claim);
        self.finished.push((claim, until));
        Ok(())
    }

    fn forget_finished(&mut self, now: Timestamp) -> Result<(), Infallible> {
        self.finished.retain(|(_, until)| *until > now);
        Ok(())
    }

    fn finished_until(&self) -> Result<Option<Timestamp>, Infallible> {
        Ok(self.finished.iter().map(|(_, until)| *until).max())
    }

    fn push_free_slot(&mut self, slot: u32) -> Result<(), Infallible> {
        self.free_slots.push_back(slot);
        Ok(())
    }

    fn pop_free_slot(&mut self) -> Result<Option<u32>, Infallible> {
        Ok(self.free_slots.pop_front())
    }

    fn remove_free_slots(&mut self, from: u32) -> Result<(), Infallible> {
        self.free_slots.retain(|slot| *slot < from);
        Ok(())
    }

    fn value(&self) -> Result<Option<Value>, Infallible> {
        Ok(self.value.clone())
    }

    fn set_value(&mut self, value: Option<Value>) -> Result<(), Infallible> {
        self.value = value;
        Ok(())
    }
}
