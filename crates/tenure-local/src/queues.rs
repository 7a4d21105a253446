//! Queues: each verb is a job of the queues' own thread, and `step` on the rows of a queue in one transaction.
//!
//! **Deaths.** A take checks whether clients that have items are dead, and ends their deliveries in the same
//! transaction: all of them when it finds less than it wants, a few otherwise, so that what a dead client had is not
//! left until a long line has been worked off. A client that waits in vain learns of a death by its watcher: the
//! first one in the list of the idle watches all consumers, the others watch the first one. A client that takes
//! therefore announces that to the first one, once, *before* it commits: at every moment at which it has an item,
//! another client knows of it.

pub(crate) mod place;
mod rows;

use std::sync::{Arc, PoisonError};

use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{
    ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueStats, Settle, SettleAnswer, Take,
    Taken, Which,
};
use tenure_core::engine::{RenewAnswer, RenewRequest, adopts_elsewhere};
use tenure_core::error::Result;
use tenure_core::model::claim::{ClientId, Name};
use tenure_core::model::queue::record::QueueRecord;
use tenure_core::model::queue::step::{self, Calls};

use crate::client::job::BATCH_MAX;
use crate::client::wake::News;
use crate::engine::{BOUND, Local};
use crate::error::Failure;
use crate::store::Transaction;
use rows::QueueRows;

/// The first byte of the keys of the queues' names.
const QUEUE: u8 = b'q';
/// The key of the last id that was given to a queue.
const LAST_ID: &[u8] = b"n";
/// How many of the clients that have items a take checks that finds what it wants.
const SAMPLE: usize = 4;
/// How many it checks otherwise. The deaths of others are noticed when their deliveries end.
const CLIENTS_MAX: usize = 1024;
/// How many items one transaction replays or purges, so that others get their turn.
const SWEEP_MAX: usize = 256;
/// How many queues one transaction lists.
const PAGE_MAX: usize = 64;
/// Pushes leave one part in so many of the store free, and no more than [`RESERVE_BYTES_MAX`]: to remove something takes
/// room too.
const RESERVE_PART: u64 = 8;
/// The most that pushes leave free. 128 settlements write some 5 MiB of pages.
const RESERVE_BYTES_MAX: u64 = 64 << 20;

impl Transaction<'_> {
    fn queue_id(&self, name: &Name) -> Result<Option<u64>, Failure> {
        let id = self.rows().get(self.reader(), &queue_key(name))?.map(TryInto::try_into).transpose();
        id.map(|id| id.map(u64::from_le_bytes)).map_err(|_| Failure::Damaged("a queue's id cannot be read"))
    }

    fn new_queue_id(&mut self, name: &Name) -> Result<u64, Failure> {
        let rows = self.rows();
        let last = rows.get(self.reader(), LAST_ID)?.map(TryInto::try_into).transpose();
        let last = last.map_err(|_| Failure::Damaged("the last id cannot be read"))?;
        let id = last.map_or(1, |last| u64::from_le_bytes(last) + 1);
        rows.put(self.writer(), LAST_ID, &id.to_le_bytes())?;
        rows.put(self.writer(), &queue_key(name), &id.to_le_bytes())?;
        Ok(id)
    }

    /// Does something with a queue, makes it if it must be there, and forgets it if nothing is left in it.
    fn with_queue<T>(
        &mut self,
        name: &Name,
        must_be: bool,
        work: impl FnOnce(&mut QueueRows<'_, '_>, Timestamp) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        let (rows, now) = (self.rows(), self.now());
        let id = match self.queue_id(name)? {
            Some(id) => id,
            None if must_be => self.new_queue_id(name)?,
            None => return Ok(None),
        };
        let mut queue = QueueRows::open(rows, self.writer(), id)?;
        let done = work(&mut queue, now)?;
        if queue.is_idle(now)? {
            queue.remove()?;
            rows.delete(self.writer(), &queue_key(name))?;
            self.note_change();
        } else if queue.close()? {
            self.note_change();
        }
        Ok(Some(done))
    }

    /// Wakes clients since there may be something for them, after the commit.
    fn wake_consumers(&mut self, queue: &Name, calls: Calls) {
        for client in calls {
            self.notify(client, queue, News::Queue(queue.clone()));
        }
    }

    fn queue_push(&mut self, push: &Push) -> Result<Pushed, Failure> {
        self.check_room(push.payload.len() as u64)?;
        let pushed = self.with_queue(&push.queue, true, |queue, now| step::push(queue, push, now))?;
        let (pushed, calls) = pushed.expect("it is made");
        self.wake_consumers(&push.queue, calls);
        Ok(pushed)
    }

    /// Whether a push leaves room to take and to acknowledge.
    fn check_room(&self, bytes: u64) -> Result<(), Failure> {
        let stat = self.rows().stat(self.reader())?;
        let pages = stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
        let most = self.store.map_bytes();
        let reserve = (most / RESERVE_PART).min(RESERVE_BYTES_MAX);
        let used = pages as u64 * u64::from(stat.page_size) + bytes;
        if used + reserve > most { Err(Failure::Full) } else { Ok(()) }
    }

    /// Takes, and says which clients one that waits must watch.
    fn queue_take(&mut self, take: &Take) -> Result<(Taken, Vec<ClientId>), Failure> {
        let store = self.store;
        let is_wanted = !take.claims.is_empty();
        let from = ClientId::new(store.clock.random());
        let done = self.with_queue(&take.queue, is_wanted, |queue, now| {
            let mut calls = Calls::new();
            let mut end = |queue: &mut QueueRows<'_, '_>, suspects: Vec<ClientId>| {
                let mut is_anybody_dead = false;
                for client in suspects {
                    if client != take.client && store.is_dead(client) {
                        is_anybody_dead = true;
                        calls.extend(step::vanish(queue, client, now)?);
                    }
                }
                Ok::<_, Failure>(is_anybody_dead)
            };
            let mut sample = queue.clients(from, SAMPLE)?;
            if sample.len() < SAMPLE {
                sample.extend(queue.clients(ClientId::new(0), SAMPLE)?);
            }
            end(queue, sample)?;
            let (mut taken, more) = step::take(queue, take, now)?;
            if taken.items.len() < take.claims.len() {
                let mut suspects = queue.clients(ClientId::new(0), CLIENTS_MAX)?;
                suspects.extend(queue.idle());
                if end(queue, suspects)? {
                    let rest = Take { claims: take.claims[taken.items.len()..].to_vec(), ..take.clone() };
                    let (again, more) = step::take(queue, &rest, now)?;
                    calls.extend(more);
                    taken.items.extend(again.items);
                    taken.look_in = again.look_in;
                }
            }
            calls.extend(more);
            let first = queue.idle().next();
            let watch = match first {
                _ if taken.items.len() == take.claims.len() => Vec::new(),
                Some(first) if first != take.client => vec![first],
                _ => queue.clients(ClientId::new(0), CLIENTS_MAX)?,
            };
            Ok((taken, calls, watch, first.filter(|first| *first != take.client)))
        })?;
        let Some((taken, calls, watch, first)) = done else { return Ok((Taken::default(), Vec::new())) };
        self.wake_consumers(&take.queue, calls);
        if let Some(first) = first
            && !taken.items.is_empty()
        {
            self.announce_to_first(take, first);
        }
        Ok((taken, watch))
    }

    /// Lets the first of the waiting clients know that a client takes, so that it watches it.
    fn announce_to_first(&self, take: &Take, first: ClientId) {
        let mut announced = self.store.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let before = announced.insert((take.client, take.queue.clone()), first);
        drop(announced);
        if before != Some(first) {
            self.store.ring(first, &News::Consumes(take.client, take.queue.clone()));
        }
    }

    fn queue_renew(&mut self, renewal: &RenewRequest) -> Result<RenewAnswer, Failure> {
        let ends_in =
            self.with_queue(&renewal.resource, false, |queue, now| step::renew(queue, renewal.claim, now))?;
        Ok(ends_in.flatten().map_or(RenewAnswer::Lost, |ends_in| RenewAnswer::Renewed { ends_in }))
    }

    /// Answers `None` if another client has the item.
    fn queue_renew_own(
        &mut self,
        renewal: &RenewRequest,
        client: ClientId,
    ) -> Result<Option<RenewAnswer>, Failure> {
        let owned = self.with_queue(&renewal.resource, false, |queue, _| queue.claims_of(client))?;
        let is_own = owned.is_some_and(|claims| claims.contains(&renewal.claim));
        match self.queue_renew(renewal)? {
            RenewAnswer::Renewed { .. } if !is_own => Ok(None),
            answer => Ok(Some(answer)),
        }
    }

    fn queue_settle(&mut self, settle: &Settle) -> Result<SettleAnswer, Failure> {
        let settled = self.with_queue(&settle.queue, false, |queue, now| {
            step::settle(queue, settle.claim, &settle.settlement, now)
        })?;
        let Some((answer, calls)) = settled else { return Ok(SettleAnswer::Lost) };
        self.wake_consumers(&settle.queue, calls);
        Ok(answer)
    }

    /// Ends what a dead client has of a queue.
    pub(crate) fn queue_vanish(&mut self, name: &Name, client: ClientId) -> Result<(), Failure> {
        let calls = self.with_queue(name, false, |queue, now| step::vanish(queue, client, now))?;
        self.wake_consumers(name, calls.unwrap_or_default());
        Ok(())
    }
}

fn queue_key(name: &Name) -> Vec<u8> {
    [&[QUEUE], name.as_str().as_bytes()].concat()
}

impl Local {
    /// Does something with each of some requests, in one transaction of the queues' thread.
    async fn in_queues<R, A>(
        &self,
        operation: &'static str,
        requests: Vec<R>,
        work: impl Fn(&mut Transaction<'_>, &R) -> Result<A, Failure> + Send + 'static,
    ) -> Vec<Result<A>>
    where
        R: Send + Sync + 'static,
        A: Send + 'static,
    {
        let requests: Arc<[R]> = requests.into();
        let run = requests.clone();
        let answers = async {
            let worker = self.worker.queues(operation).await?;
            let run = move |transaction: &mut Transaction<'_>| {
                run.iter().map(|request| work(transaction, request)).collect::<Result<Vec<_>, _>>()
            };
            worker.submit(operation, requests.len(), run, |_, answers| Ok(answers)).await
        };
        match answers.await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Does something with one queue, in one transaction of the queues' thread.
    async fn in_queue<A: Send + 'static>(
        &self,
        operation: &'static str,
        queue: Name,
        work: impl Fn(&mut Transaction<'_>, &Name) -> Result<A, Failure> + Send + 'static,
    ) -> Result<A> {
        self.in_queues(operation, vec![queue], work).await.remove(0)
    }

    /// Does something with up to `most` items of a queue, a part of them in each transaction.
    async fn in_parts(
        &self,
        operation: &'static str,
        queue: Name,
        most: usize,
        work: impl Fn(&mut QueueRows<'_, '_>, usize, Timestamp) -> Result<(usize, Calls), Failure>
        + Clone
        + Send
        + 'static,
    ) -> Result<usize> {
        let mut count = 0;
        loop {
            let (work, part) = (work.clone(), (most - count).min(SWEEP_MAX));
            let done = self.in_queue(operation, queue.clone(), move |transaction, name| {
                let done = transaction.with_queue(name, false, |queue, now| work(queue, part, now))?;
                let (done, calls) = done.unwrap_or_default();
                transaction.wake_consumers(name, calls);
                Ok(done)
            });
            let done = done.await?;
            count += done;
            if done < SWEEP_MAX || count >= most {
                return Ok(count);
            }
        }
    }
}

impl QueueEngine for Local {
    fn capability(&self) -> &QueueCapability {
        &self.queue_capability
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        self.in_queues("push", pushes, |transaction, push| transaction.queue_push(push)).await
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        let asked: Vec<_> = takes.iter().map(|take| (take.queue.clone(), take.claims.is_empty())).collect();
        let answers = self.in_queues("take", takes, |transaction, take| transaction.queue_take(take)).await;
        let answers = asked.into_iter().zip(answers).map(|((queue, is_over), answer)| {
            let (taken, watch) = answer?;
            if is_over {
                self.watcher.forget_consumers(&queue);
            } else if !watch.is_empty() {
                self.watcher.watch_consumers(&queue, &watch);
            }
            Ok(taken)
        });
        answers.collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.in_queues("renew", renewals, |transaction, renewal| transaction.queue_renew(renewal)).await
    }

    async fn adopt(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let client = self.client;
        let answers = self.in_queues("renew", renewals, move |transaction, renewal| {
            transaction.queue_renew_own(renewal, client)
        });
        let answers = answers.await.into_iter();
        answers.map(|answer| answer?.ok_or_else(|| adopts_elsewhere("renew", BOUND))).collect()
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        self.in_queues("settle", settlements, |transaction, settle| transaction.queue_settle(settle)).await
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        let worker = self.worker.queues("inspect").await?;
        let run = move |transaction: &mut Transaction<'_>| {
            let mut after = after.clone();
            loop {
                let names = transaction.names_behind(QUEUE, &prefix, after.as_ref(), most.min(PAGE_MAX))?;
                after = names.last().cloned();
                let mut page = Vec::with_capacity(names.len());
                for name in names {
                    let stats = transaction.with_queue(&name, false, |queue, now| step::stats(queue, now))?;
                    // One that is kept for its dedup ids or its pace alone is not shown.
                    let is_used = |stats: &QueueStats| stats.waiting + stats.in_flight + stats.dead > 0;
                    page.extend(stats.filter(is_used).map(|stats| (name, stats)));
                }
                if after.is_none() || !page.is_empty() {
                    return Ok(page);
                }
            }
        };
        worker.submit("inspect", BATCH_MAX, run, |_, page| Ok(page)).await
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        self.in_queue("inspect", queue, |transaction, name| {
            Ok(transaction.with_queue(name, false, |queue, now| step::stats(queue, now))?.unwrap_or_default())
        })
        .await
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        self.in_queue("inspect", queue, move |transaction, name| {
            let items = |queue: &mut QueueRows<'_, '_>, now| step::items(queue, which, after, most, now);
            Ok(transaction.with_queue(name, false, items)?.unwrap_or_default())
        })
        .await
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        self.in_parts("replay", queue, most, move |queue, part, now| step::replay(queue, item, part, now))
            .await
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        self.in_parts("purge", queue, most, move |queue, part, now| {
            step::purge(queue, which, item, part, now)
        })
        .await
    }
}
