//! Signs of life: how deliveries last, and are acknowledged, while a store refuses all writes but deletions.
//!
//! etcd does so when its database is full, until an operator makes room, and goes on keeping leases alive. A renewal
//! changes a queue's head, so it fails then, and the delivery's time runs out by the store's clock. No client can
//! hand its item out meanwhile, since that writes, too. But the first one would when there is room again, and the
//! consumer may be at work still.
//!
//! So each delivery has a *sign*: a key that goes with its client's session. By itself it means nothing: a client that lives may have
//! lost a delivery, and the dead client's sign lasts longer than the delivery, which must not delay the next
//! consumer. A consumer that cannot renew removes the row of its claim. A client that would end the delivery finds,
//! in one read that no version speaks for:
//!
//! | item | claim | sign | the delivery |
//! | --- | --- | --- | --- |
//! | no | | | was acknowledged |
//! | yes | yes | | has ended |
//! | yes | no | yes | lasts for its ttl from now on, and has the row of its claim again: so it lasts once by one removal |
//! | yes | no | no | has ended: its client did |
//!
//! None of the three comes back by itself, so what was read stays true but for a row that goes; the transaction that
//! ends a delivery asks for the claim's. It removes the sign, and a removal asks for the sign: of the two, one comes
//! first.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::clock::{Instant, Timestamp};
use tenure_core::engine::RenewAnswer;
use tenure_core::engine::queue::{ItemId, SettleAnswer};
use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::model::queue::record::{LaneId, Overdue};
use tenure_core::{Error, Result};

use super::engine::{Queues, lock};
use super::row_cache::{Key, KeyRange, NotLoaded, RowCache, Value};
use super::rows::{ahead, rows_of_item};
use super::sorted::damaged;
use super::store::{QueueStore, Removal, Standing};

/// How many deliveries are read together: etcd takes 128 operations in a transaction.
const OVERDUE_MAX: usize = 32;

/// Where an item of this client's is, and for how long it asked.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) lane: LaneId,
    pub(crate) item: ItemId,
    pub(crate) ttl: Duration,
    /// It may have been acknowledged by a removal.
    pub(crate) may_be_out: bool,
}

/// What is known of deliveries beside the rows.
pub(crate) struct Signs<'a> {
    pub(crate) own: &'a std::sync::Mutex<HashMap<ClaimId, Own>>,
    /// `None`: the store has no signs.
    pub(crate) overdue: Option<HashMap<ClaimId, Standing>>,
}

impl Signs<'_> {
    /// Returns the lane of a delivery of this client's, whose row may be gone.
    pub(crate) fn own_lane(&self, claim: ClaimId) -> Option<LaneId> {
        self.overdue.as_ref()?;
        lock(self.own).get(&claim).map(|own| own.lane.clone())
    }

    pub(crate) fn overdue(&self, claim: ClaimId) -> Result<Overdue, NotLoaded> {
        let Some(known) = &self.overdue else { return Ok(Overdue::Ended) };
        let standing = known.get(&claim).ok_or(NotLoaded::Overdue(claim))?;
        Ok(match standing {
            Standing { has_item: false, .. } => Overdue::Acknowledged,
            Standing { has_claim: false, has_sign: true, .. } => Overdue::Lasts,
            _ => Overdue::Ended,
        })
    }

    /// The rows that were there, and on which it rests that a delivery has ended.
    pub(crate) fn there(&self) -> Vec<Key> {
        let known = self.overdue.iter().flatten();
        let there = known.filter(|(_, standing)| standing.has_claim && standing.has_item);
        there.map(|(claim, _)| ahead::claim(*claim).from).collect()
    }
}

impl<S: QueueStore> Queues<S> {
    /// Finds out what became of a delivery, and of others whose time is over.
    pub(crate) async fn check_overdue(
        &self,
        queue: &Name,
        signs: &mut Signs<'_>,
        row_cache: &RowCache,
        claim: ClaimId,
        now: Timestamp,
    ) -> Result<()> {
        let known = signs.overdue.get_or_insert_default();
        let mut asked = ahead::overdue(row_cache, now, OVERDUE_MAX);
        if !asked.iter().any(|(overdue, _)| *overdue == claim) {
            asked.truncate(OVERDUE_MAX - 1);
            // Of this client: all others are found where they stand.
            let own = lock(&self.own).get(&claim).cloned();
            asked.extend(own.map(|own| (claim, own.item)));
        }
        asked.retain(|(claim, _)| !known.contains_key(claim));
        let keys =
            |(claim, item): &(ClaimId, ItemId)| (*claim, ahead::claim(*claim).from, ahead::item(*item).from);
        let asked: Vec<_> = asked.iter().map(keys).collect();
        let found = self.store().standing(queue, &asked).await?;
        known.extend(asked.iter().map(|(claim, ..)| *claim).zip(found));
        let gone = Standing { has_sign: false, has_claim: false, has_item: true };
        // Its place is not known.
        known.entry(claim).or_insert(gone);
        Ok(())
    }

    /// Shows that this client lives, on behalf of deliveries of these claims: until when they last, by their ttl.
    pub(crate) async fn keep(&self, claims: impl Iterator<Item = ClaimId>) -> HashMap<Duration, Instant> {
        if !self.store().has_signs() {
            return HashMap::new();
        }
        let mut ttls: Vec<Duration> =
            claims.filter_map(|claim| lock(&self.own).get(&claim).map(|own| own.ttl)).collect();
        ttls.sort_unstable();
        ttls.dedup();
        let kept = ttls.into_iter().map(|ttl| async move {
            // Without it a renewal has to be written, as it mostly is.
            let until = self.store().keep(ttl).await.ok().flatten();
            until.map(|until| (ttl, until))
        });
        join_all(kept).await.into_iter().flatten().collect()
    }

    /// A renewal could not be written, and its client has shown that it lives: has the delivery last by its sign.
    pub(crate) async fn last(
        &self,
        queue: &Name,
        claim: ClaimId,
        kept: &HashMap<Duration, Instant>,
        began: Instant,
        error: Error,
    ) -> Result<RenewAnswer> {
        let own = lock(&self.own).get(&claim).cloned();
        let Some(Own { item, ttl, .. }) = own.filter(|_| self.store().is_full(&error)) else {
            return Err(error);
        };
        let Some(until) = kept.get(&ttl) else { return Err(error) };
        let (there, rows) = (ahead::item(item).from, vec![ahead::claim(claim).from]);
        match self.store().remove(Removal { queue, claim, there, rows, with_sign: false }).await {
            Ok(true) => Ok(RenewAnswer::Renewed { ends_in: until.since(began).min(ttl) }),
            _ => Err(error),
        }
    }

    /// An acknowledgement could not be written: removes the item, and leaves its lane to the next client that reads
    /// it.
    pub(crate) async fn take_out(&self, queue: &Name, claim: ClaimId, error: Error) -> Result<SettleAnswer> {
        let own = lock(&self.own).get(&claim).cloned();
        let Some(Own { lane, item, may_be_out, .. }) = own.filter(|_| self.store().is_full(&error)) else {
            return Err(error);
        };
        let wanted = KeyRange { most: 1, ..ahead::item(item) };
        let snapshot = self.store().read(queue, std::slice::from_ref(&wanted)).await?;
        let Some((there, value)) = snapshot.found.into_iter().flat_map(|found| found.rows).next() else {
            // By a removal whose answer was lost.
            return if may_be_out { Ok(SettleAnswer::Settled) } else { Err(error) };
        };
        let rows =
            rows_of_item(&lane, item, &value).map_err(|_| damaged("settle", "an item cannot be read"))?;
        let rows = rows.into_iter().chain([ahead::claim(claim).from]).collect();
        if let Some(own) = lock(&self.own).get_mut(&claim) {
            own.may_be_out = true;
        }
        match self.store().remove(Removal { queue, claim, there, rows, with_sign: true }).await? {
            true => Ok(SettleAnswer::Settled),
            false => Err(error),
        }
    }

    /// Returns the deliveries that a change begins, with their ttl, and those that it ends.
    pub(crate) fn signs_of(
        &self,
        rows: &[(Key, Option<Value>)],
        signs: &Signs<'_>,
        ttl: Option<Duration>,
    ) -> Vec<(ClaimId, Option<Duration>)> {
        if !self.store().has_signs() {
            return Vec::new();
        }
        let claims = rows.iter().filter_map(|(key, value)| Some((ahead::claim_of(key)?, value.is_some())));
        // One that lasts has its sign.
        let lasts = |claim| signs.overdue(claim) == Ok(Overdue::Lasts);
        let new = |(claim, begins): &(ClaimId, bool)| !begins || !lasts(*claim);
        claims.filter(new).map(|(claim, begins)| (claim, ttl.filter(|_| begins))).collect()
    }
}
