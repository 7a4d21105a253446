//! The scripts against [`step`]: the same random commands at the same times must be answered alike.
//!
//! The server's clock is frozen and moved by the test, so that every end is exact.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Connection, PubSub, Value};
use tenure_core::claim::{
    CAPACITY_MAX, Claim, ClaimId, ClientId, Grant, HoldLimits, Keep, Kind, Label, Name, Terms,
};
use tenure_core::clock::Timestamp;
use tenure_core::engine::{Incarnation, ReleaseRequest, RenewRequest};
use tenure_core::inspect::{View, inspect};
use tenure_core::record::PlainRecord;
use tenure_core::step::{Command, Outcome, Release, step};
use tenure_core::token::Token;
use tenure_testkit::Reply;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use super::{
    Arguments, BREAK, CLAIM, CLAIM_ARGUMENTS, LOOK, PUBLISH, RELEASE, RELEASE_ARGUMENTS, RENEW,
    RENEW_ARGUMENTS, RESIZE, Script, push_header,
};
use crate::answer;
use crate::keys::{INBOX, Key, Keys};

/// One resource on a real server, and its record beside it.
struct Pair<'a, 'b> {
    connection: Connection,
    /// Where all clients hear of their grants.
    inboxes: &'a mut PubSub<'b>,
    keys: Keys,
    name: Name,
    key: Key,
    record: PlainRecord,
    now: Timestamp,
    random: fastrand::Rng,
    claims: Vec<Claim>,
    shape: (Kind, u32),
    log: Vec<String>,
    wakes: Vec<(ClaimId, Grant)>,
}

/// The clients that take part.
const CLIENTS: std::ops::Range<u64> = 1..4;
/// Where all tests of time begin.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

impl<'a, 'b> Pair<'a, 'b> {
    fn new(server: &RedisServer, inboxes: &'a mut PubSub<'b>, seed: u64, now: Timestamp) -> Pair<'a, 'b> {
        let mut random = fastrand::Rng::with_seed(seed);
        let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let keys = Keys::new(&format!("{seed}:"), false);
        let name = Name::new("r{x}").unwrap();
        let key = keys.of(&name).unwrap();
        let shape = shape(&mut random);
        let (record, claims, log, wakes) = (PlainRecord::default(), Vec::new(), Vec::new(), Vec::new());
        Pair { connection, inboxes, keys, name, key, record, now, random, claims, shape, log, wakes }
    }

    fn call(&mut self, script: &Script, arguments: &[Vec<u8>]) -> (Timestamp, Vec<Value>) {
        self.call_with(script, |cmd| {
            for argument in arguments {
                cmd.arg(argument);
            }
        })
    }

    fn call_with(&mut self, script: &Script, push: impl FnOnce(&mut Cmd)) -> (Timestamp, Vec<Value>) {
        let mut cmd = script.call(&self.keys, 0, 1, false);
        cmd.arg(&self.key.text);
        push_header(&mut cmd, &self.keys, 0, Incarnation(7), false);
        push(&mut cmd);
        let value =
            cmd.query(&mut self.connection).unwrap_or_else(|error| panic!("{error}: {:#?}", self.log));
        let answers = answer::answers(value).unwrap();
        assert_eq!(answers.now, self.now, "the server's clock is frozen");
        (answers.now, answers.items)
    }

    fn one(&mut self, script: &Script, arguments: &[Vec<u8>]) -> Value {
        self.call(script, arguments).1.remove(0)
    }

    /// Does one random command on both sides and compares.
    fn turn(&mut self) {
        let choice = self.random.u8(0..100);
        match choice {
            0..45 => self.claim(),
            45..65 => self.renew(),
            65..85 => self.release(),
            85..90 => self.publish(),
            90..94 => self.break_hold(),
            94..97 => self.resize(),
            _ => self.shape = shape(&mut self.random),
        }
        self.compare_views();
        self.compare_wakes();
    }

    fn expect(&mut self, command: &Command<'_>) -> Outcome {
        let transition = step(&mut self.record, command, self.now).unwrap_or_else(|never| match never {});
        self.log.push(format!("{:?}: {command:?} -> {:?}", self.now, transition.outcome));
        self.wakes.extend(transition.wakes.into_iter().filter_map(|woken| Some((woken.claim, woken.grant?))));
        transition.outcome
    }

    /// Compares what waiters are told.
    fn compare_wakes(&mut self) {
        for expected in std::mem::take(&mut self.wakes) {
            let got = loop {
                let message = self.inboxes.get_message().expect("a waiter is told of its grant");
                match answer::message(message.get_payload_bytes()).expect("a message that can be read") {
                    answer::Message::Granted(claim, grant, incarnation) => break (claim, grant, incarnation),
                    answer::Message::Look(_) => {}
                }
            };
            assert_eq!(got, (expected.0, expected.1, 7), "a waiter is told something else:\n{:#?}", {
                &self.log[self.log.len().saturating_sub(40)..]
            });
        }
    }

    fn claim(&mut self) {
        let (kind, capacity) = self.shape;
        let random = &mut self.random;
        let is_repeat = !self.claims.is_empty() && random.u8(0..4) == 0;
        let claim = if is_repeat {
            random.choice(&self.claims).unwrap().clone()
        } else {
            let weight = match kind {
                Kind::RwLock if random.bool() => CAPACITY_MAX,
                Kind::Semaphore => random.u32(1..=capacity + 1),
                _ => 1,
            };
            let some = |random: &mut fastrand::Rng, most: u64| {
                Duration::from_millis(if random.u8(0..4) == 0 { random.u64(100..most) } else { 0 })
            };
            let limits = HoldLimits {
                max_hold: Some(some(random, 4000)).filter(|period| !period.is_zero()),
                min_hold: some(random, 3000),
                lock_delay: some(random, 3000),
            };
            let text = format!("text {}", random.u32(..));
            let terms = Terms {
                kind,
                capacity,
                weight,
                ttl: Duration::from_millis(random.u64(100..8000)),
                limits,
                label: Label::new("host", 17, "program", &text),
                unless_fresh: random.u8(0..8) == 0,
            };
            let above = match random.u8(0..10) {
                0 => random.u64(0..7_200_000_000),
                1 => random.u64(0..10),
                _ => return self.claim_as(terms, Token::ZERO),
            };
            return self.claim_as(terms, Token::new(self.now.micros() - 3_000_000_000 + above));
        };
        self.submit(&claim);
    }

    fn claim_as(&mut self, terms: Terms, floor: Token) {
        let claim = Claim {
            resource: self.name.clone(),
            id: ClaimId::new(self.random.u128(..)),
            client: ClientId::new(self.random.u64(CLIENTS)),
            terms: Arc::new(terms),
            wait: self.random.bool(),
            floor,
            floor_forced: self.random.u8(0..4) == 0,
        };
        self.claims.push(claim.clone());
        self.submit(&claim);
    }

    fn submit(&mut self, claim: &Claim) {
        // A claim whose hold or place ended by itself is remembered by `step` and not by the server.
        let mut probe = self.record.clone();
        let probed =
            step(&mut probe, &Command::Claim(claim), self.now).unwrap_or_else(|never| match never {});
        if probed.outcome == Outcome::Finished && !self.is_told_finished(claim.id) {
            return;
        }
        let expected = self.expect(&Command::Claim(claim));
        let (now, mut items) = self.call_with(&CLAIM, |cmd| CLAIM_ARGUMENTS.push(cmd, &[claim]));
        let got = answer::claimed(claim, now, items.remove(0)).unwrap();
        self.compare(expected, got);
    }

    /// Whether the server was told that a claim has ended.
    fn is_told_finished(&mut self, claim: ClaimId) -> bool {
        let [_, finished, ..] = self.keys.shared(0);
        let score: Option<f64> =
            redis::cmd("ZSCORE").arg(finished).arg(claim.to_string()).query(&mut self.connection).unwrap();
        score.is_some_and(|until| until * 1000.0 > self.now.micros() as f64)
    }

    fn any_claim(&mut self) -> ClaimId {
        let recent = self.claims.len().saturating_sub(12);
        self.random.choice(&self.claims[recent..]).map_or(ClaimId::new(5), |claim| claim.id)
    }

    fn renew(&mut self) {
        let claim = self.any_claim();
        let expected = self.expect(&Command::Renew(claim));
        let is_waiter = self.random.bool();
        let request = RenewRequest { resource: self.name.clone(), claim, is_waiter };
        let item = self.call_with(&RENEW, |cmd| RENEW_ARGUMENTS.push(cmd, &[&request])).1.remove(0);
        let got = answer::renewed(item).unwrap();
        let expected = match expected {
            Outcome::Renewed(mut grant) if !is_waiter => {
                (grant.token, grant.slot) = (Token::ZERO, None);
                Outcome::Renewed(grant)
            }
            other => other,
        };
        self.compare(expected, got);
    }

    fn release(&mut self) {
        let claim = self.any_claim();
        let (maybe_in_flight, is_unused) = (self.random.u8(0..3) == 0, self.random.u8(0..3) == 0);
        let release = Release { claim, maybe_in_flight, is_unused };
        let expected = self.expect(&Command::Release(release));
        let request = ReleaseRequest { resource: self.name.clone(), release };
        let item = self.call_with(&RELEASE, |cmd| RELEASE_ARGUMENTS.push(cmd, &[&request])).1.remove(0);
        let got = if answer::number(&item).unwrap() == 1 { Outcome::Released } else { Outcome::AlreadyLost };
        self.compare(expected, got);
    }

    fn publish(&mut self) {
        let claim = self.any_claim();
        let bytes: Arc<[u8]> = self.random.u64(..).to_le_bytes().into();
        let (keep, fresh, stale) = if self.random.bool() {
            (Keep::WhileHeld, String::new(), String::new())
        } else {
            let (fresh, stale) = (self.random.u64(0..3000), self.random.u64(0..3000));
            let keep = Keep::For { fresh: Duration::from_millis(fresh), stale: Duration::from_millis(stale) };
            (keep, fresh.to_string(), stale.to_string())
        };
        let expected = self.expect(&Command::Publish { claim, bytes: bytes.clone(), keep });
        let arguments = [claim.to_string().into_bytes(), bytes.to_vec(), fresh.into(), stale.into()];
        let item = self.one(&PUBLISH, &arguments);
        let got = if answer::number(&item).unwrap() == 1 { Outcome::Published } else { Outcome::Lost };
        self.compare(expected, got);
    }

    fn break_hold(&mut self) {
        let view = inspect(&self.name, &self.record, self.now).unwrap_or_else(|never| match never {});
        let holds = view.map(|view| view.holds).unwrap_or_default();
        let token = self.random.choice(&holds).map_or(Token::new(9), |hold| hold.token);
        let at_once = self.random.bool();
        let expected = self.expect(&Command::Break { token, at_once });
        let arguments = [token.to_string(), u8::from(at_once).to_string()].map(String::into_bytes);
        let got = match self.one(&BREAK, &arguments) {
            Value::Int(-1) => Outcome::Lost,
            Value::Int(millis) => Outcome::Broken { free_in: Duration::from_millis(millis as u64) },
            other => panic!("{other:?}"),
        };
        self.compare(expected, got);
    }

    fn resize(&mut self) {
        let view = inspect(&self.name, &self.record, self.now).unwrap_or_else(|never| match never {});
        // What is idle has no kind on the server.
        let Some(view) = view.filter(|view| view.used > 0 || view.waiting > 0) else { return };
        let capacity = self.random.u32(1..6);
        let expected = self.expect(&Command::Resize(capacity));
        let got = match self.one(&RESIZE, &[capacity.to_string().into_bytes()]) {
            Value::Int(1) => Outcome::Resized,
            _ => Outcome::Invalid("only semaphores and slot pools have a capacity to change"),
        };
        let is_resized = expected == Outcome::Resized;
        self.compare(expected, got);
        if is_resized {
            self.shape = (view.kind, capacity);
        }
    }

    fn compare(&self, expected: Outcome, got: Outcome) {
        let expected = match expected {
            // The server knows no record that is idle, and so not when its place was given.
            Outcome::Busy(mut busy) => {
                busy.held_for = Duration::from_millis(busy.held_for.as_millis() as u64);
                Outcome::Busy(busy)
            }
            other => other,
        };
        assert_eq!(got, expected, "the server's answer is another than that of step:\n{:#?}", self.tail());
    }

    fn tail(&self) -> &[String] {
        &self.log[self.log.len().saturating_sub(40)..]
    }

    fn compare_views(&mut self) {
        let expected = inspect(&self.name, &self.record, self.now).unwrap_or_else(|never| match never {});
        let (now, mut items) = self.call(&LOOK, &[b"1024".to_vec()]);
        let last = Token::new(answer::number(&items.remove(0)).unwrap());
        let got = answer::view(&self.name, now, last, items.remove(0)).unwrap();
        assert_eq!(
            got.map(without_history),
            expected.map(without_history),
            "the server shows something else than step:\n{:#?}",
            self.tail()
        );
    }
}

/// A view without the last token, which the server keeps for all resources together, and without what it forgets
/// of an idle record.
fn without_history(mut view: View) -> View {
    view.last_token = Token::ZERO;
    if view.used == 0 && view.waiting == 0 {
        (view.kind, view.capacity) = (Kind::Mutex, 1);
    }
    view
}

fn shape(random: &mut fastrand::Rng) -> (Kind, u32) {
    match random.u8(0..4) {
        0 => (Kind::Mutex, 1),
        1 => (Kind::RwLock, CAPACITY_MAX),
        2 => (Kind::Semaphore, random.u32(1..6)),
        _ => (Kind::SlotPool, random.u32(1..6)),
    }
}

#[test]
fn the_scripts_do_what_step_does() {
    let server = RedisServer::start(RedisOptions::default().clock());
    server.clock().freeze(EPOCH);
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut inboxes = connection.as_pubsub();
    inboxes.psubscribe(format!("{INBOX}*")).unwrap();
    let mut now = EPOCH;
    for seed in 0..300 {
        let mut pair = Pair::new(&server, &mut inboxes, seed, Timestamp::from_micros(now.as_micros() as u64));
        for _ in 0..120 {
            if pair.random.bool() {
                let period = Duration::from_millis(pair.random.u64(1..1500));
                now += period;
                server.clock().advance(period);
                pair.now = Timestamp::from_micros(now.as_micros() as u64);
            }
            pair.turn();
        }
    } // Nothing is left of 300 resources but what slot pools remember, and that goes too.
    let is_empty = || server.ask(&["DBSIZE"]) == Reply::Integer(0);
    assert!(!is_empty());
    server.clock().advance(Duration::from_secs(3 * 3600));
    tenure_testkit::wait_for("an empty server", || is_empty().then_some(()));
}

/// Makes the same requests in one call, and in a call each on other keys; returns both answers.
fn both_ways<R>(
    connection: &mut Connection,
    seed: u64,
    script: &Script,
    arguments: &Arguments<R>,
    requests: &[(Name, R)],
) -> [Vec<Value>; 2] {
    let mut ask = |prefix: &str, requests: &[(Name, R)]| -> Vec<Value> {
        let keys = Keys::new(prefix, false);
        let mut cmd = script.call(&keys, 0, requests.len(), false);
        for (name, _) in requests {
            cmd.arg(keys.of(name).unwrap().text);
        }
        push_header(&mut cmd, &keys, 0, Incarnation(7), false);
        arguments.push(&mut cmd, &requests.iter().map(|(_, request)| request).collect::<Vec<_>>());
        answer::answers(cmd.query(connection).unwrap()).unwrap().items
    };
    let together = ask(&format!("{seed}together:"), requests);
    let alone =
        requests.iter().flat_map(|request| ask(&format!("{seed}alone:"), std::slice::from_ref(request)));
    [together, alone.collect()]
}

#[test]
fn a_batch_is_answered_as_its_requests_one_by_one() {
    let server = RedisServer::start(RedisOptions::default().clock());
    server.clock().freeze(EPOCH);
    let client = redis::Client::open(server.url()).unwrap();
    let (mut connection, mut listener) = (client.get_connection().unwrap(), client.get_connection().unwrap());
    // Somebody hears of grants.
    let mut inboxes = listener.as_pubsub();
    inboxes.psubscribe(format!("{INBOX}*")).unwrap();
    let label = Label::new("host", 17, "program", "");
    let terms = [Duration::from_secs(5), Duration::from_secs(9)]
        .map(|ttl| Arc::new(Terms { ttl, ..Terms::of_mutex(label.clone()) }));
    for seed in 0..200 {
        let random = &mut fastrand::Rng::with_seed(seed);
        for _ in 0..6 {
            let count = random.usize(1..12);
            let any = |random: &mut fastrand::Rng| {
                (Name::new(&format!("r{}", random.u8(0..4))).unwrap(), ClaimId::new(random.u128(0..16)))
            };
            let claims = Vec::from_iter((0..count).map(|_| {
                let (resource, id) = any(random);
                let (terms, floor) = (random.choice(&terms).unwrap().clone(), Token::new(random.u64(0..2)));
                let (client, wait) = (ClientId::new(1), random.bool());
                let claim = Claim { resource, id, client, terms, wait, floor, floor_forced: random.bool() };
                (claim.resource.clone(), claim)
            }));
            let releases = Vec::from_iter((0..count).map(|_| {
                let (resource, claim) = any(random);
                let release = Release { claim, maybe_in_flight: random.bool(), is_unused: random.bool() };
                (resource.clone(), ReleaseRequest { resource, release })
            }));
            let renewals = Vec::from_iter((0..count).map(|_| {
                let (resource, claim) = any(random);
                (resource.clone(), RenewRequest { resource, claim, is_waiter: random.bool() })
            }));
            let [together, alone] = both_ways(&mut connection, seed, &CLAIM, &CLAIM_ARGUMENTS, &claims);
            assert_eq!(together, alone, "seed {seed}: {claims:#?}");
            let [together, alone] = both_ways(&mut connection, seed, &RENEW, &RENEW_ARGUMENTS, &renewals);
            assert_eq!(together, alone, "seed {seed}: {renewals:#?}");
            let [together, alone] = both_ways(&mut connection, seed, &RELEASE, &RELEASE_ARGUMENTS, &releases);
            assert_eq!(together, alone, "seed {seed}: {releases:#?}");
        }
    }
}
