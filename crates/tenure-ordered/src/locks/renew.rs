//! Renewing holds, and answering waiters how they stand.

use std::collections::{BTreeMap, HashSet};

use futures_util::future::{join, join_all, join3};
use tenure_core::clock::Instant;
use tenure_core::engine::{RenewAnswer, RenewRequest};
use tenure_core::model::claim::{ClaimId, Name, Waiting};
use tenure_core::model::line::Standing;
use tenure_core::{Error, ErrorKind, Result};

use crate::locks::claim::has_fresh_value;
use crate::locks::ordered::{Shared, now};
use crate::locks::own::Own;
use crate::store::{Look, Mine, Presence, SessionId, Store, Wait};

/// What a renewal comes to.
enum Renewed {
    /// It is answered.
    Answered(RenewAnswer),
    /// It waits for nothing any more, and must leave.
    GivenUp,
}

impl<S: Store> Shared<S> {
    pub(crate) async fn renew_all(&self, requests: &[RenewRequest]) -> Vec<Result<RenewAnswer>> {
        let _changing = self.changing();
        let start = now();
        let known: Vec<Option<Own>> = {
            let owned = self.owned();
            requests.iter().map(|request| owned.get(request.claim).cloned()).collect()
        };
        // A renewal of a claim that has ended is to find it gone.
        let ended = known.iter().flatten().filter(|own| own.ends_at <= start);
        let ended = ended.filter_map(|own| self.end(own.mine.claim, start)).map(Own::over);
        self.withdraw(ended.collect()).await;
        let lives_on = |own: Option<Own>| own.filter(|own| !own.is_broken && own.ends_at > start);
        let known: Vec<Option<Own>> = known.into_iter().map(lives_on).collect();
        let lives: HashSet<SessionId> = known.iter().flatten().map(|own| own.mine.session_id).collect();
        let holders: Vec<Mine> = known
            .iter()
            .flatten()
            .filter(|own| own.granted_at.is_some())
            .map(|own| own.mine.clone())
            .collect();
        let waiters = || known.iter().flatten().filter(|own| own.granted_at.is_none());
        let waits: Vec<(&Wait, bool, Waiting)> = waiters().filter_map(|own| own.unread(start)).collect();
        let mut seeks: BTreeMap<&Name, bool> = BTreeMap::new();
        waiters()
            .filter(|own| own.unread(start).is_none())
            .for_each(|own| *seeks.entry(&own.mine.resource).or_default() |= own.terms.unless_fresh);
        let found =
            async { if holders.is_empty() { Vec::new() } else { self.store.find(holders.clone()).await } };
        let looked = join(self.read_lines(&seeks, false), self.read_lines(&seeks, true));
        let (alive, (found, (plain, detailed)), changed) =
            join3(self.heartbeats(lives), join(found, looked), self.read_changed_lines(&waits)).await;
        let found: BTreeMap<ClaimId, Result<Presence>> =
            holders.iter().map(|mine| mine.claim).zip(found).collect();
        let looked: BTreeMap<&Name, Result<Look>> = plain.into_iter().chain(detailed).collect();
        let answer = |(request, own): (&RenewRequest, &Option<Own>)| {
            let (request, own) = (request.clone(), own.clone());
            let (alive, found, looked, changed) = (&alive, &found, &looked, &changed);
            async move {
                let Some(own) = own else { return Ok(Renewed::Answered(RenewAnswer::Lost)) };
                let alive = &alive[&own.mine.session_id];
                let claim = own.mine.claim;
                match (found.get(&claim), changed.get(&claim), looked.get(&own.mine.resource)) {
                    (Some(found), ..) => {
                        self.renew_holder(&request, &own, found, alive, start).map(Renewed::Answered)
                    }
                    (None, Some((waiting, Ok(None))), _) => {
                        Ok(self.still_waits(&own, *waiting, alive, start))
                    }
                    (None, Some((_, Ok(Some(look)))), _) | (None, None, Some(Ok(look))) => {
                        self.renew_waiter(&own, look, alive, start).await
                    }
                    (None, Some((_, Err(error))), _) | (None, None, Some(Err(error))) => Err(error.clone()),
                    (None, None, None) => {
                        Err(Error::new(ErrorKind::Internal, "renew", "a claim was left out"))
                    }
                }
            }
        };
        let answers = join_all(requests.iter().zip(&known).map(answer)).await;
        let given_up =
            requests.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Ok(Renewed::GivenUp)));
        let leaving = given_up.filter_map(|(request, _)| self.end(request.claim, start));
        self.withdraw(leaving.map(|own| own.leaving(None)).collect()).await;
        let to_answer = |renewed| match renewed {
            Renewed::Answered(answer) => answer,
            Renewed::GivenUp => RenewAnswer::Lost,
        };
        answers.into_iter().map(|answer| answer.map(to_answer)).collect()
    }

    /// Reads the lines of those waiters for which something has changed.
    async fn read_changed_lines(
        &self,
        waits: &[(&Wait, bool, Waiting)],
    ) -> BTreeMap<ClaimId, (Waiting, Result<Option<Look>>)> {
        if waits.is_empty() {
            return BTreeMap::new();
        }
        let changed = self
            .store
            .look_if_changed(waits.iter().map(|(wait, counts, _)| (*wait, *counts)).collect())
            .await;
        let of_claim = |((wait, _, waiting), changed): (&(&Wait, bool, Waiting), _)| {
            (wait.mine.claim, (*waiting, changed))
        };
        waits.iter().zip(changed).map(of_claim).collect()
    }

    /// Reads the lines that are to be read in this way.
    async fn read_lines<'a>(
        &self,
        seeks: &BTreeMap<&'a Name, bool>,
        is_detailed: bool,
    ) -> Vec<(&'a Name, Result<Look>)> {
        let names: Vec<&'a Name> =
            seeks.iter().filter(|(_, detailed)| **detailed == is_detailed).map(|(name, _)| *name).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let looks = self.store.look(names.clone(), is_detailed).await;
        names.into_iter().zip(looks).collect()
    }

    fn renew_holder(
        &self,
        request: &RenewRequest,
        own: &Own,
        found: &Result<Presence>,
        alive: &Result<Option<Instant>>,
        start: Instant,
    ) -> Result<RenewAnswer> {
        let Some(until) = alive.clone()? else {
            self.died(own.mine.session_id, start);
            return Ok(RenewAnswer::Lost);
        };
        match found.clone()? {
            Presence::Here => {}
            Presence::Gone => {
                self.end(own.mine.claim, start);
                return Ok(RenewAnswer::Lost);
            }
            Presence::Broken => {
                if let Some(own) = self.owned().get_mut(own.mine.claim) {
                    own.is_broken = true;
                }
                return Ok(RenewAnswer::Lost);
            }
        }
        let mut owned = self.owned();
        // Gone meanwhile: its end had come.
        let Some(own) = owned.get_mut(own.mine.claim) else { return Ok(RenewAnswer::Lost) };
        own.heard_of(start);
        let grant = own.grant(start, until, self.store.capability().silence_max);
        Ok(if request.is_waiter {
            RenewAnswer::Granted(grant)
        } else {
            RenewAnswer::Renewed { ends_in: grant.ends_in }
        })
    }

    async fn renew_waiter(
        &self,
        own: &Own,
        look: &Look,
        alive: &Result<Option<Instant>>,
        start: Instant,
    ) -> Result<Renewed> {
        let claim = own.mine.claim;
        if has_fresh_value(&own.terms, look) {
            // It is of no use any more: its user asks anew, and is given the value.
            return Ok(Renewed::GivenUp);
        }
        match look.line.standing(claim) {
            Some(Standing::Holds) => {
                let granted = self.hold(&own.mine, look, start, alive).await?;
                Ok(Renewed::Answered(granted.map_or(RenewAnswer::Lost, RenewAnswer::Granted)))
            }
            Some(Standing::Waits(waiting)) => {
                self.watch(claim, waiting, look, start);
                Ok(self.still_waits(own, waiting, alive, start))
            }
            Some(Standing::Conflict { .. }) => Ok(Renewed::GivenUp),
            None => {
                self.end(claim, start);
                Ok(Renewed::Answered(RenewAnswer::Lost))
            }
        }
    }

    /// Watches what a claim waits for, if it waits still: who ends it, or has it hold, ends the watch after that.
    fn watch(&self, claim: ClaimId, waiting: Waiting, look: &Look, start: Instant) {
        let mut owned = self.owned();
        let waits = |own: &&mut Own| own.granted_at.is_none() && !own.is_broken;
        if let Some(own) = owned.get_mut(claim).filter(waits) {
            let wait = own.waits(waiting, look, start);
            self.store.watch(wait, own.terms.unless_fresh);
        }
    }

    /// Nothing has changed for a waiter, if its session goes on.
    fn still_waits(
        &self,
        own: &Own,
        waiting: Waiting,
        alive: &Result<Option<Instant>>,
        start: Instant,
    ) -> Renewed {
        if let Ok(None) = alive {
            self.died(own.mine.session_id, start);
        }
        let mut owned = self.owned();
        Renewed::Answered(match owned.get_mut(own.mine.claim) {
            Some(own) => {
                own.heard_of(start);
                own.counted(start);
                RenewAnswer::Waiting(waiting, self.store.incarnation())
            }
            None => RenewAnswer::Lost,
        })
    }
}
