//! The scripts on a simulated server beside the same scripts on a real one: the same calls at the same times must be answered alike, and
//! leave the same keys behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Connection, Value};
use tenure_core::clock::Instant;
use tenure_core::engine::Incarnation;
use tenure_core::model::claim::{
    CAPACITY_MAX, Claim, ClaimId, ClientId, HoldLimits, Kind, Label, Name, Terms,
};
use tenure_core::model::token::Token;
use tenure_core::testing::random::seeds;
use tenure_redis::server::{Form, Keys as Names, Script};
use tenure_testkit::redis::{RedisOptions, RedisServer};

use super::lua;
use super::store::{Data, Key, Keys};
use crate::library::LIBRARY;
use crate::rounds::node::Request;
use crate::rounds::own::{Copies, Own};
use crate::rounds::text::{self, Ending};

/// Where all times begin.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);
/// How long claims may hold.
const LONGEST: u64 = 60_000;
/// How many calls are compared for each seed.
const CALLS: usize = 120;

/// Shows all keys: each with its end, and what it has as texts.
const SHOW: &str = "\
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'string' then value = { redis.call('GET', key) }
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  else value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  all[#all + 1] = { key, kind, redis.call('PEXPIRETIME', key), value }
end
return all";

/// A key, its type, when it ends, and what it has.
type Shown = (Vec<u8>, String, i64, Vec<Vec<u8>>);

/// A real server and a simulated one.
struct Pair<'a> {
    server: &'a RedisServer,
    connection: &'a mut Connection,
    keys: Keys,
    now: Duration,
    random: fastrand::Rng,
    incarnation: Incarnation,
    claims: Vec<Own>,
    kind: Kind,
    log: Vec<String>,
}

impl Pair<'_> {
    fn call(&mut self, request: &Request) {
        let shared = Names::new("tenure:", false).shared_of_quorum();
        // Some clients know of another run, or of another longest ttl.
        let run = if self.random.u8(..30) == 0 { Incarnation(1) } else { self.incarnation };
        let longest = if self.random.u8(..40) == 0 { 1000 } else { LONGEST };
        let cmd = request.command(Form::Function, &shared, run, longest, None);
        self.log.push(format!("{:?}: {}", self.now, shown(&cmd)));
        // What fails as a whole, where a stranger has taken a key that all resources share, fails on both.
        let failed = || "it fails".to_owned();
        let expected: Result<Value, String> = cmd.query(self.connection).map_err(|_| failed());
        let got = lua::execute(&mut self.keys, self.now.as_micros() as u64, &cmd).map_err(|_| failed());
        assert_eq!(got, expected, "it answers something else:\n{:#?}", self.tail());
        let shown: Vec<Shown> = redis::cmd("EVAL").arg(SHOW).arg(0).query(self.connection).expect("all keys");
        let there: BTreeMap<Vec<u8>, Key> =
            shown.into_iter().map(|(key, kind, ends, words)| (key, as_key(&kind, ends, words))).collect();
        self.keys.tidy();
        assert_eq!(self.keys.keys, there, "other keys are left:\n{:#?}", self.tail());
    }

    fn tail(&self) -> &[String] {
        &self.log[self.log.len().saturating_sub(30)..]
    }

    fn key(&mut self) -> String {
        format!("tenure:r{}", self.random.u8(..2))
    }

    fn turn(&mut self) {
        if self.random.bool() {
            let period = Duration::from_millis(self.random.u64(1..1500));
            self.now += period;
            self.server.clock().advance(period);
        }
        match self.random.u8(..100) {
            0..35 => self.claim(),
            35..45 => self.stamp(),
            45..60 => self.renew(),
            60..80 => self.release(),
            80..84 => self.publish(),
            84..86 => self.mend(),
            86..88 => self.break_hold(),
            88..92 => self.look(),
            92..94 => self.observe(),
            94..96 => self.lose_a_key(),
            96 => self.kind = kind(&mut self.random),
            _ => self.boot(),
        }
    }

    fn any(&mut self) -> Option<Own> {
        let recent = self.claims.len().saturating_sub(10);
        self.random.choice(&self.claims[recent..]).cloned()
    }

    fn new_own(&mut self) -> Own {
        let (kind, random) = (self.kind, &mut self.random);
        let capacity = [1, CAPACITY_MAX, 3]
            [[Kind::Mutex, Kind::RwLock].iter().position(|one| *one == kind).unwrap_or(2)];
        let weight = if kind == Kind::RwLock && random.bool() { capacity } else { 1 };
        let is_plain = random.bool();
        let mut some = |most: u64| {
            let is_set = !is_plain && random.u8(..3) == 0;
            Duration::from_millis(if is_set { random.u64(100..most) } else { 0 })
        };
        let max_hold = Some(some(4000)).filter(|period| !period.is_zero());
        let limits = HoldLimits { max_hold, min_hold: some(3000), lock_delay: some(3000) };
        let label = Label::new("host", 17, "program", &format!("text {}", random.u8(..)));
        let ttl = Duration::from_millis(random.u64(100..8000));
        let unless_fresh = random.u8(..6) == 0;
        let floor = match random.u8(..8) {
            0 => self.now.as_micros() as u64 + random.u64(0..7_200_000_000),
            1 => self.now.as_micros() as u64 - random.u64(0..1_000_000),
            _ => 0,
        };
        let claim = Claim {
            resource: Name::new(&format!("r{}", random.u8(..2))).expect("a good name"),
            id: ClaimId::new(random.u128(..)),
            client: ClientId::new(random.u64(1..4)),
            terms: Arc::new(Terms { kind, capacity, weight, ttl, limits, label, unless_fresh }),
            wait: random.bool(),
            floor: Token::new(floor),
            floor_forced: random.u8(..4) == 0,
            may_be_known: false,
        };
        let ticket = self.now.as_micros() as u64 - self.random.u64(0..2_000_000);
        Own::new(claim, ticket, Instant::from_nanos(0), &Copies::new(3))
    }

    fn claim(&mut self) {
        let mut asked = Vec::new();
        for _ in 0..[1, 1, 1, 4][self.random.usize(..4)] {
            let known = if self.random.u8(..4) == 0 { self.any() } else { None };
            let mut own = known.unwrap_or_else(|| self.new_own());
            own.attempt += 1;
            let slot =
                (own.claim.terms.kind == Kind::SlotPool).then(|| self.random.u32(..own.claim.terms.capacity));
            self.claims.retain(|other| other.claim.id != own.claim.id);
            self.claims.push(own.clone());
            asked.push((own, slot));
        }
        let off = self.random.choice([0, 0, 0, 60_000_000, 4_000_000_000, -60_000_000]).unwrap_or(0);
        let proposal = (self.now.as_micros() as i64 + off) as u64;
        let mut request = Request::new(&LIBRARY.claim);
        text::claims(&mut request, &asked, proposal, |own| format!("tenure:{}", own.claim.resource));
        self.call(&request);
    }

    /// Asks the same for some claims, each by its key and its id.
    fn batch(&mut self, script: &'static Script, mut words: impl FnMut(&mut Self, &Own) -> Vec<String>) {
        let mut request = Request::new(script);
        for _ in 0..self.random.usize(1..4) {
            let Some(own) = self.any() else { return };
            let words = words(self, &own);
            request.ask(format!("tenure:{}", own.claim.resource), own.claim.id, words);
        }
        self.call(&request);
    }

    fn stamp(&mut self) {
        self.batch(&LIBRARY.stamp, |this, _| {
            let now = this.now.as_micros() as u64;
            vec![(now - 2_000_000 + this.random.u64(0..4_000_000)).to_string()]
        });
    }

    fn renew(&mut self) {
        let mut request = Request::new(&LIBRARY.renew);
        for _ in 0..self.random.usize(1..4) {
            let Some(own) = self.any() else { return };
            request.ask_alike(format!("tenure:{}", own.claim.resource), own.claim.id);
        }
        self.call(&request);
    }

    fn release(&mut self) {
        self.batch(&LIBRARY.release, |this, own| {
            let (is_unused, is_finished) = (this.random.bool(), this.random.u8(..3) == 0);
            let endings = [
                Ending::Released { is_unused, is_finished },
                Ending::Released { is_unused, is_finished },
                Ending::GivenBack,
                Ending::Cancelled,
                Ending::WaitsNoMore,
            ];
            let ending = endings[this.random.usize(..endings.len())];
            vec![text::ending(Some(own), ending)]
        });
    }

    /// Draws since when periods count, in ms: a call may come late, and clients know clocks only so well.
    fn since(&mut self) -> String {
        (self.now.as_millis() as u64 + 200 - self.random.u64(..6_200)).to_string()
    }

    fn publish(&mut self) {
        let Some(own) = self.any() else { return };
        let [fresh, keep] = match self.random.u8(..3) {
            0 => [String::new(), String::new()],
            1 => ["0".to_owned(), "0".to_owned()],
            _ => [self.random.u64(..3000).to_string(), self.random.u64(3000..6000).to_string()],
        };
        let request = Request::new(&LIBRARY.publish).key(format!("tenure:{}", own.claim.resource));
        let (token, since) = (self.now.as_micros().to_string(), self.since());
        self.call(
            &request.arg(own.claim.id.to_string()).arg(token).arg(fresh).arg(keep).arg("value").arg(since),
        );
    }

    fn mend(&mut self) {
        let since = self.since();
        let (key, token) = (self.key(), self.now.as_micros() as u64 - self.random.u64(..1_000_000));
        let request = Request::new(&LIBRARY.mend).key(key).arg(token.to_string());
        self.call(&request.arg("1000").arg("5000").arg("mended").arg(since));
    }

    fn break_hold(&mut self) {
        let Some(own) = self.any() else { return };
        let request = Request::new(&LIBRARY.break_hold).key(format!("tenure:{}", own.claim.resource));
        let at_once = self.random.u8(..2).to_string();
        self.call(&request.arg(own.claim.id.to_string()).arg(at_once));
    }

    fn look(&mut self) {
        self.call(&Request::new(&LIBRARY.look).key("tenure:r0").key("tenure:r1"));
    }

    fn observe(&mut self) {
        let key = self.key();
        self.call(&Request::new(&LIBRARY.observe).key(key).arg("30000"));
    }

    /// A key goes by itself, or is a stranger's.
    fn lose_a_key(&mut self) {
        let names: Vec<Vec<u8>> = self.keys.keys.keys().cloned().collect();
        let Some(name) = self.random.choice(&names).cloned() else { return };
        self.keys.keys.remove(&name);
        redis::cmd("DEL").arg(&name).query::<Value>(self.connection).expect("an answer");
        if self.random.bool() {
            let key = Key { data: Data::Text(b"a stranger's".to_vec()), ends: None };
            self.keys.keys.insert(name.clone(), key);
            redis::cmd("SET")
                .arg(&name)
                .arg("a stranger's")
                .query::<Value>(self.connection)
                .expect("an answer");
        }
    }

    fn boot(&mut self) {
        if self.random.u8(..3) == 0 {
            self.incarnation = Incarnation(self.random.u64(2..1 << 40));
        }
        self.call(&Request::new(&LIBRARY.mark));
        self.call(&Request::new(&LIBRARY.settle).arg("1500"));
        let (top, is_told) =
            (self.now.as_micros() as u64 - self.random.u64(..9_000_000), self.random.u8(..2));
        let request = Request::new(&LIBRARY.admit).arg(top.to_string()).arg(LONGEST.to_string());
        self.call(&request.arg(is_told.to_string()));
    }
}

fn kind(random: &mut fastrand::Rng) -> Kind {
    [Kind::Mutex, Kind::Mutex, Kind::RwLock, Kind::SlotPool][random.usize(..4)]
}

fn shown(cmd: &Cmd) -> String {
    String::from_utf8_lossy(&cmd.get_packed_command()).replace("\r\n", " ")
}

/// A key as the real server shows it.
fn as_key(kind: &str, ends: i64, words: Vec<Vec<u8>>) -> Key {
    let pairs = || words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    let score = |score: Vec<u8>| String::from_utf8_lossy(&score).parse().expect("a number");
    let data = match kind {
        "string" => Data::Text(words[0].clone()),
        "hash" => Data::Hash(pairs().collect()),
        _ => Data::Sorted(pairs().map(|(member, at)| (member, score(at))).collect()),
    };
    Key { data, ends: u64::try_from(ends).ok() }
}

#[test]
fn the_simulated_servers_do_what_real_ones_do() {
    let server = RedisServer::start(RedisOptions::default().clock());
    server.clock().freeze(EPOCH);
    let client = redis::Client::open(server.url()).expect("a URL");
    let mut connection = client.get_connection().expect("a server");
    LIBRARY.load().query::<Value>(&mut connection).expect("the library is loaded");
    let mut now = EPOCH;
    for seed in seeds(8) {
        println!("seed {seed}");
        redis::cmd("FLUSHALL").query::<Value>(&mut connection).expect("an answer");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair {
            server: &server,
            connection: &mut connection,
            keys: Keys::default(),
            now,
            kind: kind(&mut random),
            random,
            incarnation: Incarnation(7),
            claims: Vec::new(),
            log: Vec::new(),
        };
        let request = Request::new(&LIBRARY.admit).arg("0").arg(LONGEST.to_string()).arg("1");
        pair.call(&request);
        (0..CALLS).for_each(|_| pair.turn());
        now = pair.now;
    }
}
