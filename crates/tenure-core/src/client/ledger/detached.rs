//! What has been in a user's hand before it comes here, and what leaves without being released.
//!
//! A lease that is detached has no entry any more: an answer to a renewal that is under way finds none, and moves nothing.

use std::sync::Arc;
use std::time::Duration;

use super::{Entry, Key, Ledger, Now, Phase, entry_of, lease_deadline};
use crate::client::lease_state::LeaseState;
use crate::client::renewal::GRAIN;
use crate::clock::Instant;
use crate::counts::ClaimEnd;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::model::claim::{ClaimId, Grant};

/// What is held when its entry begins.
pub(crate) struct Holding {
    pub(crate) lease: LeaseState,
    pub(crate) grant: Grant,
    /// When the request was sent that was answered by the grant.
    pub(crate) sent: Instant,
    /// In which scope it is counted.
    pub(crate) scope: u16,
}

/// Why nothing is entered.
pub(crate) enum NotEntered {
    /// It was over when its answer came, or the client's thread is gone and could not renew it.
    Over,
    /// This client has the same claim already.
    InUse,
}

/// The claim was asked for in this client already, and that has not ended.
pub(crate) fn in_use() -> Error {
    Error::new(ErrorKind::Invalid, "claim", "this client has a claim with the same id already")
        .with_hint("give each claim an id of its own; what is detached is attached once")
        .with_no_effect()
}

impl Ledger {
    /// Enters a delivery of a queue that was taken. Returns `None` if it is over already, or if the client's thread is gone and could
    /// not renew it.
    pub(crate) fn enter_delivery(
        &mut self,
        now: &Now<'_>,
        holding: Holding,
    ) -> Option<(Key, Arc<LeaseState>)> {
        let ttl = holding.lease.terms().ttl;
        let (key, lease) = self.enter_held(now, holding).ok()?;
        let entry = &mut self.entries[key.index as usize];
        (entry.is_delivery, entry.collect_by) = (true, now.at + ttl);
        Some((key, lease))
    }

    /// Enters a hold that was detached. `max_hold_left`: how much of its `max_hold` was left then.
    pub(crate) fn attach(
        &mut self,
        now: &Now<'_>,
        mut holding: Holding,
        max_hold_left: Option<Duration>,
    ) -> Result<(Key, Arc<LeaseState>), NotEntered> {
        let (claim, sent) = (holding.lease.claim(), holding.sent);
        holding.grant.ends_in =
            max_hold_left.map_or(holding.grant.ends_in, |left| holding.grant.ends_in.min(left));
        if self.has_given_id(claim) {
            return Err(NotEntered::InUse);
        }
        let (key, lease) = self.enter_held(now, holding)?;
        let began = self.watch.began(now.at);
        let entry = &mut self.entries[key.index as usize];
        (entry.is_given, entry.began) = (true, began);
        self.watch.attached(entry.scope, lease.resource(), lease.token());
        self.given_ids.insert(claim, key.index);
        if let Some(left) = max_hold_left {
            // The store counts it from the grant. From here it is counted from the request, so never less than it is.
            self.max_holds.insert(key.index, sent + left);
        }
        Ok((key, lease))
    }

    /// Enters a delivery that was detached.
    pub(crate) fn attach_delivery(
        &mut self,
        now: &Now<'_>,
        holding: Holding,
    ) -> Result<(Key, Arc<LeaseState>), NotEntered> {
        let (key, lease) = self.attach(now, holding, None)?;
        self.entries[key.index as usize].is_delivery = true;
        Ok((key, lease))
    }

    fn enter_held(
        &mut self,
        now: &Now<'_>,
        Holding { lease, grant, sent, scope }: Holding,
    ) -> Result<(Key, Arc<LeaseState>), NotEntered> {
        lease.grant(grant.token, grant.slot, lease_deadline(&lease, sent, grant.ends_in));
        if self.closed.is_some() || lease.is_over(now.at + GRAIN) {
            return Err(NotEntered::Over);
        }
        self.watch.check_token(now, scope, lease.resource(), grant.token);
        self.generation = self.generation.wrapping_add(1);
        let (generation, lease) = (self.generation, Arc::new(lease));
        let index = self.entries.insert(Entry {
            generation,
            phase: Phase::Held,
            is_busy: false,
            has_stray_copy: false,
            is_unconfirmed: false,
            is_delivery: false,
            is_given: false,
            collect_by: Instant::NEVER,
            scope,
            began: Default::default(),
            attempt: 0,
            loss: None,
            lease: lease.clone(),
            pending: None,
        }) as u32;
        self.schedule_renewal(now, index);
        Ok((Key { index, generation }, lease))
    }

    /// Whether a user has given an id that is still in use.
    pub(crate) fn has_given_id(&self, claim: ClaimId) -> bool {
        self.given_ids.contains_key(&claim)
    }

    /// Whether the engine has heard of the holder since the grant.
    pub(crate) fn is_confirmed(&mut self, key: Key) -> bool {
        entry_of(&mut self.entries, key).is_none_or(|entry| !entry.is_unconfirmed)
    }

    /// Ends a request whose id was given: it is used up. What it may hold is withdrawn, now or when a copy of it arrives.
    pub(super) fn end_given(&mut self, now: &Now<'_>, index: u32, may_hold: bool) {
        let entry = &self.entries[index as usize];
        let error = Error::new(
            ErrorKind::Finished,
            "claim",
            "its id is used up: what it held or waited for has ended",
        )
        .with_hint("claim anew, with another id")
        .named(self.identity.engine, Some(entry.lease.resource()));
        match may_hold || entry.has_stray_copy {
            true => self.fail_and_withdraw(now, index, Err(error)),
            false => self.fail(now, index, Err(error)),
        }
    }

    /// Lets a request go without withdrawing its claim. Returns the id, if anything was asked for under it.
    pub(crate) fn depart_early(&mut self, now: &Now<'_>, key: Key) -> Option<ClaimId> {
        let entry = entry_of(&mut self.entries, key)?;
        let is_sent = entry.pending.as_ref().is_some_and(|pending| pending.first_sent.is_some());
        let (phase, claim) = (entry.phase, entry.lease.claim());
        if matches!(phase, Phase::Failed | Phase::Ended | Phase::Releasing) {
            return None;
        }
        self.claim_ended(now, key.index, ClaimEnd::Cancelled);
        self.remove(key.index);
        (is_sent && phase != Phase::SetAside).then_some(claim)
    }

    /// Lets go of a request whose claim is left in the store.
    pub(super) fn leave(&mut self, now: &Now<'_>, key: Key) {
        // Of one that has ended already its user wants to know nothing more.
        if self.depart_early(now, key).is_none() && entry_of(&mut self.entries, key).is_some() {
            self.remove(key.index);
        }
    }

    /// Lets a lease or a delivery go without ending it: nothing more is sent about it. Returns how much of its `max_hold` is left, or why
    /// it is lost.
    pub(crate) fn depart(&mut self, now: &Now<'_>, key: Key) -> Result<Option<Duration>, LossReason> {
        if let Some(reason) = self.loss(now, key) {
            return Err(reason);
        }
        let held = entry_of(&mut self.entries, key).filter(|entry| entry.phase == Phase::Held);
        let Some(entry) = held else { return Err(LossReason::NotRenewed) };
        let (scope, began, lease) = (entry.scope, entry.began, entry.lease.clone());
        let left = self.max_holds.get(&key.index).map(|ends_at| ends_at.since(now.at));
        let span = self.spans.remove(&key.index);
        self.watch.detached((scope, span), (lease.resource(), lease.token()), (began, now.at));
        self.remove(key.index);
        Ok(left)
    }
}
