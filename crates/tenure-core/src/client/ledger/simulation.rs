//! Seeded worlds: several ledgers, one store that runs `step` on two servers, of which one may hang and a resource may move
//! to the other, and a network that delays, reorders, loses and repeats, on a clock that only the world moves. The same
//! seed gives the same world.
//!
//! Checked after every event: a lease that its user may believe in is held by the store for that very claim
//! (which is stronger than exclusion), tokens grow in the order in which leases were got, and `max_hold` holds.
//! Checked at the end, when the faults have stopped: everybody who waits is served, and nothing is left behind.
//!
//! `TENURE_SEEDS=100000 cargo test -p tenure-core simulation` tries more worlds; `TENURE_SEED=42` one.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use super::{AcquireRequest, Acquired, Identity, Key, Lane, Ledger, Now, Sent};
use crate::client::lease_state::LeaseState;
use crate::clock::{Instant, Timestamp};
use crate::engine::{
    ClaimAnswer, Incarnation, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Shard, Wake,
    claim_answer, release_answer, renew_answer,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::claim::{Claim, ClaimId, ClientId, Label, Name, Terms};
use crate::model::record::{PlainRecord, Record};
use crate::model::step::{Command, forget_at, step};
use crate::model::token::Token;

const CLIENTS: usize = 4;
const USERS: usize = 2;
const RESOURCES: usize = 2;
const SHARDS: u16 = 2;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a world has faults.
const FAULTY: Duration = Duration::from_secs(60);
/// How long it then has to come to rest: all users hold one after another, and then every memory ends.
const QUIET: Duration = Duration::from_secs(600);

/// What a batch asks.
#[derive(Clone)]
enum Batch {
    Claims(Vec<Claim>),
    Renewals(Vec<RenewRequest>),
    Releases(Vec<ReleaseRequest>),
}

enum Answers {
    Claims(Vec<Result<ClaimAnswer>>),
    Renewals(Vec<Result<RenewAnswer>>),
    Releases(Vec<Result<ReleaseAnswer>>),
}

/// Something under way.
enum Message {
    Request { client: usize, line: (Lane, Shard), number: u64, batch: Batch },
    Answer { client: usize, line: (Lane, Shard), number: u64, answers: Answers },
    Wake { client: usize, wake: Wake },
}

/// A call of a client, as its io thread would keep it.
struct Call {
    number: u64,
    sent: Vec<Sent>,
    times_out_at: Instant,
}

struct Client {
    ledger: Ledger,
    calls: BTreeMap<(Lane, Shard), Call>,
    paused_until: Instant,
    users: Vec<User>,
}

/// What a user is doing.
enum User {
    Idle,
    AcquireFuture { key: Key, give_up_at: Instant, asked_at: Instant },
    Holding { key: Key, lease: Arc<LeaseState>, until: Instant, granted_at: Instant },
}

struct World {
    random: fastrand::Rng,
    now: Instant,
    clients: Vec<Client>,
    records: HashMap<Name, PlainRecord>,
    messages: Vec<(Instant, Message)>,
    /// The shard of the first resource; the next one is on the next.
    first_shard: Arc<AtomicU16>,
    /// Until when a shard takes nothing in.
    hung: (Shard, Instant),
    next_number: u64,
    /// The token of the lease that was got last, for each resource.
    last_tokens: HashMap<Name, Token>,
    /// Claims whose release the store has carried out.
    released: HashSet<ClaimId>,
    /// Claims whose lease was seen to be over.
    over: RefCell<HashSet<ClaimId>>,
    is_faulty: bool,
    leases: u64,
    terms: Arc<Terms>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut terms = Terms::of_mutex(Label::new("h", 1, "sim", ""));
        terms.ttl =
            [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(9)][random.usize(..3)];
        terms.limits.max_hold = random.bool().then_some(terms.ttl * 3);
        terms.limits.lock_delay = if random.bool() { Duration::ZERO } else { terms.ttl / 2 };
        let first_shard = Arc::new(AtomicU16::new(0));
        let clients = (0..CLIENTS).map(|number| Client {
            ledger: Ledger::new(Identity {
                client: ClientId::new(number as u64),
                engine: "simulation",
                answer_timeout: ANSWER_TIMEOUT,
                silence_max: crate::model::claim::TTL_MAX,
                calls_max: 1,
                shard_of: {
                    let first = first_shard.clone();
                    Box::new(move |resource| {
                        let number = u16::from(resource.as_str().as_bytes()[1] - b'0');
                        Shard((first.load(Ordering::Relaxed) + number) % SHARDS)
                    })
                },
            }),
            calls: BTreeMap::new(),
            paused_until: Instant::default(),
            users: (0..USERS).map(|_| User::Idle).collect(),
        });
        World {
            clients: clients.collect(),
            random,
            now: Instant::from_nanos(3_600_000_000_000),
            records: HashMap::new(),
            messages: Vec::new(),
            first_shard,
            hung: (Shard(0), Instant::default()),
            next_number: 0,
            last_tokens: HashMap::new(),
            released: HashSet::new(),
            over: RefCell::default(),
            is_faulty: true,
            leases: 0,
            terms: Arc::new(terms),
        }
    }

    fn store_time(&self) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + self.now.nanos() / 1000)
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.is_faulty && self.random.u8(..100) < percent
    }

    fn delay(&mut self) -> Duration {
        let most = if self.chance(10) {
            3_000_000
        } else if self.chance(30) {
            100_000
        } else {
            500
        };
        Duration::from_micros(self.random.u64(50..=most))
    }

    fn send(&mut self, message: Message) {
        if self.chance(8) {
            return;
        }
        let mut at = self.now + self.delay();
        if let Message::Request { line: (_, shard), .. } = &message
            && *shard == self.hung.0
        {
            at = at.max(self.hung.1);
        }
        // Renewals and releases must bear to be delivered twice. A claim is not, on any connection of ours: a
        // second copy of it is one that its client has sent, and knows of.
        if let Message::Request { client, line, number, batch } = &message
            && line.0 != Lane::Claims
            && self.random.u8(..100) < 5
            && self.is_faulty
        {
            let copy =
                Message::Request { client: *client, line: *line, number: *number, batch: batch.clone() };
            let copy_at = self.now + self.delay();
            self.messages.push((copy_at, copy));
        }
        self.messages.push((at, message));
    }

    /// Runs the client's side of the world once: what its io thread and its users would do now.
    fn run_client(&mut self, number: usize) {
        if self.clients[number].paused_until > self.now {
            return;
        }
        self.time_out(number);
        self.with_ledger(number, |ledger, now| while ledger.on_due(now) {});
        self.run_users(number);
        loop {
            for line in self.clients[number].ledger.lines() {
                if !self.clients[number].calls.contains_key(&line) {
                    self.call(number, line);
                }
            }
            if !self.clients[number].ledger.take_news() {
                break;
            }
        }
    }

    fn with_ledger<T>(&mut self, number: usize, work: impl FnOnce(&mut Ledger, &Now<'_>) -> T) -> T {
        let random = RefCell::new(&mut self.random);
        let draw = || random.borrow_mut().u64(..);
        let now = Now { at: self.now, random: &draw };
        work(&mut self.clients[number].ledger, &now)
    }

    fn time_out(&mut self, number: usize) {
        let calls = &self.clients[number].calls;
        let late = calls.iter().filter(|(_, call)| call.times_out_at <= self.now).map(|(line, _)| *line);
        for line in late.collect::<Vec<_>>() {
            let Some(call) = self.clients[number].calls.remove(&line) else { continue };
            let late = || Error::new(ErrorKind::Unavailable, "ask", "no answer");
            let count = call.sent.len();
            let answers = match line.0 {
                Lane::Claims => Answers::Claims((0..count).map(|_| Err(late())).collect()),
                Lane::Releases => Answers::Releases((0..count).map(|_| Err(late())).collect()),
                _ => Answers::Renewals((0..count).map(|_| Err(late())).collect()),
            };
            self.answer(number, call.sent, answers);
        }
    }

    fn call(&mut self, number: usize, line: (Lane, Shard)) {
        let now = self.now;
        let ledger = &mut self.clients[number].ledger;
        let (lane, shard) = line;
        let (sent, batch) = match lane {
            Lane::Claims => {
                let (sent, claims) = ledger.take_claims(now, shard, 8, 8);
                (sent, Batch::Claims(claims))
            }
            Lane::Releases => {
                let (sent, releases) = ledger.take_releases(now, shard, 8);
                (sent, Batch::Releases(releases))
            }
            _ => {
                let (sent, renewals) = ledger.take_renewals(now, lane, shard, 8);
                assert!(renewals.iter().all(|one| one.is_waiter == (lane == Lane::Heartbeats)));
                (sent, Batch::Renewals(renewals))
            }
        };
        if sent.is_empty() {
            return;
        }
        self.next_number += 1;
        let call = Call { number: self.next_number, sent, times_out_at: now + ANSWER_TIMEOUT };
        let request = Message::Request { client: number, line, number: call.number, batch };
        self.clients[number].calls.insert(line, call);
        self.send(request);
    }

    fn answer(&mut self, number: usize, sent: Vec<Sent>, answers: Answers) {
        self.with_ledger(number, |ledger, now| match answers {
            Answers::Claims(answers) => {
                sent.into_iter().zip(answers).for_each(|(sent, answer)| ledger.on_claim(now, sent, answer));
            }
            Answers::Renewals(answers) => {
                sent.into_iter().zip(answers).for_each(|(sent, answer)| ledger.on_renew(now, sent, answer));
            }
            Answers::Releases(answers) => {
                sent.into_iter().zip(answers).for_each(|(sent, answer)| ledger.on_release(now, sent, answer));
            }
        });
    }

    fn run_users(&mut self, number: usize) {
        for user in 0..USERS {
            let doing = std::mem::replace(&mut self.clients[number].users[user], User::Idle);
            self.clients[number].users[user] = self.run_user(number, doing);
        }
    }

    fn run_user(&mut self, number: usize, doing: User) -> User {
        match doing {
            User::Idle if self.is_faulty && self.random.u8(..100) < 5 => {
                let resource =
                    Name::new(&format!("r{}", self.random.usize(..RESOURCES))).expect("a good name");
                let wait = [None, Some(Duration::ZERO), Some(self.terms.ttl)][self.random.usize(..3)];
                let request =
                    AcquireRequest { resource, terms: self.terms.clone(), wait, floor: Token::ZERO };
                let give_up_at = if self.chance(20) { self.now + self.terms.ttl } else { Instant::NEVER };
                let key = self.with_ledger(number, |ledger, now| ledger.submit(now, request));
                User::AcquireFuture { key, give_up_at, asked_at: self.now }
            }
            User::AcquireFuture { key, give_up_at, .. } if self.now >= give_up_at => {
                self.with_ledger(number, |ledger, now| ledger.cancel(now, key));
                User::Idle
            }
            User::AcquireFuture { key, give_up_at, asked_at } => {
                match self.with_ledger(number, |ledger, now| ledger.poll(now, key, None)) {
                    None => {
                        let patience = self.now.since(asked_at);
                        assert!(self.is_faulty || patience < FAULTY + QUIET, "someone waits for ever");
                        User::AcquireFuture { key, give_up_at, asked_at }
                    }
                    Some(Ok(Acquired::Lease(lease))) => self.got(key, lease),
                    Some(Ok(_)) => User::Idle,
                    Some(Err(error)) => {
                        let is_fair = matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable);
                        assert!(is_fair, "{error}");
                        User::Idle
                    }
                }
            }
            User::Holding { key, lease, until, .. } if self.now >= until || lease.is_over(self.now) => {
                let is_detached = self.random.bool();
                let released = self.with_ledger(number, |ledger, now| {
                    let released = ledger.release(now, key, is_detached);
                    if released.is_none() && !is_detached {
                        ledger.detach(key);
                    }
                    released
                });
                assert!(released != Some(ReleaseAnswer::Released), "nothing is released without acquire");
                User::Idle
            }
            doing => doing,
        }
    }

    fn got(&mut self, key: Key, lease: Arc<LeaseState>) -> User {
        self.leases += 1;
        let last = self.last_tokens.entry(lease.resource().clone()).or_default();
        assert!(lease.token() > *last, "{} then {}: tokens grow", last, lease.token());
        *last = lease.token();
        let hold_for = self.terms.ttl.mul_f64(self.random.f64() * 4.0);
        User::Holding { key, lease, until: self.now + hold_for, granted_at: self.now }
    }

    /// The store does what a request asks, and answers.
    fn serve(&mut self, client: usize, line: (Lane, Shard), number: u64, batch: Batch) {
        let incarnation = Incarnation(1);
        let answers = match batch {
            Batch::Claims(claims) => Answers::Claims(
                claims
                    .iter()
                    .map(|claim| {
                        let outcome = self.step(&claim.resource, &Command::Claim(claim));
                        claim_answer(claim, outcome, incarnation)
                    })
                    .collect(),
            ),
            Batch::Renewals(renewals) => Answers::Renewals(
                renewals
                    .iter()
                    .map(|request| {
                        let outcome = self.step(&request.resource, &Command::Renew(request.claim));
                        Ok(renew_answer(request, outcome, incarnation))
                    })
                    .collect(),
            ),
            Batch::Releases(releases) => Answers::Releases(
                releases
                    .iter()
                    .map(|request| {
                        let outcome = self.step(&request.resource, &Command::Release(request.release));
                        self.released.insert(request.release.claim);
                        Ok(release_answer(&outcome))
                    })
                    .collect(),
            ),
        };
        self.send(Message::Answer { client, line, number, answers });
    }

    fn step(&mut self, resource: &Name, command: &Command<'_>) -> crate::model::step::Outcome {
        let now = self.store_time();
        let record = self.records.entry(resource.clone()).or_default();
        let Ok(transition) = step(record, command, now);
        let Ok(holds) = record.holds(usize::MAX);
        let is_zombie = |claim: &ClaimId| self.released.contains(claim);
        assert!(
            !holds.iter().filter_map(|hold| hold.claim).any(|claim| is_zombie(&claim)),
            "granted after its release"
        );
        for woken in transition.wakes {
            if let Some(grant) = woken.grant {
                let wake = Wake::Granted { claim: woken.claim, grant, incarnation: Incarnation(1) };
                self.send(Message::Wake { client: woken.client.bits() as usize, wake });
            }
        }
        transition.outcome
    }

    fn deliver(&mut self, message: Message) -> Option<Message> {
        match message {
            Message::Request { client, line, number, batch } => self.serve(client, line, number, batch),
            // A paused client finds its mail when it wakes.
            Message::Answer { client, .. } | Message::Wake { client, .. }
                if self.clients[client].paused_until > self.now =>
            {
                return Some(message);
            }
            Message::Answer { client, line, number, answers } => {
                let calls = &mut self.clients[client].calls;
                // An answer to a call that was given up is not read any more.
                if calls.get(&line).is_some_and(|call| call.number == number)
                    && let Some(call) = calls.remove(&line)
                {
                    self.answer(client, call.sent, answers);
                }
            }
            Message::Wake { client, wake } => {
                self.with_ledger(client, |ledger, now| ledger.on_wake(now, wake))
            }
        }
        None
    }

    /// What every user who looks at a lease now may rely on.
    fn check(&self) {
        let now = self.store_time();
        for client in &self.clients {
            for user in &client.users {
                let User::Holding { lease, granted_at, .. } = user else { continue };
                if lease.deadline() <= self.now {
                    self.over.borrow_mut().insert(lease.claim());
                    continue;
                }
                assert!(!self.over.borrow().contains(&lease.claim()), "a lease that was over came back");
                let record = &self.records[lease.resource()];
                let Ok(hold) = record.hold_of(lease.claim());
                let is_held = hold.is_some_and(|hold| hold.expires_at > now && hold.token == lease.token());
                assert!(is_held, "a lease is believed that the store does not hold");
                if let Some(max_hold) = self.terms.limits.max_hold {
                    assert!(self.now.since(*granted_at) <= max_hold, "held beyond max_hold");
                }
            }
        }
    }

    /// Lets the world go on until `end`, in steps that meet every delivery.
    fn run(&mut self, end: Instant) {
        while self.now < end {
            let step =
                Duration::from_micros(self.random.u64(100..=if self.is_faulty { 20_000 } else { 50_000 }));
            self.now = self.now + step;
            let (due, later) = std::mem::take(&mut self.messages).into_iter().partition(|m| m.0 <= self.now);
            self.messages = later;
            let due: Vec<(Instant, Message)> = due;
            for (at, message) in due {
                if let Some(kept) = self.deliver(message) {
                    self.messages.push((at, kept));
                }
                self.check();
            }
            if self.is_faulty && self.random.u32(..2_000) == 0 {
                self.hung = (Shard(self.random.u16(..SHARDS)), self.now + Duration::from_secs(3));
            }
            if self.is_faulty && self.random.u32(..2_000) == 0 {
                self.first_shard.fetch_xor(1, Ordering::Relaxed);
            }
            for number in 0..CLIENTS {
                self.run_client(number);
                if self.random.u32(..20_000) == 0 && self.is_faulty {
                    let pause = self.terms.ttl.mul_f64(self.random.f64() * 3.0);
                    self.clients[number].paused_until = self.now + pause;
                }
            }
            self.check();
        }
    }

    fn finish(&mut self) {
        let now = self.store_time();
        for client in &self.clients {
            assert!(client.users.iter().all(|user| matches!(user, User::Idle)), "someone is not served");
            assert!(client.ledger.entries.is_empty(), "an entry is left in a ledger");
            assert_eq!(client.ledger.next_due(), Instant::NEVER, "something is left in a schedule");
            assert!(client.ledger.by_claim.is_empty(), "a claim is left in a ledger");
        }
        for (resource, record) in &mut self.records {
            let Ok(_) = step(record, &Command::Settle, now);
            let Ok(forget_at) = forget_at(record, true, now);
            assert_eq!(forget_at, Some(now), "something is left of {resource}");
        }
    }
}

fn live(seed: u64) -> u64 {
    let mut world = World::new(seed);
    let faulty_until = world.now + FAULTY;
    world.run(faulty_until);
    world.is_faulty = false;
    world.run(faulty_until + QUIET);
    world.finish();
    world.leases
}

#[test]
fn in_every_world_a_believed_lease_is_held_and_everybody_is_served() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("TENURE_SEED") {
        live(seed);
        return;
    }
    let mut leases = 0;
    for seed in 0..number("TENURE_SEEDS").unwrap_or(200) {
        let world = std::panic::catch_unwind(|| live(seed));
        leases += world.unwrap_or_else(|_| panic!("the world of TENURE_SEED={seed} is broken"));
    }
    assert!(leases > 1_000, "only {leases} leases: these worlds prove little");
}
