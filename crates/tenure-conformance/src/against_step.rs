//! An engine against [`step`]: the same random commands at the same times must be answered alike, whichever of its ways answers them.
//!
//! The store's clock stands still and is moved by the test, so that every end and every token is exact.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::engine::{
    ClaimAnswer, Connect, DynEngine, Incarnation, ReleaseRequest, RenewRequest, claim_answer, renew_answer,
};
use tenure_core::model::claim::{
    CAPACITY_MAX, Claim, ClaimId, ClientId, HoldLimits, Keep, Kind, Label, Name, Terms,
};
use tenure_core::model::inspect::inspect;
use tenure_core::model::record::{PlainRecord, Record};
use tenure_core::model::step::{
    Break, Command, Publish, Release, ReleaseAnswer, Renew, Renewed, Resize, WAITER_LIFE_MAX, step,
};
use tenure_core::model::token::Token;
use tenure_core::testing::random::{more, seeds};
use tenure_core::{ErrorKind, Result};

/// Where all tests of time begin.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);
/// How many resources a seed has, and how many turns they take together.
const RESOURCES: usize = 3;
const TURNS: usize = 120;
const SEEDS: u32 = 4;
/// How often is repeated what is not answered in time.
const REPEATS_MAX: usize = 10;

/// One resource on a real server, and its record beside it.
struct Pair<'a> {
    engine: &'a Arc<dyn DynEngine>,
    differences: Differences,
    name: Name,
    record: PlainRecord,
    now: Timestamp,
    random: fastrand::Rng,
    shape: (Kind, u32),
    claims: Vec<Claim>,
    log: Vec<String>,
}

/// An answer as a text without what differs by design: which life of the server it is from, and up to which token a waiter need not ask.
fn shown(answer: &impl Debug) -> String {
    let mut text = format!("{answer:?}");
    for what in ["Incarnation(", "horizon: Token("] {
        while let Some(at) = text.find(what) {
            let end = text[at..].find(')').map_or(text.len(), |end| at + end + 1);
            text.replace_range(at..end, "_");
        }
    }
    text
}

impl<'a> Pair<'a> {
    fn new(
        engine: &'a Arc<dyn DynEngine>,
        differences: Differences,
        name: &str,
        mut random: fastrand::Rng,
    ) -> Pair<'a> {
        let (name, shape) = (Name::new(name).expect("a name"), shape(&mut random));
        let (record, claims, log) = (PlainRecord::default(), Vec::new(), Vec::new());
        Pair { engine, differences, name, record, now: Timestamp::default(), random, shape, claims, log }
    }

    async fn turn(&mut self) {
        match self.random.u8(0..100) {
            0..40 => self.claim().await,
            40..62 => self.renew().await,
            62..85 => self.release().await,
            85..90 => self.publish().await,
            90..94 => self.break_hold().await,
            94..96 => self.resize().await,
            _ => self.shape = shape(&mut self.random),
        }
        self.look().await;
    }

    async fn look(&self) {
        let expected = inspect(&self.name, &self.record, self.now).unwrap_or_else(|never| match never {});
        let got = self.engine.view(self.name.clone()).await.expect("an answer");
        self.compare(&expected, &got);
    }

    /// Returns what `step` answers.
    fn expect<C: Command<Answer: Debug> + Debug>(&mut self, command: &C) -> C::Answer {
        let transition = step(&mut self.record, command, self.now).unwrap_or_else(|never| match never {});
        self.log.push(format!("{:?}: {command:?} -> {:?}", self.now, transition.answer));
        transition.answer
    }

    fn compare(&self, expected: &impl Debug, got: &impl Debug) {
        let tail = &self.log[self.log.len().saturating_sub(40)..];
        assert_eq!(shown(got), shown(expected), "the answer is another than that of step:\n{tail:#?}");
    }

    fn terms(&mut self) -> Terms {
        let ((kind, capacity), random) = (self.shape, &mut self.random);
        let weight = match kind {
            Kind::RwLock if random.bool() => CAPACITY_MAX,
            Kind::Semaphore => random.u32(1..=capacity + 1),
            _ => 1,
        };
        let is_plain = random.u8(0..4) > 0;
        let mut some = |most: u64| {
            let is_set = !is_plain && random.u8(0..3) == 0;
            Duration::from_millis(if is_set { random.u64(100..most) } else { 0 })
        };
        let limits = HoldLimits {
            max_hold: Some(some(4000)).filter(|period| !period.is_zero()),
            min_hold: some(3000),
            lock_delay: some(3000),
        };
        let label = Label::new("host", 17, "program", &format!("text {}", random.u32(..)));
        let ttl = Duration::from_millis(random.u64(100..8000));
        Terms { kind, capacity, weight, ttl, limits, label, unless_fresh: random.u8(0..20) == 0 }
    }

    fn any_or_new_claim(&mut self) -> Claim {
        if !self.claims.is_empty() && self.random.u8(0..5) == 0 {
            return self.random.choice(&self.claims).expect("one").clone();
        }
        let (terms, random) = (self.terms(), &mut self.random);
        let above = match random.u8(0..10) {
            0 => Some(random.u64(0..7_200_000_000)),
            1 => Some(random.u64(0..10)),
            _ => None,
        };
        let floor = above.map_or(Token::ZERO, |above| Token::new(self.now.micros() - 3_000_000_000 + above));
        let claim = Claim {
            resource: self.name.clone(),
            id: ClaimId::new(random.u128(..)),
            client: ClientId::new(random.u64(1..4)),
            terms: Arc::new(terms),
            wait: random.bool(),
            floor,
            floor_forced: random.u8(0..8) == 0,
            may_be_known: false,
        };
        self.claims.push(claim.clone());
        claim
    }

    fn any_claim(&mut self) -> ClaimId {
        let recent = self.claims.len().saturating_sub(6);
        self.random.choice(&self.claims[recent..]).map_or(ClaimId::new(5), |claim| claim.id)
    }

    /// Some claims, and what they are to be answered.
    fn claims(&mut self) -> (Vec<Claim>, Vec<Result<ClaimAnswer>>) {
        let count = if self.random.u8(0..4) == 0 { self.random.usize(2..4) } else { 1 };
        let claims: Vec<Claim> = (0..count).map(|_| self.any_or_new_claim()).collect();
        let expected = claims.iter().map(|claim| claim_answer(claim, self.expect(claim), Incarnation(0)));
        let expected = expected.collect();
        (claims, expected)
    }

    async fn claim(&mut self) {
        let (claims, expected) = self.claims();
        let got = until_answered(claims, async |claims| self.engine.claim(claims).await).await;
        self.compare(&expected, &got);
    }

    async fn renew(&mut self) {
        let (claim, is_waiter) = (self.any_claim(), self.random.bool());
        let request = RenewRequest { resource: self.name.clone(), claim, is_waiter };
        let before = self.record.waiter_of(claim).unwrap_or_else(|never| match never {});
        let next = |record: &PlainRecord| {
            let Ok(hold) = record.next_hold_to_end();
            let Ok(waiter) = record.next_waiter_to_end();
            [hold.map(|hold| hold.expires_at), waiter.map(|waiter| waiter.expires_at)]
        };
        let has_none_ended = next(&self.record).into_iter().flatten().all(|end| end > self.now);
        let answer = self.expect(&Renew(claim));
        if let (Some(waiter), Renewed::Waiting(_)) = (before, &answer)
            && is_waiter
            && self.differences.spares_places
            && has_none_ended
            && waiter.expires_at.since(self.now) >= waiter.ttl.min(WAITER_LIFE_MAX) / 3 * 2
        {
            self.record.put_waiter(waiter).unwrap_or_else(|never| match never {});
        }
        let expected = vec![Ok::<_, tenure_core::Error>(renew_answer(&request, answer, Incarnation(0)))];
        let got = until_answered(vec![request], async |renewals| self.engine.renew(renewals).await).await;
        self.compare(&expected, &got);
    }

    /// Some releases, and what they are to be answered.
    fn releases(&mut self) -> (Vec<ReleaseRequest>, Vec<Result<ReleaseAnswer>>) {
        let count = if self.random.u8(0..4) == 0 { self.random.usize(2..4) } else { 1 };
        let mut releases = Vec::from_iter((0..count).map(|_| Release {
            claim: self.any_claim(),
            maybe_in_flight: self.random.u8(0..4) == 0,
            is_unused: self.random.u8(0..4) == 0,
        }));
        // A client has one release of a claim under way.
        releases.sort_by_key(|release| release.claim);
        releases.dedup_by_key(|release| release.claim);
        let expected = releases.iter().map(|release| Ok(self.expect(release))).collect();
        let request = |release: &Release| ReleaseRequest { resource: self.name.clone(), release: *release };
        (releases.iter().map(request).collect(), expected)
    }

    async fn release(&mut self) {
        let (releases, expected) = self.releases();
        let got = until_answered(releases, async |releases| self.engine.release(releases).await).await;
        self.compare(&expected, &got);
    }

    async fn publish(&mut self) {
        let (claim, bytes) = (self.any_claim(), Arc::from(self.random.u64(..).to_le_bytes()));
        let period = |random: &mut fastrand::Rng| Duration::from_millis(random.u64(0..3000));
        let keep = match self.random.bool() {
            true => Keep::WhileHeld,
            false => Keep::For { fresh: period(&mut self.random), stale: period(&mut self.random) },
        };
        let publish = Publish { claim, bytes, keep };
        let expected = Ok::<_, tenure_core::Error>(self.expect(&publish));
        let got = self.engine.publish(self.name.clone(), claim, publish.bytes, keep).await;
        self.compare(&expected, &got);
    }

    async fn break_hold(&mut self) {
        let view = inspect(&self.name, &self.record, self.now).unwrap_or_else(|never| match never {});
        let holds = view.map(|view| view.holds).unwrap_or_default();
        let token = self.random.choice(&holds).map_or(Token::new(9), |hold| hold.token);
        let at_once = self.random.bool();
        let expected = Ok::<_, tenure_core::Error>(self.expect(&Break { token, at_once }));
        let got = self.engine.break_hold(self.name.clone(), token, at_once).await;
        self.compare(&expected, &got);
    }

    async fn resize(&mut self) {
        let capacity = self.random.u32(1..6);
        let expected = self.expect(&Resize(capacity)).is_ok();
        let got = self.engine.resize(self.name.clone(), capacity).await.is_ok();
        self.compare(&expected, &got);
    }
}

fn shape(random: &mut fastrand::Rng) -> (Kind, u32) {
    match random.u8(0..8) {
        0 => (Kind::RwLock, CAPACITY_MAX),
        1 => (Kind::Semaphore, random.u32(1..6)),
        2 => (Kind::SlotPool, random.u32(1..6)),
        _ => (Kind::Mutex, 1),
    }
}

/// What an engine does by design that [`step`] does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Differences {
    /// A waiter's place is written anew only when a third of its life is over, if nothing else is to be written.
    pub spares_places: bool,
    /// Its tables are to be made those of the next version after half of the seeds.
    pub migrates: bool,
}

/// Compares an engine with [`step`] on a store whose clock is set by `set_clock`, to times since 1970.
///
/// # Panics
/// If an answer is another one.
pub fn compare(connect: Connect, set_clock: &dyn Fn(Duration), differences: Differences) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(compare_all(connect, set_clock, differences));
}

async fn compare_all(connect: Connect, set_clock: &dyn Fn(Duration), differences: Differences) {
    let engine = connect.open(ClientId::new(1)).await.expect("the server is there");
    let mut now = EPOCH;
    set_clock(now);
    let seeds = seeds(more(SEEDS / 2, SEEDS));
    let half = seeds.start + (seeds.end - seeds.start) / 2;
    for seed in seeds {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let pair = |number| Pair::new(&engine, differences, &format!("r{seed}/{number}"), random.fork());
        let mut pairs: Vec<Pair<'_>> = (0..RESOURCES).map(pair).collect();
        for turn in 0..TURNS {
            if random.bool() {
                now += Duration::from_millis(random.u64(1..1500));
                set_clock(now);
            }
            if differences.migrates && seed == half && turn == TURNS / 2 {
                engine.migrate().await.expect("nobody keeps the tables locked");
            }
            pairs.iter_mut().for_each(|pair| pair.now = Timestamp::from_micros(now.as_micros() as u64));
            match random.u8(0..100) {
                0..25 => claim(&engine, &mut pairs).await,
                25..40 => release(&engine, &mut pairs).await,
                _ => random.choice(&mut pairs).expect("some").turn().await,
            }
        }
    }
}

/// Asks, and repeats what is not answered in time: on a busy machine a renewal that needs a transaction takes longer than its call waits for it,
/// and its rows are locked for the next call meanwhile. To ask twice at one moment is to ask once.
async fn until_answered<R: Clone, A>(
    requests: Vec<R>,
    ask: impl AsyncFn(Vec<R>) -> Vec<Result<A>>,
) -> Vec<Result<A>> {
    let mut got = ask(requests.clone()).await;
    for _ in 0..REPEATS_MAX {
        let is_late =
            |answer: &Result<A>| answer.as_ref().is_err_and(|late| late.kind() == ErrorKind::Unavailable);
        let late: Vec<usize> = (0..got.len()).filter(|at| is_late(&got[*at])).collect();
        if late.is_empty() {
            break;
        }
        let again = ask(late.iter().map(|at| requests[*at].clone()).collect()).await;
        late.into_iter().zip(again).for_each(|(at, answer)| got[at] = answer);
    }
    got
}

/// Claims of all resources in one call.
async fn claim(engine: &Arc<dyn DynEngine>, pairs: &mut [Pair<'_>]) {
    let asked: Vec<_> = pairs.iter_mut().map(Pair::claims).collect();
    let claims = asked.iter().flat_map(|(claims, _)| claims.clone()).collect();
    let mut got = until_answered(claims, async |claims| engine.claim(claims).await).await.into_iter();
    for (pair, (_, expected)) in pairs.iter_mut().zip(asked) {
        pair.compare(&expected, &got.by_ref().take(expected.len()).collect::<Vec<_>>());
        pair.look().await;
    }
}

/// Releases of all resources in one call.
async fn release(engine: &Arc<dyn DynEngine>, pairs: &mut [Pair<'_>]) {
    let asked: Vec<_> = pairs.iter_mut().map(Pair::releases).collect();
    let requests = asked.iter().flat_map(|(requests, _)| requests.clone()).collect();
    let mut got = until_answered(requests, async |releases| engine.release(releases).await).await.into_iter();
    for (pair, (_, expected)) in pairs.iter_mut().zip(asked) {
        pair.compare(&expected, &got.by_ref().take(expected.len()).collect::<Vec<_>>());
        pair.look().await;
    }
}
