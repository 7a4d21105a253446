//! The engine: the model's steps, on what is known of a queue, and one transaction for what they change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::queue::{
    Interval, ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueStats, Rules, Settle,
    SettleAnswer, Settlement, Take, Taken, Which,
};
use tenure_core::engine::{RenewAnswer, RenewRequest, Wake};
use tenure_core::model::claim::{ClaimId, ClientId, Name};
use tenure_core::model::queue::record::{Head, LaneId};
use tenure_core::model::queue::step::{self, Calls};
use tenure_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep_until};

use super::row_cache::{Found, Key, KeyRange, NotLoaded, RowCache, Value};
use super::rows::{Payload, Rows, Top, ahead};
use super::signs::{Own, Signs};
use super::sorted::{Sorted, damaged};
use super::store::{Change, Changed, Fit, Moment, QueueStore, Snapshot};

/// How long a request is tried while others change the queue first. A client waits for 2 s.
const PATIENCE: Duration = Duration::from_millis(1800);
/// How often one tries without a pause.
const TRIES_AT_ONCE: u32 = 30;
/// A client that wins against others leaves the queue to them for two transactions, but for each no longer than this:
/// else the losers would lose again and again, and fail with that.
const YIELD_MAX: Duration = Duration::from_millis(50);
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(32);
/// What is known of a queue is forgotten when it is larger: a client may use many queues.
const KNOWN_MAX: usize = 4 << 20;
/// How many queues a client knows something of.
const QUEUES_MAX: usize = 256;
/// How many deliveries of its own a client knows.
const OWN_MAX: usize = 10_000;
/// How many items are taken, replayed or purged in one step.
const STEP_MAX: usize = 32;
/// How many lanes whose time is over a step clears beside that.
const CLEARED_MAX: usize = 64;
/// How much later than the answer the dispatch of an item may be that is held back by an interval, at least.
const SLACK_MIN: Duration = Duration::from_millis(20);

/// What some steps have changed.
struct Plan {
    top: Top,
    rows: Vec<(Key, Option<Value>)>,
    calls: Calls,
    epoch: i64,
    there: Vec<Key>,
    signs: Vec<(ClaimId, Option<Duration>)>,
}

/// What is asked, and of which queue.
#[derive(Clone, Copy)]
pub(super) struct Errand<'a> {
    pub(super) operation: &'static str,
    pub(super) queue: &'a Name,
    /// Of deliveries that begin.
    pub(super) ttl: Option<Duration>,
}

impl Errand<'_> {
    pub(super) const RENEW: &'static str = "renew";
    pub(super) const SETTLE: &'static str = "settle";

    /// Whether it renews or ends deliveries.
    fn is_of_deliveries(&self) -> bool {
        [Self::RENEW, Self::SETTLE].contains(&self.operation)
    }
}

/// What is known of a queue at one version of its head.
#[derive(Debug, Default)]
struct Known {
    version: i64,
    top: Top,
    row_cache: RowCache,
    /// Until when this client leaves the queue to others, which have lost against it.
    yields_until: Option<Instant>,
}

/// The queues of a client.
pub struct Queues<S> {
    store: S,
    client: ClientId,
    known: Mutex<HashMap<Name, Arc<tokio::sync::Mutex<Option<Known>>>>>,
    /// The deliveries of this client: what is known here saves reading it.
    pub(super) own: Mutex<HashMap<ClaimId, Own>>,
    /// How long transactions took lately, the longest.
    took: Mutex<Duration>,
}

/// How much is done in one transaction.
#[derive(Clone, Copy)]
struct Portion {
    requests: usize,
    /// How often that was halved which one request may do.
    halved: u32,
}

impl Portion {
    const WHOLE: Portion = Portion { requests: STEP_MAX, halved: 0 };

    fn of(self, most: usize) -> usize {
        most.checked_shr(self.halved).unwrap_or(0).max(1)
    }

    /// Returns what is tried after that many requests were too much, or `None` if that is not what was wrong, or it cannot be less.
    fn less(self, gap: &NotLoaded) -> Option<Portion> {
        match *gap {
            NotLoaded::TooMuch(requests @ 2..) => Some(Portion { requests: requests - 1, ..self }),
            NotLoaded::TooMuch(_) if self.of(CLEARED_MAX) > 1 => {
                Some(Portion { requests: 1, halved: self.halved + 1 })
            }
            _ => None,
        }
    }
}

/// What a step is done with.
pub(super) struct StepContext<'a> {
    pub(super) rows: Rows<'a>,
    portion: Portion,
    pub(super) now: Timestamp,
    pub(super) moment: Moment,
    /// When the moment was asked for, by this machine's clock.
    at: tenure_core::clock::Instant,
}

impl StepContext<'_> {
    /// What is counted from now must last so much longer, since it may be later than it is taken to be.
    pub(super) fn doubt(&self) -> Duration {
        self.moment.latest.since(self.now)
    }
}

/// What came of one request.
pub(super) type Stepped<A> = std::result::Result<(A, Calls), NotLoaded>;

impl<S> std::fmt::Debug for Queues<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").field("client", &self.client).finish_non_exhaustive()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn of(snapshot: Snapshot, wanted: &[KeyRange]) -> Result<Known, NotLoaded> {
        let top = snapshot.head.map_or_else(|| Ok(Top::default()), |head| Top::decode(&head))?;
        let mut known = Known { version: snapshot.version, top, ..Known::default() };
        known.learn(snapshot.found, wanted);
        Ok(known)
    }

    /// What of it the next call has: all, unless it is too much.
    fn kept(self) -> Option<Known> {
        (self.row_cache.size() <= KNOWN_MAX).then_some(self)
    }

    fn learn(&mut self, found: Vec<Found>, wanted: &[KeyRange]) {
        for (wanted, found) in wanted.iter().zip(found) {
            self.row_cache.learn(wanted, found);
        }
    }
}

impl<S: QueueStore> Queues<S> {
    /// Makes the queues of a client.
    pub fn new(store: S, client: ClientId) -> Queues<S> {
        let (known, own, took) = Default::default();
        Queues { store, client, known, own, took }
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn slot(&self, queue: &Name) -> Arc<tokio::sync::Mutex<Option<Known>>> {
        let mut known = lock(&self.known);
        if known.len() >= QUEUES_MAX && !known.contains_key(queue) {
            known.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        known.entry(queue.clone()).or_default().clone()
    }

    async fn read(&self, queue: &Name, wanted: &[KeyRange]) -> Result<Known> {
        let snapshot = self.store.read(queue, wanted).await?;
        Known::of(snapshot, wanted).map_err(|gap| self.unread("read", gap))
    }

    fn unread(&self, operation: &'static str, gap: NotLoaded) -> Error {
        match gap {
            NotLoaded::Damaged(why) => damaged(operation, why),
            NotLoaded::Unknown(_) => damaged(operation, "a row that was read is not known"),
            NotLoaded::Overdue(_) => damaged(operation, "a delivery that was looked at is not known"),
            NotLoaded::TooMuch(_) => damaged(operation, "one request is too large for a transaction"),
        }
    }

    /// Answers requests about one queue, in their order, in as few transactions as they fit in.
    pub(super) async fn serve<R, A>(
        &self,
        errand: Errand<'_>,
        requests: &[R],
        hints: impl Fn(&RowCache, &R) -> Vec<KeyRange>,
        step: impl Fn(&mut StepContext<'_>, &R) -> Stepped<A>,
    ) -> Vec<Result<A>> {
        let slot = self.slot(errand.queue);
        let mut known = slot.lock().await;
        let mut answers = Vec::with_capacity(requests.len());
        while answers.len() < requests.len() {
            let rest = &requests[answers.len()..];
            match self.transact(errand, &mut known, rest, &hints, &step).await {
                Ok(done) => answers.extend(done.into_iter().map(Ok)),
                Err(error) => answers.extend(rest.iter().map(|_| Err(error.clone()))),
            }
        }
        answers
    }

    /// Answers the first of some requests, as many as fit in one transaction, and at least one.
    async fn transact<R, A>(
        &self,
        errand: Errand<'_>,
        slot: &mut Option<Known>,
        requests: &[R],
        hints: &impl Fn(&RowCache, &R) -> Vec<KeyRange>,
        step: &impl Fn(&mut StepContext<'_>, &R) -> Stepped<A>,
    ) -> Result<Vec<A>> {
        let Errand { operation, queue, ttl } = errand;
        let until = Instant::now() + PATIENCE;
        let hints = |row_cache: &RowCache| -> Vec<KeyRange> {
            requests.iter().take(STEP_MAX).flat_map(|request| hints(row_cache, request)).collect()
        };
        // Taken: a caller that is dropped midway leaves nothing that may be wrong.
        let mut known = leave_to_others(slot.take()).await;
        let (mut is_fresh, mut tries, mut portion) = (false, 0u32, Portion::WHOLE);
        let mut signs = Signs { own: &self.own, overdue: self.store.has_signs().then(HashMap::new) };
        loop {
            if Instant::now() >= until {
                // The next call goes on with what was read: it would never come further if it read all of it again.
                *slot = known.and_then(Known::kept);
                return Err(too_late(operation, tries));
            }
            let at = SystemClock.now();
            let moment = self.store.time().await?;
            let mut current = match known.take() {
                Some(current) => current,
                None => {
                    is_fresh = true;
                    self.read(queue, &hints(&RowCache::default())).await?
                }
            };
            let now = moment.earliest.max(current.top.clock);
            let times = Times { moment, at, now };
            let stepped = self.steps(queue, &mut current, (times, &signs), requests, portion, step);
            let (answers, calls, head) = match stepped {
                Ok(done) => done,
                Err(gap) => {
                    if let Some(less) = portion.less(&gap) {
                        current.row_cache.forget_changes();
                        (known, portion) = (Some(current), less);
                        continue;
                    }
                    is_fresh |= matches!(gap, NotLoaded::Unknown(_));
                    known = Some(self.bridge(errand, current, (gap, now), &mut signs, &hints).await?);
                    continue;
                }
            };
            let rows = current.row_cache.changes();
            if rows.is_empty() && head == current.top.head {
                current.row_cache.forget_changes();
                if is_fresh {
                    *slot = Some(current);
                    return Ok(answers);
                }
                // It was said by what was known before, which may be old.
                known = Some(self.refresh(queue, current, &hints).await?);
                is_fresh = true;
                continue;
            }
            let wanted = hints(&current.row_cache);
            let (top, epoch) = (Top { clock: now, head }, moment.epoch);
            let (there, begun) = (signs.there(), self.signs_of(&rows, &signs, ttl));
            let plan = Plan { top, rows, calls, epoch, there, signs: begun };
            let sent = Instant::now();
            match self.store_changes(errand, current, plan, &wanted).await? {
                Ok(mut current) => {
                    let pause = (Instant::now() - sent).min(YIELD_MAX);
                    current.yields_until = (tries > 0).then(|| Instant::now() + 2 * pause);
                    *slot = current.kept();
                    return Ok(answers);
                }
                Err(other) => known = Some(other),
            }
            is_fresh = true;
            signs.overdue.as_mut().map(HashMap::clear);
            tries += 1;
            make_room(tries).await;
        }
    }

    /// Finds out what a step lacked.
    async fn bridge(
        &self,
        Errand { operation, queue, .. }: Errand<'_>,
        mut current: Known,
        (gap, now): (NotLoaded, Timestamp),
        signs: &mut Signs<'_>,
        hints: &impl Fn(&RowCache) -> Vec<KeyRange>,
    ) -> Result<Known> {
        current.row_cache.forget_changes();
        match gap {
            NotLoaded::Unknown(gap) => {
                let wanted = hints(&current.row_cache);
                self.fill(queue, current, wanted, gap).await
            }
            NotLoaded::Overdue(claim) => {
                self.check_overdue(queue, signs, &current.row_cache, claim, now).await?;
                Ok(current)
            }
            gap => Err(self.unread(operation, gap)),
        }
    }

    /// Stores what a step has changed, and returns what is known then. Otherwise: what to begin anew on.
    async fn store_changes(
        &self,
        errand: Errand<'_>,
        mut known: Known,
        plan: Plan,
        wanted: &[KeyRange],
    ) -> Result<std::result::Result<Known, Known>> {
        let Plan { top, rows, calls, epoch, there, signs } = plan;
        let Errand { operation, queue, .. } = errand;
        let change = Change {
            queue,
            version: known.version,
            epoch,
            head: top.encode().map_err(|gap| self.unread(operation, gap))?,
            rows,
            there,
            signs,
            calls: calls.iter().copied().filter(|client| *client != self.client).collect(),
            is_of_deliveries: errand.is_of_deliveries(),
            otherwise: wanted,
        };
        match self.store.change(change).await? {
            Changed::Yes(version) => {
                known.row_cache.commit_changes();
                (known.version, known.top) = (version, top);
                if calls.contains(&self.client) {
                    self.store.wakes().put(Wake::Queue(queue.clone()));
                }
                Ok(Ok(known))
            }
            Changed::No(snapshot) => {
                let other = Known::of(snapshot, wanted).map_err(|gap| self.unread(operation, gap))?;
                Ok(Err(other))
            }
        }
    }

    /// Reads what is not known: what is missing, and what else will be wanted. If the queue has changed, all else is forgotten.
    async fn fill(
        &self,
        queue: &Name,
        mut known: Known,
        mut wanted: Vec<KeyRange>,
        missing: KeyRange,
    ) -> Result<Known> {
        wanted.retain(|wanted| !known.row_cache.knows(wanted));
        wanted.push(missing);
        let snapshot = self.store.read(queue, &wanted).await?;
        if snapshot.version == known.version {
            known.learn(snapshot.found, &wanted);
            return Ok(known);
        }
        Known::of(snapshot, &wanted).map_err(|gap| self.unread("read", gap))
    }

    /// Makes sure that what is known is what is stored.
    async fn refresh(
        &self,
        queue: &Name,
        known: Known,
        hints: &impl Fn(&RowCache) -> Vec<KeyRange>,
    ) -> Result<Known> {
        let read = self.read(queue, &hints(&known.row_cache)).await?;
        Ok(if read.version == known.version { known } else { read })
    }

    /// Looks at a queue, and changes nothing.
    async fn run_read_only<A>(
        &self,
        operation: &'static str,
        queue: &Name,
        wanted: Vec<KeyRange>,
        step: impl Fn(&mut StepContext<'_>) -> std::result::Result<A, NotLoaded>,
    ) -> Result<A> {
        let serve = |context: &mut StepContext<'_>, (): &()| Ok((step(context)?, Calls::new()));
        let errand = Errand { operation, queue, ttl: None };
        let answers = self.serve(errand, &[()], |_, ()| wanted.clone(), serve).await;
        answers.into_iter().next().unwrap_or_else(|| Err(damaged(operation, "no answer")))
    }
}

fn too_late(operation: &'static str, tries: u32) -> Error {
    if tries == 0 {
        let why = "the store answered too slowly; nothing was changed";
        return Error::new(ErrorKind::Unavailable, operation, why).with_no_effect();
    }
    let why = format!("others changed the queue first, {tries} times; nothing was changed");
    let hint = "fewer clients, larger batches, or several queues";
    Error::new(ErrorKind::Unavailable, operation, why).with_hint(hint).with_no_effect()
}

/// Waits if others, which have lost against this client, are to have the queue for a while.
async fn leave_to_others(known: Option<Known>) -> Option<Known> {
    let mut known = known?;
    if let Some(until) = known.yields_until.take() {
        sleep_until(until).await;
    }
    Some(known)
}

/// A loser tries again at once, since one of the losers wins each time, and a pause would be a turn that is left to
/// others. Only among many is each try too dear for the store.
async fn make_room(tries: u32) {
    if let Some(over) = tries.checked_sub(TRIES_AT_ONCE) {
        let longest = Duration::from_millis(1 << over.min(16)).min(PAUSE_MAX);
        let part = (SystemClock.random() >> 11) as f64 / (1u64 << 53) as f64;
        sleep_until(Instant::now() + longest.mul_f64(part)).await;
    }
}

/// When a step is done.
#[derive(Clone, Copy)]
struct Times {
    moment: Moment,
    at: tenure_core::clock::Instant,
    now: Timestamp,
}

impl<S: QueueStore> Queues<S> {
    /// Does the first of some steps on what is known: those that fit in one transaction.
    fn steps<R, A>(
        &self,
        queue: &Name,
        known: &mut Known,
        (Times { moment, at, now }, signs): (Times, &Signs<'_>),
        requests: &[R],
        portion: Portion,
        step: &impl Fn(&mut StepContext<'_>, &R) -> Stepped<A>,
    ) -> std::result::Result<(Vec<A>, Calls, Head), NotLoaded> {
        let mut head = known.top.head.clone();
        let (mut answers, mut calls) = (Vec::new(), Calls::new());
        for request in requests.iter().take(portion.requests) {
            let cleared_max = portion.of(CLEARED_MAX);
            let rows = Rows { signs, row_cache: &mut known.row_cache, head: &mut head, cleared_max };
            let mut context = StepContext { rows, portion, now, moment, at };
            let (answer, called) = step(&mut context, request)?;
            answers.push(answer);
            calls.extend(called);
            match self.store.fit(queue, &mut known.row_cache.changed()) {
                Fit::Room => {}
                Fit::Full => break,
                Fit::Beyond => return Err(NotLoaded::TooMuch(answers.len())),
            }
        }
        calls.sort_unstable();
        calls.dedup();
        Ok((answers, calls, head))
    }

    async fn push_all(&self, queue: &Name, pushes: &[Push]) -> Vec<Result<Pushed>> {
        // Numbers for payloads that are too large for their items.
        let numbered: Vec<(u64, &Push)> = pushes.iter().map(|push| (SystemClock.random(), push)).collect();
        let hints = |_: &RowCache, (_, push): &(u64, &Push)| {
            let dedup = push.dedup.as_ref().map(ahead::dedup);
            let always = [ahead::dedup_ends(), ahead::places(2)];
            // What stands behind what is pushed is asked for when it goes.
            let group = push.group.iter().flat_map(|group| {
                [ahead::lane(&LaneId::Group(group.clone())), ahead::group(group, ItemId::default())]
            });
            always.into_iter().chain(dedup).chain(group).collect()
        };
        let errand = Errand { operation: "push", queue, ttl: None };
        let answers = self.serve(errand, &numbered, hints, |context, (number, push)| {
            let limits = self.store.capability();
            let count = context.rows.head.items + context.rows.head.dead;
            if push.payload.len() > limits.payload_bytes_max || count >= limits.items_max {
                return Ok((None, Calls::new()));
            }
            let (parcel, payload) = Payload::pack(&push.payload, *number);
            let delay = if push.delay.is_zero() { push.delay } else { push.delay + context.doubt() };
            let (queue, group, dedup) = (push.queue.clone(), push.group.clone(), push.dedup.clone());
            let packed = Push { queue, group, payload, delay, dedup, context: push.context.clone() };
            let (pushed, calls) = step::push(&mut context.rows, &packed, context.now)?;
            if let (Payload::External(body), false) = (parcel, pushed.is_duplicate) {
                context.rows.put_body(body, push.payload.clone());
            }
            Ok((Some(pushed), calls))
        });
        let answers = answers.await.into_iter().zip(pushes);
        answers.map(|(answer, push)| answer?.ok_or_else(|| self.refusal(push))).collect()
    }

    fn refusal(&self, push: &Push) -> Error {
        let limits = self.store.capability();
        let refused = |why: String| Error::new(ErrorKind::Invalid, "push", why).with_no_effect();
        if push.payload.len() > limits.payload_bytes_max {
            let (bytes, most) = (push.payload.len(), limits.payload_bytes_max);
            return refused(format!("the payload has {bytes} bytes, and {most} are allowed"))
                .with_hint("put it where it can be fetched by a name, and push the name");
        }
        let most = limits.items_max;
        let why = format!("the queue has {most} items, dead letters included, and takes no more");
        Error::new(ErrorKind::Unsupported, "push", why)
            .with_no_effect()
            .with_hint("let more consumers take from it, purge its dead letters, or use another engine for queues that grow")
    }

    async fn take(&self, take: &Take) -> Result<Taken> {
        self.may(&take.rules)?;
        if !take.claims.is_empty() {
            // Before anything is judged: what takes longer than an interval allows for is put back.
            let (listens, is_ready) = join(self.store.listen(), self.store.prepare(take.rules.ttl)).await;
            listens.and(is_ready)?;
        }
        let mut taken = Taken::default();
        let mut rest = &take.claims[..];
        loop {
            let claims = &rest[..rest.len().min(STEP_MAX)];
            let part = self.take_some(&Take { claims: claims.to_vec(), ..take.clone() }).await;
            let part = match part {
                // What was taken before is not lost: only these are not known of.
                Err(_) if !taken.items.is_empty() => return Ok(taken),
                part => part?,
            };
            let count = part.items.len();
            taken.items.extend(part.items);
            taken.look_in = part.look_in;
            rest = &rest[count..];
            // Cut short: what is ready may stand behind what was cleared.
            let goes_on = taken.look_in == Some(Duration::ZERO) || count == claims.len();
            if !goes_on || rest.is_empty() {
                return Ok(taken);
            }
        }
    }

    /// Whether the store can do what the rules say.
    fn may(&self, rules: &Rules) -> Result<()> {
        let (Interval::Queue(period) | Interval::Group(period)) = rules.interval else { return Ok(()) };
        let limits = self.store.capability();
        let grain = limits.interval_grain.as_micros().max(1);
        if period.is_zero() || (period >= limits.interval_min && period.as_micros() % grain == 0) {
            return Ok(());
        }
        let why = format!("an interval of {period:?} cannot be kept");
        let hint = format!(
            "intervals are multiples of {:?}, from {:?} on",
            limits.interval_grain, limits.interval_min
        );
        Err(Error::new(ErrorKind::Unsupported, "take", why).with_hint(hint))
    }

    async fn take_some(&self, take: &Take) -> Result<Taken> {
        let has_interval = take.rules.interval != Interval::Off;
        let slack = if has_interval { SLACK_MIN + *lock(&self.took) * 2 } else { Duration::ZERO };
        let (counted_from, tried_at) = (AtomicU64::new(0), AtomicU64::new(0));
        let hints = |row_cache: &RowCache, take: &&Take| {
            let (count, now) = (take.claims.len(), Timestamp::from_micros(tried_at.load(Ordering::Relaxed)));
            // Each would be asked for by itself, and a dead fleet leaves many.
            let cleared = ahead::worn_out(row_cache, now, take.rules.attempts_max, CLEARED_MAX);
            if cleared.is_empty() {
                return [vec![ahead::places(count + 2)], ahead::items_of_places(row_cache, count)].concat();
            }
            [vec![ahead::places(CLEARED_MAX + count + 2)], cleared].concat()
        };
        let takes = [take];
        let errand = Errand { operation: "take", queue: &take.queue, ttl: Some(take.rules.ttl) };
        let answers = self.serve(errand, &takes, hints, |context, take| {
            counted_from.store(context.at.nanos(), Ordering::Relaxed);
            tried_at.store(context.now.micros(), Ordering::Relaxed);
            let (ttl, doubt) = (take.rules.ttl, context.doubt());
            let longer = |period: Duration| period + doubt + slack;
            let interval = match take.rules.interval {
                Interval::Off => Interval::Off,
                Interval::Queue(period) => Interval::Queue(longer(period)),
                Interval::Group(period) => Interval::Group(longer(period)),
            };
            let rules = Rules { ttl: ttl + doubt, interval, ..Rules::clone(&take.rules) };
            let claims = &take.claims[..take.claims.len().min(context.portion.of(STEP_MAX))];
            let is_all = claims.len() == take.claims.len();
            let part = Take { claims: claims.to_vec(), rules: Arc::new(rules), ..Take::clone(take) };
            let (mut taken, calls) = step::take(&mut context.rows, &part, context.now)?;
            if !is_all && taken.items.len() == claims.len() {
                // Fewer than were wanted, and only because so many do not fit.
                taken.look_in = Some(Duration::ZERO);
            }
            for item in &mut taken.items {
                item.payload = unpack(&context.rows, &item.payload)?;
                item.ends_in = ttl;
            }
            Ok((taken, calls))
        });
        let taken = answers.await.pop().unwrap_or_else(|| Err(damaged("take", "no answer")))?;
        let counted_from = tenure_core::clock::Instant::from_nanos(counted_from.load(Ordering::Relaxed));
        let took = SystemClock.now().since(counted_from);
        {
            let mut longest = lock(&self.took);
            *longest = took.max(*longest * 7 / 8).min(PATIENCE);
        }
        if has_interval && took > slack && !taken.items.is_empty() {
            // It might come too late, so that the next one came too early after it.
            return self.put_back(take, taken).await;
        }
        let mut own = lock(&self.own);
        if own.len() >= OWN_MAX {
            // Of deliveries that ended by themselves.
            own.clear();
        }
        for dispatched in &taken.items {
            let (item, ttl) = (dispatched.item, take.rules.ttl);
            let lane = LaneId::of(dispatched.group.as_ref(), item);
            own.insert(dispatched.claim, Own { lane, item, ttl, may_be_out: false });
        }
        Ok(taken)
    }

    async fn put_back(&self, take: &Take, taken: Taken) -> Result<Taken> {
        let back = |claim| Settle { queue: take.queue.clone(), claim, settlement: Settlement::Return };
        let back: Vec<Settle> = taken.items.iter().map(|item| back(item.claim)).collect();
        for answer in self.settle_all(&take.queue, &back).await {
            answer?;
        }
        Ok(Taken { items: Vec::new(), look_in: Some(SLACK_MIN) })
    }

    /// Does something with up to `most` items, some at a time.
    async fn some(
        &self,
        operation: &'static str,
        queue: &Name,
        wanted: Vec<KeyRange>,
        most: usize,
        step: impl Fn(&mut StepContext<'_>, usize) -> Stepped<usize>,
    ) -> Result<usize> {
        let mut count = 0;
        while count < most {
            let parts = [(most - count).min(STEP_MAX)];
            let hints = |_: &RowCache, _: &usize| wanted.clone();
            let errand = Errand { operation, queue, ttl: None };
            let answers = self.serve(errand, &parts, hints, |context, part| {
                let part = (*part).min(context.portion.of(STEP_MAX));
                let (done, calls) = step(context, part)?;
                Ok(((done, part), calls))
            });
            let done = answers.await.pop().unwrap_or(Ok((0, 1)));
            let (done, part) = done?;
            count += done;
            if done < part {
                break;
            }
        }
        Ok(count)
    }
}

/// Returns the payload of an item.
fn unpack(rows: &Rows<'_>, packed: &[u8]) -> std::result::Result<Value, NotLoaded> {
    match Payload::unpack(packed)? {
        Payload::Inline(payload) => Ok(payload),
        Payload::External(body) => rows.body(body)?.ok_or(NotLoaded::Damaged("a payload is missing")),
    }
}

impl<S: QueueStore> QueueEngine for Queues<S> {
    fn capability(&self) -> &QueueCapability {
        self.store.capability()
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        let sorted = Sorted::new(pushes, |push: &Push| push.queue.clone());
        let served = sorted.queues.iter().map(|(queue, _, requests)| self.push_all(queue, requests));
        let served = join_all(served).await;
        sorted.answers(served)
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        join_all(takes.iter().map(|take| self.take(take))).await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let sorted = Sorted::new(renewals, |request: &RenewRequest| request.resource.clone());
        let served = sorted.queues.iter().map(|(queue, _, requests)| self.renew_all(queue, requests));
        let served = join_all(served).await;
        sorted.answers(served)
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        let sorted = Sorted::new(settlements, |settle: &Settle| settle.queue.clone());
        let served = sorted.queues.iter().map(|(queue, _, requests)| self.settle_all(queue, requests));
        let served = join_all(served).await;
        sorted.answers(served)
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        let mut after = after;
        loop {
            let names = self.store.names(&prefix, after.as_ref(), most).await?;
            after = names.last().cloned();
            let stats = names.into_iter().map(|name| async move {
                let stats = QueueEngine::stats(self, name.clone()).await;
                Ok((name.clone(), stats.map_err(|error| error.with_resource(&name))?))
            });
            let mut page: Vec<_> = join_all(stats).await.into_iter().collect::<Result<_>>()?;
            // Its head stays, for the order of what is pushed later.
            page.retain(|(_, stats)| stats.waiting + stats.in_flight + stats.dead > 0);
            if after.is_none() || !page.is_empty() {
                return Ok(page);
            }
        }
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        let count = |context: &mut StepContext<'_>| step::stats(&mut context.rows, context.now);
        self.run_read_only("count", &queue, vec![ahead::places(2)], count).await
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        let what = if which == Which::Live { 'i' } else { 'd' };
        let wanted = vec![ahead::after(what, after, most.max(1))];
        let items = self.run_read_only("list items", &queue, wanted, |context| {
            let mut views = step::items(&mut context.rows, which, after, most, context.now)?;
            for view in &mut views {
                view.payload = unpack(&context.rows, &view.payload)?;
            }
            Ok(views)
        });
        items.await
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        let wanted = vec![ahead::after('d', None, most.clamp(1, STEP_MAX))];
        let most = if item.is_some() { most.min(1) } else { most };
        let replay =
            |context: &mut StepContext<'_>, most| step::replay(&mut context.rows, item, most, context.now);
        self.some("replay", &queue, wanted, most, replay).await
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        // No item has the number 0.
        if item == Some(ItemId(0)) {
            return Ok(0);
        }
        let what = if which == Which::Live { 'i' } else { 'd' };
        let wanted = vec![ahead::after(what, None, most.clamp(1, STEP_MAX))];
        let most = if item.is_some() { most.min(1) } else { most };
        let purge = |context: &mut StepContext<'_>, most| {
            step::purge(&mut context.rows, which, item, most, context.now)
        };
        self.some("purge", &queue, wanted, most, purge).await
    }
}
