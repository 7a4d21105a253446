//! What a store keeps for each queue.
//!
//! A queue is a set of *lanes*: one for each group that has items, and one for each item without a group. Only the first
//! item of a lane can be handed out, and a lane is ready at one moment: when its first item is due, or its delivery ends, or its
//! interval is over. So one index, of the lanes by that moment, answers every take.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::item::{ItemContext, ItemId};
use crate::clock::Timestamp;
use crate::model::claim::{ClaimId, ClientId, Label, Name};
use crate::model::token::Token;

/// The part of a queue that every step reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The number of the last item.
    pub last_item: ItemId,
    /// The largest token given.
    pub last_token: Token,
    /// How many items there are that are not dead.
    pub items: u64,
    /// How many of them have been handed out.
    pub in_flight: u64,
    /// How many are dead.
    pub dead: u64,
    /// Until when nothing is handed out, by the interval of the whole queue.
    pub rests_until: Timestamp,
    /// The clients that asked in vain, in that order. They come in that order when an item is ready, and the first two are woken
    /// when that will be sooner.
    pub idle: Vec<Idle>,
    /// When something will be ready, as the watching clients know. `None`: they know of nothing.
    pub watched: Option<Timestamp>,
}

/// A client that asked in vain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// The client.
    pub client: ClientId,
    /// When it is taken to be gone.
    pub until: Timestamp,
}

/// What stands in line: a group, or an item without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneId {
    /// The items of a group.
    Group(Name),
    /// One item.
    Item(ItemId),
}

impl LaneId {
    /// Returns the lane of an item.
    pub fn of(group: Option<&Name>, item: ItemId) -> LaneId {
        group.map_or(LaneId::Item(item), |group| LaneId::Group(group.clone()))
    }
}

/// The state of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// Its first item. `None`: it is empty, and only rests.
    pub first: Option<ItemId>,
    /// When the first item can be handed out, unless its delivery is renewed.
    pub ready_at: Timestamp,
    /// How often the first item has been handed out.
    pub attempts: u32,
    /// Until when nothing is handed out, by the interval of the group.
    pub rests_until: Timestamp,
    /// The delivery of the first item.
    pub delivery: Option<Handed>,
}

impl Lane {
    /// Where it stands in the index: what became ready first comes first.
    pub fn place(&self) -> (Timestamp, Option<ItemId>) {
        (self.ready_at, self.first)
    }
}

/// The delivery of an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// The claim under which it was taken.
    pub claim: ClaimId,
    /// The client that took it.
    pub client: ClientId,
    /// When this ends by itself.
    pub expires_at: Timestamp,
    /// How far a renewal moves that.
    pub ttl: Duration,
    /// The label of the consumer, for operators.
    pub label: Label,
}

/// An item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its number.
    pub id: ItemId,
    /// Its group.
    pub group: Option<Name>,
    /// What was pushed.
    pub payload: Arc<[u8]>,
    /// What travels with it: the context of the first push, if a dedup id was pushed again.
    pub context: Option<ItemContext>,
    /// When it was pushed.
    pub pushed_at: Timestamp,
    /// Until when it is held back.
    pub due_at: Timestamp,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// What died.
    pub item: Item,
    /// How often it had been handed out.
    pub attempts: u32,
    /// Why.
    pub reason: String,
    /// When.
    pub died_at: Timestamp,
}

/// A dedup id that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// What was pushed under it.
    pub item: ItemId,
    /// Until when it is remembered even if the item is gone.
    pub until: Timestamp,
}

/// What became of a delivery whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// It has ended.
    Ended,
    /// The consumer could not write in the record that it lasts, and has written so elsewhere: it begins anew.
    Lasts,
    /// Its item was acknowledged in the same way.
    Acknowledged,
}

/// What [`step`](super::step) asks of a store about one queue. Each question has an index behind it.
pub trait QueueRecord {
    /// Why the store does not answer.
    type Error;

    /// How many lanes one step clears at most whose time is over: worn-out items, and groups that have rested. The next step goes on.
    /// Without a bound, a fleet that died would leave behind a step that is too large for a store's transaction.
    fn cleared_max(&self) -> usize {
        usize::MAX
    }

    /// Returns the head.
    fn head(&mut self) -> Result<Head, Self::Error>;
    /// Stores the head.
    fn set_head(&mut self, head: Head) -> Result<(), Self::Error>;

    /// Returns a lane.
    fn lane(&mut self, id: &LaneId) -> Result<Option<Lane>, Self::Error>;
    /// Returns the lane with the smallest [`Lane::place`].
    fn next_lane(&mut self) -> Result<Option<(LaneId, Lane)>, Self::Error>;
    /// Stores or removes a lane. `was` is what is stored of it.
    fn set_lane(&mut self, id: &LaneId, was: Option<&Lane>, lane: Option<Lane>) -> Result<(), Self::Error>;

    /// Returns the lane of a claim.
    fn lane_of(&mut self, claim: ClaimId) -> Result<Option<LaneId>, Self::Error>;
    /// Notes or forgets the lane of a claim.
    fn set_lane_of(&mut self, claim: ClaimId, lane: Option<&LaneId>) -> Result<(), Self::Error>;
    /// Returns the claims under which a client has items.
    fn claims_of(&mut self, client: ClientId) -> Result<Vec<ClaimId>, Self::Error>;

    /// Says what became of a delivery whose time is over. Most stores know no more than that it is.
    fn overdue(&mut self, claim: ClaimId, item: ItemId) -> Result<Overdue, Self::Error> {
        let _ = (claim, item);
        Ok(Overdue::Ended)
    }

    /// Returns an item that is not dead.
    fn item(&mut self, id: ItemId) -> Result<Option<Item>, Self::Error>;
    /// Returns the item with which a lane begins. A store where others may write refuses if it is not there: the lane would stay
    /// ready, and nothing would ever come of it.
    fn first_item(&mut self, id: ItemId) -> Result<Option<Item>, Self::Error> {
        self.item(id)
    }
    /// Returns the first item that is not dead after a number.
    fn item_after(&mut self, after: Option<ItemId>) -> Result<Option<Item>, Self::Error>;
    /// Returns the first item of a group after a number.
    fn item_of(&mut self, group: &Name, after: ItemId) -> Result<Option<ItemId>, Self::Error>;
    /// Stores an item.
    fn put_item(&mut self, item: Item) -> Result<(), Self::Error>;
    /// Removes an item and returns it.
    fn remove_item(&mut self, id: ItemId) -> Result<Option<Item>, Self::Error>;

    /// Returns the first dead letter after a number.
    fn dead_after(&mut self, after: Option<ItemId>) -> Result<Option<Dead>, Self::Error>;
    /// Stores a dead letter.
    fn put_dead(&mut self, dead: Dead) -> Result<(), Self::Error>;
    /// Removes a dead letter and returns it.
    fn remove_dead(&mut self, id: ItemId) -> Result<Option<Dead>, Self::Error>;

    /// Returns what is remembered of a dedup id.
    fn dedup(&mut self, id: &Name) -> Result<Option<Remembered>, Self::Error>;
    /// Returns the dedup id that may be forgotten first.
    fn next_dedup(&mut self) -> Result<Option<(Name, Remembered)>, Self::Error>;
    /// Remembers or forgets a dedup id. `was` is what is stored of it.
    fn set_dedup(
        &mut self,
        id: &Name,
        was: Option<Remembered>,
        remembered: Option<Remembered>,
    ) -> Result<(), Self::Error>;
}

/// A queue in memory: the oracle of the tests, and the whole of the engine `memory:`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainQueue {
    head: Head,
    lanes: BTreeMap<LaneId, Lane>,
    by_place: BTreeMap<(Timestamp, Option<ItemId>, LaneId), ()>,
    claims: BTreeMap<ClaimId, LaneId>,
    items: BTreeMap<ItemId, Item>,
    groups: BTreeMap<(Name, ItemId), ()>,
    dead: BTreeMap<ItemId, Dead>,
    dedups: BTreeMap<Name, Remembered>,
    dedups_by_end: BTreeMap<(Timestamp, Name), ()>,
}

impl PlainQueue {
    /// Whether nothing would be missed if it were forgotten: a later token and number come from the clock.
    pub fn is_idle(&self) -> bool {
        self.lanes.is_empty() && self.dead.is_empty() && self.dedups.is_empty() && self.head.idle.is_empty()
    }
}

impl PlainQueue {
    /// Whether an item is handed out under this claim at `now`.
    pub fn is_handed_out(&self, claim: ClaimId, now: Timestamp) -> bool {
        let lane = self.claims.get(&claim).and_then(|id| self.lanes.get(id));
        lane.is_some_and(|lane| lane.ready_at > now)
    }
}

impl QueueRecord for PlainQueue {
    type Error = Infallible;

    fn head(&mut self) -> Result<Head, Infallible> {
        Ok(self.head.clone())
    }

    fn set_head(&mut self, head: Head) -> Result<(), Infallible> {
        self.head = head;
        Ok(())
    }

    fn lane(&mut self, id: &LaneId) -> Result<Option<Lane>, Infallible> {
        Ok(self.lanes.get(id).cloned())
    }

    fn next_lane(&mut self) -> Result<Option<(LaneId, Lane)>, Infallible> {
        let first = self.by_place.first_key_value();
        Ok(first.map(|((_, _, id), ())| (id.clone(), self.lanes[id].clone())))
    }

    fn set_lane(&mut self, id: &LaneId, was: Option<&Lane>, lane: Option<Lane>) -> Result<(), Infallible> {
        let key = |lane: &Lane| (lane.ready_at, lane.first, id.clone());
        debug_assert_eq!(was, self.lanes.get(id), "what is stored of {id:?}");
        was.map(|was| self.by_place.remove(&key(was)));
        match lane {
            Some(lane) => {
                self.by_place.insert(key(&lane), ());
                self.lanes.insert(id.clone(), lane);
            }
            None => drop(self.lanes.remove(id)),
        }
        Ok(())
    }

    fn lane_of(&mut self, claim: ClaimId) -> Result<Option<LaneId>, Infallible> {
        Ok(self.claims.get(&claim).cloned())
    }

    fn set_lane_of(&mut self, claim: ClaimId, lane: Option<&LaneId>) -> Result<(), Infallible> {
        match lane {
            Some(lane) => self.claims.insert(claim, lane.clone()),
            None => self.claims.remove(&claim),
        };
        Ok(())
    }

    fn claims_of(&mut self, client: ClientId) -> Result<Vec<ClaimId>, Infallible> {
        let handed = self.lanes.values().filter_map(|lane| lane.delivery.as_ref());
        Ok(handed.filter(|handed| handed.client == client).map(|handed| handed.claim).collect())
    }

    fn item(&mut self, id: ItemId) -> Result<Option<Item>, Infallible> {
        Ok(self.items.get(&id).cloned())
    }

    fn item_after(&mut self, after: Option<ItemId>) -> Result<Option<Item>, Infallible> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(self.items.range((from, Bound::Unbounded)).next().map(|(_, item)| item.clone()))
    }

    fn item_of(&mut self, group: &Name, after: ItemId) -> Result<Option<ItemId>, Infallible> {
        let from = Bound::Excluded((group.clone(), after));
        let next = self.groups.range((from, Bound::Unbounded)).next();
        Ok(next.filter(|((of, _), ())| of == group).map(|((_, item), ())| *item))
    }

    fn put_item(&mut self, item: Item) -> Result<(), Infallible> {
        if let Some(group) = &item.group {
            self.groups.insert((group.clone(), item.id), ());
        }
        self.items.insert(item.id, item);
        Ok(())
    }

    fn remove_item(&mut self, id: ItemId) -> Result<Option<Item>, Infallible> {
        let item = self.items.remove(&id);
        if let Some(Item { group: Some(group), .. }) = &item {
            self.groups.remove(&(group.clone(), id));
        }
        Ok(item)
    }

    fn dead_after(&mut self, after: Option<ItemId>) -> Result<Option<Dead>, Infallible> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(self.dead.range((from, Bound::Unbounded)).next().map(|(_, dead)| dead.clone()))
    }

    fn put_dead(&mut self, dead: Dead) -> Result<(), Infallible> {
        self.dead.insert(dead.item.id, dead);
        Ok(())
    }

    fn remove_dead(&mut self, id: ItemId) -> Result<Option<Dead>, Infallible> {
        Ok(self.dead.remove(&id))
    }

    fn dedup(&mut self, id: &Name) -> Result<Option<Remembered>, Infallible> {
        Ok(self.dedups.get(id).copied())
    }

    fn next_dedup(&mut self) -> Result<Option<(Name, Remembered)>, Infallible> {
        let first = self.dedups_by_end.first_key_value();
        Ok(first.map(|((_, id), ())| (id.clone(), self.dedups[id])))
    }

    fn set_dedup(
        &mut self,
        id: &Name,
        was: Option<Remembered>,
        remembered: Option<Remembered>,
    ) -> Result<(), Infallible> {
        was.map(|was| self.dedups_by_end.remove(&(was.until, id.clone())));
        match remembered {
            Some(remembered) => {
                self.dedups_by_end.insert((remembered.until, id.clone()), ());
                self.dedups.insert(id.clone(), remembered);
            }
            None => drop(self.dedups.remove(id)),
        }
        Ok(())
    }
}
