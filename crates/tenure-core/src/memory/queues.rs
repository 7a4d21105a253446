//! The queues of the engine `memory:`: the model itself.

use std::ops::Bound;

use super::{Memory, Store};
use crate::clock::Timestamp;
use crate::engine::queue::{
    ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueStats, Settle, SettleAnswer, Take,
    Taken, Which,
};
use crate::engine::{RenewAnswer, RenewRequest, Wake};
use crate::error::Result;
use crate::model::claim::Name;
use crate::model::queue::record::PlainQueue;
use crate::model::queue::step::{self, Calls};

/// What a step of the model says, which cannot fail here.
type Stepped<T> = std::result::Result<T, std::convert::Infallible>;

impl Store {
    /// Does something with a queue, and wakes the clients that it concerns.
    fn queue<T>(
        &self,
        queue: &Name,
        now: Timestamp,
        work: impl FnOnce(&mut PlainQueue, Timestamp) -> Stepped<(T, Calls)>,
    ) -> Result<T> {
        let mut state = self.state();
        let record = state.queues.entry(queue.clone()).or_default();
        let Ok((answer, calls)) = work(record, now);
        if record.is_idle() {
            state.queues.remove(queue);
        }
        for client in calls {
            state.send(client, Wake::Queue(queue.clone()));
        }
        Ok(answer)
    }
}

impl QueueEngine for Memory {
    fn capability(&self) -> &QueueCapability {
        &self.queues
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        // All of a call is done at one moment.
        let now = self.store.now();
        let push =
            |push: &Push| self.store.queue(&push.queue, now, |queue, now| step::push(queue, push, now));
        self.store.answer(&pushes, |request: &Push| ("push", &request.queue), push).await
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        let now = self.store.now();
        let take =
            |take: &Take| self.store.queue(&take.queue, now, |queue, now| step::take(queue, take, now));
        self.store.answer(&takes, |request: &Take| ("take", &request.queue), take).await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let now = self.store.now();
        let renew = |request: &RenewRequest| {
            let renewed = self.store.queue(&request.resource, now, |queue, now| {
                Ok((step::renew(queue, request.claim, now)?, Calls::new()))
            });
            Ok(renewed?.map_or(RenewAnswer::Lost, |ends_in| RenewAnswer::Renewed { ends_in }))
        };
        self.store.answer(&renewals, |request: &RenewRequest| ("renew", &request.resource), renew).await
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        let now = self.store.now();
        let settle = |settle: &Settle| {
            self.store.queue(&settle.queue, now, |queue, now| {
                step::settle(queue, settle.claim, &settle.settlement, now)
            })
        };
        self.store.answer(&settlements, |request: &Settle| ("settle", &request.queue), settle).await
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        let now = self.store.now();
        let mut state = self.store.state();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let named = state.queues.range_mut((from, Bound::Unbounded));
        let named = named.filter(|(name, _)| name.as_str().starts_with(&prefix));
        let counted = named.map(|(name, queue)| {
            let Ok(stats) = step::stats(queue, now);
            (name.clone(), stats)
        });
        let is_used = |stats: &QueueStats| stats.waiting + stats.in_flight + stats.dead > 0;
        Ok(counted.filter(|(_, stats)| is_used(stats)).take(most).collect())
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        self.store.queue(&queue, self.store.now(), |queue, now| Ok((step::stats(queue, now)?, Calls::new())))
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        self.store.queue(&queue, self.store.now(), |queue, now| {
            Ok((step::items(queue, which, after, most, now)?, Calls::new()))
        })
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        self.store.queue(&queue, self.store.now(), |queue, now| step::replay(queue, item, most, now))
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        self.store.queue(&queue, self.store.now(), |queue, now| step::purge(queue, which, item, most, now))
    }
}
