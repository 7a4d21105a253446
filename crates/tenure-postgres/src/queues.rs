//! The queues' verbs as sets of rows: a transaction of each is one round trip.

pub(crate) mod read;
pub(crate) mod text;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::engine::queue::{
    Dispatched, Interval, ItemId, Push, Pushed, QueueCapability, Settle, SettleAnswer, Settlement, Take,
    Which, cut_reason,
};
use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::model::queue::step::WORN_OUT;
use tenure_sql::{
    Calls, Connection, Database, Entered, Fault, Found, Purpose, QueueDatabase, QueueTables, Settled,
    claim_bytes, client_number, micros, signed,
};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

pub(crate) use text::Texts;

use crate::client::connection::PooledConnection;
use crate::engine::Postgres;
use crate::migrate;
use crate::queues::read::{claim, dispatched, maybe_period, name, number, strange};
use crate::statement::Bound;

/// A value for a parameter.
type Value<'a> = &'a (dyn ToSql + Sync);

/// What becomes of an item, as the statement has it.
#[derive(Clone, Copy)]
enum Kind {
    Ack = 0,
    Retry = 1,
    Fail = 2,
    Return = 3,
}

fn bytes(name: &Name) -> &[u8] {
    name.as_str().as_bytes()
}

fn context(push: &Push) -> Option<&[u8]> {
    push.context.as_ref().map(|context| context.as_str().as_bytes())
}

fn all_bytes(claims: &[ClaimId]) -> Vec<[u8; 16]> {
    claims.iter().copied().map(claim_bytes).collect()
}

fn slices(claims: &[[u8; 16]]) -> Vec<&[u8]> {
    claims.iter().map(<[u8; 16]>::as_slice).collect()
}

/// How many claims are known at most to be of items without groups.
const LONERS_MAX: usize = 100_000;

/// Claims of this client that are of items without groups: a hint that saves a statement, and no truth.
#[derive(Debug, Default)]
pub(crate) struct Loners(Mutex<HashSet<ClaimId>>);

impl Loners {
    fn lock(&self) -> MutexGuard<'_, HashSet<ClaimId>> {
        // A panic elsewhere cannot leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, claim: ClaimId) {
        let mut loners = self.lock();
        if loners.len() >= LONERS_MAX {
            loners.clear();
        }
        loners.insert(claim);
    }

    fn are(&self, claims: &[ClaimId]) -> bool {
        let loners = self.lock();
        claims.iter().all(|claim| loners.contains(claim))
    }

    fn forget(&self, claims: &[ClaimId]) {
        let mut loners = self.lock();
        claims.iter().for_each(|claim| {
            loners.remove(claim);
        });
    }
}

/// Reads the answers to pushes.
fn pushed(rows: &[Row], count: usize) -> Result<Vec<Pushed>, Fault> {
    if rows.len() != count {
        return Err(Fault::internal("a push was left out"));
    }
    let read = |row: &Row| {
        let item = ItemId(number(row, 0)?.unsigned_abs());
        Ok(Pushed { item, is_duplicate: row.try_get(1).map_err(strange)? })
    };
    rows.iter().map(read).collect()
}

impl Postgres {
    /// Returns the statements for the tables as they are, as far as this client knows.
    pub(crate) fn texts(&self) -> &Texts {
        if self.keeps_contexts() { &self.texts } else { &self.texts_of_old }
    }

    /// Carries out a transaction, and returns the rows of its last statement.
    async fn transact(&self, statements: &[Bound<'_>], calls: &Calls) -> Result<Vec<Row>, Fault> {
        let connection = self.connections.lend(Purpose::Any).await?;
        self.transact_on(connection, statements, calls).await
    }

    async fn transact_on(
        &self,
        mut connection: PooledConnection,
        statements: &[Bound<'_>],
        calls: &Calls,
    ) -> Result<Vec<Row>, Fault> {
        let (one, watcher) =
            (calls.one.iter().map(bytes).collect(), calls.watchers.iter().map(bytes).collect());
        let (one, watcher): (Vec<&[u8]>, Vec<&[u8]>) = (one, watcher);
        let own = client_number(self.inbox().client());
        let values: [&[Value<'_>]; 2] = [&[&one, &own], &[&watcher]];
        let mut behind: Vec<Bound<'_>> = Vec::new();
        let alone: [Value<'_>; 2] = [&one.first(), &own];
        match one.len() {
            0 => {}
            1 => behind.push((&self.texts().wake_one, &alone)),
            _ => behind.push((&self.texts().wake, values[0])),
        }
        if !watcher.is_empty() {
            behind.push((&self.texts().wake_watchers, values[1]));
        }
        let mut answers = connection.transact(self.owns_sessions(), statements, &behind).await?;
        connection.keep();
        Ok(answers.pop().unwrap_or_default())
    }

    /// Puts items in line that have neither groups nor dedup ids: most do not, and one alone takes a fraction of the time.
    async fn enter_plain(&self, pushes: &[&Push], calls: &Calls) -> Result<Entered, Fault> {
        let own = client_number(self.inbox().client());
        let watchers = Calls { one: Vec::new(), watchers: calls.watchers.clone() };
        let texts = self.texts();
        let given = if texts.keeps_contexts { 5 } else { 4 };
        let rows = if let [push] = pushes {
            let (queue, delay, context) = (bytes(&push.queue), micros(push.delay), context(push));
            let values: [Value<'_>; 5] = [&queue, &&*push.payload, &delay, &own, &context];
            self.transact(&[(&texts.push_one, &values[..given])], &watchers).await?
        } else {
            let queues: Vec<&[u8]> = pushes.iter().map(|push| bytes(&push.queue)).collect();
            let payloads: Vec<&[u8]> = pushes.iter().map(|push| &*push.payload).collect();
            let delays: Vec<i64> = pushes.iter().map(|push| micros(push.delay)).collect();
            let contexts: Vec<Option<&[u8]>> = pushes.iter().map(|push| context(push)).collect();
            let values: [Value<'_>; 5] = [&queues, &payloads, &delays, &own, &contexts];
            self.transact(&[(&texts.push, &values[..given])], &watchers).await?
        };
        let pushed = pushed(&rows, pushes.len())?;
        let one = calls.one.clone();
        let mut is_for_idle = false;
        for row in &rows {
            is_for_idle |= row.try_get::<_, bool>(2).map_err(strange)?;
        }
        // This is sent only now, so a client that became idle meanwhile is woken as well.
        if is_for_idle
            && !one.is_empty()
            && let Err(fault) = self.call(&Calls { one, watchers: Vec::new() }).await
        {
            tracing::debug!(engine = Self::ENGINE, ?fault, "consumers look for themselves");
        }
        Ok(Entered { pushed, calls_later: !is_for_idle })
    }

    /// Hands out the item that is next. `None`: there is a reason why it cannot, which the long statement finds.
    async fn hand_out_one(&self, take: &Take, claim: ClaimId) -> Result<Option<Found>, Fault> {
        let (queue, id) = (bytes(&take.queue), claim_bytes(claim));
        let (client, floor) = (client_number(take.client), signed(take.floor.get()));
        let (ttl, attempts) = (micros(take.rules.ttl), i64::from(take.rules.attempts_max));
        let values: [Value<'_>; 7] =
            [&queue, &id.as_slice(), &client, &ttl, &take.rules.label.as_str().as_bytes(), &floor, &attempts];
        let rows = self.transact_alone(&[(&self.texts().take_one, &values)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let item = ItemId(number(row, 0)?.unsigned_abs());
        let items = vec![self.dispatched(row, item, claim, take.rules.ttl)?];
        let is_for_others = row.try_get(6).map_err(strange)?;
        Ok(Some(Found { items, is_for_others, ..Found::default() }))
    }

    /// Reads an item that was handed out, and notes whether it has no group.
    fn dispatched(
        &self,
        row: &Row,
        item: ItemId,
        claim: ClaimId,
        ttl: Duration,
    ) -> Result<Dispatched, Fault> {
        let dispatched = dispatched(row, item, claim, ttl)?;
        if dispatched.group.is_none() {
            self.loners.add(claim);
        }
        Ok(dispatched)
    }

    async fn transact_alone(&self, statements: &[Bound<'_>]) -> Result<Vec<Row>, Fault> {
        self.transact(statements, &Calls::default()).await
    }

    async fn hand_out_at_intervals(&self, queue: &[u8], take: &[Value<'_>]) -> Result<Vec<Row>, Fault> {
        // Each take from this queue stands in line for the row in which its rest is noted.
        let head: [Value<'_>; 1] = [&queue];
        self.transact_alone(&[(&self.texts().lock_head, &head), (&self.texts().take_at_intervals, take)])
            .await
    }
}

impl QueueDatabase for Postgres {
    fn queue_capability(&self) -> &QueueCapability {
        &self.queue_capability
    }

    fn queue_tables(&self) -> &QueueTables {
        &self.texts.tables
    }

    async fn ensure_queues(&self) -> Result<(), Fault> {
        migrate::ensure_queues(&self.connections, &self.place).await?;
        let keeps_contexts = migrate::ensure_contexts(&self.connections, &self.place).await?;
        self.keeps_contexts.store(keeps_contexts, Ordering::Release);
        Ok(())
    }

    fn keeps_contexts(&self) -> bool {
        self.keeps_contexts.load(Ordering::Acquire)
    }

    async fn enter(&self, pushes: &[&Push], calls: &Calls) -> Result<Entered, Fault> {
        let has_dedups = pushes.iter().any(|push| push.dedup.is_some());
        if !has_dedups && pushes.iter().all(|push| push.group.is_none()) {
            return self.enter_plain(pushes, calls).await;
        }
        let queues: Vec<&[u8]> = pushes.iter().map(|push| bytes(&push.queue)).collect();
        let groups: Vec<Option<&[u8]>> = pushes.iter().map(|push| push.group.as_ref().map(bytes)).collect();
        let payloads: Vec<&[u8]> = pushes.iter().map(|push| &*push.payload).collect();
        let delays: Vec<i64> = pushes.iter().map(|push| micros(push.delay)).collect();
        let dedups: Vec<Option<&[u8]>> = pushes.iter().map(|push| push.dedup.as_ref().map(bytes)).collect();
        let contexts: Vec<Option<&[u8]>> = pushes.iter().map(|push| context(push)).collect();
        let texts = self.texts();
        let mut values: Vec<Value<'_>> = vec![&queues, &payloads, &delays, &groups];
        if texts.keeps_contexts {
            values.push(&contexts);
        }
        if has_dedups {
            values.push(&dedups);
        }
        let statement: Bound<'_> =
            (if has_dedups { &texts.push_all } else { &texts.push_groups }, values.as_slice());
        let rows = self.transact(&[statement], calls).await?;
        Ok(Entered { pushed: pushed(&rows, pushes.len())?, calls_later: false })
    }

    async fn hand_out(&self, take: &Take, claims: &[ClaimId]) -> Result<Found, Fault> {
        // An idle client asks how the queue stands, more than for items.
        if let ([claim], Interval::Off) = (claims, take.rules.interval)
            && !self.inbox().is_idle(&take.queue)
            && let Some(found) = self.hand_out_one(take, *claim).await?
        {
            return Ok(found);
        }
        let queue = bytes(&take.queue);
        let ids = all_bytes(claims);
        let ids = slices(&ids);
        let client = client_number(take.client);
        let (ttl, floor) = (micros(take.rules.ttl), signed(take.floor.get()));
        let label = take.rules.label.as_str().as_bytes();
        let attempts = i64::from(take.rules.attempts_max);
        let (period, is_of_queue) = match take.rules.interval {
            Interval::Off => (0, false),
            Interval::Queue(period) => (micros(period), !period.is_zero()),
            Interval::Group(period) => (micros(period), false),
        };
        let most = if is_of_queue { 1 } else { claims.len() as i64 };
        let values: [Value<'_>; 9] = [&queue, &ids, &most, &client, &ttl, &label, &floor, &attempts, &period];
        let rows = match is_of_queue {
            true => self.hand_out_at_intervals(queue, &values).await?,
            false => self.transact_alone(&[(&self.texts().take, &values)]).await?,
        };
        let mut found = Found::default();
        for row in &rows {
            // The last row says how the queue stands.
            let Some(item) = row.try_get::<_, Option<i64>>(0).map_err(strange)? else {
                found.next_in = maybe_period(row, 6)?;
                found.is_for_others = row.try_get::<_, Option<i64>>(5).map_err(strange)? == Some(1);
                continue;
            };
            let item = ItemId(item.unsigned_abs());
            match claim(row, 1)? {
                Some(claim) => found.items.push(self.dispatched(row, item, claim, take.rules.ttl)?),
                None => found.worn.push(item),
            }
        }
        Ok(found)
    }

    async fn extend(&self, claims: &[ClaimId]) -> Result<Vec<(ClaimId, Duration)>, Fault> {
        let ids = all_bytes(claims);
        let ids = slices(&ids);
        let connection = self.connections.lend(Purpose::Renewal).await?;
        let renew: &[Bound<'_>] = &[(&self.texts().renew, &[&ids])];
        let rows = self.transact_on(connection, renew, &Calls::default()).await?;
        let read = |row: &Row| {
            let claim = claim(row, 0)?.ok_or_else(|| Fault::internal("a claim is missing"))?;
            Ok((claim, Duration::from_micros(number(row, 1)?.unsigned_abs())))
        };
        rows.iter().map(read).collect()
    }

    async fn settle_all(&self, settlements: &[&Settle]) -> Result<Settled, Fault> {
        let claims: Vec<ClaimId> = settlements.iter().map(|one| one.claim).collect();
        let ids = all_bytes(&claims);
        let ids = slices(&ids);
        let queues: Vec<&[u8]> = settlements.iter().map(|one| bytes(&one.queue)).collect();
        let (mut kinds, mut afters) = (Vec::new(), Vec::new());
        let (mut mosts, mut reasons): (Vec<i64>, Vec<&[u8]>) = (Vec::new(), Vec::new());
        for one in settlements {
            let (kind, after, most, reason) = match &one.settlement {
                Settlement::Ack => (Kind::Ack, 0, 0, ""),
                Settlement::Retry { after, attempts_max, reason } => {
                    (Kind::Retry, micros(*after), i64::from(*attempts_max), reason.as_str())
                }
                Settlement::Fail { reason } => (Kind::Fail, 0, 0, reason.as_str()),
                Settlement::Return => (Kind::Return, 0, 0, ""),
            };
            kinds.push(kind as i64);
            afters.push(after);
            mosts.push(most);
            reasons.push(cut_reason(reason).as_bytes());
        }
        let lock: [Value<'_>; 1] = [&ids];
        let values: [Value<'_>; 6] = [&queues, &ids, &kinds, &afters, &mosts, &reasons];
        let is_plain = kinds.iter().all(|kind| *kind == Kind::Ack as i64);
        let settle: Bound<'_> = match is_plain {
            true => (&self.texts().acknowledge, &values[..2]),
            false => (&self.texts().settle, &values),
        };
        let are_alone = is_plain && self.loners.are(&claims);
        let one: Option<[Value<'_>; 2]> = match (&queues[..], &ids[..]) {
            ([queue], [id]) => Some([queue, id]),
            _ => None,
        };
        let rows = match (are_alone, &one) {
            (true, Some(one)) => self.transact_alone(&[(&self.texts().acknowledge_one, one)]).await?,
            (true, None) => self.transact_alone(&[(&self.texts().acknowledge_alone, &values[..2])]).await?,
            (false, _) => self.transact_alone(&[(&self.texts().lock_groups, &lock), settle]).await?,
        };
        self.loners.forget(&claims);
        let mut settled = Settled::default();
        let mut answers = HashMap::new();
        for row in &rows {
            let claim = claim(row, 0)?.ok_or_else(|| Fault::internal("a claim is missing"))?;
            let answer = if number(row, 1)? == 1 { SettleAnswer::Buried } else { SettleAnswer::Settled };
            answers.insert(claim, answer);
            if number(row, 2)? == 1 {
                settled.ready.push(name(row, 3)?);
            }
        }
        let answer = |one: &&Settle| answers.get(&one.claim).copied().unwrap_or(SettleAnswer::Lost);
        settled.answers = settlements.iter().map(answer).collect();
        Ok(settled)
    }

    async fn dead_letter(&self, queue: &Name, items: &[ItemId], attempts: u32) -> Result<(), Fault> {
        let queue = bytes(queue);
        let items: Vec<i64> = items.iter().map(|item| signed(item.0)).collect();
        let (attempts, reason) = (i64::from(attempts), WORN_OUT.as_bytes());
        let values: [Value<'_>; 4] = [&queue, &items, &attempts, &reason];
        let statements: [Bound<'_>; 2] =
            [(&self.texts().lock_groups_of, &values[..2]), (&self.texts().dead_letter, &values)];
        self.transact_alone(&statements).await.map(drop)
    }

    async fn replay_some(&self, queue: &Name, item: Option<ItemId>, most: usize) -> Result<usize, Fault> {
        let queue = bytes(queue);
        let item = item.map(|item| signed(item.0));
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let values: [Value<'_>; 3] = [&queue, &item, &most];
        Ok(self.transact_alone(&[(&self.texts().replay, &values)]).await?.len())
    }

    async fn remove(&self, queue: &Name, which: Which, items: &[ItemId]) -> Result<usize, Fault> {
        let queue = bytes(queue);
        let items: Vec<i64> = items.iter().map(|item| signed(item.0)).collect();
        let values: [Value<'_>; 2] = [&queue, &items];
        let rows = match which {
            Which::Live => {
                let lock: Bound<'_> = (&self.texts().lock_groups_of, &values);
                self.transact_alone(&[lock, (&self.texts().withdraw, &values)]).await?
            }
            Which::Dead => self.transact_alone(&[(&self.texts().remove_dead, &values)]).await?,
        };
        Ok(rows.len())
    }

    async fn note_idle(&self, queue: &Name) -> Result<usize, Fault> {
        let (queue, own) = (bytes(queue), client_number(self.inbox().client()));
        let values: [Value<'_>; 2] = [&queue, &own];
        let rows = self.transact_alone(&[(&self.texts().note_idle, &values)]).await?;
        let row = rows.first().ok_or_else(|| Fault::internal("an idle client was not noted"))?;
        Ok(usize::try_from(number(row, 0)?).unwrap_or(0))
    }

    async fn unnote_idle(&self, queue: &Name) -> Result<(), Fault> {
        let (queue, own) = (bytes(queue), client_number(self.inbox().client()));
        let values: [Value<'_>; 2] = [&queue, &own];
        self.transact_alone(&[(&self.texts().unnote_idle, &values)]).await.map(drop)
    }

    async fn pass_over(&self, queue: &Name) -> Result<(), Fault> {
        let (queue, own) = (bytes(queue), client_number(self.inbox().client()));
        let values: [Value<'_>; 2] = [&queue, &own];
        self.transact_alone(&[(&self.texts().pass_over, &values)]).await.map(drop)
    }

    async fn call(&self, calls: &Calls) -> Result<(), Fault> {
        self.transact(&[], calls).await.map(drop)
    }
}

#[cfg(test)]
mod tests;
