//! What waits to be sent: requests about entries, and what users ask of queues.

use std::collections::VecDeque;

use slab::Slab;

use super::{Entry, Key, Ledger};
use crate::client::batch::{Following, Lane, Lines};
use crate::client::queue_requests::{Pushing, Settling};
use crate::engine::Shard;
use crate::model::claim::Name;

/// Which shard a resource is on. It is asked under the lock of the ledger.
pub(crate) type ShardOf = Box<dyn Fn(&Name) -> Shard + Send + Sync>;

/// See the top of the file.
pub(crate) struct Lanes {
    of_entries: [Lines<Key>; Lane::OF_ENTRIES.len()],
    settlements: Lines<Settling>,
    pushes: Lines<Pushing>,
}

impl Lanes {
    /// Calls about entries follow each other like this. Of pushes and settlements one is under way to one shard.
    pub(super) fn new(following: Following) -> Lanes {
        let of_entries = std::array::from_fn(|_| Lines::new(following));
        Lanes { of_entries, settlements: Lines::new(Following::ALONE), pushes: Lines::new(Following::ALONE) }
    }
}

/// Returns which shard the request about an entry is for, if the entry is still there.
fn shard_of_entry<'a>(
    entries: &'a Slab<Entry>,
    shard_of: &'a ShardOf,
) -> impl Fn(&Key) -> Option<Shard> + 'a {
    |key| {
        let entry = entries.get(key.index as usize).filter(|entry| entry.generation == key.generation)?;
        Some(shard_of(entry.lease.resource()))
    }
}

fn shard_of_settling(shard_of: &ShardOf) -> impl Fn(&Settling) -> Option<Shard> {
    |settling| Some(shard_of(&settling.settle.queue))
}

fn shard_of_pushing(shard_of: &ShardOf) -> impl Fn(&Pushing) -> Option<Shard> {
    |pushing| Some(shard_of(&pushing.push.queue))
}

impl Ledger {
    /// Puts a request about an entry in line.
    pub(super) fn enqueue(&mut self, lane: Lane, key: Key) {
        let shard = (self.identity.shard_of)(self.entries[key.index as usize].lease.resource());
        self.lanes.of_entries[lane as usize].push(shard, key);
    }

    /// Puts a settlement in line. Gives it back if nothing is sent any more.
    pub(crate) fn enqueue_settling(&mut self, settling: Settling) -> Option<Settling> {
        if self.closed.is_some() {
            return Some(settling);
        }
        self.lanes.settlements.push((self.identity.shard_of)(&settling.settle.queue), settling);
        None
    }

    /// Puts a push in line. Gives it back if nothing is sent any more.
    pub(crate) fn enqueue_push(&mut self, pushing: Pushing) -> Option<Pushing> {
        if self.closed.is_some() {
            return Some(pushing);
        }
        self.lanes.pushes.push((self.identity.shard_of)(&pushing.push.queue), pushing);
        None
    }

    /// Puts back what was taken from the front of a line.
    pub(super) fn put_back(&mut self, lane: Lane, shard: Shard, taken: VecDeque<Key>) {
        self.lanes.of_entries[lane as usize].put_back(shard, taken);
    }

    /// Takes the first of a line of requests about entries.
    pub(super) fn next(&mut self, lane: Lane, shard: Shard) -> Option<Key> {
        let shard_of = shard_of_entry(&self.entries, &self.identity.shard_of);
        self.lanes.of_entries[lane as usize].pop(shard, &shard_of)
    }

    /// Takes up to `most` settlements that are to be sent to a shard.
    pub(crate) fn take_settlements(&mut self, shard: Shard, most: usize) -> Vec<Settling> {
        self.lanes.settlements.take(shard, most, &shard_of_settling(&self.identity.shard_of))
    }

    /// Takes up to `most` pushes that are to be sent to a shard.
    pub(crate) fn take_pushes(&mut self, shard: Shard, most: usize) -> Vec<Pushing> {
        self.lanes.pushes.take(shard, most, &shard_of_pushing(&self.identity.shard_of))
    }

    /// Returns in which lines something waits, in the order in which they are sent. If there is news then, something has gone over
    /// to one that may not be among them.
    pub(crate) fn lines(&mut self) -> Vec<(Lane, Shard)> {
        let shard_of = &self.identity.shard_of;
        let mut listed = Vec::new();
        for (lane, lines) in Lane::OF_ENTRIES.into_iter().zip(&mut self.lanes.of_entries) {
            lines.list(lane, &shard_of_entry(&self.entries, shard_of), &mut listed);
        }
        self.lanes.settlements.list(Lane::Settlements, &shard_of_settling(shard_of), &mut listed);
        self.lanes.pushes.list(Lane::Pushes, &shard_of_pushing(shard_of), &mut listed);
        listed
    }

    /// Whether there is something for a call in a line, beside those that are under way.
    pub(crate) fn may_call(&self, lane: Lane, shard: Shard) -> bool {
        match lane {
            Lane::Settlements => self.lanes.settlements.may_call(shard),
            Lane::Pushes => self.lanes.pushes.may_call(shard),
            of_entry => self.lanes.of_entries[of_entry as usize].may_call(shard),
        }
    }

    /// Notes that a call of so many requests is under way in a line.
    pub(crate) fn begin_call(&mut self, lane: Lane, shard: Shard, count: usize) {
        match lane {
            Lane::Settlements => self.lanes.settlements.begin_call(shard, count),
            Lane::Pushes => self.lanes.pushes.begin_call(shard, count),
            of_entry => self.lanes.of_entries[of_entry as usize].begin_call(shard, count),
        }
    }

    /// Notes that it is over. Then the lines are to be listed: what came meanwhile was no news.
    pub(crate) fn end_call(&mut self, lane: Lane, shard: Shard, count: usize) {
        match lane {
            Lane::Settlements => self.lanes.settlements.end_call(shard, count),
            Lane::Pushes => self.lanes.pushes.end_call(shard, count),
            of_entry => self.lanes.of_entries[of_entry as usize].end_call(shard, count),
        }
    }

    /// Returns whether something waits since this or [`Ledger::lines`] was asked, for which a call may go out.
    pub(crate) fn take_news(&mut self) -> bool {
        let Lanes { of_entries, settlements, pushes } = &mut self.lanes;
        let of_queues = settlements.take_news() | pushes.take_news();
        of_entries.iter_mut().fold(of_queues, |is_news, lines| lines.take_news() | is_news)
    }

    /// Takes what waits for queues, since nothing is sent any more.
    pub(super) fn close_lanes(&mut self) -> Lanes {
        std::mem::replace(&mut self.lanes, Lanes::new(Following::ALONE))
    }
}
