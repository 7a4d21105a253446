//! An engine's queues beside the model: the same random requests to both, and the answers compared; and many clients at once,
//! which must lose nothing.
//!
//! Only order, groups, attempts, answers and counts are compared. A period is either over by the next request or not for an
//! hour, so the store's clock may say what it likes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{
    Dispatched, Interval, ItemContext, ItemId, ItemState, ItemView, Push, Rules, Settle, SettleAnswer,
    Settlement, Take, Which,
};
use tenure_core::engine::{DynEngine, DynQueueEngine, RenewAnswer, RenewRequest};
use tenure_core::model::claim::{ClaimId, ClientId, Label, Name};
use tenure_core::model::queue::record::PlainQueue;
use tenure_core::model::queue::step;
use tenure_core::model::token::Token;
use tokio::runtime::Runtime;

use crate::crew::now as instant;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::testing::random::another_seed;

const SHORT: Duration = Duration::from_micros(1);
const LONG: Duration = Duration::from_secs(3600);

/// What is compared.
struct Pair<'a> {
    engine: &'a dyn DynQueueEngine,
    client: ClientId,
    queue: Name,
    model: PlainQueue,
    now: Timestamp,
    random: fastrand::Rng,
    /// The model's numbers of the engine's items.
    numbers: HashMap<ItemId, ItemId>,
    tokens: BTreeMap<Option<Name>, Token>,
    claims: Vec<ClaimId>,
    has_short_ttls: bool,
}

/// Sends random requests to an engine's queue and to the model, and compares the answers. `has_short_ttls`: deliveries may end
/// by themselves at once, which an engine that looks twice in one take would hand out twice.
///
/// # Panics
/// If they differ.
pub fn agrees_with_the_model(
    runtime: &Runtime,
    engine: &dyn DynQueueEngine,
    queue: &str,
    steps: usize,
    has_short_ttls: bool,
) {
    runtime.block_on(agree(engine, ClientId::new(7), queue, steps, has_short_ttls));
}

/// As [`agrees_with_the_model`], for a client that some engines look after.
pub(crate) async fn agree(
    engine: &dyn DynQueueEngine,
    client: ClientId,
    queue: &str,
    steps: usize,
    has_short_ttls: bool,
) {
    println!("queue {queue}");
    let seed = another_seed();
    let mut pair = Pair {
        engine,
        client,
        queue: Name::new(queue).expect("a name"),
        model: PlainQueue::default(),
        now: Timestamp::from_micros(1_000_000),
        random: fastrand::Rng::with_seed(seed),
        numbers: HashMap::new(),
        tokens: BTreeMap::new(),
        claims: Vec::new(),
        has_short_ttls,
    };
    for _ in 0..steps {
        // What was to end, has.
        pair.now = pair.now + Duration::from_millis(1);
        match pair.random.u8(0..100) {
            0..35 => pair.push().await,
            35..60 => pair.take().await,
            60..84 => pair.settle().await,
            84..88 => pair.renew().await,
            88..92 => pair.replay().await,
            92..94 => pair.purge().await,
            _ => pair.look().await,
        }
    }
    pair.now = pair.now + Duration::from_millis(1);
    pair.look().await;
}

impl Pair<'_> {
    fn group(&mut self) -> Option<Name> {
        let group = self.random.u8(0..5);
        (group > 0).then(|| Name::new(&format!("g{group}")).expect("a name"))
    }

    /// The engine's item by the model's number.
    fn model_of(&self, item: ItemId) -> ItemId {
        *self.numbers.get(&item).unwrap_or_else(|| panic!("{item} was never pushed"))
    }

    async fn push(&mut self) {
        let count = self.random.usize(1..5);
        let pushes: Vec<Push> = (0..count)
            .map(|_| Push {
                queue: self.queue.clone(),
                group: self.group(),
                payload: (0..self.random.usize(0..20)).map(|_| self.random.u8(..)).collect(),
                delay: if self.random.u8(0..12) == 0 { LONG } else { Duration::ZERO },
                dedup: (self.random.u8(0..4) == 0)
                    .then(|| Name::new(&format!("d{}", self.random.u8(0..30))).expect("a name")),
                context: (self.random.u8(0..3) == 0)
                    .then(|| ItemContext::new(&format!("c{}", self.random.u8(..))).expect("a context")),
            })
            .collect();
        let answers = self.engine.push(pushes.clone()).await;
        let mut last = ItemId(0);
        for (push, answer) in pushes.iter().zip(answers) {
            let answer = answer.expect("it is pushed");
            let Ok((expected, _)) = step::push(&mut self.model, push, self.now);
            assert_eq!(answer.is_duplicate, expected.is_duplicate, "{push:?}");
            if answer.is_duplicate {
                assert_eq!(self.model_of(answer.item), expected.item, "{push:?}");
            } else {
                assert!(answer.item > last, "in the order of the call");
                last = answer.item;
                assert_eq!(self.numbers.insert(answer.item, expected.item), None, "a number twice");
            }
        }
    }

    async fn take(&mut self) {
        let attempts_max = if self.random.u8(0..3) == 0 && self.worn_groups() < 2 { 2 } else { 0 };
        let is_short = self.has_short_ttls && attempts_max == 0 && self.random.u8(0..4) == 0;
        let label = Label::new("h", 1, "p", "");
        let is_coarse = self.engine.capability().interval_min > SHORT;
        let interval = match self.random.u8(0..12) {
            0 => Interval::Group(LONG),
            1 if !is_coarse => Interval::Group(SHORT),
            _ => Interval::Off,
        };
        let rules = Rules { ttl: if is_short { SHORT } else { LONG }, interval, attempts_max, label };
        let take = Take {
            queue: self.queue.clone(),
            client: self.client,
            claims: (0..self.random.usize(0..5)).map(|_| ClaimId::new(self.random.u128(..))).collect(),
            rules: Arc::new(rules),
            floor: Token::ZERO,
        };
        let mut answers = self.engine.take(vec![take.clone()]).await;
        let taken = answers.pop().expect("an answer").expect("it takes");
        let Ok((expected, _)) = step::take(&mut self.model, &take, self.now);
        let told = |item: ItemId, one: &Dispatched| {
            let (group, payload, context) = (one.group.clone(), one.payload.clone(), one.context.clone());
            (one.claim, item, group, payload, context, one.attempt)
        };
        let seen: Vec<_> = taken.items.iter().map(|one| told(self.model_of(one.item), one)).collect();
        let wanted: Vec<_> = expected.items.iter().map(|one| told(one.item, one)).collect();
        assert_eq!(seen, wanted, "{take:?}");
        for one in taken.items {
            self.claims.push(one.claim);
            assert_eq!(one.ends_in, take.rules.ttl);
            if one.group.is_some() {
                let last = self.tokens.insert(one.group.clone(), one.token);
                assert!(last.is_none_or(|last| last < one.token), "{last:?} before {one:?}");
            }
        }
    }

    /// How many groups have a first item that was handed out twice and is ready. One take of an engine may bury several such
    /// at different moments, and then what is behind them is ready in another order than in the model, where it is one moment.
    fn worn_groups(&mut self) -> usize {
        let is_worn = |view: &&ItemView| {
            let is_waiting = matches!(view.state, ItemState::Waiting { .. });
            is_waiting && view.group.is_some() && view.attempts >= 2
        };
        self.known(Which::Live).iter().filter(is_worn).count()
    }

    fn some_claims(&mut self) -> Vec<ClaimId> {
        let mut claims = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            if self.random.u8(0..10) == 0 {
                claims.push(ClaimId::new(self.random.u128(..)));
            } else if !self.claims.is_empty() {
                let at = self.random.usize(0..self.claims.len());
                claims.push(self.claims.swap_remove(at));
            }
        }
        claims
    }

    async fn settle(&mut self) {
        let claims = self.some_claims();
        let settlements: Vec<Settle> = claims
            .into_iter()
            .map(|claim| {
                let settlement = match self.random.u8(0..12) {
                    0..6 => Settlement::Ack,
                    6..9 => Settlement::Retry {
                        after: if self.random.u8(0..4) == 0 { LONG } else { Duration::ZERO },
                        attempts_max: self.random.u32(0..3),
                        reason: "too ofté".repeat(self.random.usize(0..50)),
                    },
                    9 => Settlement::Fail { reason: "never".to_owned() },
                    _ => Settlement::Return,
                };
                Settle { queue: self.queue.clone(), claim, settlement }
            })
            .collect();
        let answers = self.engine.settle(settlements.clone()).await;
        for (one, answer) in settlements.iter().zip(answers) {
            let Ok((expected, _)) = step::settle(&mut self.model, one.claim, &one.settlement, self.now);
            assert_eq!(answer.expect("an answer"), expected, "{one:?}");
        }
    }

    async fn renew(&mut self) {
        let claims = self.some_claims();
        let resource = self.queue.clone();
        let renewals: Vec<RenewRequest> = claims
            .iter()
            .map(|claim| RenewRequest { resource: resource.clone(), claim: *claim, is_waiter: false })
            .collect();
        let answers = self.engine.renew(renewals).await;
        for (claim, answer) in claims.into_iter().zip(answers) {
            let Ok(expected) = step::renew(&mut self.model, claim, self.now);
            match (answer.expect("an answer"), expected) {
                (RenewAnswer::Renewed { ends_in }, Some(expected)) => {
                    assert_eq!(ends_in, expected);
                    self.claims.push(claim);
                }
                (RenewAnswer::Lost, None) => {}
                (answer, expected) => panic!("{answer:?}, and the model {expected:?}"),
            }
        }
    }

    async fn replay(&mut self) {
        let most = self.random.usize(1..4);
        let one = self.one_of(Which::Dead).await.filter(|_| self.random.bool());
        let replayed = self.engine.replay(self.queue.clone(), one.map(|one| one.0), most).await;
        let Ok((expected, _)) = step::replay(&mut self.model, one.map(|one| one.1), most, self.now);
        assert_eq!(replayed.expect("an answer"), expected);
        // Their numbers are new: the last ones of both.
        let (new, known) = (self.all(Which::Live).await, self.known(Which::Live));
        assert_eq!(new.len(), known.len());
        for (new, known) in new.iter().zip(&known) {
            self.numbers.entry(new.item).or_insert(known.item);
        }
    }

    async fn purge(&mut self) {
        let which = if self.random.u8(0..3) == 0 { Which::Live } else { Which::Dead };
        let most = self.random.usize(1..6);
        let one = self.one_of(which).await.filter(|_| self.random.bool());
        let purged = self.engine.purge(self.queue.clone(), which, one.map(|one| one.0), most).await;
        let Ok((expected, _)) = step::purge(&mut self.model, which, one.map(|one| one.1), most, self.now);
        // Both leave out what is in flight; the model does not count it among the most it looks at either.
        assert_eq!(purged.expect("an answer"), expected, "{which:?} {one:?} {most}");
    }

    /// Lists all items, page by page: only the one behind the last is empty.
    async fn all(&self, which: Which) -> Vec<ItemView> {
        let mut all: Vec<ItemView> = Vec::new();
        loop {
            let after = all.last().map(|view| view.item);
            let page = self.engine.items(self.queue.clone(), which, after, 10_000).await.expect("an answer");
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }

    fn known(&mut self, which: Which) -> Vec<ItemView> {
        let Ok(known) = step::items(&mut self.model, which, None, 10_000, self.now);
        known
    }

    async fn one_of(&mut self, which: Which) -> Option<(ItemId, ItemId)> {
        let all = self.all(which).await;
        let one = all.get(self.random.usize(0..all.len().max(1)))?;
        Some((one.item, self.model_of(one.item)))
    }

    async fn look(&mut self) {
        let stats = self.engine.stats(self.queue.clone()).await.expect("an answer");
        let Ok(expected) = step::stats(&mut self.model, self.now);
        let count = |stats: &tenure_core::engine::queue::QueueStats| {
            (stats.waiting, stats.in_flight, stats.dead, stats.next_in.is_some())
        };
        assert_eq!(count(&stats), count(&expected));
        let listed = self.engine.queues(self.queue.to_string(), None, 10).await.expect("an answer");
        let is_listed = listed.iter().any(|(name, _)| *name == self.queue);
        assert_eq!(is_listed, stats.waiting + stats.in_flight + stats.dead > 0);
        for which in [Which::Live, Which::Dead] {
            let (seen, wanted) = (self.all(which).await, self.known(which));
            let state = |view: &ItemView| match &view.state {
                ItemState::Waiting { ready_in } => format!("waiting {}", ready_in.as_secs() > 60),
                ItemState::Dead { reason, .. } => reason.clone(),
                ItemState::Behind => "behind".to_owned(),
                ItemState::InFlight { .. } => "in flight".to_owned(),
            };
            let told = |item: ItemId, view: &ItemView| {
                (item, view.group.clone(), view.context.clone(), view.attempts, state(view))
            };
            let seen: Vec<_> = seen.iter().map(|view| told(self.model_of(view.item), view)).collect();
            let wanted: Vec<_> = wanted.iter().map(|view| told(view.item, view)).collect();
            assert_eq!(seen, wanted, "{which:?}");
        }
    }
}

/// What a [`crowd()`] is to do.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// How many groups there are.
    pub groups: usize,
    /// How many items each client pushes.
    pub items: usize,
    /// How many workers each client has.
    pub workers: usize,
}

/// What a crowd saw: of each acknowledged item, in order, its group, who pushed it and its number among that one's.
type Seen = Arc<Mutex<Vec<(usize, usize, usize)>>>;

/// Each of these clients pushes and takes at once, and gives back some of what it takes. Returns when all is done.
///
/// # Panics
/// If an item is lost or acknowledged twice, if two of a group are out at a time, or out of order.
pub fn crowd(runtime: &Runtime, engines: &[Arc<dyn DynEngine>], queue: &str, crowd: Crowd) {
    runtime.block_on(work(engines, queue, crowd));
}

async fn work(engines: &[Arc<dyn DynEngine>], queue: &str, crowd: Crowd) {
    let queue = Name::new(queue).expect("a name");
    let seen = Seen::default();
    let out: Arc<Vec<Mutex<Option<ClaimId>>>> =
        Arc::new((0..crowd.groups).map(|_| Mutex::default()).collect());
    let total = engines.len() * crowd.items;
    let pushing =
        engines.iter().enumerate().map(|(client, engine)| push_all(&**engine, &queue, client, crowd));
    let taking = (0..engines.len() * crowd.workers).map(|worker| {
        let engine = &*engines[worker % engines.len()];
        take_all(engine, &queue, worker as u64, seen.clone(), out.clone(), total)
    });
    futures_util::future::join(join_all(pushing), join_all(taking)).await;
    let seen = std::mem::take(&mut *seen.lock().expect("no panic"));
    assert_eq!(seen.len(), total, "each item is acknowledged once");
    let mut next: HashMap<(usize, usize), usize> = HashMap::new();
    for (group, client, number) in seen.iter() {
        // The pushes of one client are one after the other, so its items of a group stand in this order.
        let last = next.insert((*group, *client), *number);
        assert!(last.is_none_or(|last| last < *number), "group {group}: {number} of {client} after {last:?}");
    }
    let queues = engines[0].queues().expect("it has queues");
    let stats = queues.stats(queue).await.expect("an answer");
    assert_eq!((stats.waiting, stats.in_flight, stats.dead), (0, 0, 0), "nothing is left");
}

async fn push_all(engine: &dyn DynEngine, queue: &Name, client: usize, crowd: Crowd) {
    let queues = engine.queues().expect("it has queues");
    let mut random = fastrand::Rng::with_seed(client as u64);
    let mut number = 0;
    while number < crowd.items {
        let count = random.usize(1..4).min(crowd.items - number);
        let pushes = (number..number + count).map(|number| {
            let group = random.usize(0..crowd.groups);
            Push {
                queue: queue.clone(),
                group: Some(Name::new(&format!("group {group}")).expect("a name")),
                payload: format!("{group} {client} {number}").into_bytes().into(),
                delay: Duration::ZERO,
                dedup: None,
                context: None,
            }
        });
        for pushed in queues.push(pushes.collect()).await {
            pushed.expect("it is pushed");
        }
        number += count;
        // Consumers must find groups empty now and then, or nothing is tried.
        if random.u8(0..4) == 0 {
            rest(Duration::from_micros(random.u64(0..3000))).await;
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "real servers have no clock that a test could wait by")]
async fn rest(period: Duration) {
    tokio::time::sleep(period).await;
}

async fn take_all(
    engine: &dyn DynEngine,
    queue: &Name,
    worker: u64,
    seen: Seen,
    out: Arc<Vec<Mutex<Option<ClaimId>>>>,
    total: usize,
) {
    let queues = engine.queues().expect("it has queues");
    let mut random = fastrand::Rng::with_seed(worker);
    let rules = Arc::new(Rules {
        ttl: LONG,
        interval: Interval::Off,
        attempts_max: 0,
        label: Label::new("h", 1, "p", ""),
    });
    let mut moved_at = instant();
    loop {
        if seen.lock().expect("no panic").len() == total {
            return;
        }
        assert_in_time(instant().since(moved_at), Duration::from_secs(30));
        let take = Take {
            queue: queue.clone(),
            client: ClientId::new(worker),
            claims: (0..random.usize(1..5)).map(|_| ClaimId::new(fastrand::u128(..))).collect(),
            rules: rules.clone(),
            floor: Token::ZERO,
        };
        let taken = queues.take(vec![take]).await.pop().expect("an answer").expect("it takes");
        if taken.items.is_empty() {
            rest(Duration::from_millis(2)).await;
            continue;
        }
        moved_at = instant();
        let mut settlements = Vec::new();
        for one in &taken.items {
            let text = String::from_utf8(one.payload.to_vec()).expect("what was pushed");
            let numbers: Vec<usize> = text.split(' ').map(|part| part.parse().expect("a number")).collect();
            let holder = out[numbers[0]].lock().expect("no panic").replace(one.claim);
            assert_eq!(holder, None, "two of group {} are out", numbers[0]);
            settlements.push((numbers, one.claim, random.u8(0..5)));
        }
        // What is told first must be true by the time it is answered; what is out is said to be back before it is.
        let mut sent = Vec::new();
        for (numbers, claim, what) in &settlements {
            let settlement = match what {
                0 => Settlement::Retry { after: Duration::ZERO, attempts_max: 0, reason: String::new() },
                1 => Settlement::Return,
                _ => Settlement::Ack,
            };
            if settlement == Settlement::Ack {
                seen.lock().expect("no panic").push((numbers[0], numbers[1], numbers[2]));
            }
            *out[numbers[0]].lock().expect("no panic") = None;
            sent.push(Settle { queue: queue.clone(), claim: *claim, settlement });
        }
        for answer in queues.settle(sent).await {
            assert_eq!(answer.expect("an answer"), SettleAnswer::Settled);
        }
    }
}
