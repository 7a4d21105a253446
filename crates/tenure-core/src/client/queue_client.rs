//! What a client asks of queues: pushes and settlements in batches, and one line of tasks for each queue that they take from.
//!
//! All of it runs on the client's own thread. The tasks of a client that take from one queue by the same rules stand in one line,
//! for which one *consumer group* asks the engine: so a thousand tasks are one idle client, and a wake costs one call.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, select};
use tokio::sync::{Notify, oneshot};

use crate::client::backoff;
use crate::client::connection::{Connection, Shared};
use crate::client::handed_out::{HandedOut, Parts};
use crate::client::lease_state::LeaseState;
use crate::client::ledger::Holding;
use crate::client::queue_requests::{Had, Pushing, Settling};
use crate::clock::Instant;
use crate::counts::{CallEnd, Verb};
use crate::engine::queue::{
    CONSUMER_LIFE, CONSUMER_LOOK, Dispatched, Push, Pushed, Rules, Settle, SettleAnswer, Settlement, Take,
    Taken,
};
use crate::engine::{DynQueueEngine, Wake};
use crate::error::{Error, ErrorKind, Result};
use crate::model::claim::{ClaimId, Grant, Name, Terms};
use crate::model::step::FINISHED_MEMORY;

/// How often an idle client polls an engine that does not wake consumers.
const POLL_WITHOUT_WAKES: Duration = Duration::from_secs(1);
/// The shortest time to the next poll, so that rounding cannot make a busy loop.
const POLL_MIN: Duration = Duration::from_millis(1);

/// For how long a take may come that was given up: longer than a copy of a request can be under way.
const LATE_MAX: Duration = FINISHED_MEMORY;
/// After how long a return is repeated that found nothing, since its take may yet come: first, and at most.
const LATE_FIRST: Duration = Duration::from_millis(50);
const LATE_LONGEST: Duration = Duration::from_secs(5);

/// What is asked of queues by one client.
#[derive(Default)]
pub(crate) struct QueueClient {
    /// How many settlements are under way, of deliveries that their users let go.
    settling: AtomicUsize,
    /// Notified when no settlement is under way any more.
    settled: Notify,
    consumer_groups: Mutex<HashMap<(Name, Arc<Rules>), ConsumerGroup>>,
}

/// The tasks that take from one queue by the same rules.
struct ConsumerGroup {
    line: VecDeque<PendingTake>,
    /// A task came or went, or something may be ready.
    news: Arc<Notify>,
}

/// A task that wants an item.
struct PendingTake {
    delivery: oneshot::Sender<Result<Option<HandedOut>>>,
    /// It does not wait.
    is_try: bool,
    since: Instant,
}

impl QueueClient {
    /// Takes in news of the engine.
    pub(crate) fn on_wake(&self, wake: &Wake) {
        match wake {
            Wake::Queue(queue) => self.poll_again(|name, _| name == queue),
            Wake::LookAtAll | Wake::RenewAll => self.poll_again(|_, _| true),
            Wake::Granted { .. } | Wake::Look(_) => {}
        }
    }

    /// Polls for the consumer groups of a queue that have other rules.
    fn poll_again_beside(&self, queue: &Name, rules: &Arc<Rules>) {
        self.poll_again(|name, others| name == queue && others != rules);
    }

    /// Something may be ready for some consumer groups.
    fn poll_again(&self, is_meant: impl Fn(&Name, &Arc<Rules>) -> bool) {
        let consumer_groups = self.consumer_groups.lock().unwrap_or_else(PoisonError::into_inner);
        consumer_groups
            .iter()
            .filter(|((name, rules), _)| is_meant(name, rules))
            .for_each(|(_, consumer_group)| consumer_group.news.notify_one());
    }

    /// The thread has ended: the tasks in line find that nobody takes for them.
    pub(crate) fn close(&self) {
        let mut consumer_groups = self.consumer_groups.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = std::mem::take(&mut *consumer_groups);
        // Not under the lock: a waker may run anything.
        drop(consumer_groups);
        drop(closed);
    }

    /// Waits until no settlement is under way.
    pub(crate) async fn settled(&self) {
        loop {
            let settled = self.settled.notified();
            if self.is_quiet() {
                return;
            }
            settled.await;
        }
    }

    /// Whether nothing is under way that must not be left undone.
    pub(crate) fn is_quiet(&self) -> bool {
        self.settling.load(Ordering::Acquire) == 0
    }
}

impl Shared {
    /// Asks the engine's queues for something about one queue that is not worth a batch.
    pub(crate) async fn on_queues<T: Send + 'static>(
        self: &Arc<Shared>,
        queue: &Name,
        ask: impl for<'a> FnOnce(&'a dyn DynQueueEngine) -> BoxFuture<'a, Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.queues()?;
        self.on_thread(Some(queue), async move |engine| match engine.queues() {
            Some(queues) => ask(queues).await,
            None => Err(no_queues(engine.name())),
        })
        .await
    }

    /// Returns the engine's queues.
    pub(crate) fn queues(&self) -> Result<&dyn DynQueueEngine> {
        self.engine.queues().ok_or_else(|| no_queues(self.engine.name()))
    }

    /// Returns the most requests of one call of the queues, and how long an answer may take: the answer timeout, or what they say
    /// if that is longer.
    pub(crate) fn queue_limits(&self) -> (usize, Duration) {
        let answer_timeout = self.settings.answer_timeout;
        self.engine.queues().map_or((1, answer_timeout), |queues| {
            let capability = queues.capability();
            (capability.batch_max, answer_timeout.max(capability.answer_max))
        })
    }

    /// Puts an item in line. A push with a dedup id is repeated for as long as a user waits for an answer.
    pub(crate) async fn push(self: &Arc<Shared>, push: Push) -> Result<Pushed> {
        self.queues()?;
        let give_up_at = self.clock.now() + self.settings.answer_timeout;
        let (queue, may_repeat) = (push.queue.clone(), push.dedup.is_some());
        let mut attempt = 0;
        loop {
            let answer = self.push_once(push.clone()).await;
            let Err(error) = answer else { return answer };
            let delay = backoff::delay(attempt, self.clock.random());
            let is_over = self.clock.now() + delay >= give_up_at;
            let is_unknown = is_unknown(&error);
            if !is_unknown || !may_repeat || is_over {
                // What the engine advises is more than that, where it has answered.
                let is_unadvised = error.kind() == ErrorKind::Unavailable || error.hint().is_none();
                let is_unknown = is_unknown && !error.has_no_effect() && !may_repeat && is_unadvised;
                let error = error.named(self.engine.name(), Some(&queue));
                let hint =
                    "it may have been pushed: give it a dedup id, and it can be pushed again without harm";
                return Err(if is_unknown { error.with_hint(hint) } else { error });
            }
            attempt = attempt.saturating_add(1);
            self.pause(delay).await?;
        }
    }

    /// Begins to end a delivery, and repeats the request until it is answered or the delivery would be over. A caller
    /// that waits gets an error after the answer timeout; the settlement goes on without a waiting caller.
    pub(crate) fn start_settling(
        self: &Arc<Shared>,
        settle: Settle,
        until: Instant,
        had: Option<Had>,
    ) -> oneshot::Receiver<Result<SettleAnswer>> {
        let (sender, answer) = oneshot::channel();
        self.begin_settling(settle, (until, Instant::default()), had, Some(sender));
        answer
    }

    /// Gives back a delivery that its user has not collected.
    pub(crate) fn return_uncollected(&self, lease: &LeaseState) {
        let settle =
            Settle { queue: lease.resource().clone(), claim: lease.claim(), settlement: Settlement::Return };
        self.begin_settling(settle, (lease.last_deadline(), Instant::default()), None, None);
    }

    /// `until`: when the delivery ends by itself, and until when it may come yet.
    fn begin_settling(
        &self,
        settle: Settle,
        (until, late_until): (Instant, Instant),
        had: Option<Had>,
        waiter: Option<oneshot::Sender<Result<SettleAnswer>>>,
    ) {
        self.queue_client.settling.fetch_add(1, Ordering::AcqRel);
        let asked_at = self.clock.now();
        let settling =
            Settling { settle, asked_at, until, attempt: 0, late_until, late_misses: 0, had, waiter };
        if self.update_ledger(|ledger, _| ledger.enqueue_settling(settling)).is_some() {
            // The thread has ended, so it waits for no settlement any more.
            self.count_settled();
        }
    }

    fn count_settled(&self) {
        let were = self.queue_client.settling.fetch_sub(1, Ordering::AcqRel);
        if were == 1 {
            self.queue_client.settled.notify_waiters();
            if self.is_closing() {
                // The thread waits for the last one.
                self.poke();
            }
        }
    }

    pub(crate) fn on_settled(self: &Arc<Shared>, mut settling: Settling, answer: Result<SettleAnswer>) {
        let named = |error: Error| error.named(self.engine.name(), Some(&settling.settle.queue));
        let answer = answer.map_err(named);
        let (now, is_repeated) = (self.clock.now(), settling.attempt > 0);
        let answer = match answer {
            Err(error) if is_unknown(&error) => {
                let delay = backoff::delay(settling.attempt, self.clock.random());
                let is_over = now + delay >= settling.until;
                if is_over || now >= settling.asked_at + self.settings.answer_timeout {
                    settling.answer(Err(error));
                }
                if !is_over {
                    settling.attempt = settling.attempt.saturating_add(1);
                    return self.settle_later(settling, delay);
                }
                None
            }
            // The take that it is to undo may be carried out after it.
            Ok(SettleAnswer::Lost) if now < settling.late_until => {
                let delay = LATE_FIRST.saturating_mul(1 << settling.late_misses.min(7)).min(LATE_LONGEST);
                if settling.late_misses == 0 {
                    // The thread need not wait for it: the item comes back after its ttl as well.
                    self.count_settled();
                }
                settling.late_misses = settling.late_misses.saturating_add(1);
                return self.settle_later(settling, delay);
            }
            // An earlier copy, whose answer was lost, may have ended it.
            Ok(SettleAnswer::Lost) if is_repeated => Some(Err(Error::new(
                ErrorKind::Unavailable,
                "settle",
                "it was not answered, and when it was repeated, the delivery had ended",
            )
            .named(self.engine.name(), Some(&settling.settle.queue))
            .with_hint("it was settled, or it is handed out again"))),
            answer => Some(answer),
        };
        if let Some(had) = settling.had.take() {
            let (queue, outcome) = (&settling.settle.queue, settling.outcome(answer.as_ref()));
            self.with_ledger(|ledger, _| ledger.settled(had, queue, outcome));
        }
        if let Some(answer) = answer {
            settling.answer(answer);
        }
        if settling.late_misses == 0 {
            self.count_settled();
        }
    }

    fn settle_later(self: &Arc<Shared>, settling: Settling, delay: Duration) {
        let shared = self.clone();
        self.runtime.spawn(async move {
            // Without a timer it is repeated at once.
            shared.pause(delay).await.ok();
            // If the thread has ended, it waits for no settlement any more.
            drop(shared.update_ledger(|ledger, _| ledger.enqueue_settling(settling)));
        });
    }

    async fn push_once(&self, push: Push) -> Result<Pushed> {
        let (waiter, answer) = oneshot::channel();
        drop(self.update_ledger(|ledger, _| ledger.enqueue_push(Pushing { push, waiter })));
        answer.await.map_err(|_| Error::new(ErrorKind::Internal, "use the client", "its thread has ended"))?
    }
}

fn no_queues(engine: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, "use a queue", "this engine has no queues")
        .with_engine(engine)
        .with_hint("see docs/primitives/queue.md for the engines that have")
        .with_no_effect()
}

/// A place in the line of a queue. Dropping it gives the place up, and what has come for it goes back.
pub(crate) struct Place {
    delivery: oneshot::Receiver<Result<Option<HandedOut>>>,
    /// Notified when the place is given up. `None`: it was answered.
    news: Option<Arc<Notify>>,
}

impl Place {
    /// Waits for an item. Returns `None` if nothing is ready and the place was not to wait.
    pub(crate) async fn handed_out(mut self) -> Result<Option<HandedOut>> {
        let gone = Error::new(ErrorKind::Internal, "use the client", "its thread has ended");
        let answer = (&mut self.delivery).await;
        // A task that is served must not make the group poll.
        self.news = None;
        answer.map_err(|_| gone)?
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(news) = &self.news {
            self.delivery.close();
            news.notify_one();
        }
    }
}

impl Connection {
    /// Takes a place in the line of a queue.
    pub(crate) fn enqueue_take(
        self: &Arc<Connection>,
        (queue, scope): (&Name, u16),
        rules: &Arc<Rules>,
        is_try: bool,
    ) -> Place {
        let (sender, delivery) = oneshot::channel();
        let shared = &self.shared;
        let pending_take = PendingTake { delivery: sender, is_try, since: shared.clock.now() };
        let key = (queue.clone(), rules.clone());
        let mut consumer_groups =
            shared.queue_client.consumer_groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(consumer_group) = consumer_groups.get_mut(&key) {
            consumer_group.line.push_back(pending_take);
            consumer_group.news.notify_one();
            return Place { delivery, news: Some(consumer_group.news.clone()) };
        }
        let news = Arc::new(Notify::new());
        consumer_groups
            .insert(key, ConsumerGroup { line: VecDeque::from([pending_take]), news: news.clone() });
        let poller = QueuePoller {
            shared: shared.clone(),
            connection: Arc::downgrade(self),
            queue: queue.clone(),
            rules: rules.clone(),
            scope,
            news: news.clone(),
            is_idle: false,
            last_heard: None,
            attempt: 0,
        };
        drop(consumer_groups);
        shared.runtime.spawn(poller.serve());
        if shared.has_ended() {
            // The poller never runs.
            shared.queue_client.close();
        }
        Place { delivery, news: Some(news) }
    }
}

/// Asks the engine for one consumer group, until its line is empty.
struct QueuePoller {
    shared: Arc<Shared>,
    /// The waiting tasks keep the connection alive; a poller must not.
    connection: std::sync::Weak<Connection>,
    queue: Name,
    rules: Arc<Rules>,
    /// In which scope the queue is counted.
    scope: u16,
    news: Arc<Notify>,
    /// The engine takes this client to wait.
    is_idle: bool,
    last_heard: Option<Instant>,
    /// How often in a row the engine did not answer.
    attempt: u8,
}

impl QueuePoller {
    async fn serve(mut self) {
        while let Some(pending_takes) = self.pending_takes() {
            if pending_takes == 0 {
                // The line is empty: the engine must wake other clients for what comes.
                self.is_idle = false;
                drop(self.take(Vec::new()).await);
                self.shared.queue_client.poll_again_beside(&self.queue, &self.rules);
                continue;
            }
            let (most, _) = self.shared.queue_limits();
            let claims: Vec<ClaimId> = (0..pending_takes.min(most)).map(|_| self.claim_id()).collect();
            let sent = self.shared.clock.now();
            let pause = match self.take(claims.clone()).await {
                Ok(taken) => self.hand_out(sent, claims.len(), taken),
                Err(error) => {
                    if !error.has_no_effect() {
                        // It may have been done, or may yet be: an item handed out to no task goes back.
                        claims.into_iter().for_each(|claim| self.give_back_late(sent, claim));
                    }
                    self.refuse(error)
                }
            };
            if let Some(pause) = pause {
                self.pause(pause).await;
            }
        }
    }

    /// Counts the tasks in line. Returns `None` if the group is closed.
    fn pending_takes(&mut self) -> Option<usize> {
        let mut consumer_groups =
            self.shared.queue_client.consumer_groups.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.queue.clone(), self.rules.clone());
        let consumer_group = consumer_groups.get_mut(&key)?;
        consumer_group.line.retain(|pending_take| !pending_take.delivery.is_closed());
        if consumer_group.line.is_empty() && !self.is_idle {
            consumer_groups.remove(&key);
            return None;
        }
        Some(consumer_group.line.len())
    }

    fn claim_id(&self) -> ClaimId {
        let random = || u128::from(self.shared.clock.random());
        ClaimId::new(random() << 64 | random())
    }

    async fn take(&self, claims: Vec<ClaimId>) -> Result<Taken> {
        let queues = self.shared.queues()?;
        let floor = self.shared.floor(&self.queue);
        let (queue, client, rules) = (self.queue.clone(), self.shared.client, self.rules.clone());
        let (items, sent) = (claims.len(), self.shared.clock.now());
        let take = Take { queue, client, claims, rules, floor };
        let answers = self.shared.within(self.shared.queue_limits().1, queues.take(vec![take])).await;
        let outcome = answers.as_ref().map_or(CallEnd::Timeout, |answers| CallEnd::of(answers.iter()));
        self.shared.called(Verb::Take, items, sent, outcome);
        let answers = answers?;
        let gone = || Error::new(ErrorKind::Internal, "take", "the engine did not answer");
        let taken = answers.into_iter().next().ok_or_else(gone)??;
        if taken.items.iter().any(|item| item.token <= floor) {
            let message = format!(
                "the floor {floor} is more than an hour ahead of the store's clock: one of the two is wrong"
            );
            return Err(Error::new(ErrorKind::Invalid, "take", message)
                .with_hint("check the clocks of the store and of the machines that wrote the token"));
        }
        Ok(taken)
    }

    /// Puts back what a take may have handed out, or may yet.
    fn give_back_late(&self, sent: Instant, claim: ClaimId) {
        let settle = Settle { queue: self.queue.clone(), claim, settlement: Settlement::Return };
        let until = sent + self.rules.ttl.min(LATE_MAX).max(self.shared.settings.answer_timeout);
        self.shared.begin_settling(settle, (until, until), None, None);
    }

    /// Hands what was taken to the tasks in line, and says how long to wait then.
    fn hand_out(&mut self, sent: Instant, wanted: usize, taken: Taken) -> Option<Duration> {
        (self.attempt, self.last_heard) = (0, Some(sent));
        self.is_idle = taken.items.len() < wanted;
        if !self.is_idle {
            // The engine takes this client to be idle no more, and others of it may wait by other rules.
            self.shared.queue_client.poll_again_beside(&self.queue, &self.rules);
        }
        let Taken { items, look_in } = taken;
        for item in items {
            self.hand_to_next(sent, item);
        }
        if !self.is_idle {
            return None;
        }
        self.answer_all(|pending_take| pending_take.is_try, || Ok(None));
        let has_wakes = self.shared.queues().is_ok_and(|queues| queues.capability().tells_consumers);
        let look = if has_wakes { CONSUMER_LOOK } else { POLL_WITHOUT_WAKES };
        Some(look_in.map_or(look, |look_in| look_in.clamp(POLL_MIN, look)))
    }

    /// Hands an item to the first task in line that still wants one, or back to the queue if none does.
    fn hand_to_next(&self, sent: Instant, item: Dispatched) {
        let (claim, until) = (item.claim, sent + item.ends_in);
        let Some(mut handed_out) = self.enter(sent, item) else {
            let settle = Settle { queue: self.queue.clone(), claim, settlement: Settlement::Return };
            return self.shared.begin_settling(settle, (until, Instant::default()), None, None);
        };
        let key = (self.queue.clone(), self.rules.clone());
        loop {
            let mut consumer_groups =
                self.shared.queue_client.consumer_groups.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(pending_take) =
                consumer_groups.get_mut(&key).and_then(|consumer_group| consumer_group.line.pop_front())
            else {
                // Dropped unseen, it goes back; not under the lock.
                drop(consumer_groups);
                return;
            };
            drop(consumer_groups);
            match pending_take.delivery.send(Ok(Some(handed_out))) {
                Err(Ok(Some(unwanted))) => handed_out = unwanted,
                _ => return,
            }
        }
    }

    /// Enters what was taken in the ledger, which renews it from now on. Returns `None` if it is over, or the client has no user any more.
    fn enter(&self, sent: Instant, item: Dispatched) -> Option<HandedOut> {
        let connection = self.connection.upgrade()?;
        let terms = Terms {
            ttl: self.rules.ttl,
            label: self.rules.label.clone(),
            ..Terms::clone(&self.shared.terms)
        };
        let terms = self.shared.share(&Arc::new(terms));
        let lease = LeaseState::new(self.queue.clone(), item.claim, terms);
        let grant = Grant { token: item.token, slot: None, ends_in: item.ends_in };
        let holding = Holding { lease, grant, sent, scope: self.scope };
        let (key, state) = self.shared.update_ledger(|ledger, now| ledger.enter_delivery(now, holding))?;
        Some(HandedOut::new(Parts { connection, state, key, rules: self.rules.clone(), item }))
    }

    /// Answers the tasks that have waited for too long that the engine is unavailable, or all of them why it refuses.
    /// Returns how long to wait then.
    fn refuse(&mut self, error: Error) -> Option<Duration> {
        let error = error.named(self.shared.engine.name(), Some(&self.queue));
        if error.kind() != ErrorKind::Unavailable {
            self.is_idle = false;
            self.answer_all(|_| true, || Err(error.clone()));
            return None;
        }
        let delay = backoff::delay(self.attempt, self.shared.clock.random());
        self.attempt = self.attempt.saturating_add(1);
        let at = self.shared.clock.now() + delay;
        let answer_timeout = self.shared.settings.answer_timeout;
        let is_over = |pending_take: &PendingTake| {
            let patience =
                if pending_take.is_try { answer_timeout } else { CONSUMER_LIFE.max(answer_timeout) };
            let since = self.last_heard.map_or(pending_take.since, |heard| heard.max(pending_take.since));
            at >= since + patience
        };
        self.answer_all(is_over, || Err(error.clone()));
        Some(delay)
    }

    fn answer_all(
        &self,
        is_meant: impl Fn(&PendingTake) -> bool,
        answer: impl Fn() -> Result<Option<HandedOut>>,
    ) {
        let key = (self.queue.clone(), self.rules.clone());
        let mut consumer_groups =
            self.shared.queue_client.consumer_groups.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(consumer_group) = consumer_groups.get_mut(&key) else { return };
        let (meant, others) = consumer_group.line.drain(..).partition(|pending_take| is_meant(pending_take));
        consumer_group.line = others;
        drop(consumer_groups);
        let meant: VecDeque<PendingTake> = meant;
        for pending_take in meant {
            // The receiver was dropped.
            pending_take.delivery.send(answer()).ok();
        }
    }

    /// Waits until something may be ready, a task comes or goes, or time has passed.
    async fn pause(&self, period: Duration) {
        let until = self.shared.clock.now() + period;
        let news = std::pin::pin!(self.news.notified());
        let Ok(mut timer) = self.shared.clock.timer() else { return news.await };
        let over = std::pin::pin!(std::future::poll_fn(|cx| timer.poll_until(until, cx)));
        select(news, over).await;
    }
}

/// Whether a request that failed may have been carried out. What is unavailable is asked again in any case.
fn is_unknown(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable || !error.has_no_effect()
}
