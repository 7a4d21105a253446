//! The engine on a quorum: independent servers, of which a majority decides.
//!
//! Each verb is one call of all servers side by side; `quorum.rs` counts the votes of a claim. Servers never grant to
//! a waiter: a server wakes the first waiter when a hold is released, and the waiter's heartbeat claims what is free.
//! Waiters stand in the order of their tickets, which all servers know alike.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::BoxStream;
use tenure_core::engine::{
    Adopts, BreakAnswer, Capability, ClaimAnswer, Engine, Finding, HandOver, Reach, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, SlotOrder, Wake, adopts_elsewhere,
};
use tenure_core::model::claim::{Claim, ClaimId, Keep, Kind, Name};
use tenure_core::model::inspect::View;
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};
use tokio::task::AbortHandle;

use crate::rounds::claims::Attempt;
use crate::rounds::own::Own;
use crate::rounds::{BATCH_MAX, ENGINE, INCARNATION, Quorum, UNITS, holds, observe, text};

/// The engine on three, five or more independent Redis servers, of which a majority decides.
///
/// No example: it comes from `Config`, and is used by the client that connects with it.
pub struct Redlock {
    quorum: Arc<Quorum>,
    capability: Capability,
    tasks: Vec<AbortHandle>,
}

impl Redlock {
    /// Makes the engine of servers that are connected. It ends the tasks.
    pub(crate) fn new(quorum: Arc<Quorum>, tasks: Vec<AbortHandle>) -> Redlock {
        Redlock { capability: capability(quorum.max_ttl), quorum, tasks }
    }

    /// Returns how many claims have needed a second round trip, since the servers' numbers differed.
    #[doc(hidden)]
    pub fn stamps(&self) -> u64 {
        self.quorum.stamps.load(Ordering::Relaxed)
    }
}

fn capability(max_ttl: Duration) -> Capability {
    let mut capability = Capability::of_step();
    capability.reach = Reach::Network;
    capability.kinds = &[Kind::Mutex, Kind::RwLock, Kind::SlotPool];
    capability.kinds_reason = UNITS;
    capability.ttl_reason = "a server that has forgotten its holds waits for the longest ttl, `max_ttl` in the URL of all clients";
    // Tickets are clients' clocks.
    capability.is_fifo = false;
    capability.slot_order = SlotOrder::AnyFree;
    capability.ttl_max = max_ttl;
    capability.hand_over = HandOver::Asked;
    capability.adopts = Adopts::SameClient;
    capability.adopts_reason =
        "only the client that asked all servers knows on which of them its claim may be";
    capability.needs_floor = true;
    capability.remembers_ends = false;
    // Of a minority of the servers.
    capability.survives_failover = true;
    capability.batch_max = BATCH_MAX;
    capability.resource_batch_max = BATCH_MAX;
    capability
}

impl Drop for Redlock {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.quorum.nodes.iter().for_each(|node| node.pending.close(&self.quorum));
    }
}

impl std::fmt::Debug for Redlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redlock").field("servers", &self.quorum.nodes.len()).finish_non_exhaustive()
    }
}

fn internal(operation: &'static str, what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Internal, operation, what)
}

impl Redlock {
    async fn claim_all(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        let mut answers: BTreeMap<usize, Result<ClaimAnswer>> = BTreeMap::new();
        let (mut asked, mut held) = (Vec::new(), Vec::new());
        for (at, claim) in claims.iter().enumerate() {
            let is_known = self.quorum.owned().get(claim.id).is_some();
            let mut checked = self.quorum.check(claim);
            if claim.may_be_known && !is_known && checked.is_ok() {
                let elsewhere = self.check_elsewhere(claim.resource.clone(), claim.id).await;
                checked = elsewhere.map_err(Error::with_no_effect);
            }
            if let Err(error) = checked {
                answers.insert(at, Err(error));
                continue;
            }
            match self.quorum.owned().get(claim.id).filter(|own| own.held.is_some()) {
                Some(own) => held.push((at, own.clone())),
                None => asked.push((at, claim.clone())),
            }
        }
        // One that holds already gets its grant again.
        let renewals: Vec<RenewRequest> = held.iter().map(|(_, own)| as_renewal(own)).collect();
        let holds: Vec<(Own, &RenewRequest)> =
            held.iter().map(|(_, own)| own.clone()).zip(&renewals).collect();
        let (places, asked): (Vec<usize>, Vec<Claim>) = asked.into_iter().unzip();
        let (renewed, attempts) = join(self.quorum.renew_holds(&holds), self.attempt(asked)).await;
        for ((at, _), renewed) in held.iter().zip(renewed) {
            answers.insert(
                *at,
                renewed.and_then(|answer| match answer {
                    RenewAnswer::Granted(grant) => Ok(ClaimAnswer::Granted(grant)),
                    RenewAnswer::Lost => Ok(ClaimAnswer::Finished),
                    _ => Err(internal("claim", "a grant was left out")),
                }),
            );
        }
        for (at, attempt) in places.into_iter().zip(attempts) {
            answers.insert(
                at,
                match attempt {
                    Attempt::Won(grant) => Ok(ClaimAnswer::Granted(grant)),
                    Attempt::Waiting(waiting) => Ok(ClaimAnswer::Waiting(waiting, INCARNATION)),
                    Attempt::Busy(busy) => Ok(ClaimAnswer::Busy(busy)),
                    Attempt::Fresh(value) => Ok(ClaimAnswer::Fresh(value)),
                    Attempt::Finished => Ok(ClaimAnswer::Finished),
                    Attempt::Failed(error) => Err(error),
                    Attempt::Again(..) => Err(internal("claim", "an attempt was left out")),
                },
            );
        }
        answers.into_values().collect()
    }

    async fn attempt(&self, claims: Vec<Claim>) -> Vec<Attempt> {
        if claims.is_empty() {
            return Vec::new();
        }
        claims.iter().for_each(|claim| self.quorum.notices.forget(claim.id));
        self.quorum.attempt(claims).await
    }

    async fn renew_all(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let now = self.quorum.clock.now();
        let mut answers: BTreeMap<usize, Result<RenewAnswer>> = BTreeMap::new();
        let (mut holds, mut asked, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (at, renewal) in renewals.iter().enumerate() {
            match self.quorum.owned().get(renewal.claim) {
                Some(own) if own.held.is_some() => holds.push((at, own.clone())),
                Some(own) if own.has_gone(now) => gone.push((at, own.clone())),
                Some(own) => asked.push((at, own.claim.clone())),
                None => drop(answers.insert(at, Ok(RenewAnswer::Lost))),
            }
        }
        for (at, own) in gone {
            self.withdraw(own);
            answers.insert(at, Ok(RenewAnswer::Lost));
        }
        let (places, asked): (Vec<usize>, Vec<Claim>) = asked.into_iter().unzip();
        let held: Vec<(Own, &RenewRequest)> =
            holds.iter().map(|(at, own)| (own.clone(), &renewals[*at])).collect();
        let (renewed, attempts) = join(self.quorum.renew_holds(&held), self.attempt(asked)).await;
        answers.extend(holds.iter().map(|(at, _)| *at).zip(renewed));
        for (at, attempt) in places.into_iter().zip(attempts) {
            let claim = renewals[at].claim;
            answers.insert(
                at,
                match attempt {
                    Attempt::Won(grant) => Ok(RenewAnswer::Granted(grant)),
                    Attempt::Waiting(waiting) => Ok(RenewAnswer::Waiting(waiting, INCARNATION)),
                    Attempt::Failed(error) if error.kind() == ErrorKind::Unavailable => Err(error),
                    // It asks anew, and gets the error.
                    _ => {
                        let own = self.quorum.owned().remove(claim);
                        own.into_iter().for_each(|own| self.withdraw(own));
                        Ok(RenewAnswer::Lost)
                    }
                },
            );
        }
        answers.into_values().collect()
    }

    async fn adopt_all(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let mut answers = self.renew_all(renewals.clone()).await;
        for (renewal, answer) in renewals.into_iter().zip(&mut answers) {
            if matches!(answer, Ok(RenewAnswer::Lost))
                && let Err(error) = self.check_elsewhere(renewal.resource, renewal.claim).await
            {
                *answer = Err(error);
            }
        }
        answers
    }

    /// Finds out whether another client has claimed under an id.
    async fn check_elsewhere(&self, resource: Name, claim: ClaimId) -> Result<()> {
        let is_of = |view: &View| {
            let waiters = view.waiters.iter().map(|waiter| Some(waiter.claim));
            view.holds.iter().map(|hold| hold.claim).chain(waiters).any(|other| other == Some(claim))
        };
        match self.view(resource).await?.as_ref().is_some_and(is_of) {
            true => Err(adopts_elsewhere("adopt", self.capability.adopts_reason)),
            false => Ok(()),
        }
    }

    /// Takes a claim out of all queues.
    fn withdraw(&self, own: Own) {
        self.quorum.owned().remove(own.claim.id);
        let ending = text::Ending::Released { is_unused: true, is_finished: true };
        holds::forget_on_all(&self.quorum, vec![(own.reached(), own)], ending);
    }
}

fn as_renewal(own: &Own) -> RenewRequest {
    RenewRequest { resource: own.claim.resource.clone(), claim: own.claim.id, is_waiter: true }
}

impl Engine for Redlock {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        self.claim_all(claims).await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.renew_all(renewals).await
    }

    async fn adopt(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.adopt_all(renewals).await
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        self.quorum.release_all(&releases).await
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        self.quorum.publish(&resource, claim, &bytes, keep).await
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        self.quorum.inspect(prefix, after, most).await
    }

    fn inspect_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
        self.quorum.inspect_all(prefix)
    }

    async fn view(&self, resource: Name) -> Result<Option<View>> {
        // Without the scan that a list of names takes.
        Ok(self.quorum.read_views("inspect", &[resource]).await?.pop().flatten())
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        observe::observe(self.quorum.clone(), resource)
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        self.quorum.break_hold(&resource, token, at_once).await
    }

    async fn resize(&self, _: Name, _: u32) -> Result<()> {
        let why = "each slot is a lock of its own, and how many there are is in the claims: no server keeps it, so no majority could agree \
                on another number while some hold";
        Err(Error::new(ErrorKind::Unsupported, "resize", why)
            .with_hint("claim with another number once nobody holds a slot"))
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.quorum.notices.wakes()
    }

    async fn check(&self) -> Vec<Finding> {
        self.quorum.check_servers().await
    }

    async fn migrate(&self) -> Result<Option<String>> {
        self.quorum.init().await.map(Some)
    }
}

#[cfg(test)]
mod tests;
