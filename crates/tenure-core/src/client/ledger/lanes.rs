//! What waits to be sent: a lane for each verb, and in each lane a line for each shard.
//!
//! So nothing stands behind what is slower than itself: not behind a server that hangs, and a renewal of a lease not
//! behind the heartbeats of waiters. Those cost a store several times as much, and may wait for its replicas.
//!
//! Which shard a resource is on may change while its requests stand in line. Then they go over to the line of the new
//! one, in their order, before anything else is sent.

use std::collections::VecDeque;

use super::{Key, Ledger};
use crate::engine::Shard;
use crate::model::claim::Name;

/// A call behind another one in its line carries at least so many. Measured on Redis with 8 to 1,024 tasks: with 4 and
/// two calls, pairs a second are 1.15 to 1.3 times as many; more calls, or fewer requests in each, give no more.
const SECOND_CALL_MIN: usize = 4;

/// Which shard a resource is on. It is asked under the lock of the ledger.
pub(crate) type ShardOf = Box<dyn Fn(&Name) -> Shard + Send + Sync>;

/// What kind of request stands in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Of what is held, or granted.
    Renewals,
    /// Renewals of what was taken from queues.
    Deliveries,
    Releases,
    Claims,
    /// Renewals of waiters.
    Heartbeats,
}

impl Lane {
    /// All of them, the most urgent first: in this order they are sent.
    pub(crate) const ALL: [Lane; 5] =
        [Lane::Renewals, Lane::Deliveries, Lane::Releases, Lane::Claims, Lane::Heartbeats];
}

/// See the top of the file.
pub(super) struct Lanes {
    has_second_calls: bool,
    /// Of each lane and shard.
    lines: [Vec<VecDeque<Key>>; Lane::ALL.len()],
    /// A line is not empty any more, or long enough for a second call, since it was last asked.
    is_news: bool,
}

impl Lanes {
    pub(super) fn new(calls_max: usize) -> Lanes {
        Lanes { has_second_calls: calls_max > 1, lines: Default::default(), is_news: false }
    }

    fn push(&mut self, lane: Lane, shard: Shard, key: Key) {
        let lines = &mut self.lines[lane as usize];
        if lines.len() <= shard.index() {
            lines.resize_with(shard.index() + 1, VecDeque::new);
        }
        let line = &mut lines[shard.index()];
        line.push_back(key);
        let count = line.len();
        self.is_news |= count == 1 || self.has_second_calls && count == SECOND_CALL_MIN;
    }

    fn line(&mut self, lane: Lane, shard: Shard) -> Option<&mut VecDeque<Key>> {
        self.lines[lane as usize].get_mut(shard.index())
    }
}

impl Ledger {
    /// Puts a request about an entry in line.
    pub(super) fn enqueue(&mut self, lane: Lane, key: Key) {
        let shard = (self.identity.shard_of)(self.entries[key.index as usize].lease.resource());
        self.lanes.push(lane, shard, key);
    }

    /// Puts back what was taken from the front of a line.
    pub(super) fn put_back(&mut self, lane: Lane, shard: Shard, mut taken: VecDeque<Key>) {
        if let Some(line) = self.lanes.line(lane, shard) {
            taken.append(line);
            *line = taken;
        }
    }

    /// Takes the first of a line.
    pub(super) fn next(&mut self, lane: Lane, shard: Shard) -> Option<Key> {
        self.follow(lane, shard);
        self.lanes.line(lane, shard)?.pop_front()
    }

    /// Sees to it that the first of a line belongs there: what is gone is dropped, and what is on another shard by now goes
    /// to the end of that line.
    fn follow(&mut self, lane: Lane, shard: Shard) {
        while let Some(&key) = self.lanes.line(lane, shard).and_then(|line| line.front()) {
            let entry =
                self.entries.get(key.index as usize).filter(|entry| entry.generation == key.generation);
            let is_at = entry.map(|entry| (self.identity.shard_of)(entry.lease.resource()));
            if is_at == Some(shard) {
                return;
            }
            self.lanes.line(lane, shard).map(VecDeque::pop_front);
            if let Some(is_at) = is_at {
                self.lanes.push(lane, is_at, key);
            }
        }
    }

    /// Returns in which lines something stands, in the order in which they are sent. If there is news then, something has gone over
    /// to one that may not be among them.
    pub(crate) fn lines(&mut self) -> Vec<(Lane, Shard)> {
        self.lanes.is_news = false;
        let mut lines = Vec::new();
        for lane in Lane::ALL {
            for shard in (0..self.lanes.lines[lane as usize].len()).map(|at| Shard(at as u16)) {
                self.follow(lane, shard);
                if self.lanes.line(lane, shard).is_some_and(|line| !line.is_empty()) {
                    lines.push((lane, shard));
                }
            }
        }
        lines
    }

    /// Whether a line holds enough for a second call.
    pub(crate) fn has_enough(&self, lane: Lane, shard: Shard) -> bool {
        self.lanes.lines[lane as usize].get(shard.index()).is_some_and(|line| line.len() >= SECOND_CALL_MIN)
    }

    /// Returns whether something stands in a line since this or [`Ledger::lines`] was asked, for which a call may go out.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.lanes.is_news)
    }
}
