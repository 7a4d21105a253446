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

/// What waits for one shard, and how many requests are in each call that is under way to it.
struct Line<R> {
    waiting: VecDeque<R>,
    calls: Vec<usize>,
}

/// What waits in a lane: a line for each shard.
///
/// Which shard a request is for may change while it waits. Then it goes over to the line of the new one, in its order, before
/// anything else is sent.
pub(crate) struct Lines<R> {
    following: Following,
    lines: Vec<Line<R>>,
    is_news: bool,
}

impl<R> Lines<R> {
    pub(crate) fn new(following: Following) -> Lines<R> {
        Lines { following, lines: Vec::new(), is_news: false }
    }

    /// It is news if a call may go out that could not while there was one request less. While as many are under way as may be, the end of
    /// one of them is what is waited for: to wake the client's thread before would cost each batch a switch of threads for nothing.
    pub(crate) fn push(&mut self, shard: Shard, request: R) {
        if self.lines.len() <= shard.index() {
            self.lines
                .resize_with(shard.index() + 1, || Line { waiting: VecDeque::new(), calls: Vec::new() });
        }
        let could_call = self.may_call(shard);
        let waiting = &mut self.lines[shard.index()].waiting;
        waiting.push_back(request);
        // What waits may be about what is in a call that is executed beside, and this may not.
        let is_apart = self.following.is_side_by_side() && waiting.len().is_power_of_two();
        self.is_news |= (!could_call || is_apart) && self.may_call(shard);
    }

    /// Takes the first of a line. What is for another shard by now goes to the end of that line, and what is for none is dropped.
    pub(crate) fn pop(&mut self, shard: Shard, shard_of: &impl Fn(&R) -> Option<Shard>) -> Option<R> {
        loop {
            let request = self.lines.get_mut(shard.index())?.waiting.pop_front()?;
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
            taken.append(&mut line.waiting);
            line.waiting = taken;
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
                self.lines[shard.index()].waiting.push_front(first);
                listed.push((lane, shard));
            }
        }
    }

    /// Whether there is something for a call to a shard, beside those that are under way.
    pub(crate) fn may_call(&self, shard: Shard) -> bool {
        self.lines.get(shard.index()).is_some_and(|Line { waiting, calls }| {
            let least = calls.iter().max().map_or(1, |in_call| self.following.least(*in_call));
            calls.len() < self.following.calls_max && waiting.len() >= least
        })
    }

    /// Notes that a call of so many requests is under way to a shard.
    pub(crate) fn begin_call(&mut self, shard: Shard, count: usize) {
        if let Some(line) = self.lines.get_mut(shard.index()) {
            line.calls.push(count);
        }
    }

    /// Notes that it is over. Then the lines are to be listed: what came meanwhile was no news.
    pub(crate) fn end_call(&mut self, shard: Shard, count: usize) {
        if let Some(Line { calls, .. }) = self.lines.get_mut(shard.index())
            && let Some(at) = calls.iter().position(|in_call| *in_call == count)
        {
            calls.swap_remove(at);
        }
    }

    /// Returns whether something waits since this or [`Lines::list`] was asked, for which a call may go out.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }
}
