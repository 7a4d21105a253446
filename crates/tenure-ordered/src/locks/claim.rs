//! Claiming: entering a line, and what comes of it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::{ClaimAnswer, RenewAnswer, RenewRequest, refused};
use tenure_core::model::claim::{Claim, ClaimId, Grant, Kind, Terms};
use tenure_core::model::line::Standing;
use tenure_core::model::step::Refusal;
use tenure_core::model::token::Token;
use tenure_core::testing::failpoint;
use tenure_core::{Error, ErrorKind, Result};

use crate::locks::ordered::{Shared, now};
use crate::locks::own::Own;
use crate::store::{Entered, Entrance, Leaving, Look, Mine, Rule, SessionId, Store};

const TOO_HEAVY: &str = "the weight does not fit the capacity";

/// What a claim that has entered, or has not, comes to.
enum Judged {
    /// It holds.
    Holds(Mine, Look),
    /// It is answered already.
    Answered(Result<ClaimAnswer>),
    /// It must leave first.
    Withdrawn(Leaving, Result<ClaimAnswer>),
}

impl<S: Store> Shared<S> {
    pub(crate) async fn claim_all(&self, claims: &[Claim]) -> Vec<Result<ClaimAnswer>> {
        let mut answers: BTreeMap<usize, Result<ClaimAnswer>> = BTreeMap::new();
        let mut left: Vec<usize> = (0..claims.len()).collect();
        // Entries of one call have one number, so a line takes one at a time, in the order in which they came.
        while !left.is_empty() {
            let mut names = HashSet::new();
            let (round, later): (Vec<usize>, Vec<usize>) =
                left.into_iter().partition(|index| names.insert(&claims[*index].resource));
            let asked = round.iter().map(|index| &claims[*index]).collect();
            answers.extend(round.into_iter().zip(self.claim_round(asked).await));
            left = later;
        }
        answers.into_values().collect()
    }

    /// Answers claims for different resources.
    async fn claim_round(&self, claims: Vec<&Claim>) -> Vec<Result<ClaimAnswer>> {
        let _changing = self.changing();
        let elsewhere = self.take_over_given(&claims).await;
        let (known, new): (Vec<&Claim>, Vec<&Claim>) = {
            let owned = self.owned();
            claims.iter().partition(|claim| owned.has_ended(claim.id) || owned.get(claim.id).is_some())
        };
        let new: Vec<&Claim> = new.into_iter().filter(|claim| !elsewhere.contains_key(&claim.id)).collect();
        let fresh = self.fresh_values(&new).await;
        let new: Vec<&Claim> = new.into_iter().filter(|claim| !fresh.contains_key(&claim.id)).collect();
        let (known, new) = join(self.claim_again(&known), self.claim_new(&new)).await;
        let mut answers: BTreeMap<ClaimId, Result<ClaimAnswer>> =
            known.into_iter().chain(new).chain(fresh).chain(elsewhere).collect();
        let missing = || Err(Error::new(ErrorKind::Internal, "claim", "a claim was left out"));
        claims.iter().map(|claim| answers.remove(&claim.id).unwrap_or_else(missing)).collect()
    }

    /// Answers those that need no grant, since a value is fresh. Nothing is written for them.
    async fn fresh_values(&self, claims: &[&Claim]) -> BTreeMap<ClaimId, Result<ClaimAnswer>> {
        let is_new = |claim: &&Claim| claim.terms.unless_fresh && !self.owned().may_be_in(claim.id);
        let asks: Vec<&Claim> = claims.iter().copied().filter(is_new).collect();
        if asks.is_empty() {
            return BTreeMap::new();
        }
        let looks = self.store.look(asks.iter().map(|claim| &claim.resource).collect(), true).await;
        let answer = |(claim, look): (&&Claim, Result<Look>)| match look {
            Ok(look) => fresh_value(claim, &look).map(|answer| (claim.id, Ok(answer))),
            Err(error) => Some((claim.id, Err(error.with_no_effect()))),
        };
        asks.iter().zip(looks).filter_map(answer).collect()
    }

    /// Answers claims whose ids are known: how they stand now.
    async fn claim_again(&self, claims: &[&Claim]) -> Vec<(ClaimId, Result<ClaimAnswer>)> {
        let requests: Vec<RenewRequest> = claims
            .iter()
            .map(|claim| RenewRequest { resource: claim.resource.clone(), claim: claim.id, is_waiter: true })
            .collect();
        let answer = |answer| match answer {
            RenewAnswer::Granted(grant) => Ok(ClaimAnswer::Granted(grant)),
            RenewAnswer::Waiting(waiting, incarnation) => Ok(ClaimAnswer::Waiting(waiting, incarnation)),
            RenewAnswer::Renewed { .. } => {
                Err(Error::new(ErrorKind::Internal, "claim", "a grant was left out"))
            }
            RenewAnswer::Lost => Ok(ClaimAnswer::Finished),
        };
        let answers = self.renew_all(&requests).await;
        claims.iter().zip(answers).map(|(claim, renewed)| (claim.id, renewed.and_then(answer))).collect()
    }

    async fn claim_new(&self, claims: &[&Claim]) -> Vec<(ClaimId, Result<ClaimAnswer>)> {
        let start = now();
        let sessions = self.sessions(claims.iter().map(|claim| claim.terms.ttl)).await;
        let mut answers = Vec::new();
        let (mut entrances, mut entering) = (Vec::new(), Vec::new());
        for claim in claims {
            if claim.terms.weight == 0 || claim.terms.weight > claim.terms.capacity {
                answers.push((claim.id, Err(refused(claim, Refusal::Invalid(TOO_HEAVY)))));
                continue;
            }
            match &sessions[&claim.terms.ttl] {
                Ok(session_id) => {
                    let rule = if claim.wait { Rule::Queue } else { Rule::IfItHolds };
                    let is_repeated = self.owned().may_be_in(claim.id);
                    entrances.push(Entrance { claim, session_id: *session_id, rule, is_repeated });
                    entering.push((*claim, *session_id, is_repeated));
                }
                Err(error) => answers.push((claim.id, Err(error.clone().with_no_effect()))),
            }
        }
        // Now, and not when it fails: a call whose caller is dropped fails nowhere.
        entering.iter().for_each(|(claim, ..)| self.owned().begin_entering(claim.id, start));
        let known: HashSet<SessionId> = entering.iter().map(|(_, session_id, _)| *session_id).collect();
        let (entered, alive) = join(self.store.enter(entrances), self.heartbeats(known)).await;
        let (mut judged, mut withdrawn) = (Vec::new(), Vec::new());
        for ((claim, session_id, is_repeated), entered) in entering.into_iter().zip(entered) {
            // Whatever the kind: only what is known to have entered nothing need not be looked for.
            let is_unknown = entered.as_ref().is_err_and(|error| !error.has_no_effect());
            if !is_unknown {
                self.owned().end_entering(claim.id);
            }
            match self.judge(claim, entered, is_repeated, start) {
                Judged::Withdrawn(leaving, answer) => {
                    self.end(claim.id, start);
                    withdrawn.push(leaving);
                    judged.push((claim, session_id, Judged::Answered(answer)));
                }
                other => judged.push((claim, session_id, other)),
            }
        }
        self.withdraw(withdrawn).await;
        let answer_claim =
            |(claim, session_id, judged)| self.answer_claim(claim, judged, start, &alive[&session_id]);
        let settled = join_all(judged.into_iter().map(answer_claim)).await;
        answers.extend(settled);
        answers
    }

    /// Says what a claim comes to, from the line as it was when it entered.
    fn judge(&self, claim: &Claim, entered: Result<Entered>, is_repeated: bool, start: Instant) -> Judged {
        let (mine, look) = match entered {
            Ok(Entered::In(mine, look)) => (mine, look),
            Ok(Entered::Out(look)) => {
                let conflict = look.line.would_hold(&claim.terms).err();
                return Judged::Answered(match conflict {
                    Some(standing) => Err(conflicts(claim, standing)),
                    None => Ok(ClaimAnswer::Busy(look.line.busy(SystemClock.time_of_day()))),
                });
            }
            Ok(Entered::Elsewhere) => return Judged::Answered(Err(self.error_elsewhere())),
            Ok(Entered::Finished) => return Judged::Answered(Ok(ClaimAnswer::Finished)),
            Ok(Entered::Dead) => {
                let dead = "the client's session in the store had just ended";
                return Judged::Answered(Err(Error::new(ErrorKind::Unavailable, "claim", dead)));
            }
            Err(error) => return Judged::Answered(Err(error)),
        };
        let mut own = Own::waiting(mine.clone(), claim.terms.clone(), start, is_repeated);
        // Until it is known: who ends it meanwhile finds it.
        let mut owned = self.owned();
        let refused = if owned.has_ended(claim.id) {
            // It was released while it entered, and the releasing call may not have seen it.
            Some(Ok(ClaimAnswer::Finished))
        } else if claim.may_be_known
            && look.line.places().iter().filter(|place| place.entry.claim == claim.id).count() > 1
        {
            // Another client has entered it since this one looked.
            Some(Err(self.error_elsewhere()))
        } else if claim.floor >= mine.token {
            Some(Err(floor_ahead(claim.floor, mine.token)))
        } else if let Some(fresh) = fresh_value(claim, &look) {
            // It was published between the read and the entrance.
            Some(Ok(fresh))
        } else {
            match look.line.standing(claim.id) {
                Some(Standing::Holds) => None,
                Some(Standing::Waits(waiting)) if claim.wait => {
                    if waiting.position > self.store.capability().waiters_max {
                        Some(Err(self.queue_full()))
                    } else {
                        let wait = own.waits(waiting, &look, start);
                        self.store.watch(wait, claim.terms.unless_fresh);
                        owned.put(own);
                        return Judged::Answered(Ok(ClaimAnswer::Waiting(waiting, self.store.incarnation())));
                    }
                }
                Some(Standing::Waits(_)) => {
                    let mut busy = look.line.busy(SystemClock.time_of_day());
                    // This claim is among those that wait.
                    busy.waiting = busy.waiting.saturating_sub(1);
                    Some(Ok(ClaimAnswer::Busy(busy)))
                }
                Some(standing @ Standing::Conflict { .. }) => Some(Err(conflicts(claim, standing))),
                None => Some(Ok(ClaimAnswer::Finished)),
            }
        };
        match refused {
            Some(answer) => Judged::Withdrawn(own.leaving(None), answer),
            None => {
                owned.put(own);
                Judged::Holds(mine, look)
            }
        }
    }

    /// Carries out what a judgement asks for.
    async fn answer_claim(
        &self,
        claim: &Claim,
        judged: Judged,
        start: Instant,
        alive: &Result<Option<Instant>>,
    ) -> (ClaimId, Result<ClaimAnswer>) {
        let answer = match judged {
            Judged::Answered(answer) | Judged::Withdrawn(_, answer) => answer,
            Judged::Holds(mine, look) => match self.hold(&mine, &look, start, alive).await {
                Ok(Some(grant)) => Ok(ClaimAnswer::Granted(grant)),
                Ok(None) => {
                    let dead = "the client's session in the store has just ended";
                    Err(Error::new(ErrorKind::Unavailable, "claim", dead))
                }
                Err(error) => Err(error),
            },
        };
        (claim.id, answer)
    }

    /// Makes the grant of an entry that holds. Returns `None` if its session has ended.
    pub(crate) async fn hold(
        &self,
        mine: &Mine,
        look: &Look,
        start: Instant,
        alive: &Result<Option<Instant>>,
    ) -> Result<Option<Grant>> {
        let alive_until = match alive {
            Ok(Some(until)) => *until,
            Ok(None) => {
                self.died(mine.session_id, start);
                return Ok(None);
            }
            Err(error) => return Err(error.clone()),
        };
        let Some((terms, granted_at)) =
            self.owned().get(mine.claim).map(|own| (own.terms.clone(), own.granted_at))
        else {
            return Ok(None);
        };
        let mut mine = mine.clone();
        if granted_at.is_none() {
            if terms.kind == Kind::SlotPool && mine.slot.is_none() {
                failpoint::pass("ordered.before_slot");
                let taken = self.store.take_slot(&mine, terms.capacity, &look.line).await?;
                (mine.slot, mine.token) = (Some(taken.number), taken.token);
            }
            self.prepare_rest(&mine, &terms).await?;
        }
        let mut owned = self.owned();
        let Some(own) = owned.get_mut(mine.claim) else { return Ok(None) };
        (own.mine.slot, own.mine.token) = (mine.slot, mine.token);
        own.granted(start);
        self.store.unwatch(mine.claim);
        Ok(Some(own.grant(start, alive_until, self.store.capability().silence_max)))
    }

    async fn prepare_rest(&self, mine: &Mine, terms: &Arc<Terms>) -> Result<()> {
        if terms.limits.lock_delay.is_zero() {
            return Ok(());
        }
        self.store.prepare_rest(mine, terms).await
    }

    async fn sessions(&self, ttls: impl Iterator<Item = Duration>) -> BTreeMap<Duration, Result<SessionId>> {
        let ttls: HashSet<Duration> = ttls.collect();
        let sessions = ttls.into_iter().map(|ttl| async move { (ttl, self.store.session_id(ttl).await) });
        join_all(sessions).await.into_iter().collect()
    }

    fn queue_full(&self) -> Error {
        let most = self.store.capability().waiters_max;
        Error::new(ErrorKind::Invalid, "claim", format!("{most} claims wait already"))
            .with_hint("use several resources, or a queue")
            .with_no_effect()
    }
}

fn conflicts(claim: &Claim, standing: Standing) -> Error {
    let Standing::Conflict { kind, capacity } = standing else {
        return Error::new(ErrorKind::Internal, "claim", "a conflict without reason");
    };
    refused(claim, Refusal::Conflict { kind, capacity })
}

/// Returns the value that answers a claim, if it asks for one and that is fresh.
fn fresh_value(claim: &Claim, look: &Look) -> Option<ClaimAnswer> {
    let value = look.line.value.clone().filter(|_| has_fresh_value(&claim.terms, look))?;
    Some(ClaimAnswer::Fresh(value))
}

pub(crate) fn has_fresh_value(terms: &Terms, look: &Look) -> bool {
    let is_fresh = look.line.value.as_ref().is_some_and(|value| !value.fresh_for.is_zero());
    terms.unless_fresh && is_fresh
}

fn floor_ahead(floor: Token, token: Token) -> Error {
    Error::new(
        ErrorKind::Invalid,
        "claim",
        format!("the floor {floor} is above the store's next token {token}, which the store counts by itself"),
    )
    .with_hint(
        "was the store restored from a backup, or did the name move here from another store, whose tokens or clock were \
         ahead? Use another name, or lower the marks of what is fenced",
    )
    .with_no_effect()
}
