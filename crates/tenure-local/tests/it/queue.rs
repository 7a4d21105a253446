//! Queues: the same answers as the model, and what only this engine has: deaths that are noticed, and a store that
//! outlives the boot.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::clock::{Clock, Instant, SystemClock, Timer, Timestamp};
use tenure_core::engine::queue::{
    Dispatched, Interval, ItemContext, ItemId, Push, Pushed, QueueStats, Rules, Settle, SettleAnswer,
    Settlement, Take, Taken, Which,
};
use tenure_core::engine::{DynQueueEngine, Engine, RenewAnswer, RenewRequest};
use tenure_core::error::Result;
use tenure_core::model::claim::{ClaimId, Label, Name};
use tenure_core::model::queue::record::PlainQueue;
use tenure_core::model::queue::step;
use tenure_core::model::token::Token;
use tenure_local::Config;

use crate::child::say;
use crate::world::{Client, TestPlace, random_id, run};

mod death;
mod store;

/// A clock that a test moves, so that the engine and the model see the same moments.
pub(crate) struct TestClock {
    nanos: AtomicU64,
    time_of_day: AtomicU64,
}

impl TestClock {
    pub(crate) fn new() -> Arc<TestClock> {
        let day = SystemClock.time_of_day().micros();
        Arc::new(TestClock { nanos: AtomicU64::new(1_000_000_000), time_of_day: AtomicU64::new(day) })
    }

    pub(crate) fn advance(&self, period: Duration) {
        self.nanos.fetch_add(period.as_nanos() as u64, Ordering::Relaxed);
        self.time_of_day.fetch_add(period.as_micros() as u64, Ordering::Relaxed);
    }

    /// The time since boot begins anew; meanwhile the day goes on.
    pub(crate) fn reboot(&self, downtime: Duration) {
        self.advance(downtime);
        self.nanos.store(5_000_000_000, Ordering::Relaxed);
    }

    pub(crate) fn set_time_of_day(&self, time: Timestamp) {
        self.time_of_day.store(time.micros(), Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn time_of_day(&self) -> Timestamp {
        Timestamp::from_micros(self.time_of_day.load(Ordering::Relaxed))
    }

    fn random(&self) -> u64 {
        SystemClock.random()
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        SystemClock.timer()
    }
}

impl Client {
    pub(crate) fn queues(&self) -> &dyn DynQueueEngine {
        Engine::queues(&self.engine).unwrap()
    }

    pub(crate) async fn try_push(&self, push: Push) -> Result<Pushed> {
        self.queues().push(vec![push]).await.remove(0)
    }

    pub(crate) async fn push(&self, queue: &str, group: &str, payload: &str) -> ItemId {
        self.try_push(push(queue, group, payload)).await.unwrap().item
    }

    pub(crate) async fn take_items(&self, queue: &str, most: usize) -> Vec<Dispatched> {
        self.queues().take(vec![self.request_items(queue, most)]).await.remove(0).unwrap().items
    }

    /// Takes one item, which must be there.
    pub(crate) async fn take_item(&self, queue: &str) -> Dispatched {
        self.take_items(queue, 1).await.pop().expect("there is an item")
    }

    pub(crate) fn request_items(&self, queue: &str, most: usize) -> Take {
        let label = Label::new("host", std::process::id(), "test", "");
        let rules = Rules { ttl: Duration::from_secs(30), interval: Interval::Off, attempts_max: 0, label };
        let claims = (0..most).map(|_| new_claim()).collect();
        Take { queue: name(queue), client: self.id, claims, rules: Arc::new(rules), floor: Token::ZERO }
    }

    pub(crate) async fn settle(&self, queue: &str, claim: ClaimId, settlement: Settlement) -> SettleAnswer {
        let settle = Settle { queue: name(queue), claim, settlement };
        self.queues().settle(vec![settle]).await.remove(0).unwrap()
    }

    pub(crate) async fn ack(&self, queue: &str, claim: ClaimId) -> SettleAnswer {
        self.settle(queue, claim, Settlement::Ack).await
    }

    pub(crate) async fn stats(&self, queue: &str) -> QueueStats {
        self.queues().stats(name(queue)).await.unwrap()
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn new_claim() -> ClaimId {
    ClaimId::new(u128::from(random_id()) << 64 | u128::from(random_id()))
}

/// A push without a group if its name is empty.
pub(crate) fn push(queue: &str, group: &str, payload: &str) -> Push {
    Push {
        queue: name(queue),
        group: (!group.is_empty()).then(|| name(group)),
        payload: payload.as_bytes().into(),
        delay: Duration::ZERO,
        dedup: None,
        context: None,
    }
}

pub(crate) fn text(item: &Dispatched) -> &str {
    std::str::from_utf8(&item.payload).unwrap()
}

/// The engine beside the model, on one clock.
struct Twins {
    clock: Arc<TestClock>,
    consumers: Vec<Client>,
    models: HashMap<Name, PlainQueue>,
    claims: Vec<(Name, ClaimId)>,
    random: fastrand::Rng,
}

impl Twins {
    async fn new(place: &Path, seed: u64) -> Twins {
        let clock = TestClock::new();
        let mut consumers = Vec::new();
        for _ in 0..3 {
            consumers.push(Client::connect_with(Config::in_directory(place), clock.clone()).await.unwrap());
        }
        let random = fastrand::Rng::with_seed(seed);
        Twins { clock, consumers, models: HashMap::new(), claims: Vec::new(), random }
    }

    fn now(&self) -> Timestamp {
        self.clock.time_of_day()
    }

    fn queue(&mut self) -> Name {
        name(["a", "b"][self.random.usize(0..2)])
    }

    fn period(&mut self) -> Duration {
        Duration::from_millis([0, 0, 0, 1, 5, 40, 1000][self.random.usize(0..7)])
    }

    fn model(&mut self, queue: &Name) -> &mut PlainQueue {
        self.models.entry(queue.clone()).or_default()
    }

    async fn step(&mut self) {
        let period = self.period();
        self.clock.advance(period + Duration::from_micros(self.random.u64(0..3)));
        match self.random.u32(0..100) {
            0..35 => self.push().await,
            35..65 => self.take().await,
            65..80 => self.settle().await,
            80..85 => self.renew().await,
            85..88 => self.replay().await,
            88..91 => self.purge().await,
            _ => self.look().await,
        }
    }

    async fn push(&mut self) {
        let now = self.now();
        let pushes: Vec<_> = (0..self.random.usize(1..4))
            .map(|_| {
                let group = ["", "g", "h", "gg"][self.random.usize(0..4)];
                let mut push = push("a", group, "");
                let length = [0, 3, 5000][self.random.usize(0..3)];
                push.payload = (0..length).map(|_| self.random.u8(..)).collect::<Vec<_>>().into();
                push.queue = self.queue();
                push.delay = if self.random.u8(..) < 60 { self.period() } else { Duration::ZERO };
                let dedup = self.random.usize(0..20);
                push.dedup = (dedup < 4).then(|| name(["d", "e", "dd", "f"][dedup]));
                push.context = (self.random.u8(..) < 80)
                    .then(|| ItemContext::new(&format!("c{}", self.random.u8(..))).unwrap());
                push
            })
            .collect();
        let expected: Vec<_> =
            pushes.iter().map(|push| step::push(self.model(&push.queue), push, now).unwrap().0).collect();
        let pushed = self.consumers[0].queues().push(pushes).await;
        assert_eq!(pushed.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected);
    }

    async fn take(&mut self) {
        let (now, queue) = (self.now(), self.queue());
        let who = self.random.usize(0..3);
        let most = self.random.usize(0..4);
        let interval = match self.random.u8(0..4) {
            0 => Interval::Queue(Duration::from_millis(3)),
            1 => Interval::Group(Duration::from_millis(20)),
            _ => Interval::Off,
        };
        let mut take = self.consumers[who].request_items(queue.as_str(), most);
        let label = take.rules.label.clone();
        let (ttl, attempts_max) =
            (Duration::from_millis(100 + self.random.u64(0..300)), self.random.u32(0..4));
        take.rules = Arc::new(Rules { ttl, interval, attempts_max, label });
        take.floor = Token::new(if self.random.bool() { 0 } else { now.micros() + self.random.u64(0..5) });
        let (expected, _) = step::take(self.model(&queue), &take, now).unwrap();
        let taken: Taken = self.consumers[who].queues().take(vec![take]).await.remove(0).unwrap();
        self.claims.extend(taken.items.iter().map(|item| (queue.clone(), item.claim)));
        assert_eq!(taken, expected);
    }

    fn some_claim(&mut self) -> (Name, ClaimId) {
        match self.claims.len() {
            0 => (self.queue(), new_claim()),
            count => self.claims[self.random.usize(count.saturating_sub(6)..count)].clone(),
        }
    }

    async fn settle(&mut self) {
        let now = self.now();
        let (queue, claim) = self.some_claim();
        let reason = "because".to_owned();
        let settlement = match self.random.u8(0..8) {
            0..4 => Settlement::Ack,
            4 => Settlement::Fail { reason },
            5 => Settlement::Return,
            _ => Settlement::Retry { after: self.period(), attempts_max: self.random.u32(0..3), reason },
        };
        let (expected, _) = step::settle(self.model(&queue), claim, &settlement, now).unwrap();
        assert_eq!(self.consumers[1].settle(queue.as_str(), claim, settlement).await, expected);
    }

    async fn renew(&mut self) {
        let now = self.now();
        let (queue, claim) = self.some_claim();
        let expected = match step::renew(self.model(&queue), claim, now).unwrap() {
            Some(ends_in) => RenewAnswer::Renewed { ends_in },
            None => RenewAnswer::Lost,
        };
        let renewal = RenewRequest { resource: queue, claim, is_waiter: false };
        assert_eq!(self.consumers[2].queues().renew(vec![renewal]).await.remove(0).unwrap(), expected);
    }

    async fn replay(&mut self) {
        let (now, queue, most) = (self.now(), self.queue(), self.random.usize(1..4));
        let (expected, _) = step::replay(self.model(&queue), None, most, now).unwrap();
        assert_eq!(self.consumers[0].queues().replay(queue, None, most).await.unwrap(), expected);
    }

    async fn purge(&mut self) {
        let (now, queue, most) = (self.now(), self.queue(), self.random.usize(1..3));
        let which = if self.random.bool() { Which::Live } else { Which::Dead };
        let model = self.model(&queue);
        let items = step::items(model, which, None, 10, now).unwrap();
        let item = (most == 1).then(|| items.last().map(|item| item.item)).flatten();
        let (expected, _) = step::purge(model, which, item, most, now).unwrap();
        assert_eq!(self.consumers[0].queues().purge(queue, which, item, most).await.unwrap(), expected);
    }

    async fn look(&mut self) {
        let (now, queue) = (self.now(), self.queue());
        let expected = step::stats(self.model(&queue), now).unwrap();
        assert_eq!(self.consumers[2].stats(queue.as_str()).await, expected);
        for which in [Which::Live, Which::Dead] {
            let expected = step::items(self.model(&queue), which, None, 100, now).unwrap();
            let items = self.consumers[1].queues().items(queue.clone(), which, None, 100).await.unwrap();
            assert_eq!(items, expected);
        }
    }
}

#[test]
fn the_engine_answers_as_the_model_does() {
    let first = std::env::var("SEED").map_or_else(|_| random_id() >> 8, |seed| seed.parse().unwrap());
    for seed in first..first + 6 {
        println!("SEED={seed}");
        let directory = TestPlace::new();
        run(async {
            let mut twins = Twins::new(&directory.place(), seed).await;
            for _ in 0..400 {
                twins.step().await;
            }
            twins.look().await;
        });
    }
}

#[test]
fn a_queue_that_only_remembers_is_not_listed() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        for queue in ["a", "b", "c"] {
            let mut once = push(queue, "", "once");
            once.dedup = Some(name("once"));
            here.try_push(once).await.unwrap();
        }
        for queue in ["a", "b"] {
            let item = here.take_item(queue).await;
            here.ack(queue, item.claim).await;
        }
        // A page is empty at the end only.
        let page = here.queues().queues(String::new(), None, 1).await.unwrap();
        assert_eq!(page.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["c"]);
        assert_eq!(here.queues().queues(String::new(), Some(name("c")), 1).await.unwrap(), []);
    });
}

#[test]
fn names_of_255_bytes_and_payloads_of_256_kib_are_kept() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let (queue, group, dedup) = ("q".repeat(255), "g".repeat(255), "d".repeat(255));
        let mut first = push(&queue, &group, "");
        first.payload = vec![7; 256 << 10].into();
        first.dedup = Some(name(&dedup));
        let pushed = here.try_push(first.clone()).await.unwrap();
        assert!(!pushed.is_duplicate);
        let again = here.try_push(first.clone()).await.unwrap();
        assert!(again.is_duplicate && again.item == pushed.item);
        // A group whose name is the beginning of the other's is another one.
        here.push(&queue, &group[1..], "other").await;
        let items = here.take_items(&queue, 3).await;
        assert_eq!(items.len(), 2);
        assert_eq!((&items[0].payload, items[0].group.as_ref()), (&first.payload, first.group.as_ref()));
        let page = here.queues().queues("qq".to_owned(), None, 10).await.unwrap();
        assert_eq!(page.len(), 1);
        assert_eq!((page[0].0.as_str(), page[0].1.in_flight), (&*queue, 2));
        let end = here.queues().queues(String::new(), Some(name(&queue)), 10).await.unwrap();
        assert!(end.is_empty());
        for item in items {
            assert_eq!(here.ack(&queue, item.claim).await, SettleAnswer::Settled);
        }
        assert_eq!(here.stats(&queue).await, QueueStats::default());
    });
}

/// `ITEMS=1000000` for a million of them.
#[test]
fn many_groups_are_worked_off_in_the_order_of_their_pushes() {
    const BATCH: usize = 128;
    let count = std::env::var("ITEMS").map_or(5000, |items| items.parse::<usize>().unwrap());
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let clock = SystemClock;
        let rate = |what: &str, count: usize, begun_at: Instant| {
            println!("{what}: {:.0} a second", count as f64 / clock.now().since(begun_at).as_secs_f64());
        };
        let begun_at = clock.now();
        for from in (0..count).step_by(BATCH) {
            let numbers = from..count.min(from + BATCH);
            let pushes =
                numbers.map(|number| push("q", &format!("group {number}"), &number.to_string())).collect();
            for pushed in here.queues().push(pushes).await {
                pushed.unwrap();
            }
        }
        rate("pushes in batches of 128", count, begun_at);
        assert_eq!(here.stats("q").await.waiting, count as u64);
        let (begun_at, mut done) = (clock.now(), 0);
        while done < count {
            let items = here.take_items("q", BATCH).await;
            assert!(!items.is_empty());
            let settle = |item: &Dispatched| {
                assert_eq!(text(item), done.to_string());
                done += 1;
                Settle { queue: name("q"), claim: item.claim, settlement: Settlement::Ack }
            };
            let settlements = items.iter().map(settle).collect();
            for settled in here.queues().settle(settlements).await {
                assert_eq!(settled.unwrap(), SettleAnswer::Settled);
            }
        }
        rate("items taken and acknowledged in batches of 128", count, begun_at);
        let begun_at = clock.now();
        for _ in 0..500 {
            here.push("single", "g", "item").await;
        }
        rate("pushes one by one", 500, begun_at);
        assert_eq!(here.stats("q").await, QueueStats::default());
    });
}

/// Does with queues what a child is told to do. A group `-` is none.
pub(crate) async fn obey(client: &mut Client, claims: &mut HashMap<String, ClaimId>, words: &[&str]) {
    match *words {
        ["push", queue, group, payload] => match client.try_push(push(queue, group_of(group), payload)).await
        {
            Ok(pushed) => say(&format!("pushed {}", pushed.item)),
            Err(error) => say(&format!("{error:?}")),
        },
        ["get", queue] => {
            let taken = client.queues().take(vec![client.request_items(queue, 1)]).await.remove(0);
            match taken.map(|mut taken| taken.items.pop()) {
                Ok(Some(item)) => {
                    say(&format!("got {} {} {}", text(&item), item.attempt, item.token));
                    claims.insert(text(&item).to_owned(), item.claim);
                }
                Ok(None) => say("nothing"),
                Err(error) => say(&format!("{error:?}")),
            }
        }
        ["ack", queue, payload] => say(&format!("{:?}", client.ack(queue, claims[payload]).await)),
        ["pour", queue, group, count] => {
            for number in 0..count.parse::<u32>().unwrap() {
                client.push(queue, group_of(group), &number.to_string()).await;
                say(&format!("poured {number}"));
            }
        }
        ["work", queue] => loop {
            for item in client.take_items(queue, 3).await {
                let group = item.group.as_ref().map_or("-", Name::as_str);
                say(&format!("did {group} {} {}", text(&item), item.token));
                client.ack(queue, item.claim).await;
            }
            if client.stats(queue).await.waiting == 0 {
                client.next_wake().await;
            }
        },
        _ => panic!("unknown command {words:?}"),
    }
}

fn group_of(word: &str) -> &str {
    if word == "-" { "" } else { word }
}
