//! Queues that change what is asked of them, or what they answer.

use std::time::Duration;

use tenure_core::engine::queue::{
    Interval, ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueStats, Rules, Settle,
    SettleAnswer, Settlement, Take, Taken, Which,
};
use tenure_core::engine::{DynQueueEngine, RenewAnswer, RenewRequest};
use tenure_core::{Name, Result, Token};

use crate::broken_engine::BrokenEngine;

/// What goes wrong with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Acknowledgements are answered, and nothing is removed.
    AcksIgnored,
    /// What is handed out is gone.
    AtMostOnce,
    /// Every item stands for itself.
    GroupsIgnored,
    /// All items are of one group.
    OneGroup,
    /// Nobody is told of what comes.
    Untold,
    /// No client that asks in vain learns when to come again.
    TurnsUntold,
    /// Renewals are answered, and nothing is renewed.
    RenewalsLie,
    /// What another client is to renew is not found.
    AdoptionsForgotten,
    /// What another client is to renew is answered to go on, whatever it is, and is not renewed.
    AdoptionsLie,
    /// A delivery does not end for an hour.
    EndsLate,
    /// A settlement that came too late is answered as if it had not.
    LateSettled,
    /// Every delivery has the same token.
    TokensRepeat,
    /// A retry comes at once.
    RetriesAtOnce,
    /// Delays are ignored.
    DelaysIgnored,
    /// Intervals are ignored.
    IntervalsIgnored,
    /// Dedup ids are ignored.
    DedupIgnored,
    /// What fails is gone.
    FailuresGone,
    /// Attempts are not counted.
    AttemptsUnlimited,
    /// What is put back counts as an attempt.
    ReturnsCount,
    /// Payloads are text.
    PayloadsText,
    /// Contexts are lost.
    ContextsLost,
    /// Each item has the context of the first one of its call.
    ContextsMixed,
    /// A context comes with the first delivery alone.
    ContextsOnce,
    /// Nothing is ever counted.
    Uncounted,
    /// The pushes of one call are done in reverse, and answered as if they had not.
    BatchesReversed,
}

impl BrokenEngine {
    fn whole(&self) -> &dyn DynQueueEngine {
        self.engine.queues().expect("the engine memory has queues")
    }

    fn goes_wrong(&self, line: Line) -> bool {
        self.line() == Some(line)
    }
}

impl QueueEngine for BrokenEngine {
    fn capability(&self) -> &QueueCapability {
        &self.queue_capability
    }

    async fn push(&self, mut pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        for push in &mut pushes {
            match self.line() {
                Some(Line::GroupsIgnored) => push.group = None,
                Some(Line::OneGroup) => push.group = Some(Name::new("all").expect("a good name")),
                Some(Line::DelaysIgnored) => push.delay = Duration::ZERO,
                Some(Line::DedupIgnored) => push.dedup = None,
                Some(Line::ContextsLost) => push.context = None,
                Some(Line::PayloadsText) => {
                    push.payload = String::from_utf8_lossy(&push.payload).as_bytes().into();
                }
                _ => {}
            }
        }
        if self.goes_wrong(Line::ContextsMixed) {
            let one = pushes.iter().find_map(|push| push.context.clone());
            pushes.iter_mut().for_each(|push| push.context.clone_from(&one));
        }
        if self.goes_wrong(Line::BatchesReversed) {
            pushes.reverse();
        }
        self.whole().push(pushes).await
    }

    async fn take(&self, mut takes: Vec<Take>) -> Vec<Result<Taken>> {
        for take in &mut takes {
            let mut rules = Rules::clone(&take.rules);
            match self.line() {
                Some(Line::EndsLate) => rules.ttl = Duration::from_secs(3600),
                Some(Line::IntervalsIgnored) => rules.interval = Interval::Off,
                Some(Line::AttemptsUnlimited) => rules.attempts_max = 0,
                _ => {}
            }
            take.rules = rules.into();
        }
        let queues: Vec<Name> = takes.iter().map(|take| take.queue.clone()).collect();
        let mut taken = self.whole().take(takes).await;
        for (queue, taken) in queues.iter().zip(&mut taken) {
            let Ok(taken) = taken else { continue };
            taken.look_in = taken.look_in.filter(|_| !self.goes_wrong(Line::TurnsUntold));
            for item in &mut taken.items {
                if self.goes_wrong(Line::ContextsOnce) && item.attempt > 1 {
                    item.context = None;
                }
                if self.goes_wrong(Line::TokensRepeat) {
                    item.token = Token::new(7);
                }
                if self.goes_wrong(Line::AtMostOnce) {
                    let (queue, claim) = (queue.clone(), item.claim);
                    let settle = Settle { queue, claim, settlement: Settlement::Ack };
                    self.whole().settle(vec![settle]).await;
                }
            }
        }
        taken
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        if self.goes_wrong(Line::RenewalsLie) || self.goes_wrong(Line::AtMostOnce) {
            let ends_in = Duration::from_secs(30);
            return renewals.iter().map(|_| Ok(RenewAnswer::Renewed { ends_in })).collect();
        }
        self.whole().renew(renewals).await
    }

    async fn adopt(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let ends_in = Duration::from_secs(30);
        match self.line() {
            Some(Line::AdoptionsForgotten) => renewals.iter().map(|_| Ok(RenewAnswer::Lost)).collect(),
            Some(Line::AdoptionsLie) => {
                renewals.iter().map(|_| Ok(RenewAnswer::Renewed { ends_in })).collect()
            }
            _ => self.whole().adopt(renewals).await,
        }
    }

    async fn settle(&self, mut settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        let is_lie = self.goes_wrong(Line::LateSettled) || self.goes_wrong(Line::AtMostOnce);
        for settle in &mut settlements {
            match (self.line(), &mut settle.settlement) {
                (Some(Line::AcksIgnored), Settlement::Ack) => {
                    settle.queue = Name::new("none").expect("a name")
                }
                (Some(Line::RetriesAtOnce), Settlement::Retry { after, .. }) => *after = Duration::ZERO,
                (Some(Line::AttemptsUnlimited), Settlement::Retry { attempts_max, .. }) => *attempts_max = 0,
                (Some(Line::FailuresGone), settlement @ Settlement::Fail { .. }) => {
                    *settlement = Settlement::Ack;
                }
                (Some(Line::ReturnsCount), settlement @ Settlement::Return) => {
                    let (after, reason) = (Duration::ZERO, String::new());
                    *settlement = Settlement::Retry { after, attempts_max: 0, reason };
                }
                _ => {}
            }
        }
        let is_lie = is_lie || self.goes_wrong(Line::AcksIgnored);
        let answers = self.whole().settle(settlements).await;
        let lie = |answer| match answer {
            Ok(SettleAnswer::Lost) if is_lie => Ok(SettleAnswer::Settled),
            answer => answer,
        };
        answers.into_iter().map(lie).collect()
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        self.whole().queues(prefix, after, most).await
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        if self.goes_wrong(Line::Uncounted) {
            return Ok(QueueStats::default());
        }
        self.whole().stats(queue).await
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        self.whole().items(queue, which, after, most).await
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        self.whole().replay(queue, item, most).await
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        self.whole().purge(queue, which, item, most).await
    }
}
