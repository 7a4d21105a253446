//! How requests gather for the engine: what waits in a lane, and when it may go out.
//!
//! There is a lane for each verb, and in it a line for each shard, with calls of its own. So nothing waits for what is slower than
//! itself: not for a server that hangs, and the renewal of a lease not for the heartbeats of waiters. Those cost a store several
//! times as much, and may wait for its replicas. What arrives while a call is under way becomes the next batch (group commit).
//! Where the engine says so, a second call goes out behind the first as soon as a few requests have gathered: neither side waits
//! for the other. Where such calls are executed side by side, claims of one resource are in one of them at a time.

use std::collections::VecDeque;

use crate::counts::Verb;
use crate::engine::Shard;

/// A call behind another one carries at least so many, where the store executes one after the other. Measured on Redis with 8 to
/// 1,024 tasks: with 4 and two calls, pairs a second are 1.15 to 1.3 times as many; more calls, or fewer requests in each, give no
/// more.
const BEHIND_MIN: usize = 4;
/// A call that is executed beside another carries at least this part of what is in that. Measured on PostgreSQL: for 4 tasks a call of
/// one request is worth it, and for 64 it takes from the batches what makes them cheap.
const BESIDE_PART: usize = 4;

/// How calls of one lane to one shard follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Following {
    /// How many may be under way.
    pub(crate) calls_max: usize,
    /// Whether the store executes them in the order in which they were sent.
    pub(crate) is_ordered: bool,
}

impl Following {
    /// One at a time.
    pub(crate) const ALONE: Following = Following { calls_max: 1, is_ordered: true };

    /// How many requests a call carries at least while one of so many is under way.
    fn least(self, in_call: usize) -> usize {
        if self.is_ordered { BEHIND_MIN } else { in_call.div_ceil(BESIDE_PART) }
    }

    /// Whether a call may go out that could not while there was one request less.
    fn is_news(self, waiting: usize) -> bool {
        let may_follow = if self.is_ordered { waiting == BEHIND_MIN } else { waiting.is_power_of_two() };
        waiting == 1 || self.calls_max > 1 && may_follow
    }

    /// Whether what is in a call says nothing about the order in which the store comes to it.
    pub(crate) fn is_side_by_side(self) -> bool {
        self.calls_max > 1 && !self.is_ordered
    }
}

/// A kind of request that goes out in calls of its own.
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
    /// Ends of deliveries.
    Settlements,
    Pushes,
}

impl Lane {
    /// Those about claims and leases, the most urgent first: in this order they are sent, and the others after them.
    pub(crate) const OF_ENTRIES: [Lane; 5] =
        [Lane::Renewals, Lane::Deliveries, Lane::Releases, Lane::Claims, Lane::Heartbeats];

    /// Returns what its calls are counted as.
    pub(crate) fn counted(self) -> Verb {
        match self {
            Lane::Renewals | Lane::Deliveries => Verb::Renew,
            Lane::Heartbeats => Verb::Heartbeat,
            Lane::Releases => Verb::Release,
            Lane::Claims => Verb::Claim,
            Lane::Settlements => Verb::Settle,
            Lane::Pushes => Verb::Push,
        }
    }
}

/// What waits in a lane: a line for each shard.
///
/// Which shard a request is for may change while it waits. Then it goes over to the line of the new one, in its order, before
/// anything else is sent.
pub(crate) struct Lines<R> {
    following: Following,
    lines: Vec<VecDeque<R>>,
    is_news: bool,
}

impl<R> Lines<R> {
    pub(crate) fn new(following: Following) -> Lines<R> {
        Lines { following, lines: Vec::new(), is_news: false }
    }

    pub(crate) fn push(&mut self, shard: Shard, request: R) {
        if self.lines.len() <= shard.index() {
            self.lines.resize_with(shard.index() + 1, VecDeque::new);
        }
        let line = &mut self.lines[shard.index()];
        line.push_back(request);
        self.is_news |= self.following.is_news(line.len());
    }

    /// Takes the first of a line. What is for another shard by now goes to the end of that line, and what is for none is dropped.
    pub(crate) fn pop(&mut self, shard: Shard, shard_of: &impl Fn(&R) -> Option<Shard>) -> Option<R> {
        loop {
            let request = self.lines.get_mut(shard.index())?.pop_front()?;
            match shard_of(&request) {
                Some(is_for) if is_for == shard => return Some(request),
                Some(is_for) => self.push(is_for, request),
                None => {}
            }
        }
    }

    /// Takes up to `most` from the front of a line.
    pub(crate) fn take(
        &mut self,
        shard: Shard,
        most: usize,
        shard_of: &impl Fn(&R) -> Option<Shard>,
    ) -> Vec<R> {
        std::iter::from_fn(|| self.pop(shard, shard_of)).take(most).collect()
    }

    /// Puts back what was taken from the front of a line.
    pub(crate) fn put_back(&mut self, shard: Shard, mut taken: VecDeque<R>) {
        if let Some(line) = self.lines.get_mut(shard.index()) {
            taken.append(line);
            *line = taken;
        }
    }

    /// Lists the lines in which something waits. If there is news then, something has gone over to a line that may not be among
    /// them.
    pub(crate) fn list(
        &mut self,
        lane: Lane,
        shard_of: &impl Fn(&R) -> Option<Shard>,
        listed: &mut Vec<(Lane, Shard)>,
    ) {
        self.is_news = false;
        for shard in (0..self.lines.len()).map(|at| Shard(at as u16)) {
            if let Some(first) = self.pop(shard, shard_of) {
                self.lines[shard.index()].push_front(first);
                listed.push((lane, shard));
            }
        }
    }

    /// Whether a call may go out to a shard while so many are under way, the largest of them of `in_call` requests.
    pub(crate) fn may_follow(&self, under_way: usize, in_call: usize, shard: Shard) -> bool {
        under_way < self.following.calls_max
            && self.lines.get(shard.index()).is_some_and(|line| line.len() >= self.following.least(in_call))
    }

    /// Returns whether something waits since this or [`Lines::list`] was asked, for which a call may go out.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }
}
