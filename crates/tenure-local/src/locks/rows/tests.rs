//! The same commands through a record in rows, a record in vectors, and a resource that goes to and fro.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::clock::{Clock, Instant, SystemClock, Timer};
use tenure_core::model::claim::{CAPACITY_MAX, Claim, HoldLimits, Keep, Kind, Label, Name, Terms};
use tenure_core::model::inspect::inspect;
use tenure_core::model::step::{
    Break, Claimed, Publish, Release, ReleaseAnswer, Renew, Renewed, Resize, Settle, Vanish, forget_at, step,
};
use tenure_testkit::TestDirectory;

use super::*;
use crate::config::Config;
use crate::locks::resource::Watchful;
use crate::place::directory::Directory;
use crate::store::{Store, Transaction};

/// A clock that a test moves.
#[derive(Default)]
struct ManualClock {
    nanos: AtomicU64,
    has_stepped: AtomicBool,
}

/// How many claims a random history has.
const CLAIMS: u128 = 24;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

impl ManualClock {
    fn advance(&self, period: Duration) {
        let nanos = u64::try_from(period.as_nanos()).unwrap();
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Sets the time of day back by a year.
    fn step_time_of_day(&self) {
        self.has_stepped.store(true, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn time_of_day(&self) -> Timestamp {
        let step = if self.has_stepped.load(Ordering::Relaxed) { 365 * 24 * 3600 * 1_000_000 } else { 0 };
        Timestamp::from_micros(START.micros() - step) + Duration::from_nanos(self.now().nanos())
    }

    fn random(&self) -> u64 {
        7
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        SystemClock.timer()
    }
}

/// A store in a directory of its own, removed at the end.
struct TestStore {
    store: Store,
    clock: Arc<ManualClock>,
    /// Removed after the store is closed.
    _files: TestDirectory,
}

impl TestStore {
    fn new(rows_above: usize) -> TestStore {
        let files = TestDirectory::new();
        let clock = Arc::new(ManualClock::default());
        let config = Config::in_directory(files.path().join("place")).with_rows_above(rows_above);
        let (directory, setup) = Directory::open(&config, &SystemClock).unwrap();
        let store = Store::open(Arc::new(directory), clock.clone(), &config, &setup).unwrap();
        TestStore { store, clock, _files: files }
    }

    fn transact<T>(&self, work: impl FnOnce(&mut Transaction<'_>) -> Result<T, Failure>) -> T {
        self.store.transact(work).unwrap().0
    }
}

/// Any command.
#[derive(Debug)]
enum Order {
    Claim(Claim),
    Renew(Renew),
    Release(Release),
    Publish(Publish),
    Break(Break),
    Resize(Resize),
    Vanish(Vanish),
    Settle(Settle),
}

fn random_order(random: &mut fastrand::Rng, name: &Name, kind: Kind, capacity: u32, token: Token) -> Order {
    let id = ClaimId::new(random.u128(0..CLAIMS));
    let some = |random: &mut fastrand::Rng, one_in: u32, period: Duration| {
        if random.u32(0..one_in) == 0 { period } else { Duration::ZERO }
    };
    match random.u32(0..24) {
        0..=8 => {
            let weight = match kind {
                Kind::RwLock => *random.choice(&[1, 1, CAPACITY_MAX]).unwrap(),
                Kind::Semaphore => random.u32(1..=capacity),
                _ => 1,
            };
            let capacity = if random.u32(0..12) == 0 { capacity + 1 } else { capacity };
            let max_hold = Duration::from_millis(random.u64(100..20_000));
            Order::Claim(Claim {
                resource: name.clone(),
                id,
                client: ClientId::new(random.u64(1..6)),
                terms: Arc::new(Terms {
                    kind,
                    capacity,
                    weight,
                    ttl: Duration::from_millis(random.u64(100..10_000)),
                    limits: HoldLimits {
                        max_hold: (random.u32(0..6) == 0).then_some(max_hold),
                        min_hold: some(random, 8, Duration::from_secs(2)),
                        lock_delay: some(random, 4, Duration::from_millis(1500)),
                    },
                    label: Label::new("host", 1, "program", "text"),
                    unless_fresh: random.u32(0..4) == 0,
                }),
                wait: random.u32(0..3) > 0,
                floor: if random.u32(0..20) == 0 { Token::new(token.get() + 1000) } else { Token::ZERO },
                floor_forced: false,
                may_be_known: false,
            })
        }
        9..=13 => Order::Renew(Renew(id)),
        14..=18 => Order::Release(Release {
            claim: id,
            maybe_in_flight: random.u32(0..5) == 0,
            is_unused: random.bool(),
        }),
        19 => Order::Publish(Publish {
            claim: id,
            bytes: vec![1; random.usize(0..4000)].into(),
            keep: if random.bool() {
                Keep::WhileHeld
            } else {
                Keep::For { fresh: Duration::from_secs(1), stale: Duration::from_secs(2) }
            },
        }),
        20 => Order::Break(Break { token, at_once: random.bool() }),
        21 => Order::Resize(Resize(random.u32(1..8))),
        22 => Order::Vanish(Vanish(ClientId::new(random.u64(1..6)))),
        _ => Order::Settle(Settle),
    }
}

/// One resource in a store, its record in rows, and the records that both are compared with.
struct Comparison<'a> {
    test: &'a TestStore,
    seed: u64,
    name: Name,
    oracle: PlainRecord,
    /// The resource may be forgotten where the oracle is not, so it has an oracle of its own.
    resource_oracle: PlainRecord,
}

impl Comparison<'_> {
    /// Does one command everywhere, compares, and returns the answer.
    fn compare<C>(&mut self, command: &C) -> C::Answer
    where
        C: Watchful<Answer: PartialEq + std::fmt::Debug> + std::fmt::Debug,
    {
        let Comparison { test, seed, name, oracle, resource_oracle } = self;
        // Far from the ids that the store gives.
        let id = (1 << 40) + *seed;
        test.transact(|transaction| {
            let now = transaction.now();
            let expected = step(oracle, command, now)?;
            let rows = transaction.rows();
            let mut record = RowRecord::open(rows, transaction.writer(), id)?;
            assert_eq!(step(&mut record, command, now)?, expected, "seed {seed}, {command:?}");
            assert_eq!(forget_at(&record, true, now)?, forget_at(oracle, true, now)?);
            assert_eq!(inspect(name, &record, now)?, inspect(name, oracle, now)?);
            for waiter in oracle.waiters(99)? {
                assert_eq!(record.waiter_ahead(waiter.place)?, oracle.waiter_ahead(waiter.place)?);
            }
            assert_eq!(record.entries(), oracle.entries() as u64);
            record.close()?;
            let mut copy = PlainRecord::default();
            RowRecord::open(rows, transaction.writer(), id)?.copy_to(&mut copy)?;
            assert_same(&copy, oracle);
            let expected = step(resource_oracle, command, now)?;
            let done = transaction.step(name, command)?;
            assert_eq!(done.answer, expected.answer, "seed {seed}, {command:?}");
            let woken: Vec<_> = expected.wakes.iter().map(|woken| woken.claim).collect();
            assert_eq!(done.woken, woken);
            if forget_at(resource_oracle, true, now)?.is_some_and(|at| at <= now) {
                *resource_oracle = PlainRecord::default();
            }
            assert_eq!(transaction.view(name)?.view, inspect(name, resource_oracle, now)?);
            Ok(done.answer)
        })
    }
}

/// Runs one random history, and compares after each command.
fn compare(test: &TestStore, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let name = Name::new(&format!("resource {seed}")).unwrap();
    let kinds = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::SlotPool];
    let kind = *random.choice(&kinds).unwrap();
    let capacity = match kind {
        Kind::Mutex => 1,
        Kind::RwLock => CAPACITY_MAX,
        _ => random.u32(1..6),
    };
    let (oracle, resource_oracle) = Default::default();
    let mut both = Comparison { test, seed, name: name.clone(), oracle, resource_oracle };
    let mut token = Token::ZERO;
    for _ in 0..150 {
        test.clock.advance(Duration::from_micros(random.u64(1..2_000_000)));
        match random_order(&mut random, &name, kind, capacity, token) {
            Order::Claim(claim) => {
                if let Ok(Claimed::Granted(grant)) = both.compare(&claim) {
                    token = grant.token;
                }
            }
            Order::Renew(renew) => {
                if let Renewed::Held(grant) = both.compare(&renew) {
                    token = grant.token;
                }
            }
            Order::Release(release) => drop(both.compare(&release)),
            Order::Publish(publish) => drop(both.compare(&publish)),
            Order::Break(hold) => drop(both.compare(&hold)),
            Order::Resize(resize) => drop(both.compare(&resize)),
            Order::Vanish(vanish) => both.compare(&vanish),
            Order::Settle(settle) => both.compare(&settle),
        }
    }
}

/// Two records answer every question alike.
fn assert_same(one: &PlainRecord, other: &PlainRecord) {
    assert_eq!(one.head(), other.head());
    assert_eq!(one.holds(usize::MAX), other.holds(usize::MAX));
    assert_eq!(one.waiters(usize::MAX), other.waiters(usize::MAX));
    assert_eq!(one.value(), other.value());
    assert_eq!(one.finished_until(), other.finished_until());
    for id in (0..CLAIMS).map(ClaimId::new) {
        assert_eq!(one.is_finished(id), other.is_finished(id));
    }
    let (mut one, mut other) = (one.clone(), other.clone());
    while let Ok(Some(slot)) = one.pop_free_slot() {
        assert_eq!(other.pop_free_slot(), Ok(Some(slot)));
    }
    assert_eq!(one.entries(), other.entries());
}

#[test]
fn rows_answer_as_vectors_do() {
    let seed = fastrand::u64(..1 << 39);
    println!("seed {seed}");
    let test = TestStore::new(3);
    for seed in (0..60).chain(seed..seed + 60) {
        compare(&test, seed);
    }
}

/// Rows that a store has when nothing is remembered: its birth, and the last id if it gave one.
fn rows_left(test: &TestStore) -> u64 {
    test.clock.advance(Duration::from_secs(1));
    test.transact(|transaction| transaction.step(&Name::new("other").unwrap(), &Settle));
    test.transact(|transaction| Ok(transaction.rows().len(transaction.reader())?))
}

#[test]
fn what_is_remembered_is_forgotten_in_time() {
    let test = TestStore::new(3);
    let name = Name::new("name").unwrap();
    let claims: Vec<_> = (0..8).map(|number| waiting(&name, number)).collect();
    let claim = |claim: &Claim| {
        test.clock.advance(Duration::from_millis(1));
        let answer = test.transact(|transaction| transaction.step(&name, claim)).answer;
        assert!(matches!(answer, Ok(Claimed::Granted(_) | Claimed::Waiting(_))), "{answer:?}");
    };
    let release = |claim: &Claim, maybe_in_flight| {
        test.clock.advance(Duration::from_millis(1));
        let release = Release { claim: claim.id, maybe_in_flight, is_unused: false };
        let answer = test.transact(|transaction| transaction.step(&name, &release)).answer;
        assert_eq!(answer, ReleaseAnswer::Released);
    };
    // A small record that remembers a finished claim.
    claim(&claims[0]);
    release(&claims[0], true);
    assert_eq!(rows_left(&test), 3, "birth, record, index");
    test.clock.advance(Duration::from_secs(60));
    assert_eq!(rows_left(&test), 1);
    // One that is in use when its time in the index comes, first small and then in rows.
    for in_use in [2, 7] {
        claim(&claims[0]);
        release(&claims[0], true);
        claims[1..=in_use].iter().for_each(claim);
        test.clock.advance(Duration::from_secs(61));
        let renewals = claims[1..=in_use].iter().map(|claim| Renew(claim.id));
        test.transact(|transaction| {
            renewals.clone().try_for_each(|renewal| transaction.step(&name, &renewal).map(drop))
        });
        assert!(rows_left(&test) > 1);
        // All wait: the first is the holder, and the others have ended.
        release(&claims[1], true);
        assert!(rows_left(&test) > 1, "the released claim is remembered");
        test.clock.advance(Duration::from_secs(61));
        assert_eq!(rows_left(&test), if in_use > 3 { 2 } else { 1 }, "with {in_use} in use");
    }
}

#[test]
fn a_step_of_the_time_of_day_changes_nothing() {
    let test = TestStore::new(3);
    let name = Name::new("name").unwrap();
    let before = test.transact(|transaction| Ok(transaction.now()));
    let claim = waiting(&name, 1);
    test.transact(|transaction| transaction.step(&name, &claim));
    test.clock.step_time_of_day();
    test.clock.advance(Duration::from_secs(1));
    let after = test.transact(|transaction| Ok(transaction.now()));
    assert_eq!(after.since(before), Duration::from_secs(1));
    let view = test.transact(|transaction| transaction.view(&name)).view.unwrap();
    assert_eq!(view.holds[0].held_for, Duration::from_secs(1));
}

fn waiting(name: &Name, number: u128) -> Claim {
    Claim {
        resource: name.clone(),
        id: ClaimId::new(number),
        client: ClientId::new(u64::try_from(number).unwrap()),
        terms: Arc::new(Terms {
            kind: Kind::Mutex,
            capacity: 1,
            weight: 1,
            ttl: Duration::from_secs(3600),
            limits: HoldLimits::default(),
            label: Label::new("host", 1, "program", "one of very many waiters"),
            unless_fresh: false,
        }),
        wait: true,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

/// Returns how long a command takes beside so many waiters.
fn time_per_command(waiters: u128) -> Duration {
    let test = TestStore::new(crate::config::ROWS_ABOVE);
    let name = Name::new("busy").unwrap();
    let claims: Vec<_> = (0..waiters).map(|number| waiting(&name, number)).collect();
    for batch in claims.chunks(128) {
        test.transact(|transaction| {
            batch.iter().try_for_each(|claim| transaction.step(&name, claim).map(drop))
        });
    }
    let mut random = fastrand::Rng::with_seed(1);
    let rounds: u128 = 200;
    let start = SystemClock.now();
    for holder in 0..rounds {
        test.clock.advance(Duration::from_millis(1));
        // Not one that is to hold, and none whose neighbour is.
        let other = random.u128(waiters / 2 + 1..waiters);
        let release =
            |claim| Release { claim: ClaimId::new(claim), maybe_in_flight: false, is_unused: false };
        let released = test.transact(|transaction| {
            transaction.step(&name, &Renew(ClaimId::new(other)))?;
            let released = transaction.step(&name, &release(holder))?;
            transaction.step(&name, &release(other))?;
            transaction.step(&name, &Vanish(ClientId::new(u64::try_from(other - 1).unwrap())))?;
            Ok(released.answer)
        });
        assert_eq!(released, ReleaseAnswer::Released);
    }
    SystemClock.now().since(start) / (4 * u32::try_from(rounds).unwrap())
}

/// A hundred times as many waiters would make a command that reads them all a hundred times as slow.
#[test]
fn many_waiters_make_no_command_slow() {
    let (few, many) = (time_per_command(400), time_per_command(40_000));
    println!("per command {few:?} beside 400 waiters, {many:?} beside 40,000");
    assert!(many < few * 20, "{few:?} beside 400 waiters, {many:?} beside 40,000");
}
