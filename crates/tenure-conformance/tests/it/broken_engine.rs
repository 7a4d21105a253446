//! Engines that change what is asked of them, or what they answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::queue::QueueCapability;
use tenure_core::engine::{
    Adopts, BreakAnswer, Capability, ClaimAnswer, Connect, DynEngine, DynQueueEngine, Engine, Finding,
    Incarnation, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Shard, Wake, WithdrawAnswer,
    WithdrawRequest,
};
use tenure_core::model::claim::{CAPACITY_MAX, Claim, Grant, Keep, Kind, Waiting};
use tenure_core::model::inspect::View;
use tenure_core::model::step::Release;
use tenure_core::{ClaimId, Error, ErrorKind, Name, Result, Token};

use crate::broken_queue::Line;

/// What goes wrong with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Releases are answered, and nothing is released.
    ReleasesIgnored,
    /// Withdrawals are answered, and nothing is withdrawn.
    WithdrawalsIgnored,
    /// A withdrawal releases, whatever became of the claim.
    WithdrawalsRelease,
    /// Whatever is released, the answer is that it was held.
    ReleasesSayYes,
    /// Every hold rests for a while after its release.
    MinHoldForced,
    /// A try that is refused stays in the queue.
    TriesQueue,
    /// Refusals do not say who holds.
    HoldersUnnamed,
    /// Names end after so many bytes.
    NamesCutAt(usize),
    /// Names are compared without regard to case.
    NamesFolded,
    /// The first kind and capacity of a name stay for ever.
    KindsForEver,
    /// Every grant has the same token.
    TokensRepeat,
    /// Every token is smaller than the one before.
    TokensFall,
    /// Floors are ignored.
    FloorsIgnored,
    /// Floors are taken however far ahead they lie.
    FloorsForced,
    /// Neither a wake nor a heartbeat tells a waiter that it was granted.
    GrantsUntold,
    /// Every waiter is told that it is the first.
    PlacesUntold,
    /// A weight that cannot be granted is made one that can.
    WeightsClamped,
    /// An operator's new capacity is ignored.
    ResizesIgnored,
    /// A reader takes all units.
    ReadersExclude,
    /// A waiting writer takes no more units than a reader.
    WritersLight,
    /// Every grant names slot 0.
    OneSlotForAll,
    /// A renewal of what has ended says that it lives on.
    RenewalsSayYes,
    /// Renewals are answered, and nothing is renewed.
    RenewalsLie,
    /// `max_hold`, `min_hold` and `lock_delay` are ignored.
    LimitsIgnored,
    /// A release does not say that the grant was unused.
    UnusedForgotten,
    /// `lock_delay` counts after every release.
    DelaysAlways,
    /// `min_hold` counts for a holder that vanished, too.
    PeriodsAlways,
    /// Every other call that claims fails, so that clients have to repeat it.
    ClaimsFailFirst,
    /// A repeated claim is taken for a new one.
    IdsAnew,
    /// The answers to a batch come in reverse.
    BatchesReversed,
    /// Values are not stored.
    ValuesForgotten,
    /// A value that is to be gone stays.
    ValuesStay,
    /// Breaks are answered, and nothing is broken.
    BreaksIgnored,
    /// Every break frees at once.
    BreaksAtOnce,
    /// An inspection lists whatever begins with anything.
    PrefixesIgnored,
    /// Pages are not in order.
    PagesReversed,
    /// Every page is the first.
    PagesRepeat,
    /// The first name of every later page is missing.
    PagesSkip,
    /// Views do not list who waits.
    WaitersUnlisted,
    /// Observers are not told what is, only what changes.
    PresentUnseen,
    /// Observers are told what is, and no changes.
    ChangesUnseen,
    /// What is to be renewed by another client is not found.
    AdoptionsForgotten,
    /// The client that is to renew from now on is told of a hold that goes on, and it does not.
    AdoptionsLie,
    /// Whatever is to be renewed by another client, the answer is whoever holds.
    AdoptionsOfAnybody,
    /// An adoption is a new grant.
    AdoptionsGrant,
    /// A third of all requests or their answers are lost, and every call takes a while. That is no fault of an
    /// engine: clients must bear it.
    LinesLossy,
}

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It says that it notices deaths.
    PromisesMore,
    /// It says that it knows mutexes only, which is no fault.
    OnlyMutexes,
    /// It says that claims end with their clients, and has any client renew them.
    AdoptsMore,
    /// Calls go wrong.
    Call(Call),
    /// Queues go wrong.
    Queue(Line),
}

/// What broken engines of one store share.
#[derive(Default)]
pub(crate) struct Forgetful {
    tokens: AtomicU64,
    kinds: Mutex<HashMap<Name, (Kind, u32)>>,
}

impl Fault {
    pub(crate) fn connector(self, shared: Arc<Forgetful>, connect: Connect) -> Connect {
        connect.around(move |engine| {
            let mut capability = engine.capability().clone();
            capability.notices_death |= self == Fault::PromisesMore;
            if self == Fault::AdoptsMore {
                capability.adopts = Adopts::SameClient;
            }
            if self == Fault::OnlyMutexes {
                capability.kinds = &[Kind::Mutex];
            }
            let queues = engine.queues().expect("the engine memory has queues");
            let mut queue_capability = queues.capability().clone();
            queue_capability.adopts = capability.adopts;
            BrokenEngine { engine, capability, queue_capability, fault: self, shared }
        })
    }
}

pub(crate) struct BrokenEngine {
    pub(crate) engine: Arc<dyn DynEngine>,
    capability: Capability,
    pub(crate) queue_capability: QueueCapability,
    fault: Fault,
    shared: Arc<Forgetful>,
}

impl BrokenEngine {
    /// What is wrong with its queues.
    pub(crate) fn line(&self) -> Option<Line> {
        match self.fault {
            Fault::Queue(line) => Some(line),
            _ => None,
        }
    }

    fn is(&self, call: Call) -> bool {
        self.fault == Fault::Call(call)
    }

    fn name(&self, name: &Name) -> Name {
        let changed = match self.fault {
            Fault::Call(Call::NamesFolded) => name.as_str().to_lowercase(),
            Fault::Call(Call::NamesCutAt(most)) => name
                .as_str()
                .char_indices()
                .filter(|(at, c)| at + c.len_utf8() <= most)
                .map(|(_, c)| c)
                .collect(),
            _ => return name.clone(),
        };
        Name::new(&changed).expect("a part of a good name is one")
    }

    fn asked(&self, claim: &Claim) -> Claim {
        let mut claim = Claim { resource: self.name(&claim.resource), ..claim.clone() };
        let mut terms = (*claim.terms).clone();
        let Fault::Call(call) = self.fault else { return claim };
        match call {
            Call::TriesQueue => claim.wait = true,
            Call::MinHoldForced => terms.limits.min_hold = Duration::from_secs(1),
            Call::FloorsIgnored => claim.floor = Token::ZERO,
            Call::FloorsForced => claim.floor_forced = true,
            Call::WeightsClamped => terms.weight = terms.weight.clamp(1, terms.capacity),
            Call::ReadersExclude if terms.kind == Kind::RwLock => terms.weight = CAPACITY_MAX,
            Call::WritersLight if terms.kind == Kind::RwLock && claim.wait => terms.weight = 1,
            Call::LimitsIgnored => terms.limits = Default::default(),
            Call::PeriodsAlways => terms.limits.lock_delay = terms.limits.min_hold,
            Call::DelaysAlways => terms.limits.min_hold = terms.limits.lock_delay,
            Call::IdsAnew => {
                claim.id = ClaimId::new(
                    claim.id.bits() ^ u128::from(self.shared.tokens.fetch_add(1, Ordering::Relaxed)),
                );
            }
            _ => {}
        }
        claim.terms = Arc::new(terms);
        claim
    }

    fn grant(&self, mut grant: Grant) -> Grant {
        match self.fault {
            Fault::Call(Call::TokensRepeat) => grant.token = Token::new(7),
            Fault::Call(Call::TokensFall) => {
                let before = self.shared.tokens.fetch_add(1, Ordering::Relaxed);
                grant.token = Token::new(1_000_000 - before);
            }
            Fault::Call(Call::OneSlotForAll) => grant.slot = Some(0),
            _ => {}
        }
        grant
    }

    fn waiting(&self, mut waiting: Waiting) -> Waiting {
        if self.is(Call::PlacesUntold) {
            waiting.position = 1;
        }
        if self.is(Call::TokensRepeat) {
            waiting.horizon = Token::new(7);
        }
        waiting
    }

    fn claimed(&self, was_waiting: bool, answer: Result<ClaimAnswer>) -> Result<ClaimAnswer> {
        Ok(match answer? {
            ClaimAnswer::Granted(grant) => ClaimAnswer::Granted(self.grant(grant)),
            ClaimAnswer::Waiting(waiting, _) if self.is(Call::TriesQueue) && !was_waiting => {
                ClaimAnswer::Busy(tenure_core::Busy::new(waiting.horizon, waiting.position))
            }
            ClaimAnswer::Waiting(waiting, from) => ClaimAnswer::Waiting(self.waiting(waiting), from),
            ClaimAnswer::Busy(mut busy) => {
                if self.is(Call::HoldersUnnamed) {
                    busy.holder = None;
                }
                ClaimAnswer::Busy(busy)
            }
            other => other,
        })
    }

    fn renewed(&self, answer: RenewAnswer) -> RenewAnswer {
        let waits = |horizon| Waiting { position: 1, horizon, look_in: None };
        match answer {
            RenewAnswer::Lost if self.is(Call::RenewalsSayYes) => {
                RenewAnswer::Renewed { ends_in: Duration::from_secs(30) }
            }
            RenewAnswer::Granted(grant) if self.is(Call::GrantsUntold) => {
                RenewAnswer::Waiting(waits(grant.token), Incarnation(0))
            }
            RenewAnswer::Granted(grant) => RenewAnswer::Granted(self.grant(grant)),
            RenewAnswer::Waiting(waiting, from) => RenewAnswer::Waiting(self.waiting(waiting), from),
            other => other,
        }
    }

    /// Makes a call over lines that lose requests and answers, where that is the fault.
    async fn over_lines<T, C: Future<Output = Vec<Result<T>>>>(
        &self,
        requests: usize,
        call: C,
    ) -> Vec<Result<T>> {
        if !self.is(Call::LinesLossy) {
            return call.await;
        }
        let lost = || {
            let error = Error::new(ErrorKind::Unavailable, "ask", "lost on the way");
            std::iter::repeat_with(|| Err(error.clone())).take(requests).collect()
        };
        let fate = SystemClock.random() % 6;
        if fate == 0 {
            return lost();
        }
        for _ in 0..SystemClock.random() % 20 {
            tokio::task::yield_now().await;
        }
        let answers = call.await;
        for _ in 0..SystemClock.random() % 20 {
            tokio::task::yield_now().await;
        }
        if fate == 1 { lost() } else { answers }
    }

    /// Answers renewals as the resources are seen, and renews nothing.
    async fn as_seen(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let mut answers = Vec::new();
        for renewal in renewals {
            let view = self.engine.view(renewal.resource).await.ok().flatten();
            let holds = view.map_or(Vec::new(), |view| view.holds);
            let hold = holds.into_iter().find(|hold| hold.claim == Some(renewal.claim));
            let granted = |token, slot| Grant { token, slot, ends_in: Duration::from_secs(30) };
            answers
                .push(Ok(hold
                    .map_or(RenewAnswer::Lost, |hold| RenewAnswer::Granted(granted(hold.token, hold.slot)))));
        }
        answers
    }

    /// Refuses a kind that is not the first one of the name.
    fn first_kind(&self, claim: &Claim) -> Result<()> {
        let kind = (claim.terms.kind, claim.terms.capacity);
        let mut kinds = self.shared.kinds.lock().expect("no panic");
        if *kinds.entry(claim.resource.clone()).or_insert(kind) == kind {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, "claim", "it was of another kind once"))
    }
}

impl Engine for BrokenEngine {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn shard(&self, resource: &Name) -> Shard {
        self.engine.shard(&self.name(resource))
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        if self.is(Call::KindsForEver)
            && let Some(error) = claims.iter().find_map(|claim| self.first_kind(claim).err())
        {
            return vec![Err(error)];
        }
        if self.is(Call::ClaimsFailFirst)
            && self.shared.tokens.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
        {
            let error = Error::new(ErrorKind::Unavailable, "claim", "try again");
            return claims.iter().map(|_| Err(error.clone())).collect();
        }
        let waits: Vec<bool> = claims.iter().map(|claim| claim.wait).collect();
        let asked = claims.iter().map(|claim| self.asked(claim)).collect();
        let answers = self.over_lines(claims.len(), self.engine.claim(asked)).await;
        let answers = waits.into_iter().zip(answers);
        let mut answers: Vec<_> = answers.map(|(waits, answer)| self.claimed(waits, answer)).collect();
        if self.is(Call::BatchesReversed) {
            answers.reverse();
        }
        answers
    }

    async fn renew(&self, mut renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        if self.is(Call::RenewalsLie) && renewals.iter().all(|renewal| !renewal.is_waiter) {
            let yes = RenewAnswer::Renewed { ends_in: Duration::from_secs(30) };
            return renewals.iter().map(|_| Ok(yes)).collect();
        }
        let count = renewals.len();
        renewals.iter_mut().for_each(|renewal| renewal.resource = self.name(&renewal.resource));
        let call = async { self.engine.renew(renewals).await };
        let answers = self.over_lines(count, call).await;
        answers.into_iter().map(|answer| answer.map(|answer| self.renewed(answer))).collect()
    }

    async fn adopt(&self, mut renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        renewals.iter_mut().for_each(|renewal| renewal.resource = self.name(&renewal.resource));
        if self.is(Call::AdoptionsLie) {
            return self.as_seen(renewals).await;
        }
        let mut answers = self.engine.adopt(renewals.clone()).await;
        for (renewal, answer) in renewals.into_iter().zip(&mut answers) {
            let granted =
                |token| RenewAnswer::Granted(Grant { token, slot: None, ends_in: Duration::from_secs(30) });
            match (&*answer, self.fault) {
                (_, Fault::Call(Call::AdoptionsForgotten)) => *answer = Ok(RenewAnswer::Lost),
                (Ok(RenewAnswer::Granted(grant)), Fault::Call(Call::AdoptionsGrant)) => {
                    *answer = Ok(granted(Token::new(grant.token.get() + 1)));
                }
                (Ok(RenewAnswer::Lost), Fault::Call(Call::AdoptionsOfAnybody)) => {
                    let view = self.engine.view(renewal.resource).await.ok().flatten();
                    let token = view.map_or(Token::new(7), |view| view.last_token);
                    *answer = Ok(granted(token));
                }
                _ => {}
            }
        }
        answers.into_iter().map(|answer| answer.map(|answer| self.renewed(answer))).collect()
    }

    async fn release(&self, mut releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        if self.is(Call::ReleasesIgnored) {
            return releases.iter().map(|_| Ok(ReleaseAnswer::Released)).collect();
        }
        let count = releases.len();
        for release in &mut releases {
            release.resource = self.name(&release.resource);
            release.release.is_unused &= !self.is(Call::UnusedForgotten);
        }
        let call = async { self.engine.release(releases).await };
        let mut answers = self.over_lines(count, call).await;
        if self.is(Call::ReleasesSayYes) {
            answers.fill(Ok(ReleaseAnswer::Released));
        }
        answers
    }

    async fn withdraw(&self, mut withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>> {
        if self.is(Call::WithdrawalsIgnored) {
            return withdrawals.iter().map(|_| Ok(WithdrawAnswer::Withdrawn)).collect();
        }
        withdrawals.iter_mut().for_each(|withdrawal| withdrawal.resource = self.name(&withdrawal.resource));
        if self.is(Call::WithdrawalsRelease) {
            let released = |WithdrawRequest { resource, withdraw }: &WithdrawRequest| {
                let release = Release { claim: withdraw.claim, maybe_in_flight: true, is_unused: true };
                ReleaseRequest { resource: resource.clone(), release }
            };
            drop(self.engine.release(withdrawals.iter().map(released).collect()).await);
            return withdrawals.iter().map(|_| Ok(WithdrawAnswer::InUse)).collect();
        }
        self.engine.withdraw(withdrawals).await
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        let drops = matches!(keep, Keep::For { fresh, stale } if (fresh + stale).is_zero());
        if self.is(Call::ValuesForgotten) || self.is(Call::ValuesStay) && drops {
            // Only who holds is told that it published, so the fault is in the store alone.
            let renewal = RenewRequest { resource, claim, is_waiter: false };
            let answers = self.engine.renew(vec![renewal]).await;
            return Ok(!matches!(answers[..], [Ok(RenewAnswer::Lost)]));
        }
        self.engine.publish(resource, claim, bytes, keep).await
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        let is_later = after.is_some();
        let prefix = if self.is(Call::PrefixesIgnored) { String::new() } else { prefix };
        let after = after.filter(|_| !self.is(Call::PagesRepeat));
        let mut page = self.engine.inspect(prefix, after, most).await?;
        match self.fault {
            // A client that asks for the next page gets none, so that only the order is wrong.
            Fault::Call(Call::PagesReversed) if is_later => page.clear(),
            Fault::Call(Call::PagesReversed) => page.reverse(),
            Fault::Call(Call::PagesSkip) if is_later && !page.is_empty() => drop(page.remove(0)),
            Fault::Call(Call::WaitersUnlisted) => page.iter_mut().for_each(|view| view.waiters.clear()),
            _ => {}
        }
        Ok(page)
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        let views = self.engine.observe(resource);
        match self.fault {
            Fault::Call(Call::PresentUnseen) => views.skip(1).boxed(),
            Fault::Call(Call::ChangesUnseen) => views.take(1).chain(stream::pending()).boxed(),
            _ => views,
        }
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        if self.is(Call::BreaksIgnored) {
            return Ok(BreakAnswer::Broken { free_in: Duration::ZERO });
        }
        if self.is(Call::TokensRepeat) || self.is(Call::TokensFall) {
            // The hold is found by its true token, so that only the tokens that are shown are wrong.
            let page = self.engine.inspect(resource.as_str().to_owned(), None, 1).await?;
            let true_token = page.first().map_or(token, |view| view.last_token);
            return self.engine.break_hold(resource, true_token, at_once).await;
        }
        self.engine.break_hold(resource, token, at_once || self.is(Call::BreaksAtOnce)).await
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        if self.is(Call::ResizesIgnored) {
            return Ok(());
        }
        self.engine.resize(resource, capacity).await
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        match self.fault {
            Fault::Call(Call::GrantsUntold) | Fault::Queue(Line::Untold) => stream::pending().boxed(),
            // What a heartbeat tells is changed, what a wake tells is not.
            Fault::Call(Call::TokensRepeat | Call::TokensFall) => self
                .engine
                .wakes()
                .filter_map(|wake| {
                    std::future::ready(match wake {
                        Wake::Granted { claim, .. } => Some(Wake::Look(claim)),
                        other => Some(other),
                    })
                })
                .boxed(),
            _ => self.engine.wakes(),
        }
    }

    async fn check(&self) -> Vec<Finding> {
        self.engine.check().await
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        Some(self)
    }
}
