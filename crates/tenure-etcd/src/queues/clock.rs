//! A clock that etcd keeps: the age of a lease.
//!
//! etcd does not show its time. But its leader counts how much is left of each lease, by the time that has passed and not by
//! the time of day, and shows it in whole seconds. So the clients of a prefix share one lease that is long enough for ever, and
//! one key that says which it is, and what time it was when it was granted. Between readings a client counts on with its own
//! monotonic clock, and knows how much it may be wrong: at first a second, and after some readings, each made when
//! the next second is expected, some milliseconds.
//!
//! **A new leader gives every lease its whole time again**, so the age begins anew. The key says in which term of the leader the
//! lease was granted, and a reading counts only if a read through the majority, made after it, finds the same key in the
//! same term. Otherwise the clock is set anew: another lease, from the latest moment that its setter knows of, or that any
//! queue's head has seen. (So no queue has to wait for the clock: its idle consumers write its head each 5 s.) All changes of queues ask
//! whether the key is still the one by which they judged, so no two clients go by different clocks. The clock may stand still over
//! a failover for as long as it was not used before: what is due comes later then, as with etcd's leases. It is never early.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tenure_core::clock::{Clock as _, Instant, SystemClock, Timestamp};
use tenure_ordered::{Moment, clock_of_head};
use tokio::time::sleep_until;

use crate::client::endpoints::{Endpoints, deadline};
use crate::client::proto::{
    Compare, CompareResult, LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, Operation,
    PutRequest, RangeRequest, RangeResponse, ResponseHeader, Target, TxnRequest, end_of_prefix,
};
use crate::error::Fault;
use crate::keys::get;

/// How long the clock's lease lasts: longer than any leader leads.
const LEASE: i64 = 400 * 24 * 3600;
/// After so long the lease is read again.
const READ_EVERY: Duration = Duration::from_secs(5);
/// How far two clocks that count seconds go apart in a second: each is slewed by 500 parts in a million at most.
const DRIFT_PART: u64 = 1000;
/// What is known so exactly need not be known better: a call takes as long.
const EXACT: i128 = 10_000;
/// For how long after its last use the clock is read.
const USED_FOR: Duration = Duration::from_secs(10);
/// How often a reading begins anew because others set the clock.
const TRIES: usize = 5;
/// How many heads are read at once when the clock is set.
const HEADS_PAGE: i64 = 1000;
const SECOND: i128 = 1_000_000;

/// The clock of one prefix.
pub(crate) struct QueueClock {
    endpoints: Endpoints,
    key: Vec<u8>,
    /// What the heads of all queues begin with.
    heads: Vec<u8>,
    state: Mutex<State>,
    /// Held by the task that reads it.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    used: Instant,
    is_served: bool,
}

/// Which lease is the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dial {
    lease: i64,
    /// What time it was when the lease was granted.
    base: Timestamp,
    /// In which term of the leader.
    term: u64,
    /// The key's revision.
    epoch: i64,
}

/// What is known of the time: how much the store's clock is ahead of this machine's, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    dial: Dial,
    least: i128,
    most: i128,
    at: Instant,
}

fn micros(instant: Instant) -> i128 {
    i128::from(instant.nanos() / 1000)
}

fn now() -> Instant {
    SystemClock.now()
}

impl Known {
    /// What is still sure of it.
    fn at(self, now: Instant) -> Known {
        let drift =
            i128::try_from(now.since(self.at).as_micros() / u128::from(DRIFT_PART)).unwrap_or(i128::MAX);
        Known { least: self.least - drift, most: self.most + drift, at: now, ..self }
    }

    fn moment(self, now: Instant) -> Moment {
        let Known { dial, least, most, .. } = self.at(now);
        let stamp =
            |ahead: i128| Timestamp::from_micros(u64::try_from(micros(now) + ahead).unwrap_or_default());
        // Rounded up: what is counted from here must not be too short.
        Moment { earliest: stamp(least), latest: stamp(most + 1), epoch: dial.epoch }
    }

    /// Takes in a reading: so many whole seconds were begun at some moment from `sent` to `heard`. Returns `None` if
    /// it contradicts.
    fn read(self, seconds: i64, sent: Instant, heard: Instant) -> Option<Known> {
        let began = i128::from(self.dial.base.micros()) + i128::from(seconds) * SECOND;
        let known = self.at(heard);
        let least = known.least.max(began - SECOND - micros(heard));
        let most = known.most.min(began - micros(sent) + 1);
        (least <= most).then_some(Known { least, most, ..known })
    }

    /// When a reading says most: the next second then has begun, or has not, as likely as not.
    fn next_reading(self, now: Instant) -> Instant {
        let known = self.at(now);
        if known.most - known.least <= EXACT {
            return now + READ_EVERY;
        }
        let base = i128::from(self.dial.base.micros());
        let ahead = (known.least + known.most) / 2 - base;
        let into = (micros(now) + ahead).rem_euclid(SECOND);
        now + Duration::from_micros(u64::try_from(SECOND - into).unwrap_or_default())
    }
}

impl Dial {
    fn write(lease: i64, base: Timestamp, term: u64) -> Vec<u8> {
        format!("1 {lease:x} {} {term}", base.micros()).into_bytes()
    }

    fn read(range: &RangeResponse) -> Option<Dial> {
        let key = range.kvs.first()?;
        let mut parts = std::str::from_utf8(&key.value).ok()?.split(' ');
        if parts.next()? != "1" {
            return None;
        }
        let lease = i64::from_str_radix(parts.next()?, 16).ok()?;
        let base = Timestamp::from_micros(parts.next()?.parse().ok()?);
        let term = parts.next()?.parse().ok()?;
        Some(Dial { lease, base, term, epoch: key.mod_revision })
    }
}

fn term_of(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.raft_term)
}

fn revision_in(range: &RangeResponse) -> i64 {
    range.kvs.first().map_or(0, |key| key.mod_revision)
}

impl QueueClock {
    pub(crate) fn new(endpoints: Endpoints, key: Vec<u8>, heads: Vec<u8>) -> QueueClock {
        QueueClock { endpoints, key, heads, state: Mutex::default(), reading: tokio::sync::Mutex::default() }
    }

    /// Which key says which lease it is.
    pub(crate) fn key(&self) -> Vec<u8> {
        self.key.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self, now: Instant) -> Option<Known> {
        // Twice as long as until it is read again: the reader may be late.
        self.state().known.filter(|known| now.since(known.at) < 2 * READ_EVERY)
    }

    /// Returns the time.
    pub(crate) async fn time(self: &Arc<Self>) -> Result<Moment, Fault> {
        let begins = {
            let mut state = self.state();
            state.used = now();
            !std::mem::replace(&mut state.is_served, true)
        };
        if begins {
            tokio::spawn(serve(Arc::downgrade(self)));
        }
        if let Some(known) = self.fresh(now()) {
            return Ok(known.moment(now()));
        }
        let _reading = self.reading.lock().await;
        let known = match self.fresh(now()) {
            Some(known) => known,
            None => self.read().await?,
        };
        Ok(known.moment(now()))
    }

    /// The clock has been set: a change was refused for it.
    pub(crate) fn forget(&self, epoch: i64) {
        let mut state = self.state();
        state.known = state.known.filter(|known| known.dial.epoch == epoch);
    }

    /// Reads the lease, or sets the clock.
    async fn read(&self) -> Result<Known, Fault> {
        let mut range = self.endpoints.call(get(self.key()), deadline()).await?;
        for _ in 0..TRIES {
            let before = self.state().known;
            let Some(dial) = Dial::read(&range) else {
                let base = before.map_or(SystemClock.time_of_day(), |known| known.moment(now()).earliest);
                range = match self.set(base, &range).await? {
                    Ok(known) => return Ok(known),
                    Err(range) => range,
                };
                continue;
            };
            let sent = now();
            let read = self.endpoints.call(LeaseTimeToLiveRequest { id: dial.lease }, deadline()).await;
            let heard = now();
            let read = match read {
                Err(fault) if fault.is_no_lease() => None,
                read => Some(read?).filter(|read| read.ttl >= 0),
            };
            // Only if no other server leads since can the lease be as old as it says.
            range = self.endpoints.call(get(self.key()), deadline()).await?;
            if Dial::read(&range) != Some(dial) {
                continue;
            }
            let before = before.filter(|known| known.dial == dial);
            // Nothing but this reading is known of a clock that others have set.
            let blank = Known { dial, least: i128::from(i64::MIN), most: i128::from(i64::MAX), at: sent };
            let seconds = read.map(|read| read.granted_ttl - read.ttl);
            let known = seconds.and_then(|seconds| before.unwrap_or(blank).read(seconds, sent, heard));
            if term_of(range.header.as_ref()) == dial.term
                && let Some(known) = known
            {
                self.state().known = Some(known);
                return Ok(known);
            }
            let age = seconds.map_or(0, |seconds| u64::try_from(seconds - 1).unwrap_or_default());
            let read = dial.base + Duration::from_secs(age);
            let counted = before.map_or(read, |known| known.moment(now()).earliest);
            range = match self.set(counted.max(read), &range).await? {
                Ok(known) => return Ok(known),
                Err(range) => range,
            };
        }
        Err(Fault::Down { why: "the queues' clock was set by others each time it was read".to_owned() })
    }

    /// Returns the latest moment that any queue has seen.
    async fn seen_by_queues(&self) -> Result<Timestamp, Fault> {
        let mut latest = Timestamp::default();
        let mut key = self.heads.clone();
        loop {
            let range_end = end_of_prefix(&self.heads);
            let page = RangeRequest { key, range_end, limit: HEADS_PAGE, ..RangeRequest::default() };
            let answer = self.endpoints.call(page, deadline()).await?;
            let clocks = answer.kvs.iter().filter_map(|head| clock_of_head(&head.value));
            latest = clocks.fold(latest, Timestamp::max);
            match answer.kvs.last() {
                Some(last) if answer.more => key = [&last.key[..], &[0]].concat(),
                _ => return Ok(latest),
            }
        }
    }

    /// Sets the clock, unless another client has: then what the key is now is returned.
    async fn set(
        &self,
        base: Timestamp,
        seen: &RangeResponse,
    ) -> Result<Result<Known, RangeResponse>, Fault> {
        let base = base.max(self.seen_by_queues().await?);
        let sent = now();
        let granted = self.endpoints.call(LeaseGrantRequest { ttl: LEASE, id: 0 }, deadline()).await?;
        let heard = now();
        let term = term_of(granted.header.as_ref());
        let value = Dial::write(granted.id, base, term);
        let same = Compare::of(self.key(), CompareResult::Equal, Target::Mod(revision_in(seen)));
        let put = PutRequest { key: self.key(), value, ..PutRequest::default() };
        let change = TxnRequest {
            compare: vec![same],
            success: vec![Operation::Put(put).into()],
            failure: Vec::new(),
        };
        let answer = self.endpoints.call(change, deadline()).await?;
        let unused =
            if answer.succeeded { Dial::read(seen).map(|dial| dial.lease) } else { Some(granted.id) };
        if let Some(id) = unused {
            let revoked = self.endpoints.call(LeaseRevokeRequest { id }, deadline()).await;
            if let Err(fault) = revoked {
                tracing::debug!(%fault, "a lease without keys is left over");
            }
        }
        if !answer.succeeded {
            return Ok(Err(self.endpoints.call(get(self.key()), deadline()).await?));
        }
        let epoch = answer.header.as_ref().map_or(0, |header| header.revision);
        let dial = Dial { lease: granted.id, base, term, epoch };
        let base = i128::from(base.micros());
        let known = Known { dial, least: base - micros(heard), most: base - micros(sent) + 1, at: heard };
        self.state().known = Some(known);
        Ok(Ok(known))
    }
}

/// Reads the clock for as long as it is used.
async fn serve(clock: Weak<QueueClock>) {
    loop {
        let next = {
            let Some(clock) = clock.upgrade() else { return };
            let mut state = clock.state();
            if now().since(state.used) > USED_FOR {
                state.is_served = false;
                return;
            }
            state.known.map_or(now() + READ_EVERY, |known| known.next_reading(now()))
        };
        sleep_until(tokio::time::Instant::now() + next.since(now())).await;
        let Some(clock) = clock.upgrade() else { return };
        let _reading = clock.reading.lock().await;
        if clock.state().known.is_none() {
            continue;
        }
        if let Err(fault) = clock.read().await {
            tracing::debug!(%fault, "the queues' clock was not read");
        }
    }
}

#[cfg(test)]
mod tests;
