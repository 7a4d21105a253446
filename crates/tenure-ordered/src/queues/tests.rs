//! Several clients on one store, beside the model.

mod damage;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::queue::{
    Interval, ItemContext, Push, QueueCapability, QueueEngine, Rules, Settle, SettleAnswer, Settlement, Take,
    Taken, Which,
};
use tenure_core::engine::{RenewAnswer, RenewRequest};
use tenure_core::model::claim::{ClaimId, ClientId, Label, Name};
use tenure_core::model::queue::record::PlainQueue;
use tenure_core::model::queue::step;
use tenure_core::testing::random::cases;
use tenure_core::{ErrorKind, Result, Token};

use super::store::{Change, Changed, Fit, Moment, QueueStore, Snapshot};
use super::{Found, Key, KeyRange, Queues, Value};
use crate::Wakes;

const SECOND: Duration = Duration::from_secs(1);

/// What all clients see.
#[derive(Default)]
struct Shared {
    rows: BTreeMap<Key, Value>,
    head: Option<Value>,
    version: i64,
    now: Timestamp,
    /// How much later it may be.
    doubt: Duration,
    /// How long a change takes.
    slow: Duration,
    /// How long a read takes.
    slow_read: Duration,
    /// How many rows one change may have; 0: any.
    rows_max: usize,
}

struct Fake {
    shared: Arc<Mutex<Shared>>,
    capability: QueueCapability,
    wakes: Wakes,
    calls: AtomicU64,
}

impl Fake {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    fn snapshot(shared: &Shared, wanted: &[KeyRange]) -> Snapshot {
        let found = |wanted: &KeyRange| {
            let mut rows = shared.rows.range(wanted.from.clone()..wanted.to.clone());
            let row = |(key, value): (&Key, &Value)| (key.clone(), value.clone());
            let some: Vec<_> = rows.by_ref().take(wanted.most).map(row).collect();
            Found { rows: some, has_more: rows.next().is_some() }
        };
        let (version, head) = (shared.version, shared.head.clone());
        Snapshot { version, head, found: wanted.iter().map(found).collect() }
    }
}

impl QueueStore for Fake {
    const ENGINE: &'static str = "fake";

    fn capability(&self) -> &QueueCapability {
        &self.capability
    }

    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    async fn time(&self) -> Result<Moment> {
        let shared = self.shared();
        Ok(Moment { earliest: shared.now, latest: shared.now + shared.doubt, epoch: 1 })
    }

    async fn read(&self, _queue: &Name, wanted: &[KeyRange]) -> Result<Snapshot> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let slow = self.shared().slow_read;
        tokio::time::sleep_until(tokio::time::Instant::now() + slow).await;
        Ok(Fake::snapshot(&self.shared(), wanted))
    }

    async fn change(&self, change: Change<'_>) -> Result<Changed> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let slow = self.shared().slow;
        tokio::time::sleep_until(tokio::time::Instant::now() + slow).await;
        let mut shared = self.shared();
        let count = change.rows.len();
        assert!(shared.rows_max == 0 || count <= shared.rows_max, "a change of {count} rows");
        if shared.version != change.version {
            return Ok(Changed::No(Fake::snapshot(&shared, change.otherwise)));
        }
        for (key, value) in change.rows {
            match value {
                Some(value) => drop(shared.rows.insert(key, value)),
                None => drop(shared.rows.remove(&key)),
            }
        }
        shared.head = Some(change.head.into());
        shared.version += 1;
        Ok(Changed::Yes(shared.version))
    }

    fn fit<'a>(&self, _queue: &Name, rows: &mut dyn Iterator<Item = (&'a Key, Option<&'a Value>)>) -> Fit {
        let rows_max = self.shared().rows_max;
        if rows_max == 0 || rows.count() <= rows_max { Fit::Room } else { Fit::Beyond }
    }

    async fn names(&self, _prefix: &str, _after: Option<&Name>, _most: usize) -> Result<Vec<Name>> {
        Ok(Vec::new())
    }

    async fn listen(&self) -> Result<()> {
        Ok(())
    }
}

fn clients(count: u64, items_max: u64) -> (Arc<Mutex<Shared>>, Vec<Queues<Fake>>) {
    let shared = Arc::new(Mutex::new(Shared { now: Timestamp::from_micros(1_000_000), ..Shared::default() }));
    let client = |id| {
        let mut capability = QueueCapability::of_step();
        capability.items_max = items_max;
        let (wakes, calls) = Default::default();
        Queues::new(Fake { shared: shared.clone(), capability, wakes, calls }, ClientId::new(id))
    };
    let clients = (1..=count).map(client).collect();
    (shared, clients)
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Runs a test whose pauses are over as soon as nothing else is to be done.
fn run_unwaited<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(test)
}

fn queue() -> Name {
    Name::new("q").unwrap()
}

fn rules(interval: Interval) -> Arc<Rules> {
    let label = Label::new("here", 1, "test", "");
    Arc::new(Rules { ttl: 3 * SECOND, interval, attempts_max: 3, label })
}

fn push(group: Option<&str>, payload: Vec<u8>) -> Push {
    let group = group.map(|group| Name::new(group).unwrap());
    Push { queue: queue(), group, payload: payload.into(), delay: Duration::ZERO, dedup: None, context: None }
}

fn take(client: u64, count: usize, interval: Interval) -> Take {
    let claim = |_| ClaimId::new(u128::from(SystemClock.random()));
    let (queue, client, claims) = (queue(), ClientId::new(client), (0..count).map(claim).collect());
    Take { queue, client, claims, rules: rules(interval), floor: Token::ZERO }
}

async fn one_take(client: &Queues<Fake>, take: Take) -> Taken {
    client.take(vec![take]).await.pop().unwrap().unwrap()
}

fn settle(claim: ClaimId, settlement: Settlement) -> Settle {
    Settle { queue: queue(), claim, settlement }
}

/// One request, at random, to a client and to the model.
async fn ask(
    client: &Queues<Fake>,
    id: u64,
    model: &mut PlainQueue,
    now: Timestamp,
    claims: &mut Vec<ClaimId>,
) {
    let pick = |most: u64| SystemClock.random() % most;
    match pick(12) {
        0..=3 => {
            let group = ["a", "b", "c"].get(pick(5) as usize).copied();
            let size = [3, 2000][pick(2) as usize];
            let mut push = push(group, vec![pick(256) as u8; size]);
            push.delay = SECOND * pick(3) as u32;
            push.dedup = (pick(4) == 0).then(|| Name::new(&format!("id{}", pick(6))).unwrap());
            push.context = (pick(3) == 0).then(|| ItemContext::new(&format!("c{}", pick(9))).unwrap());
            let answer = client.push(vec![push.clone()]).await.pop().unwrap().unwrap();
            assert_eq!(answer, step::push(model, &push, now).unwrap().0, "{push:?}");
        }
        4..=6 => {
            // Without an interval: to one is added how long transactions take.
            let take = take(id, 1 + pick(3) as usize, Interval::Off);
            let answer = one_take(client, take.clone()).await;
            assert_eq!(answer, step::take(model, &take, now).unwrap().0, "{take:?}");
            claims.extend(answer.items.iter().map(|item| item.claim));
        }
        7..=9 if !claims.is_empty() => {
            let claim = claims.swap_remove(pick(claims.len() as u64) as usize);
            let settlement = match pick(5) {
                0 | 1 => Settlement::Ack,
                2 => Settlement::Retry { after: SECOND, attempts_max: 3, reason: "again".to_owned() },
                3 => Settlement::Fail { reason: "broken".to_owned() },
                _ => Settlement::Return,
            };
            let answer = client.settle(vec![settle(claim, settlement.clone())]).await.pop().unwrap().unwrap();
            assert_eq!(answer, step::settle(model, claim, &settlement, now).unwrap().0, "{settlement:?}");
        }
        10 if !claims.is_empty() => {
            let claim = claims[pick(claims.len() as u64) as usize];
            let request = RenewRequest { resource: queue(), claim, is_waiter: false };
            let answer = client.renew(vec![request]).await.pop().unwrap().unwrap();
            let expected = step::renew(model, claim, now).unwrap();
            assert_eq!(
                matches!(answer, tenure_core::engine::RenewAnswer::Renewed { .. }),
                expected.is_some()
            );
        }
        _ => match pick(8) {
            0 => {
                let count = client.replay(queue(), None, 2).await.unwrap();
                assert_eq!(count, step::replay(model, None, 2, now).unwrap().0, "replayed");
            }
            1 => {
                let which = if pick(2) == 0 { Which::Live } else { Which::Dead };
                let count = client.purge(queue(), which, None, 2).await.unwrap();
                assert_eq!(count, step::purge(model, which, None, 2, now).unwrap().0, "purged");
            }
            _ => {}
        },
    }
}

#[test]
fn clients_that_know_different_parts_answer_as_the_model_does() {
    // They get in each other's way all the time, and wait a moment each time.
    run_unwaited(async {
        for _ in 0..cases(8) {
            let (shared, clients) = clients(3, u64::MAX);
            let (mut model, mut claims) = (PlainQueue::default(), Vec::new());
            for _ in 0..120 {
                let now = {
                    let mut shared = shared.lock().unwrap();
                    shared.now = shared.now + Duration::from_millis(SystemClock.random() % 700);
                    shared.now
                };
                let id = SystemClock.random() % 3;
                let client = &clients[id as usize];
                ask(client, id + 1, &mut model, now, &mut claims).await;
                let stats = client.stats(queue()).await.unwrap();
                assert_eq!(stats, step::stats(&mut model, now).unwrap());
                for which in [Which::Live, Which::Dead] {
                    let items = client.items(queue(), which, None, 99).await.unwrap();
                    assert_eq!(items, step::items(&mut model, which, None, 99, now).unwrap());
                }
            }
            assert_eq!(drain(&shared, &clients[0]).await, Vec::<Key>::new(), "rows are left behind");
        }
    });
}

/// Removes all that is in the queue, and returns what rows are left but those of dedup ids.
async fn drain(shared: &Mutex<Shared>, client: &Queues<Fake>) -> Vec<Key> {
    {
        let mut shared = shared.lock().unwrap();
        shared.now = shared.now + 100 * SECOND;
    }
    loop {
        let taken = one_take(client, take(1, 20, Interval::Off)).await;
        if taken.items.is_empty() {
            break;
        }
        for item in taken.items {
            let acked = client.settle(vec![settle(item.claim, Settlement::Ack)]).await.pop().unwrap();
            assert_eq!(acked.unwrap(), SettleAnswer::Settled);
        }
    }
    client.purge(queue(), Which::Dead, None, 1000).await.unwrap();
    let rows = &shared.lock().unwrap().rows;
    rows.keys().filter(|key| !matches!(key[0], b'u' | b'v')).cloned().collect()
}

#[test]
fn a_client_alone_needs_one_call_for_each_verb() {
    run(async {
        let (_, clients) = clients(1, u64::MAX);
        let client = &clients[0];
        client.push(vec![push(Some("g"), vec![1]), push(None, vec![2])]).await;
        let count = || client.store().calls.swap(0, Ordering::Relaxed);
        count();
        client.push(vec![push(Some("g"), vec![3]), push(None, vec![4])]).await;
        assert_eq!(count(), 1, "a push");
        let taken = one_take(client, take(1, 2, Interval::Off)).await;
        assert_eq!(count(), 1, "a take");
        client.settle(taken.items.iter().map(|item| settle(item.claim, Settlement::Ack)).collect()).await;
        assert_eq!(count(), 1, "an ack");
    });
}

#[test]
fn what_is_late_goes_back_when_there_is_an_interval() {
    run(async {
        let (shared, clients) = clients(1, u64::MAX);
        let client = &clients[0];
        client.push(vec![push(None, vec![1])]).await;
        shared.lock().unwrap().slow = Duration::from_millis(100);
        let taken = one_take(client, take(1, 1, Interval::Queue(2 * SECOND))).await;
        assert_eq!(taken.items, [], "it may be longer since it was counted than the interval allows for");
        let mut rounds = 0;
        let item = loop {
            {
                let mut shared = shared.lock().unwrap();
                shared.now = shared.now + 10 * SECOND;
            }
            rounds += 1;
            if let Some(item) = one_take(client, take(1, 1, Interval::Queue(2 * SECOND))).await.items.pop() {
                break item;
            }
        };
        assert_eq!(
            (item.attempt, rounds),
            (1, 1),
            "it learns how long a transaction takes, and nobody has seen the item"
        );
    });
}

/// What takes an item for the last time.
fn last_take(client: u64, count: usize) -> Take {
    let rules = Rules { attempts_max: 1, ..Rules::clone(&rules(Interval::Off)) };
    Take { rules: Arc::new(rules), ..take(client, count, Interval::Off) }
}

/// What a fleet leaves that has died with all it had, and a client that was not there.
async fn dead_fleet(items: usize) -> (Arc<Mutex<Shared>>, Queues<Fake>) {
    let (shared, mut clients) = clients(2, u64::MAX);
    let pushes = (0..items).map(|item| push(Some(&format!("g{}", item * 7919 % 10_007)), vec![1])).collect();
    clients[0].push(pushes).await;
    assert_eq!(one_take(&clients[0], last_take(1, items)).await.items.len(), items);
    {
        let mut shared = shared.lock().unwrap();
        shared.now = shared.now + 10 * SECOND;
    }
    (shared, clients.pop().unwrap())
}

/// What burying reads is asked for together.
#[test]
fn a_dead_fleet_is_cleared_in_few_calls() {
    const ITEMS: usize = 200;
    run(async {
        let (_shared, client) = dead_fleet(ITEMS).await;
        assert_eq!(one_take(&client, last_take(2, 1)).await.items, []);
        let calls = client.store().calls.load(Ordering::Relaxed);
        assert!(calls <= 25, "{calls} calls");
        assert_eq!(QueueEngine::stats(&client, queue()).await.unwrap().dead, ITEMS as u64);
    });
}

/// To clear what a fleet leaves takes several reads, for which one call may have no time.
#[test]
fn a_slow_store_is_cleared_by_calls_that_fail() {
    const ITEMS: usize = 200;
    run_unwaited(async {
        let (shared, client) = dead_fleet(ITEMS).await;
        shared.lock().unwrap().slow_read = Duration::from_millis(700);
        let mut failed = 0;
        let taken = loop {
            match client.take(vec![last_take(2, 1)]).await.pop().unwrap() {
                Ok(taken) => break taken,
                Err(error) if failed < ITEMS => {
                    assert!(error.has_no_effect(), "{error}");
                    failed += 1;
                }
                Err(error) => panic!("{error} after {failed} others"),
            }
        };
        println!("{failed} calls failed");
        assert!(failed > 0, "the store was not slow enough");
        assert_eq!(taken.items, []);
        assert_eq!(QueueEngine::stats(&client, queue()).await.unwrap().dead, ITEMS as u64);
    });
}

#[test]
fn what_is_not_known_of_the_time_makes_nothing_shorter() {
    run(async {
        let (shared, clients) = clients(2, u64::MAX);
        shared.lock().unwrap().doubt = SECOND;
        let mut late = push(Some("g"), vec![1]);
        late.delay = SECOND;
        clients[0].push(vec![late, push(None, vec![2])]).await;
        let first = one_take(&clients[0], take(1, 1, Interval::Off)).await.items.pop().unwrap();
        assert_eq!((&*first.payload, first.ends_in), (&[2][..], 3 * SECOND), "its user is promised no more");
        let advance = |period| {
            let mut shared = shared.lock().unwrap();
            shared.now = shared.now + period;
        };
        let due = async || one_take(&clients[1], take(2, 1, Interval::Off)).await.items;
        advance(SECOND);
        assert_eq!(due().await, [], "it may have been pushed a second later");
        advance(SECOND);
        assert_eq!(due().await.len(), 1);
        advance(SECOND);
        assert_eq!(due().await, [], "the first one's time may have begun a second later");
        let acked = clients[0].settle(vec![settle(first.claim, Settlement::Ack)]).await.pop().unwrap();
        assert_eq!(acked.unwrap(), SettleAnswer::Settled);
    });
}

#[test]
fn a_full_queue_refuses_what_is_beyond_and_says_what_to_do() {
    run(async {
        let (_, clients) = clients(1, 3);
        let pushed = clients[0].push((0..4).map(|item| push(None, vec![item])).collect()).await;
        assert!(pushed[..3].iter().all(|pushed| pushed.is_ok()));
        let refused = pushed[3].as_ref().expect_err("it is full");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.hint().is_some_and(|hint| hint.contains("consumers")));
    });
}

#[test]
fn what_does_not_fit_in_one_transaction_is_done_in_several() {
    run(async {
        let (shared, clients) = clients(2, u64::MAX);
        // One item that dies, and its neighbours, need fewer; each batch of this test needs more.
        shared.lock().unwrap().rows_max = 25;
        let client = &clients[0];
        const ITEMS: usize = 150;
        let group = |item: usize| ["a", "b", "c"].get(item % 5).copied();
        let pushes = (0..ITEMS).map(|item| push(group(item), vec![item as u8; 3]));
        assert!(client.push(pushes.collect()).await.into_iter().all(|pushed| pushed.is_ok()));
        let last_attempt = |client: u64, count: usize| {
            let mut take = take(client, count, Interval::Off);
            take.rules = Arc::new(Rules { attempts_max: 1, ..Rules::clone(&rules(Interval::Off)) });
            take
        };
        let taken = one_take(client, last_attempt(1, ITEMS)).await;
        // Of a group one at a time.
        let ready = ITEMS / 5 * 2 + 3;
        assert_eq!(taken.items.len(), ready, "all that is ready is handed out by one call");
        let claims: Vec<ClaimId> = taken.items.iter().map(|item| item.claim).collect();
        let renew = |claim: &ClaimId| RenewRequest { resource: queue(), claim: *claim, is_waiter: false };
        let renewed = client.renew(claims.iter().map(renew).collect()).await;
        assert!(renewed.iter().all(|renewed| matches!(renewed, Ok(RenewAnswer::Renewed { .. }))));
        {
            let mut shared = shared.lock().unwrap();
            shared.now = shared.now + 10 * SECOND;
        }
        client.push(vec![push(None, vec![200])]).await;
        // They have all ended, and stand before what is ready.
        let next = one_take(&clients[1], last_attempt(2, 4)).await;
        let payloads: Vec<u8> = next.items.iter().map(|item| item.payload[0]).collect();
        assert_eq!(payloads.len(), 4, "what is ready is found behind what is worn out: {next:?}");
        assert!(payloads.contains(&200) || payloads.iter().all(|item| item % 5 < 3), "{payloads:?}");
        let stats = client.stats(queue()).await.unwrap();
        assert_eq!((stats.dead, stats.in_flight), (ready as u64, 4));
        assert_eq!(client.replay(queue(), None, 1000).await.unwrap(), ready);
        let waiting = client.stats(queue()).await.unwrap().waiting;
        assert_eq!(client.purge(queue(), Which::Live, None, 1000).await.unwrap() as u64, waiting);
    });
}

/// Rows as text: a key, and what is in it in hexadecimal digits.
fn dump(shared: &Shared) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let row = |(key, value): (&Key, &Value)| {
        format!("{}={}\n", String::from_utf8_lossy(key).replace('\u{1f}', " "), hex(value))
    };
    let head = format!("head={}\n", hex(shared.head.as_deref().unwrap_or_default()));
    shared.rows.iter().map(row).fold(head, |all, row| all + &row)
}

#[test]
fn what_is_stored_can_be_read_by_other_versions() {
    run(async {
        let (shared, clients) = clients(1, u64::MAX);
        let client = &clients[0];
        let mut first = push(Some("g"), b"first".to_vec());
        first.dedup = Some(Name::new("id").unwrap());
        client.push(vec![first, push(Some("g"), b"second".to_vec()), push(None, b"third".to_vec())]).await;
        let mut request = take(1, 3, Interval::Off);
        request.claims = (1..=3).map(ClaimId::new).collect();
        let taken = one_take(client, request).await;
        let failed = Settlement::Fail { reason: "broken".to_owned() };
        client.settle(vec![settle(taken.items[1].claim, failed)]).await;
        let dump = dump(&shared.lock().unwrap());
        assert_eq!(dump, include_str!("tests/rows.txt"), "the format has changed: give it another number");
    });
}

/// What a client reads that knows no contexts.
mod before {
    use serde::Deserialize;
    use tenure_core::clock::Timestamp;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "all of it is to be read")]
    pub(super) struct Item<'a> {
        pub(super) group: Option<&'a str>,
        pushed_at: Timestamp,
        due_at: Timestamp,
        pub(super) payload: &'a [u8],
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "all of it is to be read")]
    pub(super) struct Dead<'a> {
        attempts: u32,
        died_at: Timestamp,
        pub(super) reason: &'a str,
        #[serde(borrow)]
        pub(super) item: Item<'a>,
    }
}

/// The value of the only row whose key begins so.
fn row(shared: &Mutex<Shared>, what: u8) -> Value {
    let shared = shared.lock().unwrap();
    let mut rows = shared.rows.iter().filter(|(key, _)| key[0] == what);
    let (_, value) = rows.next().expect("a row");
    assert!(rows.next().is_none(), "another row");
    value.clone()
}

#[test]
fn a_context_stands_behind_what_those_before_read() {
    run(async {
        let context = ItemContext::new("00-1-2-01").unwrap();
        for payload in [b"small".to_vec(), vec![7; 5000]] {
            let values = [None, Some(&context)].map(|context| {
                let (shared, clients) = clients(1, u64::MAX);
                let client = clients.into_iter().next().unwrap();
                (shared, client, Push { context: context.cloned(), ..push(Some("g"), payload.clone()) })
            });
            let mut rows = Vec::new();
            for (shared, client, push) in values {
                client.push(vec![push.clone()]).await.pop().unwrap().unwrap();
                let item = row(&shared, b'i');
                let read: before::Item<'_> = postcard::from_bytes(&item).unwrap();
                assert_eq!(read.group, Some("g"));
                assert!(read.payload[0] == 1 || read.payload[1..] == *b"small", "{read:?}");
                let taken = one_take(&client, take(1, 1, Interval::Off)).await.items.remove(0);
                assert_eq!((&*taken.payload, &taken.context), (&payload[..], &push.context));
                client.settle(vec![settle(taken.claim, Settlement::Fail { reason: "why".to_owned() })]).await;
                let dead = row(&shared, b'd');
                let read: before::Dead<'_> = postcard::from_bytes(&dead).unwrap();
                assert_eq!((read.reason, read.item.group), ("why", Some("g")));
                let views = client.items(queue(), Which::Dead, None, 9).await.unwrap();
                assert_eq!((&*views[0].payload, &views[0].context), (&payload[..], &push.context));
                assert_eq!(client.replay(queue(), None, 9).await.unwrap(), 1);
                let taken = one_take(&client, take(1, 1, Interval::Off)).await.items.remove(0);
                assert_eq!((&*taken.payload, &taken.context), (&payload[..], &push.context));
                rows.push([item, dead]);
            }
            let behind = [&[9], &b"00-1-2-01"[..]].concat();
            for (without, with) in rows[0].iter().zip(&rows[1]) {
                // The number of a large payload is random.
                let same = without.len() - if payload.len() > 1024 { 9 } else { 0 };
                assert_eq!(with[..same], without[..same], "all that was there is there");
                assert_eq!(with[without.len()..], behind);
            }
        }
    });
}
