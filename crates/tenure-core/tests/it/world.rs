//! A small world in which claims collide: random moves, and the one resource on which they are made.
//!
//! A move is symbolic ("the second hold", "a microsecond before the third thing that will happen") and is
//! given its numbers when it is made. So a shrunk sequence still means what it meant, many moves fall exactly
//! on a boundary or beside it, and few claims fail for a boring reason such as a capacity that was resized.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{
    CAPACITY_MAX, Claim, ClaimId, ClientId, HoldLimits, Keep, Kind, Label, Name, Terms,
};
use tenure_core::model::record::{Hold, PlainRecord, Record, Waiter};
use tenure_core::model::step::{
    Break, BreakAnswer, Claimed, Command, Publish, Refusal, Release, ReleaseAnswer, Renew, Renewed, Resize,
    Settle, Transition, Vanish, Withdraw, WithdrawAnswer, step,
};
use tenure_core::model::token::Token;

use crate::oracle::{Answer, Oracle};

pub(crate) const CLIENTS: u64 = 4;
pub(crate) const CLAIMS: u64 = 8;
pub(crate) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

const HOUR: Duration = Duration::from_secs(3600);

/// Time passes, then something is done.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) pause: Pause,
    pub(crate) act: Act,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Pause {
    None,
    Micros(u64),
    /// Until the nth of the moments at which something ends by itself, give or take a microsecond.
    Moment {
        nth: usize,
        give_or_take: i64,
    },
    /// The store's clock is set back.
    Back(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Claim(Ask),
    Renew(u64),
    Release {
        claim: u64,
        maybe_in_flight: bool,
        is_unused: bool,
    },
    /// `is_own`: by the client that made the claim first.
    Withdraw {
        claim: u64,
        is_own: bool,
    },
    Publish {
        claim: u64,
        keep: Keep,
    },
    /// The nth hold or rest, or a token that nothing has.
    Break {
        nth: usize,
        at_once: bool,
    },
    Resize(u32),
    Vanish(u64),
    Settle,
}

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) claim: u64,
    /// `None`: whatever the resource is now.
    pub(crate) shape: Option<(Kind, u32)>,
    pub(crate) weight: u32,
    pub(crate) ttl: Duration,
    pub(crate) limits: HoldLimits,
    pub(crate) wait: bool,
    pub(crate) unless_fresh: bool,
    pub(crate) floor: Floor,
    /// By the last client, whichever it was before: as a user whose request went to another server this time.
    pub(crate) comes_back: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Floor {
    Zero,
    /// The last token and this many more.
    Last(u64),
    /// An hour ahead, give or take a microsecond, and whether an operator insists.
    HourAhead(i64, bool),
}

/// One resource, the oracle's idea of it, and the time.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) record: PlainRecord,
    pub(crate) oracle: Oracle,
    pub(crate) now: Timestamp,
    shape: (Kind, u32),
}

/// Any command.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Claim(Claim),
    Renew(Renew),
    Release(Release),
    Withdraw(Withdraw),
    Publish(Publish),
    Break(Break),
    Resize(Resize),
    Vanish(Vanish),
    Settle,
}

/// What any command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Claim(Result<Claimed, Refusal>),
    Renew(Renewed),
    Release(ReleaseAnswer),
    Withdraw(WithdrawAnswer),
    Publish(bool),
    Break(BreakAnswer),
    Resize(Result<(), &'static str>),
    Vanish,
    Settle,
}

impl Order {
    /// Carries it out.
    pub(crate) fn run<R: Record>(
        &self,
        record: &mut R,
        now: Timestamp,
    ) -> Result<Transition<Outcome>, R::Error> {
        Ok(match self {
            Order::Claim(claim) => with(step(record, claim, now)?, Outcome::Claim),
            Order::Renew(renew) => with(step(record, renew, now)?, Outcome::Renew),
            Order::Release(release) => with(step(record, release, now)?, Outcome::Release),
            Order::Withdraw(withdraw) => with(step(record, withdraw, now)?, Outcome::Withdraw),
            Order::Publish(publish) => with(step(record, publish, now)?, Outcome::Publish),
            Order::Break(hold) => with(step(record, hold, now)?, Outcome::Break),
            Order::Resize(resize) => with(step(record, resize, now)?, Outcome::Resize),
            Order::Vanish(vanish) => with(step(record, vanish, now)?, |()| Outcome::Vanish),
            Order::Settle => with(step(record, &Settle, now)?, |()| Outcome::Settle),
        })
    }

    /// The claim that it is about.
    pub(crate) fn claim(&self) -> Option<ClaimId> {
        match self {
            Order::Claim(claim) => claim.claim(),
            Order::Renew(renew) => renew.claim(),
            Order::Release(release) => release.claim(),
            Order::Withdraw(withdraw) => withdraw.claim(),
            Order::Publish(publish) => publish.claim(),
            _ => None,
        }
    }

    /// The token that it is about.
    pub(crate) fn token(&self) -> Option<Token> {
        if let Order::Break(hold) = self { hold.token() } else { None }
    }
}

fn with<A>(transition: Transition<A>, outcome: impl FnOnce(A) -> Outcome) -> Transition<Outcome> {
    let Transition { answer, wakes, moved_up } = transition;
    Transition { answer: outcome(answer), wakes, moved_up }
}

/// What happened in one move.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) before: PlainRecord,
    pub(crate) order: Order,
    pub(crate) now: Timestamp,
    pub(crate) transition: Transition<Outcome>,
    pub(crate) answer: Answer,
}

impl World {
    pub(crate) fn new(kind: Kind, capacity: u32) -> World {
        World {
            record: PlainRecord::default(),
            oracle: Oracle::default(),
            now: START,
            shape: (kind, capacity),
        }
    }

    /// Makes a move, in the record and in the oracle.
    pub(crate) fn play(&mut self, next: &Move) -> Scene {
        self.now = self.after(next.pause);
        let order = self.order(&next.act);
        self.give(order)
    }

    /// Gives an order at the present time.
    pub(crate) fn give(&mut self, order: Order) -> Scene {
        let before = self.record.clone();
        let Ok(transition) = order.run(&mut self.record, self.now);
        let answer = self.oracle.apply(&order, self.now);
        Scene { before, order, now: self.now, transition, answer }
    }

    pub(crate) fn after(&self, pause: Pause) -> Timestamp {
        match pause {
            Pause::None => self.now,
            Pause::Micros(micros) => self.now + Duration::from_micros(micros),
            Pause::Back(micros) => Timestamp::from_micros(self.now.micros() - micros),
            Pause::Moment { nth, give_or_take } => {
                let mut moments: Vec<u64> = self.oracle.moments().iter().map(|at| at.micros()).collect();
                moments.retain(|at| *at > self.now.micros());
                moments.sort_unstable();
                moments.dedup();
                let Some(at) = moments.get(nth % moments.len().max(1)) else { return self.now };
                Timestamp::from_micros(at.saturating_add_signed(give_or_take).max(self.now.micros()))
            }
        }
    }

    /// Gives a move its numbers.
    pub(crate) fn order(&self, act: &Act) -> Order {
        match act.clone() {
            Act::Claim(ask) => Order::Claim(self.claim(&ask)),
            Act::Renew(claim) => Order::Renew(Renew(id(claim))),
            Act::Release { claim, maybe_in_flight, is_unused } => {
                Order::Release(Release { claim: id(claim), maybe_in_flight, is_unused })
            }
            Act::Withdraw { claim, is_own } => {
                let client = if is_own { client_of(claim) } else { ClientId::new(CLIENTS - 1) };
                Order::Withdraw(Withdraw { claim: id(claim), client })
            }
            Act::Publish { claim, keep } => {
                let bytes = claim.to_le_bytes().as_slice().into();
                Order::Publish(Publish { claim: id(claim), bytes, keep })
            }
            Act::Break { nth, at_once } => {
                let held = holds(&self.record);
                let token = held.get(nth).map_or(Token::new(nth as u64), |hold| hold.token);
                Order::Break(Break { token, at_once })
            }
            Act::Resize(capacity) => Order::Resize(Resize(capacity)),
            Act::Vanish(client) => Order::Vanish(Vanish(ClientId::new(client))),
            Act::Settle => Order::Settle,
        }
    }

    fn claim(&self, ask: &Ask) -> Claim {
        let (kind, capacity) = ask.shape.or(self.oracle.shape).unwrap_or(self.shape);
        let (floor, floor_forced) = match ask.floor {
            Floor::Zero => (0, false),
            Floor::Last(more) => (self.oracle.last_token.get() + more, false),
            Floor::HourAhead(more, forced) => {
                ((self.now + HOUR).micros().saturating_add_signed(more), forced)
            }
        };
        Claim {
            resource: name(),
            id: id(ask.claim),
            client: if ask.comes_back { ClientId::new(CLIENTS - 1) } else { client_of(ask.claim) },
            terms: Arc::new(Terms {
                kind,
                capacity,
                weight: ask.weight,
                ttl: ask.ttl,
                limits: ask.limits,
                label: Label::from_stored(&format!("host/{}/program", ask.claim)),
                unless_fresh: ask.unless_fresh,
            }),
            wait: ask.wait,
            floor: Token::new(floor),
            floor_forced,
            may_be_known: false,
        }
    }
}

pub(crate) fn name() -> Name {
    Name::new("billing").expect("a short name")
}

pub(crate) fn id(claim: u64) -> ClaimId {
    ClaimId::new(u128::from(claim))
}

/// A claim's copies come from one client, but for those that come back.
pub(crate) fn client_of(claim: u64) -> ClientId {
    ClientId::new(claim % CLIENTS)
}

pub(crate) fn holds(record: &PlainRecord) -> Vec<Hold> {
    let Ok(holds) = record.holds(usize::MAX);
    holds
}

pub(crate) fn waiters(record: &PlainRecord) -> Vec<Waiter> {
    let Ok(waiters) = record.waiters(usize::MAX);
    waiters
}

pub(crate) fn last_token(record: &PlainRecord) -> Token {
    let Ok(head) = record.head();
    head.map_or(Token::ZERO, |head| head.last_token)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn ttl() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::from_millis(100)),
        Just(secs(3)),
        Just(secs(5)),
        Just(secs(8)),
        Just(secs(20)),
        Just(secs(30)),
    ]
}

fn limits() -> impl Strategy<Value = HoldLimits> {
    let max_hold = prop_oneof![4 => Just(None), 1 => Just(Some(secs(2))), 1 => Just(Some(secs(10)))];
    let min_hold = prop_oneof![4 => Just(secs(0)), 1 => Just(secs(4)), 1 => Just(secs(40))];
    let lock_delay = prop_oneof![4 => Just(secs(0)), 1 => Just(secs(2)), 1 => Just(secs(7))];
    (max_hold, min_hold, lock_delay).prop_map(|(max_hold, min_hold, lock_delay)| HoldLimits {
        max_hold,
        min_hold,
        lock_delay,
    })
}

pub(crate) fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Mutex), Just(Kind::RwLock), Just(Kind::Semaphore), Just(Kind::SlotPool)]
}

fn floor() -> impl Strategy<Value = Floor> {
    let far = Floor::HourAhead(10_000_000_000, true);
    prop_oneof![
        80 => Just(Floor::Zero),
        16 => (0..3_u64).prop_map(Floor::Last),
        1 => (-1..=1_i64, any::<bool>()).prop_map(|(more, forced)| Floor::HourAhead(more, forced)),
        1 => Just(far),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let shape = prop_oneof![19 => Just(None), 1 => (kind(), 0..=4_u32).prop_map(Some)];
    let weight = prop_oneof![8 => Just(1_u32), 3 => 2..=4_u32, 1 => Just(0_u32)];
    let flags = (prop::bool::weighted(0.75), prop::bool::weighted(0.15), prop::bool::weighted(0.1));
    (0..CLAIMS, shape, weight, ttl(), limits(), flags, floor()).prop_map(
        |(claim, shape, weight, ttl, limits, (wait, unless_fresh, comes_back), floor)| Ask {
            comes_back,
            claim,
            shape,
            weight,
            ttl,
            limits,
            wait,
            unless_fresh,
            floor,
        },
    )
}

fn keep() -> impl Strategy<Value = Keep> {
    let lasting = (0..=4_u64, 0..=4_u64)
        .prop_map(|(fresh, stale)| Keep::For { fresh: secs(3 * fresh), stale: secs(5 * stale) });
    prop_oneof![1 => Just(Keep::WhileHeld), 2 => lasting]
}

pub(crate) fn act() -> impl Strategy<Value = Act> {
    let release = (0..CLAIMS, any::<bool>(), prop::bool::weighted(0.3))
        .prop_map(|(claim, maybe_in_flight, is_unused)| Act::Release { claim, maybe_in_flight, is_unused });
    prop_oneof![
        24 => ask().prop_map(Act::Claim),
        12 => (0..CLAIMS).prop_map(Act::Renew),
        12 => release,
        6 => (0..CLAIMS, prop::bool::weighted(0.7))
            .prop_map(|(claim, is_own)| Act::Withdraw { claim, is_own }),
        4 => (0..CLAIMS, keep()).prop_map(|(claim, keep)| Act::Publish { claim, keep }),
        2 => (0..5_usize, any::<bool>()).prop_map(|(nth, at_once)| Act::Break { nth, at_once }),
        2 => (0..=5_u32).prop_map(Act::Resize),
        2 => (0..CLIENTS).prop_map(Act::Vanish),
        2 => Just(Act::Settle),
    ]
}

fn pause() -> impl Strategy<Value = Pause> {
    // Nearly half fall on a boundary or beside it.
    prop_oneof![
        8 => Just(Pause::None),
        4 => (1..4_u64).prop_map(Pause::Micros),
        4 => (1..4_000_000_u64).prop_map(Pause::Micros),
        1 => (1..70_000_000_u64).prop_map(Pause::Micros),
        12 => (0..12_usize, -1..=1_i64).prop_map(|(nth, give_or_take)| Pause::Moment { nth, give_or_take }),
    ]
}

/// Up to `most` moves of well-behaved clients, and a clock that never goes back.
pub(crate) fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    let one = (pause(), act()).prop_map(|(pause, act)| Move { pause, act });
    prop::collection::vec(one, 1..most)
}

/// As [`moves`], but now and then the clock is set back or a hold ends in the moment in which it is granted.
pub(crate) fn wild_moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    let back = (1..20_000_000_u64).prop_map(Pause::Back);
    let pause = prop_oneof![30 => pause(), 1 => back];
    let lifeless = prop_oneof![20 => Just(None), 1 => Just(Some(true)), 1 => Just(Some(false))];
    let one = (pause, act(), lifeless).prop_map(|(pause, mut act, lifeless)| {
        if let (Act::Claim(ask), Some(is_ttl)) = (&mut act, lifeless) {
            if is_ttl {
                ask.ttl = Duration::ZERO;
            } else {
                ask.limits.max_hold = Some(Duration::ZERO);
            }
        }
        Move { pause, act }
    });
    prop::collection::vec(one, 1..most)
}

/// As [`moves`], but nobody waits and the capacity stays: each grant shows which of the free slots was chosen.
pub(crate) fn pool_moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    let act = act().prop_map(|act| match act {
        Act::Claim(ask) => Act::Claim(Ask { shape: None, wait: false, weight: 1, ..ask }),
        Act::Resize(_) => Act::Settle,
        other => other,
    });
    let one = (pause(), act).prop_map(|(pause, act)| Move { pause, act });
    prop::collection::vec(one, 1..most)
}

/// Anything at any time, with a liking for the ends of each range.
pub(crate) fn commands(most: usize) -> impl Strategy<Value = Vec<(Order, Timestamp)>> {
    let now = extreme_u64().prop_map(Timestamp::from_micros);
    prop::collection::vec((garbage(), now), 1..most)
}

fn extreme_u64() -> impl Strategy<Value = u64> {
    let near_the_ends = prop_oneof![0..3_u64, (0..3_u64).prop_map(|less| u64::MAX - less)];
    prop_oneof![2 => near_the_ends, 1 => any::<u64>(), 4 => (0..3_u64).prop_map(|more| START.micros() + more)]
}

fn extreme_u32() -> impl Strategy<Value = u32> {
    prop_oneof![0..5_u32, (0..3_u32).prop_map(|less| u32::MAX - less), any::<u32>(), Just(CAPACITY_MAX)]
}

fn extreme_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        Just(Duration::MAX),
        extreme_u64().prop_map(Duration::from_micros),
        (0..70_u64).prop_map(secs),
    ]
}

fn garbage() -> impl Strategy<Value = Order> {
    let keep = (extreme_duration(), extreme_duration()).prop_map(|(fresh, stale)| Keep::For { fresh, stale });
    let publish = (0..CLAIMS, prop_oneof![Just(Keep::WhileHeld), keep])
        .prop_map(|(claim, keep)| Order::Publish(Publish { claim: id(claim), bytes: Arc::from([]), keep }));
    let release =
        (0..CLAIMS, any::<bool>(), any::<bool>()).prop_map(|(claim, maybe_in_flight, is_unused)| {
            Order::Release(Release { claim: id(claim), maybe_in_flight, is_unused })
        });
    let token = prop_oneof![extreme_u64(), (0..20_u64).prop_map(|more| START.micros() + more)];
    let other = prop_oneof![
        4 => (0..CLAIMS).prop_map(|claim| Order::Renew(Renew(id(claim)))),
        4 => release,
        2 => (0..CLAIMS, 0..CLIENTS).prop_map(|(claim, client)| {
            Order::Withdraw(Withdraw { claim: id(claim), client: ClientId::new(client) })
        }),
        2 => publish,
        2 => (token, any::<bool>())
            .prop_map(|(token, at_once)| Order::Break(Break { token: Token::new(token), at_once })),
        1 => extreme_u32().prop_map(|capacity| Order::Resize(Resize(capacity))),
        1 => (0..CLIENTS).prop_map(|client| Order::Vanish(Vanish(ClientId::new(client)))),
        1 => Just(Order::Settle),
    ];
    prop_oneof![1 => garbage_claim().prop_map(Order::Claim), 1 => other]
}

fn garbage_claim() -> impl Strategy<Value = Claim> {
    // One shape more often than the others, or nobody would ever wait.
    let shape = prop_oneof![
        4 => Just((Kind::SlotPool, 2)),
        2 => Just((Kind::Semaphore, u32::MAX)),
        1 => (kind(), extreme_u32()),
    ];
    let limits = (prop::option::of(extreme_duration()), extreme_duration(), extreme_duration())
        .prop_map(|(max_hold, min_hold, lock_delay)| HoldLimits { max_hold, min_hold, lock_delay });
    let weight = prop_oneof![2 => Just(1), 1 => extreme_u32()];
    let floor = prop_oneof![4 => Just(0), 1 => extreme_u64()];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (0..CLAIMS, shape, weight, extreme_duration(), limits, floor, flags).prop_map(
        |(claim, (kind, capacity), weight, ttl, limits, floor, (wait, unless_fresh, floor_forced))| {
            let label = Label::from_stored("");
            let terms = Terms { kind, capacity, weight, ttl, limits, label, unless_fresh };
            Claim {
                resource: name(),
                id: id(claim),
                client: client_of(claim),
                terms: Arc::new(terms),
                wait,
                floor: Token::new(floor),
                floor_forced,
                may_be_known: false,
            }
        },
    )
}

/// A kind, and a capacity that fits it.
pub(crate) fn shape() -> impl Strategy<Value = (Kind, u32)> {
    prop_oneof![
        Just((Kind::Mutex, 1)),
        (1..=4_u32).prop_map(|capacity| (Kind::RwLock, capacity)),
        (1..=4_u32).prop_map(|capacity| (Kind::Semaphore, capacity)),
        (1..=4_u32).prop_map(|capacity| (Kind::SlotPool, capacity)),
    ]
}
