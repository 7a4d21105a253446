//! Verbs about claims that have no entry in the ledger: those of other clients, by their ids.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use crate::client::connection::Shared;
use crate::clock::Instant;
use crate::counts::{CallEnd, Verb};
use crate::engine::queue::{Settle, SettleAnswer};
use crate::engine::{
    DynEngine, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Shard, WithdrawAnswer,
    WithdrawRequest,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::claim::Name;

/// The face has asked whether it has.
const HAS_QUEUES: &str = "deliveries are of an engine with queues";

/// When a request was sent, and how it was answered.
pub(crate) type Heard<A> = (Instant, Result<A>);

/// Asks an engine many requests.
type Ask<R, A> = fn(Arc<dyn DynEngine>, Vec<R>) -> BoxFuture<'static, Vec<Result<A>>>;

/// A verb of the engine that takes many requests.
struct Many<R, A> {
    verb: Verb,
    /// The most requests of one call, and how long that may stay unanswered.
    limits: (usize, Duration),
    name: fn(&R) -> &Name,
    ask: Ask<R, A>,
}

impl Shared {
    /// Renews claims that this client may not have made, and has it renew them from now on.
    pub(crate) async fn adopt(self: &Arc<Shared>, renewals: Vec<RenewRequest>) -> Vec<Heard<RenewAnswer>> {
        let many = Many {
            verb: Verb::Renew,
            limits: (self.engine.capability().batch_max, self.settings.answer_timeout),
            name: |renewal: &RenewRequest| &renewal.resource,
            ask: |engine, renewals| Box::pin(async move { engine.adopt(renewals).await }),
        };
        self.ask_many(many, renewals).await
    }

    /// Releases claims that have no entry here.
    pub(crate) async fn release_many(
        self: &Arc<Shared>,
        releases: Vec<ReleaseRequest>,
    ) -> Vec<Heard<ReleaseAnswer>> {
        let many = Many {
            verb: Verb::Release,
            limits: (self.engine.capability().batch_max, self.settings.answer_timeout),
            name: |release: &ReleaseRequest| &release.resource,
            ask: |engine, releases| Box::pin(async move { engine.release(releases).await }),
        };
        self.ask_many(many, releases).await
    }

    /// Withdraws claims that have no entry here any more.
    pub(crate) async fn withdraw_many(
        self: &Arc<Shared>,
        withdrawals: Vec<WithdrawRequest>,
    ) -> Vec<Heard<WithdrawAnswer>> {
        let many = Many {
            verb: Verb::Release,
            limits: (self.engine.capability().batch_max, self.settings.answer_timeout),
            name: |withdrawal: &WithdrawRequest| &withdrawal.resource,
            ask: |engine, withdrawals| Box::pin(async move { engine.withdraw(withdrawals).await }),
        };
        self.ask_many(many, withdrawals).await
    }

    /// Renews deliveries that this client may not have taken, and has it renew them from now on. The engine has queues.
    pub(crate) async fn adopt_deliveries(
        self: &Arc<Shared>,
        renewals: Vec<RenewRequest>,
    ) -> Vec<Heard<RenewAnswer>> {
        let many = Many {
            verb: Verb::Renew,
            limits: (self.queue_limits().0, self.settings.answer_timeout),
            name: |renewal: &RenewRequest| &renewal.resource,
            ask: |engine, renewals| {
                Box::pin(async move { engine.queues().expect(HAS_QUEUES).adopt(renewals).await })
            },
        };
        self.ask_many(many, renewals).await
    }

    /// Ends deliveries that have no entry here. The engine has queues.
    pub(crate) async fn settle_many(
        self: &Arc<Shared>,
        settlements: Vec<Settle>,
    ) -> Vec<Heard<SettleAnswer>> {
        let many = Many {
            verb: Verb::Settle,
            limits: self.queue_limits(),
            name: |settle: &Settle| &settle.queue,
            ask: |engine, settlements| {
                Box::pin(async move { engine.queues().expect(HAS_QUEUES).settle(settlements).await })
            },
        };
        self.ask_many(many, settlements).await
    }

    /// Asks on the client's thread, in one call for each server, or several where there are more requests than a call takes. Answers in
    /// the order of the requests.
    async fn ask_many<R: Send + 'static, A: Send + 'static>(
        self: &Arc<Shared>,
        many: Many<R, A>,
        requests: Vec<R>,
    ) -> Vec<Heard<A>> {
        let names: Vec<Name> = requests.iter().map(|request| (many.name)(request).clone()).collect();
        let mut shards: BTreeMap<Shard, Vec<(usize, R)>> = BTreeMap::new();
        for (at, request) in requests.into_iter().enumerate() {
            shards.entry(self.engine.shard(&names[at])).or_default().push((at, request));
        }
        let (mut calls, (most, patience)) = (Vec::new(), many.limits);
        for requests in shards.into_values() {
            let mut left = requests.into_iter().peekable();
            while left.peek().is_some() {
                let (places, requests): (Vec<_>, Vec<_>) = left.by_ref().take(most.max(1)).unzip();
                let asked = self.ask_once((many.verb, patience), many.ask, requests);
                calls.push(async move { (places, asked.await) });
            }
        }
        let mut answers: Vec<Option<Heard<A>>> = names.iter().map(|_| None).collect();
        for (places, (sent, answered)) in join_all(calls).await {
            for (place, answer) in places.into_iter().zip(answered) {
                answers[place] = Some((sent, answer));
            }
        }
        let missing = || {
            let error =
                Error::new(ErrorKind::Internal, "ask", "the engine answered fewer requests than it was sent");
            (Instant::default(), Err(error))
        };
        let named = |(name, answer): (&Name, Option<Heard<A>>)| {
            let (sent, answer) = answer.unwrap_or_else(missing);
            (sent, answer.map_err(|error| error.named(self.engine.name(), Some(name))))
        };
        names.iter().zip(answers).map(named).collect()
    }

    /// Makes one call. Whoever drops it leaves it to the client's thread: what was sent is answered.
    async fn ask_once<R: Send + 'static, A: Send + 'static>(
        self: &Arc<Shared>,
        (verb, patience): (Verb, Duration),
        ask: Ask<R, A>,
        requests: Vec<R>,
    ) -> (Instant, Vec<Result<A>>) {
        let (count, shared) = (requests.len(), self.clone());
        let all = |error: Error| (0..count).map(|_| Err(error.clone())).collect();
        let gone = || Error::new(ErrorKind::Internal, "use the client", "its thread has ended");
        if shared.has_ended() {
            return (Instant::default(), all(gone()));
        }
        let asked = self.runtime.spawn(async move {
            let sent = shared.clock.now();
            let answers = shared.within(patience, ask(shared.engine.clone(), requests)).await;
            let outcome = answers.as_ref().map_or(CallEnd::Timeout, |answers| CallEnd::of(answers.iter()));
            shared.called(verb, count, sent, outcome);
            (sent, answers)
        });
        match asked.await {
            Ok((sent, Ok(answers))) => (sent, answers),
            Ok((sent, Err(error))) => (sent, all(error)),
            Err(_) => (Instant::default(), all(gone())),
        }
    }
}
