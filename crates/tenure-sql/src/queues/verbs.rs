//! The verbs of the contract: batches are cut, faults are repeated or returned, and idle clients are noted and
//! called.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tenure_core::engine::queue::{
    ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueStats, Settle, SettleAnswer, Take,
    Taken, Which,
};
use tenure_core::engine::{DynQueueEngine, RenewAnswer, RenewRequest, Wake, see_through};
use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::{ErrorKind, Result};

use crate::fault::Fault;
use crate::pause::{pause, retried};
use crate::queues::forget::forget;
use crate::queues::{Calls, Entered, Found, QueueDatabase, look};

/// How many bytes of payloads go into one statement, but for a single one that is larger.
const CHUNK_BYTES: usize = 1 << 20;
/// How many rows an operator's verb takes at a time: others go on in between.
const PAGE: usize = 500;
/// After how long clients are called that became idle while something was pushed. One call of a client is made for
/// all that it pushes until then, and nearly always finds none: behind each push it was one transaction of four
/// (`postgres-queue`, 1 task).
const CALL_SOON: Duration = Duration::from_millis(5);

/// The queues of a database.
pub(crate) struct Queued<D: QueueDatabase> {
    database: Arc<D>,
    tables: Arc<Tables>,
    to_call: Arc<ToCall>,
}

/// Whether the tables are there.
#[derive(Default)]
struct Tables {
    are_there: AtomicBool,
    making: Arc<tokio::sync::Mutex<()>>,
}

/// The queues in which a client may have become idle while something was pushed.
#[derive(Debug, Default)]
struct ToCall(Mutex<BTreeSet<Name>>);

impl ToCall {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        // A panic elsewhere cannot leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    async fn make<D: QueueDatabase>(self: &Arc<Self>, database: &Arc<D>) -> std::result::Result<(), Fault> {
        if self.are_there.load(Ordering::Acquire) {
            return Ok(());
        }
        let (tables, database) = (self.clone(), database.clone());
        let turn = self.making.clone().lock_owned().await;
        let made = see_through(async move {
            let _turn = turn;
            if !tables.are_there.load(Ordering::Acquire) {
                database.ensure_queues().await?;
                tables.are_there.store(true, Ordering::Release);
            }
            Ok(())
        });
        made.await.unwrap_or_else(|| Err(Fault::unavailable("the client's runtime has ended")))
    }
}

/// The queues of an engine whose database may have none.
pub(crate) trait Queues: DynQueueEngine {
    /// Removes what is not worth remembering any more, if a queue was ever used.
    fn forget(&self) -> BoxFuture<'_, std::result::Result<(), Fault>>;
}

impl<D: QueueDatabase> Queues for Queued<D> {
    fn forget(&self) -> BoxFuture<'_, std::result::Result<(), Fault>> {
        Box::pin(async {
            // Otherwise the tables may not be there.
            if !self.tables.are_there.load(Ordering::Acquire) {
                return Ok(());
            }
            if !self.database.keeps_contexts() {
                // Somebody who may change the tables may have done so.
                self.database.ensure_queues().await?;
            }
            forget(&*self.database).await
        })
    }
}

/// What queues on a database can do.
pub fn queue_capability(tells_consumers: bool) -> QueueCapability {
    let mut capability = QueueCapability::of_step();
    capability.tells_consumers = tells_consumers;
    capability.is_durable = true;
    capability
}

impl<D: QueueDatabase> Queued<D> {
    pub(crate) fn new(database: Arc<D>) -> Queued<D> {
        Queued { database, tables: Arc::default(), to_call: Arc::default() }
    }

    /// Makes the tables when the first queue is used: a client that only locks needs no right to make them.
    async fn open(&self) -> std::result::Result<(), Fault> {
        if !self.database.tables().deletes {
            return Err(Fault::Failed {
                kind: ErrorKind::Unsupported,
                message: "a queue removes its items, and `?purge=off` says that nothing may be deleted"
                    .to_owned(),
                hint: "let the user DELETE, and connect without `?purge=off`",
            });
        }
        self.tables.make(&self.database).await
    }

    /// The clients that a push wakes, and those queues in which that is this client itself.
    fn calls_of(&self, pushes: &[&Push]) -> (Calls, BTreeSet<Name>) {
        let (mut calls, mut own) = (Calls::default(), BTreeSet::new());
        if !self.database.hears() {
            // Others poll by themselves. This client can do better.
            let ready = pushes.iter().filter(|push| push.delay.is_zero());
            own.extend(ready.map(|push| push.queue.clone()));
            return (calls, own);
        }
        let mut seen = HashSet::new();
        for push in pushes {
            let is_now = push.delay.is_zero();
            if !seen.insert((&push.queue, is_now)) {
                continue;
            }
            if !is_now {
                calls.watchers.push(push.queue.clone());
            } else if self.database.inbox().idle.has(&push.queue) {
                own.insert(push.queue.clone());
            } else {
                calls.one.push(push.queue.clone());
            }
        }
        (calls, own)
    }

    async fn push_chunk(&self, pushes: &[&Push]) -> std::result::Result<Vec<Pushed>, Fault> {
        let (calls, own) = self.calls_of(pushes);
        let Entered { pushed, calls_later } =
            retried(D::ENGINE, || self.database.enter(pushes, &calls)).await?;
        if calls_later {
            self.call_soon(calls.one);
        }
        // A wake of a client that wants nothing any more would be lost on the others: the woken client polls, and
        // wakes the next for what it leaves behind.
        own.into_iter().for_each(|queue| self.database.inbox().put(Wake::Queue(queue)));
        Ok(pushed)
    }

    /// Whether contexts are kept by now.
    async fn learn_contexts(&self) -> bool {
        let database = &self.database;
        database.keeps_contexts() || (database.ensure_queues().await.is_ok() && database.keeps_contexts())
    }

    async fn push_all(&self, pushes: &[Push]) -> Vec<std::result::Result<Pushed, Fault>> {
        if let Err(fault) = self.open().await {
            return pushes.iter().map(|_| Err(fault.clone())).collect();
        }
        let lacks_contexts = pushes.iter().any(|push| push.context.is_some()) && !self.learn_contexts().await;
        let refused = |push: &Push| (lacks_contexts && push.context.is_some()).then(|| Err(no_contexts()));
        let mut answers: Vec<Option<std::result::Result<Pushed, Fault>>> =
            pushes.iter().map(refused).collect();
        // Of those with the same dedup id, the first one counts.
        let mut firsts: HashMap<(&Name, &Name), usize> = HashMap::new();
        let first_of: Vec<usize> = pushes
            .iter()
            .enumerate()
            .map(|(at, push)| match &push.dedup {
                Some(dedup) if answers[at].is_none() => *firsts.entry((&push.queue, dedup)).or_insert(at),
                _ => at,
            })
            .collect();
        let asked: Vec<usize> =
            (0..pushes.len()).filter(|at| first_of[*at] == *at && answers[*at].is_none()).collect();
        let mut rest = asked.into_iter().peekable();
        while rest.peek().is_some() {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while let Some(at) =
                rest.next_if(|at| bytes == 0 || bytes + pushes[*at].payload.len() <= CHUNK_BYTES)
            {
                bytes += pushes[at].payload.len().max(1);
                chunk.push(at);
            }
            let part: Vec<&Push> = chunk.iter().map(|at| &pushes[*at]).collect();
            match self.push_chunk(&part).await {
                Ok(pushed) => {
                    chunk.iter().zip(pushed).for_each(|(at, pushed)| answers[*at] = Some(Ok(pushed)))
                }
                Err(fault) => {
                    // What comes behind must not overtake it.
                    let unsent = chunk.into_iter().chain(rest.by_ref());
                    unsent.for_each(|at| answers[at] = Some(Err(fault.clone())));
                }
            }
        }
        let answer = |at: usize| match &answers[first_of[at]] {
            Some(Ok(pushed)) if first_of[at] != at => Ok(Pushed { is_duplicate: true, ..*pushed }),
            Some(answer) => answer.clone(),
            None => Err(Fault::internal("a push was left out")),
        };
        (0..pushes.len()).map(answer).collect()
    }

    async fn take_one(&self, take: &Take) -> std::result::Result<Taken, Fault> {
        self.open().await?;
        let idle = &self.database.inbox().idle;
        let mut taken = Taken::default();
        loop {
            let claims = &take.claims[taken.items.len()..];
            if claims.is_empty() {
                break;
            }
            let found = match retried(D::ENGINE, || self.database.hand_out(take, claims)).await {
                Ok(found) => found,
                // Nothing of it was executed, and what has been handed out must not wait for its ttl. (With an unknown outcome the
                // whole take has failed: the client gives back whatever its claims may have been given.)
                Err(fault) if !taken.items.is_empty() && !fault.is_unknown() => {
                    return Ok(poll_at_once(taken));
                }
                Err(fault) => return Err(fault),
            };
            let Found { items, worn, next_in, is_for_others } = found;
            if !items.is_empty() && idle.is_in_turn(&take.queue) {
                self.pass_over(&take.queue).await;
            }
            taken.items.extend(items);
            if !worn.is_empty() {
                let attempts = take.rules.attempts_max;
                let dead_lettered =
                    retried(D::ENGINE, || self.database.dead_letter(&take.queue, &worn, attempts)).await;
                match dead_lettered {
                    // What has been handed out is here, whatever becomes of what is worn out.
                    Err(_) if !taken.items.is_empty() => return Ok(poll_at_once(taken)),
                    dead_lettered => dead_lettered?,
                }
                continue;
            }
            if is_for_others {
                self.call_later(Calls { one: vec![take.queue.clone()], watchers: Vec::new() });
            }
            if taken.items.len() == take.claims.len() {
                break;
            }
            if !self.database.hears() {
                taken.look_in = next_in;
                return Ok(taken);
            }
            if let Some(place) = idle.place(&take.queue) {
                taken.look_in = next_in.and_then(|next_in| idle.turn(&take.queue, place, next_in));
                return Ok(taken);
            }
            match self.database.note_idle(&take.queue).await {
                Ok(place) => idle.note(&take.queue, place),
                Err(_) if !taken.items.is_empty() => return Ok(poll_at_once(taken)),
                Err(fault) => return Err(fault),
            }
            // Once more: no client was woken for what was pushed meanwhile.
        }
        if idle.forget(&take.queue) {
            // Called once too often it polls in vain.
            if let Err(fault) = self.database.unnote_idle(&take.queue).await {
                tracing::debug!(engine = D::ENGINE, ?fault, "a client that has taken items is noted as idle");
            }
        }
        Ok(taken)
    }

    /// Nobody is to wait any more for those whose turn was before, and who have not come.
    async fn pass_over(&self, queue: &Name) {
        match self.database.pass_over(queue).await {
            Ok(()) => self.database.inbox().idle.advance(queue),
            Err(fault) => {
                tracing::debug!(engine = D::ENGINE, ?fault, "others wait for clients that may be gone");
            }
        }
    }

    /// Calls clients, without waiting for it.
    fn call_later(&self, calls: Calls) {
        if calls.is_empty() || !self.database.hears() {
            return;
        }
        let database = self.database.clone();
        tokio::spawn(async move {
            if let Err(fault) = database.call(&calls).await {
                tracing::debug!(engine = D::ENGINE, ?fault, "consumers look for themselves");
            }
        });
    }

    /// Calls idle clients in queues a moment later, in one go for all that is asked for meanwhile.
    fn call_soon(&self, queues: Vec<Name>) {
        let mut to_call = self.to_call.lock();
        let is_first = to_call.is_empty();
        to_call.extend(queues);
        if !is_first || to_call.is_empty() {
            return;
        }
        drop(to_call);
        let (database, to_call) = (self.database.clone(), self.to_call.clone());
        tokio::spawn(async move {
            pause(CALL_SOON).await;
            let one = std::mem::take(&mut *to_call.lock()).into_iter().collect();
            if let Err(fault) = database.call(&Calls { one, watchers: Vec::new() }).await {
                tracing::debug!(engine = D::ENGINE, ?fault, "consumers look for themselves");
            }
        });
    }

    async fn settle_some(&self, settlements: &[&Settle]) -> std::result::Result<Vec<SettleAnswer>, Fault> {
        self.open().await?;
        let settled = retried(D::ENGINE, || self.database.settle_all(settlements)).await?;
        let mut calls = Calls::default();
        for queue in settled.ready.into_iter().collect::<BTreeSet<_>>() {
            match !self.database.hears() || self.database.inbox().idle.has(&queue) {
                true => self.database.inbox().put(Wake::Queue(queue)),
                false => calls.one.push(queue),
            }
        }
        let waits = |one: &&&Settle| {
            use tenure_core::engine::queue::Settlement::Retry;
            matches!(one.settlement, Retry { after, .. } if !after.is_zero())
        };
        let watched: BTreeSet<Name> = settlements.iter().filter(waits).map(|one| one.queue.clone()).collect();
        calls.watchers.extend(watched);
        self.call_later(calls);
        Ok(settled.answers)
    }

    async fn renew_some(&self, claims: &[ClaimId]) -> std::result::Result<HashMap<ClaimId, Duration>, Fault> {
        self.open().await?;
        let extended = retried(D::ENGINE, || self.database.extend(claims)).await?;
        Ok(extended.into_iter().collect())
    }

    async fn replay_all(
        &self,
        queue: &Name,
        item: Option<ItemId>,
        most: usize,
    ) -> std::result::Result<usize, Fault> {
        self.open().await?;
        let most = if item.is_some() { most.min(1) } else { most };
        let mut count = 0;
        while count < most {
            let part = PAGE.min(most - count);
            let replayed = retried(D::ENGINE, || self.database.replay_some(queue, item, part)).await?;
            count += replayed;
            if replayed < part {
                break;
            }
        }
        if count > 0 {
            self.call_later(Calls { one: vec![queue.clone()], watchers: Vec::new() });
        }
        Ok(count)
    }

    async fn purge_all(
        &self,
        queue: &Name,
        which: Which,
        item: Option<ItemId>,
        most: usize,
    ) -> std::result::Result<usize, Fault> {
        self.open().await?;
        let (mut count, mut after) = (0, item.map(|item| ItemId(item.0.saturating_sub(1))));
        while count < most {
            let part = if item.is_some() { 1 } else { PAGE.min(most - count) };
            let mut found = look::numbers(&*self.database, queue, which, after, part).await?;
            let is_last = found.len() < part || item.is_some();
            found.retain(|found| item.is_none_or(|item| item == *found));
            let Some(last) = found.last() else { break };
            after = Some(*last);
            count += retried(D::ENGINE, || self.database.remove(queue, which, &found)).await?;
            if is_last {
                break;
            }
        }
        Ok(count)
    }
}

impl<D: QueueDatabase> QueueEngine for Queued<D> {
    fn capability(&self) -> &QueueCapability {
        self.database.queue_capability()
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        let answers = self.push_all(&pushes).await;
        answers.into_iter().map(|answer| answer.map_err(|fault| fault.to_error("push"))).collect()
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        let taken = join_all(takes.iter().map(|take| self.take_one(take))).await;
        taken.into_iter().map(|taken| taken.map_err(|fault| fault.to_error("take"))).collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let claims: Vec<ClaimId> = renewals.iter().map(|renewal| renewal.claim).collect();
        let extended = self.renew_some(&claims).await;
        let answer = |renewal: &RenewRequest| match &extended {
            Ok(extended) => Ok(match extended.get(&renewal.claim) {
                Some(ends_in) => RenewAnswer::Renewed { ends_in: *ends_in },
                None => RenewAnswer::Lost,
            }),
            Err(fault) => Err(fault.to_error("renew")),
        };
        renewals.iter().map(answer).collect()
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        // A claim that is settled a second time is lost by then.
        let mut firsts = BTreeMap::new();
        for (at, one) in settlements.iter().enumerate() {
            firsts.entry(one.claim).or_insert(at);
        }
        let mut order: Vec<usize> = firsts.into_values().collect();
        order.sort_unstable();
        let unique: Vec<&Settle> = order.iter().map(|at| &settlements[*at]).collect();
        match self.settle_some(&unique).await {
            Ok(answers) => {
                let mut all: Vec<_> = settlements.iter().map(|_| Ok(SettleAnswer::Lost)).collect();
                order.into_iter().zip(answers).for_each(|(at, answer)| all[at] = Ok(answer));
                all
            }
            Err(fault) => vec![Err(fault.to_error("settle")); settlements.len()],
        }
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        let asked = async {
            self.open().await?;
            look::queues(&*self.database, &prefix, after.as_ref(), most).await
        };
        asked.await.map_err(|fault| fault.to_error("list queues"))
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        let asked = async {
            self.open().await?;
            look::stats(&*self.database, &queue).await
        };
        asked.await.map_err(|fault| fault.to_error("look at a queue"))
    }

    async fn is_empty(&self, queue: Name) -> Result<bool> {
        let asked = async {
            self.open().await?;
            look::is_empty(&*self.database, &queue).await
        };
        asked.await.map_err(|fault| fault.to_error("look at a queue"))
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        let asked = async {
            self.open().await?;
            look::items(&*self.database, &queue, which, after, most).await
        };
        asked.await.map_err(|fault| fault.to_error("list items"))
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        let replayed = self.replay_all(&queue, item, most).await;
        replayed.map_err(|fault| fault.to_error("replay"))
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        let purged = self.purge_all(&queue, which, item, most).await;
        purged.map_err(|fault| fault.to_error("purge"))
    }
}

/// An item without its context would be one whose work nobody can follow.
fn no_contexts() -> Fault {
    Fault::Failed {
        kind: ErrorKind::Unsupported,
        message: "an older version made the tables of the queues, without a column for contexts".to_owned(),
        hint: "let a user who may change them run `tenure doctor --migrate`, or push without a context",
    }
}

/// Less was done than was asked for: the client polls again at once, and gets the error if it is still there.
fn poll_at_once(taken: Taken) -> Taken {
    Taken { look_in: Some(Duration::ZERO), ..taken }
}
