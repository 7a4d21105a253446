//! The engine: the verbs of the contract, on lines of claims.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join, join_all};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use tenure_core::claim::{CAPACITY_MAX, Claim, ClaimId, Grant, Keep, Kind, Name, Terms};
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, Engine, Finding, ReleaseAnswer, ReleaseRequest, RenewAnswer,
    RenewRequest, Wake, claim_answer,
};
use tenure_core::inspect::{View, shows_the_same};
use tenure_core::line::{Resized, Standing};
use tenure_core::step::Outcome;
use tenure_core::token::Token;
use tenure_core::{Error, ErrorKind, Result};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::own::{Own, Owned};
use crate::store::{Entered, Entrance, Leaving, Left, Life, Look, Mine, Presence, Rule, Store};
use crate::sweep::{Changing, sweep};

const TOO_HEAVY: &str = "the weight does not fit the capacity";
/// How long an observer waits after an error.
const RETRY: Duration = Duration::from_millis(500);

/// An engine on an ordered store.
pub struct Ordered<S: Store> {
    shared: Arc<Shared<S>>,
    sweeping: AbortHandle,
}

pub(crate) struct Shared<S: Store> {
    pub(crate) store: S,
    owned: Mutex<Owned>,
    /// There is something to look after.
    busy: Arc<Notify>,
}

impl<S: Store> Shared<S> {
    pub(crate) fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the sweeper look again when a call has ended, or was dropped: what it has left to look after is known only then.
    fn changing(&self) -> Changing<'_> {
        Changing(&self.busy)
    }

    /// Returns what tells that there is something to look after, if there is nothing now.
    pub(crate) fn is_idle_or_due(&self) -> Option<Arc<Notify>> {
        self.owned().is_idle().then(|| self.busy.clone())
    }
}

fn now() -> Instant {
    SystemClock.now()
}

impl<S: Store> Ordered<S> {
    /// Makes the engine of a store. On a tokio runtime.
    pub fn new(store: S) -> Ordered<S> {
        let shared = Arc::new(Shared { store, owned: Mutex::default(), busy: Arc::default() });
        let sweeping = tokio::spawn(sweep(Arc::downgrade(&shared))).abort_handle();
        Ordered { shared, sweeping }
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.shared.store
    }
}

impl<S: Store> Drop for Ordered<S> {
    fn drop(&mut self) {
        self.sweeping.abort();
    }
}

impl<S: Store> std::fmt::Debug for Ordered<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ordered").field("engine", &S::ENGINE).finish_non_exhaustive()
    }
}

/// What a claim that has entered, or has not, comes to.
enum Judged {
    /// It holds.
    Holds(Mine, Look),
    /// It is answered already.
    Answered(Result<ClaimAnswer>),
    /// It must leave first.
    Withdrawn(Leaving, Result<ClaimAnswer>),
}

/// What a renewal comes to.
enum Renewed {
    /// It is answered.
    Answered(RenewAnswer),
    /// It waits for nothing any more, and must leave.
    GivenUp,
}

impl<S: Store> Shared<S> {
    async fn claim_all(&self, claims: &[Claim]) -> Vec<Result<ClaimAnswer>> {
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
        let (known, new): (Vec<&Claim>, Vec<&Claim>) = {
            let owned = self.owned();
            claims.iter().partition(|claim| owned.has_ended(claim.id) || owned.get(claim.id).is_some())
        };
        let fresh = self.fresh_values(&new).await;
        let new: Vec<&Claim> = new.into_iter().filter(|claim| !fresh.contains_key(&claim.id)).collect();
        let (known, new) = join(self.claim_again(&known), self.claim_new(&new)).await;
        let mut answers: BTreeMap<ClaimId, Result<ClaimAnswer>> =
            known.into_iter().chain(new).chain(fresh).collect();
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
            Err(error) => Some((claim.id, Err(error))),
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
        let lives = self.lives(claims.iter().map(|claim| claim.terms.ttl)).await;
        let mut answers = Vec::new();
        let (mut entrances, mut entering) = (Vec::new(), Vec::new());
        for claim in claims {
            if claim.terms.weight == 0 || claim.terms.weight > claim.terms.capacity {
                answers.push((claim.id, Err(self.refusal(claim, Outcome::Invalid(TOO_HEAVY)))));
                continue;
            }
            match &lives[&claim.terms.ttl] {
                Ok(life) => {
                    let rule = if claim.wait { Rule::Queue } else { Rule::IfItHolds };
                    let is_repeated = self.owned().may_be_in(claim.id);
                    entrances.push(Entrance { claim, life: *life, rule, is_repeated });
                    entering.push((*claim, *life, is_repeated));
                }
                Err(error) => answers.push((claim.id, Err(error.clone()))),
            }
        }
        let known: HashSet<Life> = entering.iter().map(|(_, life, _)| *life).collect();
        let (entered, alive) = join(self.store.enter(entrances), self.heartbeats(known)).await;
        let (mut judged, mut withdrawn) = (Vec::new(), Vec::new());
        for ((claim, life, is_repeated), entered) in entering.into_iter().zip(entered) {
            if entered.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
                self.owned().is_unsure(claim.id, start);
            }
            match self.judge(claim, entered, is_repeated, start) {
                Judged::Withdrawn(leaving, answer) => {
                    self.owned().end(claim.id, start);
                    withdrawn.push(leaving);
                    judged.push((claim, life, Judged::Answered(answer)));
                }
                other => judged.push((claim, life, other)),
            }
        }
        self.withdraw(withdrawn).await;
        let settle = |(claim, life, judged)| self.settle(claim, judged, start, &alive[&life]);
        let settled = join_all(judged.into_iter().map(settle)).await;
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
                    Some(standing) => Err(self.conflict(claim, standing)),
                    None => Ok(ClaimAnswer::Busy(look.line.busy(SystemClock.time_of_day()))),
                });
            }
            Ok(Entered::Finished) => return Judged::Answered(Ok(ClaimAnswer::Finished)),
            Ok(Entered::Dead) => {
                let dead = "the client's life in the store had just ended";
                return Judged::Answered(Err(Error::new(ErrorKind::Unavailable, "claim", dead)));
            }
            Err(error) => return Judged::Answered(Err(error)),
        };
        let own = Own::waiting(mine.clone(), claim.terms.clone(), start, is_repeated);
        let refused = if self.owned().has_ended(claim.id) {
            // It was released while it entered, and whoever did that may not have seen it.
            Some(Ok(ClaimAnswer::Finished))
        } else if claim.floor >= mine.token {
            Some(Err(floor_ahead(claim.floor, mine.token)))
        } else if let Some(fresh) = fresh_value(claim, &look) {
            // It was published between the look and the entrance.
            Some(Ok(fresh))
        } else {
            match look.line.standing(claim.id) {
                Some(Standing::Holds) => None,
                Some(Standing::Waits(waiting)) if claim.wait => {
                    if waiting.position > self.store.capability().waiters_max {
                        Some(Err(self.queue_full()))
                    } else {
                        let blockers = look.line.blockers(claim.id);
                        self.store.watch(&mine, blockers, claim.terms.unless_fresh, look.revision);
                        self.owned().put(own);
                        return Judged::Answered(Ok(ClaimAnswer::Waiting(waiting, self.store.incarnation())));
                    }
                }
                Some(Standing::Waits(_)) => {
                    let mut busy = look.line.busy(SystemClock.time_of_day());
                    // This claim is among those that wait.
                    busy.waiting = busy.waiting.saturating_sub(1);
                    Some(Ok(ClaimAnswer::Busy(busy)))
                }
                Some(standing @ Standing::Conflict { .. }) => Some(Err(self.conflict(claim, standing))),
                None => Some(Ok(ClaimAnswer::Finished)),
            }
        };
        match refused {
            Some(answer) => Judged::Withdrawn(own.leaving(None), answer),
            None => {
                self.owned().put(own);
                Judged::Holds(mine, look)
            }
        }
    }

    /// Carries out what a judgement asks for.
    async fn settle(
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
                    let dead = "the client's life in the store has just ended";
                    Err(Error::new(ErrorKind::Unavailable, "claim", dead))
                }
                Err(error) => Err(error),
            },
        };
        (claim.id, answer.map_err(|error| error.with_resource(&claim.resource)))
    }

    /// Makes the grant of an entry that holds. None: its life has ended.
    async fn hold(
        &self,
        mine: &Mine,
        look: &Look,
        start: Instant,
        alive: &Result<Option<Instant>>,
    ) -> Result<Option<Grant>> {
        let alive_until = match alive {
            Ok(Some(until)) => *until,
            Ok(None) => {
                self.owned().died(mine.life, start);
                return Ok(None);
            }
            Err(error) => return Err(error.clone()),
        };
        let Some((terms, granted_at)) =
            self.owned().get(mine.claim).map(|own| (own.terms.clone(), own.granted_at))
        else {
            return Ok(None);
        };
        let mut slot = mine.slot;
        if granted_at.is_none() {
            self.store.unwatch(mine.claim);
            if terms.kind == Kind::SlotPool && slot.is_none() {
                slot = Some(self.store.take_slot(mine, terms.capacity, &look.line).await?);
            }
            self.prepare_rest(mine, slot, &terms).await?;
        }
        let mut owned = self.owned();
        let Some(own) = owned.get_mut(mine.claim) else { return Ok(None) };
        own.mine.slot = slot;
        own.granted(start);
        Ok(Some(own.grant(start, alive_until, self.store.capability().silence_max)))
    }

    async fn prepare_rest(&self, mine: &Mine, slot: Option<u32>, terms: &Arc<Terms>) -> Result<()> {
        if terms.limits.lock_delay.is_zero() {
            return Ok(());
        }
        let mine = Mine { slot, ..mine.clone() };
        self.store.prepare_rest(&mine, terms).await
    }

    /// Lets claims leave, now or later.
    async fn withdraw(&self, leaving: Vec<Leaving>) {
        if leaving.is_empty() {
            return;
        }
        leaving.iter().for_each(|leaving| self.store.unwatch(leaving.claim));
        let answers = self.store.leave(leaving.clone()).await;
        for (leaving, answer) in leaving.into_iter().zip(answers) {
            if answer.is_err() {
                self.owned().leave_later(leaving);
            }
        }
    }

    async fn lives(&self, ttls: impl Iterator<Item = Duration>) -> BTreeMap<Duration, Result<Life>> {
        let ttls: HashSet<Duration> = ttls.collect();
        let lives = ttls.into_iter().map(|ttl| async move { (ttl, self.store.life(ttl).await) });
        join_all(lives).await.into_iter().collect()
    }

    async fn heartbeats(&self, lives: HashSet<Life>) -> BTreeMap<Life, Result<Option<Instant>>> {
        let beat = |life| async move { (life, self.store.heartbeat(life).await) };
        join_all(lives.into_iter().map(beat)).await.into_iter().collect()
    }

    fn conflict(&self, claim: &Claim, standing: Standing) -> Error {
        let Standing::Conflict { kind, capacity } = standing else {
            return Error::new(ErrorKind::Internal, "claim", "a conflict without reason");
        };
        self.refusal(claim, Outcome::Conflict { kind, capacity })
    }

    fn refusal(&self, claim: &Claim, outcome: Outcome) -> Error {
        let told = claim_answer(claim, outcome, self.store.incarnation());
        told.err().unwrap_or_else(|| Error::new(ErrorKind::Internal, "claim", "a refusal was granted"))
    }

    fn queue_full(&self) -> Error {
        let most = self.store.capability().waiters_max;
        Error::new(ErrorKind::Invalid, "claim", format!("{most} claims wait already"))
            .with_hint("use several resources, or a queue")
    }

    async fn renew_all(&self, requests: &[RenewRequest]) -> Vec<Result<RenewAnswer>> {
        let _changing = self.changing();
        let start = now();
        let known: Vec<Option<Own>> = {
            let owned = self.owned();
            requests.iter().map(|request| owned.get(request.claim).cloned()).collect()
        };
        // Whoever asks for one that has ended is to find it gone.
        let ended = known.iter().flatten().filter(|own| own.ends_at <= start);
        let ended = ended.filter_map(|own| self.owned().end(own.mine.claim, start)).map(Own::over);
        self.withdraw(ended.collect()).await;
        let lives_on = |own: Option<Own>| own.filter(|own| !own.is_broken && own.ends_at > start);
        let known: Vec<Option<Own>> = known.into_iter().map(lives_on).collect();
        let lives: HashSet<Life> = known.iter().flatten().map(|own| own.mine.life).collect();
        let holders: Vec<Mine> = known
            .iter()
            .flatten()
            .filter(|own| own.granted_at.is_some())
            .map(|own| own.mine.clone())
            .collect();
        let waiters = known.iter().flatten().filter(|own| own.granted_at.is_none());
        let mut seeks: BTreeMap<&Name, bool> = BTreeMap::new();
        waiters.for_each(|own| *seeks.entry(&own.mine.resource).or_default() |= own.terms.unless_fresh);
        let found =
            async { if holders.is_empty() { Vec::new() } else { self.store.find(holders.clone()).await } };
        let looked = join(self.look_at_all(&seeks, false), self.look_at_all(&seeks, true));
        let (alive, (found, (plain, detailed))) = join(self.heartbeats(lives), join(found, looked)).await;
        let found: BTreeMap<ClaimId, Result<Presence>> =
            holders.iter().map(|mine| mine.claim).zip(found).collect();
        let looked: BTreeMap<&Name, Result<Look>> = plain.into_iter().chain(detailed).collect();
        let answer = |(request, own): (&RenewRequest, &Option<Own>)| {
            let (request, own) = (request.clone(), own.clone());
            let (alive, found, looked) = (&alive, &found, &looked);
            async move {
                let Some(own) = own else { return Ok(Renewed::Answered(RenewAnswer::Lost)) };
                let alive = &alive[&own.mine.life];
                let answer = match (found.get(&own.mine.claim), looked.get(&own.mine.resource)) {
                    (Some(found), _) => {
                        self.renew_holder(&request, &own, found, alive, start).map(Renewed::Answered)
                    }
                    (None, Some(look)) => self.renew_waiter(&own, look, alive, start).await,
                    (None, None) => Err(Error::new(ErrorKind::Internal, "renew", "a claim was left out")),
                };
                answer.map_err(|error| error.with_resource(&own.mine.resource))
            }
        };
        let answers = join_all(requests.iter().zip(&known).map(answer)).await;
        let given_up =
            requests.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Ok(Renewed::GivenUp)));
        let leaving = given_up.filter_map(|(request, _)| self.owned().end(request.claim, start));
        self.withdraw(leaving.map(|own| own.leaving(None)).collect()).await;
        let told = |renewed| match renewed {
            Renewed::Answered(answer) => answer,
            Renewed::GivenUp => RenewAnswer::Lost,
        };
        answers.into_iter().map(|answer| answer.map(told)).collect()
    }

    /// Looks at the lines that are to be looked at in this way.
    async fn look_at_all<'a>(
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
        let mut owned = self.owned();
        let Some(until) = alive.clone()? else {
            owned.died(own.mine.life, start);
            return Ok(RenewAnswer::Lost);
        };
        match found.clone()? {
            Presence::Here => {}
            Presence::Gone => {
                owned.end(own.mine.claim, start);
                return Ok(RenewAnswer::Lost);
            }
            Presence::Broken => {
                if let Some(own) = owned.get_mut(own.mine.claim) {
                    own.is_broken = true;
                }
                return Ok(RenewAnswer::Lost);
            }
        }
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
        look: &Result<Look>,
        alive: &Result<Option<Instant>>,
        start: Instant,
    ) -> Result<Renewed> {
        let look = look.as_ref().map_err(Error::clone)?;
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
                if let Ok(None) = alive {
                    self.owned().died(own.mine.life, start);
                    return Ok(Renewed::Answered(RenewAnswer::Lost));
                }
                match self.owned().get_mut(claim) {
                    Some(own) => own.heard_of(start),
                    None => return Ok(Renewed::Answered(RenewAnswer::Lost)),
                }
                let blockers = look.line.blockers(claim);
                self.store.watch(&own.mine, blockers, own.terms.unless_fresh, look.revision);
                Ok(Renewed::Answered(RenewAnswer::Waiting(waiting, self.store.incarnation())))
            }
            Some(Standing::Conflict { .. }) => Ok(Renewed::GivenUp),
            None => {
                self.store.unwatch(claim);
                self.owned().end(claim, start);
                Ok(Renewed::Answered(RenewAnswer::Lost))
            }
        }
    }

    async fn release_all(&self, requests: &[ReleaseRequest]) -> Vec<Result<ReleaseAnswer>> {
        let _changing = self.changing();
        let now = now();
        let mut leaving = Vec::new();
        let mut leaves = Vec::new();
        for request in requests {
            let release = request.release;
            self.store.unwatch(release.claim);
            let mut owned = self.owned();
            let own = owned.get(release.claim).cloned();
            let is_ended = owned.has_ended(release.claim) && !release.maybe_in_flight;
            let goes = match own {
                Some(own) if own.is_broken || own.ends_at <= now => None,
                Some(own) => {
                    let rest = own.rest(now, release.is_unused);
                    let may_come_later = own.may_come_later || release.maybe_in_flight;
                    Some(Leaving { may_come_later, ..own.leaving(rest) })
                }
                None if is_ended => None,
                // What is known of it was never told, or is forgotten; the line says.
                None => Some(Leaving {
                    resource: request.resource.clone(),
                    claim: release.claim,
                    mine: None,
                    may_have_slot: true,
                    may_come_later: release.maybe_in_flight,
                    is_over: false,
                    rest: None,
                    has_rest: false,
                }),
            };
            if release.maybe_in_flight && goes.is_some() && owned.get(release.claim).is_none() {
                owned.end(release.claim, now);
            }
            drop(owned);
            leaves.push(goes.is_some());
            leaving.extend(goes);
        }
        let claims: Vec<ClaimId> = leaving.iter().map(|leaving| leaving.claim).collect();
        let left = if leaving.is_empty() { Vec::new() } else { self.store.leave(leaving).await };
        let mut answers = claims.into_iter().zip(left).map(|(claim, left)| {
            let left = left?;
            if left != Left::IsBroken {
                self.owned().end(claim, now);
            } else if let Some(own) = self.owned().get_mut(claim) {
                own.is_broken = true;
            }
            Ok(if left == Left::Gone { ReleaseAnswer::Released } else { ReleaseAnswer::AlreadyLost })
        });
        let answers: Vec<Result<ReleaseAnswer>> = leaves
            .into_iter()
            .map(|leaves| if leaves { answers.next() } else { Some(Ok(ReleaseAnswer::AlreadyLost)) })
            .map(|answer| {
                answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "release", "one was left out")))
            })
            .collect();
        let told = |(answer, request): (Result<_>, &ReleaseRequest)| {
            answer.map_err(|error| error.with_resource(&request.resource))
        };
        answers.into_iter().zip(requests).map(told).collect()
    }

    async fn look_at(&self, name: &Name) -> Result<Look> {
        let mut looks = self.store.look(vec![name], true).await;
        looks.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "inspect", "a name was left out")))
    }

    async fn view(&self, name: &Name) -> Result<Option<View>> {
        Ok(self.look_at(name).await?.line.view(name, SystemClock.time_of_day()))
    }

    async fn page(&self, prefix: &str, mut after: Option<Name>, most: usize) -> Result<Vec<View>> {
        loop {
            let names = self.store.names(prefix, after.as_ref(), most).await?;
            let Some(last) = names.last() else { return Ok(Vec::new()) };
            let looks = self.store.look(names.iter().collect(), true).await;
            let mut views = Vec::new();
            for (name, look) in names.iter().zip(looks) {
                views.extend(look?.line.view(name, SystemClock.time_of_day()));
            }
            // A page that shows nothing is not the end: its resources may all have ended meanwhile.
            if !views.is_empty() {
                return Ok(views);
            }
            after = Some(last.clone());
        }
    }

    async fn break_hold(&self, name: &Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        let line = self.look_at(name).await?.line;
        if let Some(rest) = line.rests().iter().find(|rest| rest.entry.token() == token) {
            let lives = rest.entry.about.as_ref().map_or(Duration::ZERO, |about| about.lives);
            if !at_once {
                return Ok(BreakAnswer::Broken { free_in: lives });
            }
            let was = self.store.end_rest(name, rest).await?;
            return Ok(if was {
                BreakAnswer::Broken { free_in: Duration::ZERO }
            } else {
                BreakAnswer::NotHeld
            });
        }
        let held = line.places()[..line.holding()].iter().find(|place| place.entry.token() == token);
        let Some(place) = held else { return Ok(BreakAnswer::NotHeld) };
        if !self.store.break_place(name, place, line.slot_of(place.entry.claim), at_once).await? {
            return Ok(BreakAnswer::NotHeld);
        }
        let lives = place.entry.about.as_ref().map_or(Duration::ZERO, |about| about.lives);
        Ok(BreakAnswer::Broken { free_in: if at_once { Duration::ZERO } else { lives } })
    }

    async fn resize(&self, name: &Name, capacity: u32) -> Result<()> {
        let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, "resize", why).with_resource(name));
        if capacity == 0 || capacity > CAPACITY_MAX {
            return invalid(format!("a capacity is 1 to {CAPACITY_MAX}"));
        }
        let line = self.look_at(name).await?.line;
        let Some((kind, present)) = line.kind_and_capacity() else { return Ok(()) };
        if !matches!(kind, Kind::Semaphore | Kind::SlotPool) {
            return invalid(format!("a {kind} has no other capacity"));
        }
        if present == capacity {
            return Ok(());
        }
        let after = |order: Option<u64>| order.map_or(0, |order| order + 1);
        let last = line.places().last().map(|place| place.order);
        let before = after(last.max(line.rests().last().map(|rest| rest.order)));
        let held_before = after(line.places()[..line.holding()].last().map(|place| place.order));
        self.store.resize(name, Resized { before, held_before, capacity }).await
    }
}

/// Returns the value that answers a claim, if it asks for one and that is fresh.
fn fresh_value(claim: &Claim, look: &Look) -> Option<ClaimAnswer> {
    let value = look.line.value.clone().filter(|_| has_fresh_value(&claim.terms, look))?;
    Some(ClaimAnswer::Fresh(value))
}

fn has_fresh_value(terms: &Terms, look: &Look) -> bool {
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
}

struct Observer<S: Store> {
    shared: Arc<Shared<S>>,
    name: Name,
    changes: BoxStream<'static, Result<()>>,
    last: Option<Option<View>>,
}

impl<S: Store> Observer<S> {
    async fn next(&mut self) -> Option<Result<Option<View>>> {
        loop {
            if let Err(error) = self.changes.next().await? {
                return Some(Err(self.told(error).await));
            }
            let view = match self.shared.view(&self.name).await {
                Ok(view) => view,
                Err(error) => return Some(Err(self.told(error).await)),
            };
            if !self.last.as_ref().is_some_and(|last| shows_the_same(last.as_ref(), view.as_ref())) {
                self.last = Some(view.clone());
                return Some(Ok(view));
            }
        }
    }

    async fn told(&mut self, error: Error) -> Error {
        crate::sweep::pause(RETRY).await;
        self.changes = self.shared.store.follow(&self.name);
        error.with_resource(&self.name).with_engine(S::ENGINE)
    }
}

impl<S: Store> Engine for Ordered<S> {
    fn name(&self) -> &'static str {
        S::ENGINE
    }

    fn capability(&self) -> &Capability {
        self.shared.store.capability()
    }

    fn claim(&self, claims: Vec<Claim>) -> BoxFuture<'_, Vec<Result<ClaimAnswer>>> {
        Box::pin(async move { told::<S, _>(self.shared.claim_all(&claims).await) })
    }

    fn renew(&self, renewals: Vec<RenewRequest>) -> BoxFuture<'_, Vec<Result<RenewAnswer>>> {
        Box::pin(async move { told::<S, _>(self.shared.renew_all(&renewals).await) })
    }

    fn release(&self, releases: Vec<ReleaseRequest>) -> BoxFuture<'_, Vec<Result<ReleaseAnswer>>> {
        Box::pin(async move { told::<S, _>(self.shared.release_all(&releases).await) })
    }

    fn publish(
        &self,
        resource: Name,
        claim: ClaimId,
        bytes: Arc<[u8]>,
        keep: Keep,
    ) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let holds = |own: &&Own| own.granted_at.is_some() && !own.is_broken && own.ends_at > now();
            let mine = self.shared.owned().get(claim).filter(holds).map(|own| own.mine.clone());
            let Some(mine) = mine else { return Ok(false) };
            let published = self.shared.store.publish(mine, bytes, keep).await;
            published.map_err(|error| error.with_resource(&resource).with_engine(S::ENGINE))
        })
    }

    fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> BoxFuture<'_, Result<Vec<View>>> {
        Box::pin(async move {
            let page = self.shared.page(&prefix, after, most).await;
            page.map_err(|error| error.with_engine(S::ENGINE))
        })
    }

    fn view(&self, resource: Name) -> BoxFuture<'_, Result<Option<View>>> {
        Box::pin(async move {
            let view = self.shared.view(&resource).await;
            view.map_err(|error| error.with_resource(&resource).with_engine(S::ENGINE))
        })
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        let changes = self.shared.store.follow(&resource);
        let observer = Observer { shared: self.shared.clone(), name: resource, changes, last: None };
        stream::unfold(observer, |mut observer| async move { Some((observer.next().await?, observer)) })
            .boxed()
    }

    fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> BoxFuture<'_, Result<BreakAnswer>> {
        Box::pin(async move {
            let broken = self.shared.break_hold(&resource, token, at_once).await;
            broken.map_err(|error| error.with_resource(&resource).with_engine(S::ENGINE))
        })
    }

    fn resize(&self, resource: Name, capacity: u32) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let resized = self.shared.resize(&resource, capacity).await;
            resized.map_err(|error| error.with_resource(&resource).with_engine(S::ENGINE))
        })
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.shared.store.wakes().stream()
    }

    fn check(&self) -> BoxFuture<'_, Vec<Finding>> {
        self.shared.store.check()
    }
}

fn told<S: Store, A>(answers: Vec<Result<A>>) -> Vec<Result<A>> {
    answers.into_iter().map(|answer| answer.map_err(|error| error.with_engine(S::ENGINE))).collect()
}
