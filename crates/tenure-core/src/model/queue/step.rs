//! The whole of a queue as functions of `(record, request, now)`: what is ready, in which order, and which clients
//! are woken.
//!
//! Nothing moves by itself. A lane that is due, and one whose delivery has ended, are found by the next take: both stand in the
//! index of lanes at the moment since which they are ready.

use std::time::Duration;

use super::item::{
    CONSUMER_LIFE, CONSUMER_LOOK, DEDUP_MEMORY, Dispatched, Interval, ItemId, ItemState, ItemView, Push,
    Pushed, QueueStats, SettleAnswer, Settlement, Take, Taken, Which, cut_reason,
};
use super::record::{Dead, Handed, Head, Idle, Item, Lane, LaneId, Overdue, QueueRecord, Remembered};
use crate::clock::Timestamp;
use crate::model::claim::{ClaimId, ClientId};
use crate::model::token::Token;

/// How many dedup ids a push forgets at most whose time is over: more than it adds.
const FORGOTTEN_MAX: usize = 2;

/// How many idle clients are woken when something will be ready sooner than they know.
pub const WATCHERS: usize = 2;
/// How much later than the one before it each idle client polls when something is due, in case that one is dead.
pub const STANDBY: Duration = Duration::from_millis(250);
/// How many idle clients poll when something is due. Those behind them look by themselves no later.
pub const TURNS: usize = (CONSUMER_LOOK.as_millis() / STANDBY.as_millis()) as usize;

/// The clients that a step wakes, since there may be something for them.
pub type Calls = Vec<ClientId>;

/// The reason of a dead letter whose deliveries all ended by themselves.
pub const WORN_OUT: &str = "every delivery ended without an answer";

/// Does what is asked of one queue at one moment.
struct Step<'a, R> {
    record: &'a mut R,
    head: Head,
    now: Timestamp,
    calls: Calls,
    /// How many lanes were cleared, or should have been.
    cleared: usize,
}

impl<'a, R: QueueRecord> Step<'a, R> {
    fn begin(record: &'a mut R, now: Timestamp) -> Result<Step<'a, R>, R::Error> {
        let head = record.head()?;
        let mut step = Step { record, head, now, calls: Vec::new(), cleared: 0 };
        step.dismiss(|idle| idle.until <= now);
        Ok(step)
    }

    /// Stores the head. If something is ready sooner than the watching clients know, they are woken.
    fn end(mut self) -> Result<Calls, R::Error> {
        if !self.head.idle.is_empty()
            && let Some(at) = self.next_ready()?
            && at > self.now
            && self.head.watched.is_none_or(|watched| at < watched)
        {
            self.head.watched = Some(at);
            self.calls.extend(self.head.idle.iter().take(WATCHERS).map(|idle| idle.client));
        }
        self.record.set_head(self.head)?;
        Ok(self.calls)
    }

    /// Takes clients off the list of the idle. If one of them watched, other clients must be woken to watch in its
    /// place.
    fn dismiss(&mut self, is_meant: impl Fn(&Idle) -> bool) {
        let watchers = self.head.idle.len().min(WATCHERS);
        if self.head.idle[..watchers].iter().any(&is_meant) {
            self.head.watched = None;
        }
        self.head.idle.retain(|idle| !is_meant(idle));
    }

    /// Takes those off the list of the idle whose turn it was to come for what is due, and who have not come. They are woken once more:
    /// one that is only late is idle again then, and one that is dead is in nobody's way.
    fn pass_over(&mut self, client: ClientId) {
        let Some(late) = self.head.watched.map(|at| self.now.since(at)) else { return };
        let has_missed = |place: usize| late >= STANDBY * place as u32 + STANDBY / 2;
        let missing =
            self.head.idle.iter().take(TURNS).enumerate().take_while(|(place, _)| has_missed(*place));
        let missing: Vec<ClientId> =
            missing.map(|(_, idle)| idle.client).filter(|missing| *missing != client).collect();
        self.dismiss(|idle| missing.contains(&idle.client));
        self.calls.extend(missing);
    }

    /// When something is next ready.
    fn next_ready(&mut self) -> Result<Option<Timestamp>, R::Error> {
        // A lane that only rests holds nothing; it goes when its time is over.
        while let Some((id, lane)) = self.record.next_lane()? {
            if lane.first.is_some() {
                return Ok(Some(lane.ready_at.max(self.head.rests_until)));
            }
            if lane.ready_at > self.now || !self.may_clear() {
                break;
            }
            self.record.set_lane(&id, Some(&lane), None)?;
        }
        Ok(self.record.next_lane()?.map(|(_, lane)| lane.ready_at.max(self.head.rests_until)))
    }

    /// Counts a lane that is to be cleared, and says whether there is room for it in this step.
    fn may_clear(&mut self) -> bool {
        self.cleared = self.cleared.saturating_add(1);
        !self.is_cut_short()
    }

    /// Whether something was left to be cleared: whatever is ready may stand behind it.
    fn is_cut_short(&self) -> bool {
        self.cleared > self.record.cleared_max()
    }

    /// The most recently idle client is woken: the first ones go on watching for what is due.
    fn wake_one(&mut self) {
        if let Some(idle) = self.head.idle.last() {
            let client = idle.client;
            self.calls.push(client);
            self.dismiss(|idle| idle.client == client);
        }
    }

    /// Stores a lane that can be handed out from a moment on. If that is now, an idle client is woken.
    fn set_ready(&mut self, id: &LaneId, was: Option<&Lane>, lane: Lane) -> Result<(), R::Error> {
        let ready_at = lane.ready_at.max(self.head.rests_until);
        self.record.set_lane(id, was, Some(lane))?;
        if ready_at <= self.now {
            self.wake_one();
        }
        Ok(())
    }

    fn push(&mut self, push: &Push) -> Result<Pushed, R::Error> {
        self.forget_dedups()?;
        let id = ItemId(self.head.last_item.0.saturating_add(1).max(self.now.micros()));
        if let Some(dedup) = push.dedup.as_ref().filter(|_| !mutant!("dedup-forgotten")) {
            let was = self.record.dedup(dedup)?;
            if let Some(was) = was
                && (was.until > self.now || self.record.item(was.item)?.is_some())
            {
                return Ok(Pushed { item: was.item, is_duplicate: true });
            }
            let remembered = Remembered { item: id, until: self.now + DEDUP_MEMORY };
            self.record.set_dedup(dedup, was, Some(remembered))?;
        }
        let item = Item {
            id,
            group: push.group.clone(),
            payload: push.payload.clone(),
            context: push.context.clone(),
            pushed_at: self.now,
            due_at: self.now + push.delay,
        };
        self.enter(item)?;
        Ok(Pushed { item: id, is_duplicate: false })
    }

    /// Puts an item at the end of its lane.
    fn enter(&mut self, item: Item) -> Result<(), R::Error> {
        self.head.last_item = item.id;
        self.head.items = self.head.items.saturating_add(1);
        let lane_id = LaneId::of(item.group.as_ref().filter(|_| !mutant!("groups-ignored")), item.id);
        let was = self.record.lane(&lane_id)?;
        let (id, due_at) = (item.id, item.due_at);
        self.record.put_item(item)?;
        if was.as_ref().is_some_and(|lane| lane.first.is_some()) {
            return Ok(());
        }
        let rests_until = was.as_ref().map_or(Timestamp::default(), |lane| lane.rests_until);
        let lane = Lane {
            first: Some(id),
            ready_at: due_at.max(rests_until),
            attempts: 0,
            rests_until,
            delivery: None,
        };
        self.set_ready(&lane_id, was.as_ref(), lane)
    }

    fn forget_dedups(&mut self) -> Result<(), R::Error> {
        for _ in 0..FORGOTTEN_MAX {
            let Some((id, was)) = self.record.next_dedup()?.filter(|(_, was)| was.until <= self.now) else {
                break;
            };
            let is_there = self.record.item(was.item)?.is_some();
            let kept = Remembered { until: self.now + DEDUP_MEMORY, ..was };
            self.record.set_dedup(&id, Some(was), is_there.then_some(kept))?;
        }
        Ok(())
    }

    fn take(&mut self, take: &Take) -> Result<Taken, R::Error> {
        if !mutant!("the-gone-waited-for") {
            self.pass_over(take.client);
        }
        let mut items = Vec::new();
        for claim in &take.claims {
            let Some(item) = self.hand_out(take, *claim)? else { break };
            items.push(item);
        }
        let mut look_in = None;
        if items.len() < take.claims.len() && self.is_cut_short() {
            return Ok(Taken { items, look_in: Some(Duration::ZERO) });
        }
        if items.len() < take.claims.len() {
            let until = self.now + CONSUMER_LIFE;
            let place = self.head.idle.iter().position(|idle| idle.client == take.client);
            let place = place.unwrap_or(self.head.idle.len());
            match self.head.idle.get_mut(place) {
                Some(idle) => idle.until = until,
                None => self.head.idle.push(Idle { client: take.client, until }),
            }
            if place < TURNS {
                let at = self.next_ready()?;
                if place < WATCHERS {
                    self.head.watched = at;
                }
                look_in = at.map(|at| at.since(self.now) + STANDBY * place as u32);
            }
            return Ok(Taken { items, look_in });
        }
        self.dismiss(|idle| idle.client == take.client);
        // More is ready than this client wants.
        if self.next_ready()?.is_some_and(|at| at <= self.now) {
            self.wake_one();
        }
        Ok(Taken { items, look_in })
    }

    /// Hands out the next item that is ready.
    fn hand_out(&mut self, take: &Take, claim: ClaimId) -> Result<Option<Dispatched>, R::Error> {
        loop {
            let Some((id, was)) = self.record.next_lane()? else { return Ok(None) };
            if was.ready_at.max(self.head.rests_until) > self.now {
                return Ok(None);
            }
            let Some(first) = was.first else {
                if !self.may_clear() {
                    return Ok(None);
                }
                self.record.set_lane(&id, Some(&was), None)?;
                continue;
            };
            let mut lane = was.clone();
            if self.goes_on(&id, &was, first)? {
                if self.is_cut_short() {
                    return Ok(None);
                }
                continue;
            }
            let attempts_max = take.rules.attempts_max;
            let is_worn_out = attempts_max != 0 && lane.attempts >= attempts_max;
            if is_worn_out && !self.may_clear() {
                return Ok(None);
            }
            self.end_delivery(&mut lane)?;
            if is_worn_out {
                self.dead_letter(&id, &was, lane, WORN_OUT)?;
                continue;
            }
            let Some(item) = self.record.first_item(first)? else { return Ok(None) };
            // As for claims, one wrong clock must not poison the tokens: the client that brought it refuses what it gets.
            let floor = if take.floor.is_ahead_of(self.now) && !mutant!("wrong-floors-taken") {
                Token::ZERO
            } else {
                take.floor
            };
            let token = Token::next(self.head.last_token, self.now, floor);
            self.head.last_token = token;
            self.head.in_flight = self.head.in_flight.saturating_add(1);
            lane.attempts = lane.attempts.saturating_add(1);
            match take.rules.interval {
                Interval::Off => {}
                Interval::Queue(period) => self.head.rests_until = self.now + period,
                Interval::Group(period) if item.group.is_some() => lane.rests_until = self.now + period,
                Interval::Group(_) => {}
            }
            let ttl = take.rules.ttl;
            let expires_at = self.now + ttl;
            let (client, label) = (take.client, take.rules.label.clone());
            lane.delivery = Some(Handed { claim, client, expires_at, ttl, label });
            lane.ready_at = expires_at.max(lane.rests_until);
            let attempt = lane.attempts;
            self.record.set_lane_of(claim, Some(&id))?;
            self.record.set_lane(&id, Some(&was), Some(lane))?;
            let Item { id: item, group, payload, context, due_at, .. } = item;
            let age = self.now.since(due_at);
            let ends_in = ttl;
            return Ok(Some(Dispatched {
                claim,
                item,
                group,
                payload,
                context,
                attempt,
                token,
                ends_in,
                age,
            }));
        }
    }

    /// Whether a lane that is ready, by its time, is not to be handed out after all. Then it is made to say so itself.
    fn goes_on(&mut self, id: &LaneId, was: &Lane, first: ItemId) -> Result<bool, R::Error> {
        let Some(handed) = &was.delivery else { return Ok(false) };
        let overdue = self.record.overdue(handed.claim, first)?;
        if overdue == Overdue::Ended {
            return Ok(false);
        }
        if !self.may_clear() {
            return Ok(true);
        }
        let mut lane = was.clone();
        if overdue == Overdue::Acknowledged {
            self.end_delivery(&mut lane)?;
            drop(self.advance(id, was, lane)?);
            return Ok(true);
        }
        let expires_at = self.now + handed.ttl;
        lane.delivery = Some(Handed { expires_at, ..handed.clone() });
        lane.ready_at = expires_at.max(lane.rests_until);
        self.record.set_lane_of(handed.claim, Some(id))?;
        self.record.set_lane(id, Some(was), Some(lane))?;
        Ok(true)
    }

    /// Forgets the delivery of a lane's first item.
    fn end_delivery(&mut self, lane: &mut Lane) -> Result<(), R::Error> {
        if let Some(handed) = lane.delivery.take() {
            if !mutant!("settled-by-anybody") {
                self.record.set_lane_of(handed.claim, None)?;
            }
            self.head.in_flight -= 1;
        }
        Ok(())
    }

    /// Makes a lane's first item a dead letter.
    fn dead_letter(&mut self, id: &LaneId, was: &Lane, lane: Lane, reason: &str) -> Result<(), R::Error> {
        let attempts = lane.attempts;
        if let Some(item) = self.advance(id, was, lane)? {
            self.head.dead = self.head.dead.saturating_add(1);
            let reason = cut_reason(reason).to_owned();
            self.record.put_dead(Dead { item, attempts, reason, died_at: self.now })?;
        }
        Ok(())
    }

    /// Removes a lane's first item; the next one can be handed out.
    fn advance(&mut self, id: &LaneId, was: &Lane, mut lane: Lane) -> Result<Option<Item>, R::Error> {
        let Some(first) = lane.first else { return Ok(None) };
        let item = self.record.remove_item(first)?;
        self.head.items = self.head.items.saturating_sub(1);
        lane.first = match id {
            LaneId::Group(group) => self.record.item_of(group, first)?,
            LaneId::Item(_) => None,
        };
        lane.attempts = 0;
        match lane.first {
            Some(next) => {
                let due_at = self.record.item(next)?.map_or(self.now, |item| item.due_at);
                lane.ready_at = due_at.max(self.now).max(lane.rests_until);
                self.set_ready(id, Some(was), lane)?;
            }
            None if lane.rests_until > self.now => {
                lane.ready_at = lane.rests_until;
                self.record.set_lane(id, Some(was), Some(lane))?;
            }
            None => self.record.set_lane(id, Some(was), None)?,
        }
        Ok(item)
    }

    /// Returns the lane whose first item a claim has, if that has not ended.
    fn delivered(&mut self, claim: ClaimId) -> Result<Option<(LaneId, Lane)>, R::Error> {
        let Some(id) = self.record.lane_of(claim)? else { return Ok(None) };
        let Some(lane) = self.record.lane(&id)? else { return Ok(None) };
        let Some(handed) =
            lane.delivery.as_ref().filter(|handed| handed.claim == claim || mutant!("settled-by-anybody"))
        else {
            return Ok(None);
        };
        let has_ended = match lane.first {
            Some(first) if handed.expires_at <= self.now => {
                self.record.overdue(claim, first)? == Overdue::Ended
            }
            _ => false,
        };
        Ok((!has_ended).then_some((id, lane)))
    }

    fn renew(&mut self, claim: ClaimId) -> Result<Option<Duration>, R::Error> {
        let Some((id, was)) = self.delivered(claim)? else { return Ok(None) };
        let mut lane = was.clone();
        let Some(handed) = &mut lane.delivery else { return Ok(None) };
        // A clock that was set back must not shorten what was promised.
        handed.expires_at = handed.expires_at.max(self.now + handed.ttl);
        let ends_in = handed.ttl;
        lane.ready_at = handed.expires_at.max(lane.rests_until);
        self.record.set_lane(&id, Some(&was), Some(lane))?;
        Ok(Some(ends_in))
    }

    fn settle(&mut self, claim: ClaimId, settlement: &Settlement) -> Result<SettleAnswer, R::Error> {
        let Some((id, was)) = self.delivered(claim)? else { return Ok(SettleAnswer::Lost) };
        let mut lane = was.clone();
        self.end_delivery(&mut lane)?;
        match settlement {
            Settlement::Ack => drop(self.advance(&id, &was, lane)?),
            Settlement::Fail { reason } => self.dead_letter(&id, &was, lane, reason)?,
            Settlement::Retry { attempts_max, reason, .. }
                if *attempts_max != 0 && lane.attempts >= *attempts_max =>
            {
                self.dead_letter(&id, &was, lane, reason)?;
                return Ok(SettleAnswer::Buried);
            }
            Settlement::Retry { after, .. } => {
                lane.ready_at = (self.now + *after).max(lane.rests_until);
                self.set_ready(&id, Some(&was), lane)?;
            }
            Settlement::Return => {
                lane.attempts = lane.attempts.saturating_sub(1);
                lane.ready_at = self.now.max(lane.rests_until);
                self.set_ready(&id, Some(&was), lane)?;
            }
        }
        Ok(SettleAnswer::Settled)
    }

    fn vanish(&mut self, client: ClientId) -> Result<(), R::Error> {
        self.dismiss(|idle| idle.client == client);
        for claim in self.record.claims_of(client)? {
            let Some(id) = self.record.lane_of(claim)? else { continue };
            let Some(was) = self.record.lane(&id)? else { continue };
            let mut lane = was.clone();
            self.end_delivery(&mut lane)?;
            // One that has ended before keeps its place, but goes too: this client need not be visited again.
            lane.ready_at = was.ready_at.min(self.now.max(lane.rests_until));
            self.set_ready(&id, Some(&was), lane)?;
        }
        // What it had been woken for is for another client now.
        if self.calls.is_empty() && self.next_ready()?.is_some_and(|at| at <= self.now) {
            self.wake_one();
        }
        Ok(())
    }

    fn replay(&mut self, item: Option<ItemId>, most: usize) -> Result<usize, R::Error> {
        let mut count = 0;
        while count < most {
            let id = match item {
                Some(item) => item,
                None => match self.record.dead_after(None)? {
                    Some(dead) => dead.item.id,
                    None => break,
                },
            };
            let Some(dead) = self.record.remove_dead(id)? else { break };
            self.head.dead = self.head.dead.saturating_sub(1);
            let id = ItemId(self.head.last_item.0.saturating_add(1).max(self.now.micros()));
            self.enter(Item { id, due_at: self.now, ..dead.item })?;
            count += 1;
            if item.is_some() {
                break;
            }
        }
        Ok(count)
    }

    fn purge(&mut self, which: Which, item: Option<ItemId>, most: usize) -> Result<usize, R::Error> {
        let mut count = 0;
        let mut after = item.and_then(|item| item.0.checked_sub(1)).map(ItemId);
        while count < most {
            let next = match which {
                Which::Live => self.record.item_after(after)?.map(|item| item.id),
                Which::Dead => self.record.dead_after(after)?.map(|dead| dead.item.id),
            };
            let Some(next) = next.filter(|next| item.is_none_or(|item| item == *next)) else { break };
            after = Some(next);
            let is_removed = match which {
                Which::Live => self.withdraw(next)?,
                Which::Dead => self.record.remove_dead(next)?.is_some(),
            };
            count += usize::from(is_removed);
            self.head.dead = self.head.dead.saturating_sub(u64::from(is_removed && which == Which::Dead));
        }
        Ok(count)
    }

    /// Removes an item unless a consumer has it.
    fn withdraw(&mut self, id: ItemId) -> Result<bool, R::Error> {
        let Some(item) = self.record.item(id)? else { return Ok(false) };
        let lane_id = LaneId::of(item.group.as_ref(), id);
        let Some(was) = self.record.lane(&lane_id)? else { return Ok(false) };
        if was.first != Some(id) {
            self.record.remove_item(id)?;
            self.head.items = self.head.items.saturating_sub(1);
            return Ok(true);
        }
        if was.delivery.is_some() {
            return Ok(false);
        }
        self.advance(&lane_id, &was, was.clone())?;
        Ok(true)
    }
}

/// Puts an item in line, or says that it is there already.
///
/// # Errors
/// Those of the store; so for all of these.
pub fn push<R: QueueRecord>(
    record: &mut R,
    push: &Push,
    now: Timestamp,
) -> Result<(Pushed, Calls), R::Error> {
    let mut step = Step::begin(record, now)?;
    let pushed = step.push(push)?;
    Ok((pushed, step.end()?))
}

/// Hands out what is ready.
pub fn take<R: QueueRecord>(record: &mut R, take: &Take, now: Timestamp) -> Result<(Taken, Calls), R::Error> {
    let mut step = Step::begin(record, now)?;
    let taken = step.take(take)?;
    Ok((taken, step.end()?))
}

/// Extends a delivery, and says for how long. Returns `None` if it has ended.
pub fn renew<R: QueueRecord>(
    record: &mut R,
    claim: ClaimId,
    now: Timestamp,
) -> Result<Option<Duration>, R::Error> {
    Step::begin(record, now)?.renew(claim)
}

/// Ends a delivery.
pub fn settle<R: QueueRecord>(
    record: &mut R,
    claim: ClaimId,
    settlement: &Settlement,
    now: Timestamp,
) -> Result<(SettleAnswer, Calls), R::Error> {
    let mut step = Step::begin(record, now)?;
    let answer = step.settle(claim, settlement)?;
    Ok((answer, step.end()?))
}

/// Ends all deliveries of a client that is known to be dead, and wakes another in its place.
pub fn vanish<R: QueueRecord>(record: &mut R, client: ClientId, now: Timestamp) -> Result<Calls, R::Error> {
    let mut step = Step::begin(record, now)?;
    step.vanish(client)?;
    step.end()
}

/// Puts dead letters in line again: one, or up to `most`.
pub fn replay<R: QueueRecord>(
    record: &mut R,
    item: Option<ItemId>,
    most: usize,
    now: Timestamp,
) -> Result<(usize, Calls), R::Error> {
    let mut step = Step::begin(record, now)?;
    let count = step.replay(item, most)?;
    Ok((count, step.end()?))
}

/// Removes dead letters, or what waits: one, or up to `most`.
pub fn purge<R: QueueRecord>(
    record: &mut R,
    which: Which,
    item: Option<ItemId>,
    most: usize,
    now: Timestamp,
) -> Result<(usize, Calls), R::Error> {
    let mut step = Step::begin(record, now)?;
    let count = step.purge(which, item, most)?;
    Ok((count, step.end()?))
}

/// Counts what is in a queue. Writes nothing.
pub fn stats<R: QueueRecord>(record: &mut R, now: Timestamp) -> Result<QueueStats, R::Error> {
    let head = record.head()?;
    let next = record.next_lane()?.filter(|_| head.items > 0);
    Ok(QueueStats {
        waiting: head.items.saturating_sub(head.in_flight),
        in_flight: head.in_flight,
        dead: head.dead,
        next_in: next.map(|(_, lane)| lane.ready_at.max(head.rests_until).since(now)),
    })
}

/// Lists up to `most` items after a number. Writes nothing.
pub fn items<R: QueueRecord>(
    record: &mut R,
    which: Which,
    mut after: Option<ItemId>,
    most: usize,
    now: Timestamp,
) -> Result<Vec<ItemView>, R::Error> {
    let mut views = Vec::new();
    while views.len() < most {
        let (item, attempts, state) = match which {
            Which::Live => {
                let Some(item) = record.item_after(after)? else { break };
                let lane = record.lane(&LaneId::of(item.group.as_ref(), item.id))?;
                let (attempts, state) = standing(lane, item.id, now);
                (item, attempts, state)
            }
            Which::Dead => {
                let Some(dead) = record.dead_after(after)? else { break };
                let since = now.since(dead.died_at);
                (dead.item, dead.attempts, ItemState::Dead { reason: dead.reason, since })
            }
        };
        after = Some(item.id);
        let Item { id: item, group, payload, context, pushed_at, .. } = item;
        views.push(ItemView { item, group, payload, context, attempts, age: now.since(pushed_at), state });
    }
    Ok(views)
}

fn standing(lane: Option<Lane>, item: ItemId, now: Timestamp) -> (u32, ItemState) {
    match lane.filter(|lane| lane.first == Some(item)) {
        None => (0, ItemState::Behind),
        Some(Lane { attempts, ready_at, delivery, .. }) => match delivery {
            Some(handed) if handed.expires_at > now => {
                let ends_in = handed.expires_at.since(now);
                (attempts, ItemState::InFlight { label: handed.label, ends_in })
            }
            _ => (attempts, ItemState::Waiting { ready_in: ready_at.since(now) }),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::item::Rules;
    use super::super::record::PlainQueue;
    use super::*;
    use crate::model::claim::{Label, Name};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);
    const TTL: Duration = Duration::from_secs(1);

    fn request(client: u64, claim: u128) -> Take {
        let label = Label::new("host", 1, "test", "");
        let rules = Rules { ttl: TTL, interval: Interval::Off, attempts_max: 0, label };
        let queue = Name::new("q").unwrap();
        let (client, claims) = (ClientId::new(client), vec![ClaimId::new(claim)]);
        Take { queue, client, claims, rules: Arc::new(rules), floor: Token::ZERO }
    }

    fn item(delay: Duration) -> Push {
        let queue = Name::new("q").unwrap();
        Push { queue, group: None, payload: Arc::new([]), delay, dedup: None, context: None }
    }

    #[test]
    fn whoever_dies_after_it_was_told_is_replaced() {
        let queue = &mut PlainQueue::default();
        for client in [1, 2] {
            take(queue, &request(client, 1), NOW).unwrap();
        }
        let (_, calls) = push(queue, &item(Duration::ZERO), NOW).unwrap();
        assert_eq!(calls, [ClientId::new(2)]);
        assert_eq!(vanish(queue, ClientId::new(2), NOW).unwrap(), [ClientId::new(1)]);
    }

    #[test]
    fn whoever_dies_while_it_watches_for_what_is_due_is_replaced() {
        let queue = &mut PlainQueue::default();
        push(queue, &item(TTL), NOW).unwrap();
        let watches = |queue: &mut _, client| take(queue, &request(client, 1), NOW).unwrap().0.look_in;
        assert_eq!((watches(queue, 1), watches(queue, 2)), (Some(TTL), Some(TTL + STANDBY)));
        assert_eq!(vanish(queue, ClientId::new(1), NOW).unwrap(), [ClientId::new(2)]);
        assert_eq!(watches(queue, 2), Some(TTL));
    }

    #[test]
    fn whoever_does_not_come_in_turn_is_passed_over() {
        let queue = &mut PlainQueue::default();
        push(queue, &item(TTL), NOW).unwrap();
        let clients: Vec<ClientId> = (1..=5).map(ClientId::new).collect();
        for (place, client) in clients.iter().enumerate() {
            let look_in = take(queue, &request(client.bits(), 1), NOW).unwrap().0.look_in;
            assert_eq!(look_in, Some(TTL + STANDBY * place as u32), "each has its turn");
        }
        // The first three are dead.
        let (taken, calls) = take(queue, &request(4, 1), NOW + TTL + STANDBY * 3).unwrap();
        assert_eq!(taken.items.len(), 1, "the next one takes what is due");
        assert_eq!(calls[..3], clients[..3], "whoever was only late hears of it");
        let idle: Vec<ClientId> = queue.head().unwrap().idle.iter().map(|idle| idle.client).collect();
        assert_eq!(idle, clients[4..], "nobody waits for the dead any more");
    }

    #[test]
    fn whoever_comes_in_turn_is_not_passed_over() {
        let queue = &mut PlainQueue::default();
        push(queue, &item(TTL), NOW).unwrap();
        for client in 1..=3 {
            take(queue, &request(client, 1), NOW).unwrap();
        }
        // A client that was not idle comes when the first one is on its way.
        let (taken, calls) = take(queue, &request(4, 1), NOW + TTL + STANDBY / 4).unwrap();
        assert_eq!((taken.items.len(), calls), (1, vec![]), "the others come by themselves");
        let idle: Vec<u64> = queue.head().unwrap().idle.iter().map(|idle| idle.client.bits()).collect();
        assert_eq!(idle, [1, 2, 3]);
    }

    #[test]
    fn a_dead_client_has_nothing_not_even_what_had_ended_before() {
        let queue = &mut PlainQueue::default();
        push(queue, &item(Duration::ZERO), NOW).unwrap();
        assert_eq!(take(queue, &request(1, 1), NOW).unwrap().0.items.len(), 1);
        let later = NOW + TTL + TTL;
        vanish(queue, ClientId::new(1), later).unwrap();
        assert!(queue.claims_of(ClientId::new(1)).unwrap().is_empty());
        let stats = stats(queue, later).unwrap();
        assert_eq!((stats.waiting, stats.in_flight), (1, 0));
        assert_eq!(queue.next_lane().unwrap().unwrap().1.ready_at, NOW + TTL);
    }

    #[test]
    fn a_floor_of_a_wrong_clock_does_not_use_up_the_tokens() {
        let queue = &mut PlainQueue::default();
        push(queue, &item(Duration::ZERO), NOW).unwrap();
        let wrong = Take { floor: Token::new(u64::MAX - 2), ..request(1, 1) };
        let token = take(queue, &wrong, NOW).unwrap().0.items[0].token;
        assert_eq!(token, Token::new(NOW.micros()));
    }

    #[test]
    fn to_purge_an_item_that_never_was_removes_nothing() {
        let queue = &mut PlainQueue::default();
        push(queue, &item(Duration::ZERO), NOW).unwrap();
        assert_eq!(purge(queue, Which::Live, Some(ItemId(0)), 1, NOW).unwrap().0, 0);
        assert_eq!(purge(queue, Which::Dead, Some(ItemId(0)), 1, NOW).unwrap().0, 0);
    }
}
