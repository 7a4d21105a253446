//! The model of a queue: what holds whatever is asked, and that nobody who waits is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{
    CONTEXT_BYTES_MAX, DEDUP_MEMORY, Dispatched, Interval, ItemContext, ItemId, ItemState, Push, Rules,
    Settle, SettleAnswer, Settlement, Take, Which,
};
use tenure_core::model::claim::{ClaimId, ClientId};
use tenure_core::model::queue::record::PlainQueue;
use tenure_core::model::queue::step;
use tenure_core::{ErrorKind, Label, Name, Token};

const TTL: Duration = Duration::from_millis(500);

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn rules(interval: Interval, attempts_max: u32) -> Arc<Rules> {
    Arc::new(Rules { ttl: TTL, interval, attempts_max, label: Label::new("here", 7, "model", "") })
}

fn push_of(group: u8, payload: u64, delay: Duration) -> Push {
    Push {
        queue: name("q"),
        group: (group > 0).then(|| name(&group.to_string())),
        payload: payload.to_be_bytes().as_slice().into(),
        delay,
        dedup: None,
        context: None,
    }
}

fn take_of(client: u64, claims: Vec<ClaimId>, rules: &Arc<Rules>) -> Take {
    Take { queue: name("q"), client: ClientId::new(client), claims, rules: rules.clone(), floor: Token::ZERO }
}

#[derive(Clone, Debug)]
enum Ask {
    Push {
        group: u8,
        delay: u64,
    },
    Take {
        most: usize,
    },
    /// Which of what was handed out, and how.
    Settle {
        which: usize,
        how: u8,
    },
    Renew {
        which: usize,
    },
    Replay,
    Purge {
        is_dead: bool,
    },
    Pass {
        millis: u64,
    },
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        4 => (0u8..4, prop_oneof![3 => Just(0), 1 => 1u64..900]).prop_map(|(group, delay)| Ask::Push { group, delay }),
        4 => (1usize..4).prop_map(|most| Ask::Take { most }),
        4 => (any::<prop::sample::Index>(), 0u8..6).prop_map(|(which, how)| Ask::Settle { which: which.index(64), how }),
        1 => any::<prop::sample::Index>().prop_map(|which| Ask::Renew { which: which.index(64) }),
        1 => Just(Ask::Replay),
        1 => any::<bool>().prop_map(|is_dead| Ask::Purge { is_dead }),
        3 => (1u64..700).prop_map(|millis| Ask::Pass { millis }),
    ]
}

fn interval() -> impl Strategy<Value = Interval> {
    prop_oneof![
        2 => Just(Interval::Off),
        1 => Just(Interval::Queue(Duration::from_millis(150))),
        1 => Just(Interval::Group(Duration::from_millis(800))),
    ]
}

/// An interval that many items in a row can keep within the life of an idle client.
fn brief_interval() -> impl Strategy<Value = Interval> {
    let period = Duration::from_millis(150);
    prop_oneof![Just(Interval::Off), Just(Interval::Queue(period)), Just(Interval::Group(period))]
}

/// What a check knows of a delivery.
struct Handed {
    item: Dispatched,
    ends_at: Timestamp,
}

/// A queue, and what must be true of it.
struct World {
    queue: PlainQueue,
    now: Timestamp,
    rules: Arc<Rules>,
    handed: Vec<Handed>,
    /// Items of each group that are neither done nor dead, in the order in which they must come.
    lines: BTreeMap<Option<Name>, Vec<ItemId>>,
    dead: BTreeSet<ItemId>,
    last_token: Token,
    last_dispatch: BTreeMap<Option<Name>, Timestamp>,
    next_claim: u128,
}

impl World {
    fn new(rules: Arc<Rules>) -> World {
        World {
            queue: PlainQueue::default(),
            now: Timestamp::from_micros(1_000_000_000),
            rules,
            handed: Vec::new(),
            lines: BTreeMap::new(),
            dead: BTreeSet::new(),
            last_token: Token::ZERO,
            last_dispatch: BTreeMap::new(),
            next_claim: 0,
        }
    }

    fn ask(&mut self, ask: &Ask) {
        match *ask {
            Ask::Push { group, delay } => {
                let push = push_of(group, 0, Duration::from_millis(delay));
                let Ok((pushed, _)) = step::push(&mut self.queue, &push, self.now);
                let line = self.lines.entry(push.group).or_default();
                assert!(line.last().is_none_or(|last| *last < pushed.item), "numbers grow");
                line.push(pushed.item);
            }
            Ask::Take { most } => self.take(most),
            Ask::Settle { which, how } => self.settle(which, how),
            Ask::Renew { which } => {
                let (now, count) = (self.now, self.handed.len().max(1));
                let Some(handed) = self.handed.get_mut(which % count) else { return };
                let Ok(renewed) = step::renew(&mut self.queue, handed.item.claim, now);
                assert_eq!(renewed.is_some(), handed.ends_at > now, "a renewal extends what has not ended");
                if let Some(ends_in) = renewed {
                    handed.ends_at = now + ends_in;
                }
            }
            Ask::Replay => {
                let Ok((count, _)) = step::replay(&mut self.queue, None, 64, self.now);
                assert_eq!(count, self.dead.len(), "all dead letters are replayed");
                self.dead.clear();
                // They have new numbers: the lines are read anew.
                let Ok(items) = step::items(&mut self.queue, Which::Live, None, 9999, self.now);
                self.lines.clear();
                for item in items {
                    self.lines.entry(item.group).or_default().push(item.item);
                }
            }
            Ask::Purge { is_dead: true } => {
                let Ok((count, _)) = step::purge(&mut self.queue, Which::Dead, None, 64, self.now);
                assert_eq!(count, self.dead.len(), "all dead letters are removed");
                self.dead.clear();
            }
            Ask::Purge { is_dead: false } => {
                let Ok(_) = step::purge(&mut self.queue, Which::Live, None, 1, self.now);
                let Ok(items) = step::items(&mut self.queue, Which::Live, None, 9999, self.now);
                let left: BTreeSet<ItemId> = items.iter().map(|item| item.item).collect();
                self.lines.values_mut().for_each(|line| line.retain(|item| left.contains(item)));
                for handed in self.handed.iter().filter(|handed| handed.ends_at > self.now) {
                    assert!(left.contains(&handed.item.item), "what is in flight stays");
                }
            }
            Ask::Pass { millis } => self.now = self.now + Duration::from_millis(millis),
        }
        self.look();
    }

    fn take(&mut self, most: usize) {
        let claims = (0..most as u128).map(|claim| ClaimId::new(self.next_claim + claim)).collect();
        self.next_claim += most as u128;
        let Ok((taken, _)) = step::take(&mut self.queue, &take_of(1, claims, &self.rules), self.now);
        self.note_buried();
        for item in taken.items {
            assert!(item.token > self.last_token, "tokens grow");
            self.last_token = item.token;
            let line = &self.lines[&item.group];
            let is_free = |other: &Handed| other.item.item != item.item || other.ends_at <= self.now;
            assert!(self.handed.iter().all(is_free), "an item is with two consumers");
            if item.group.is_some() {
                assert_eq!(line.first(), Some(&item.item), "out of order");
                let same = |other: &&Handed| other.item.group == item.group && other.ends_at > self.now;
                assert_eq!(self.handed.iter().filter(same).count(), 0, "two of a group at once");
            }
            let since = |last: Option<&Timestamp>| last.map(|last| self.now.since(*last));
            match self.rules.interval {
                Interval::Off => {}
                Interval::Queue(least) => {
                    let last = self.last_dispatch.values().max();
                    assert!(since(last).is_none_or(|passed| passed >= least), "an interval is undercut");
                }
                Interval::Group(least) if item.group.is_some() => {
                    let last = self.last_dispatch.get(&item.group);
                    assert!(since(last).is_none_or(|passed| passed >= least), "an interval is undercut");
                }
                Interval::Group(_) => {}
            }
            self.last_dispatch.insert(item.group.clone(), self.now);
            self.handed.push(Handed { ends_at: self.now + TTL, item });
        }
    }

    /// What a take has found worn out is dead.
    fn note_buried(&mut self) {
        let Ok(dead) = step::items(&mut self.queue, Which::Dead, None, 9999, self.now);
        for item in dead {
            if self.dead.insert(item.item) {
                let attempts = self.rules.attempts_max;
                assert!(attempts != 0 && item.attempts >= attempts, "it had its attempts");
                self.lines.values_mut().for_each(|line| line.retain(|other| *other != item.item));
            }
        }
    }

    fn settle(&mut self, which: usize, how: u8) {
        let count = self.handed.len().max(1);
        let Some(Handed { item, ends_at }) = self.handed.get(which % count) else { return };
        let (claim, item, is_over, attempt) = (item.claim, item.item, *ends_at <= self.now, item.attempt);
        let attempts_max = self.rules.attempts_max;
        let reason = "why".to_owned();
        let settlement = match how {
            0..=2 => Settlement::Ack,
            3 => Settlement::Retry { after: Duration::from_millis(200), attempts_max, reason },
            4 => Settlement::Fail { reason },
            _ => Settlement::Return,
        };
        let settle = Settle { queue: name("q"), claim, settlement };
        let Ok((answer, _)) = step::settle(&mut self.queue, settle.claim, &settle.settlement, self.now);
        self.handed.swap_remove(which % count);
        if is_over {
            assert_eq!(answer, SettleAnswer::Lost, "a settlement that came too late");
            return;
        }
        let is_last = matches!(settle.settlement, Settlement::Retry { .. })
            && attempts_max != 0
            && attempt >= attempts_max;
        assert_eq!(answer, if is_last { SettleAnswer::Buried } else { SettleAnswer::Settled });
        let is_gone = is_last || matches!(settle.settlement, Settlement::Ack | Settlement::Fail { .. });
        if is_gone {
            self.lines.values_mut().for_each(|line| line.retain(|other| *other != item));
        }
        if is_last || matches!(settle.settlement, Settlement::Fail { .. }) {
            self.dead.insert(item);
        }
    }

    /// Nothing is lost, and nothing is there twice.
    fn look(&mut self) {
        let Ok(items) = step::items(&mut self.queue, Which::Live, None, 9999, self.now);
        let mut lines: BTreeMap<Option<Name>, Vec<ItemId>> = BTreeMap::new();
        for item in &items {
            lines.entry(item.group.clone()).or_default().push(item.item);
        }
        self.lines.retain(|_, line| !line.is_empty());
        assert_eq!(lines, self.lines, "what is there");
        let Ok(stats) = step::stats(&mut self.queue, self.now);
        assert_eq!(stats.waiting + stats.in_flight, items.len() as u64, "the count of what is there");
        assert_eq!(stats.dead, self.dead.len() as u64, "the count of the dead");
        let in_flight = items.iter().filter(|item| matches!(item.state, ItemState::InFlight { .. })).count();
        let living = self.handed.iter().filter(|handed| handed.ends_at > self.now).count();
        assert_eq!(in_flight, living, "what is in flight");
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_or_early_or_out_of_order(
        asks in prop::collection::vec(ask(), 1..120),
        interval in interval(),
        attempts_max in prop_oneof![Just(0u32), Just(3)],
    ) {
        let mut world = World::new(rules(interval, attempts_max));
        for ask in &asks {
            world.ask(ask);
        }
    }

    /// Clients that look only when they are told, or at the time that they were told, get all that becomes ready.
    #[test]
    fn nobody_who_waits_is_forgotten(
        pushes in prop::collection::vec((0u8..4, prop_oneof![2 => Just(0u64), 1 => 1u64..900], 0u64..60), 1..25),
        interval in brief_interval(),
        clients in 1u64..5,
        appetite in 1usize..3,
        work in 0u64..120,
    ) {
        let served = serve(&pushes, interval, clients, appetite, work);
        prop_assert_eq!(served, pushes.len());
    }
}

/// Plays clients that never look by themselves, in virtual milliseconds, and counts what they acknowledged.
fn serve(pushes: &[(u8, u64, u64)], interval: Interval, clients: u64, appetite: usize, work: u64) -> usize {
    let rules = rules(interval, 0);
    let mut queue = PlainQueue::default();
    let (mut millis, mut next_push, mut next_claim, mut served) = (0u64, 0, 0u128, 0);
    // When each client looks next, and until when it works on what.
    let mut looks: BTreeMap<u64, u64> = (0..clients).map(|client| (client, 0)).collect();
    let mut busy: BTreeMap<u64, (u64, Vec<ClaimId>)> = BTreeMap::new();
    let mut push_at = pushes.iter().scan(0, |at, (_, _, gap)| {
        *at += gap;
        Some(*at)
    });
    let mut next_push_at = push_at.next();
    // Shorter than an idle client is taken to be there without looking.
    while millis < 14_000 && served < pushes.len() {
        let now = Timestamp::from_micros(1_000_000_000 + millis * 1000);
        let mut calls = Vec::new();
        while next_push_at.is_some_and(|at| at <= millis) {
            let (group, delay, _) = pushes[next_push];
            let push = push_of(group, next_push as u64, Duration::from_millis(delay));
            let Ok((_, called)) = step::push(&mut queue, &push, now);
            calls.extend(called);
            next_push += 1;
            next_push_at = push_at.next();
        }
        for client in 0..clients {
            if let Some((_, claims)) = busy.get(&client).filter(|(until, _)| *until <= millis).cloned() {
                busy.remove(&client);
                for claim in claims {
                    let Ok((answer, called)) = step::settle(&mut queue, claim, &Settlement::Ack, now);
                    assert_eq!(answer, SettleAnswer::Settled);
                    calls.extend(called);
                    served += 1;
                }
                looks.insert(client, millis);
            }
        }
        // Who is told looks now. One that works is not idle, and must not have been told.
        for client in calls.drain(..).map(ClientId::bits).collect::<Vec<_>>() {
            assert!(!busy.contains_key(&client), "a client that is not idle is told");
            looks.insert(client, millis);
        }
        while let Some((&client, _)) = looks.iter().find(|(_, at)| **at <= millis) {
            looks.remove(&client);
            let claims: Vec<ClaimId> =
                (0..appetite as u128).map(|claim| ClaimId::new(next_claim + claim)).collect();
            next_claim += appetite as u128;
            let Ok((taken, called)) = step::take(&mut queue, &take_of(client, claims, &rules), now);
            for client in called.into_iter().map(ClientId::bits) {
                looks.insert(client, millis);
            }
            if !taken.items.is_empty() {
                let claims = taken.items.iter().map(|item| item.claim).collect();
                busy.insert(client, (millis + work.min(TTL.as_millis() as u64 - 1), claims));
                if taken.look_in.is_some() || taken.items.len() < appetite {
                    // It works now, and wants nothing.
                    let Ok((_, called)) = step::take(&mut queue, &take_of(client, Vec::new(), &rules), now);
                    for client in called.into_iter().map(ClientId::bits) {
                        looks.insert(client, millis);
                    }
                }
            } else if let Some(look_in) = taken.look_in {
                looks.insert(client, millis + (look_in.as_millis() as u64).max(1));
            }
        }
        millis += 1;
    }
    served
}

#[test]
fn a_dedup_id_is_remembered_while_its_item_is_there_and_for_its_time() {
    let mut queue = PlainQueue::default();
    let start = Timestamp::from_micros(1_000_000_000);
    let push = Push { dedup: Some(name("id")), ..push_of(1, 1, Duration::ZERO) };
    let rules = rules(Interval::Off, 0);
    let Ok((first, _)) = step::push(&mut queue, &push, start);
    let later = start + DEDUP_MEMORY * 3;
    let Ok((again, _)) = step::push(&mut queue, &push, later);
    assert_eq!((again.item, again.is_duplicate), (first.item, true), "its item is there");
    let claim = ClaimId::new(1);
    let Ok((taken, _)) = step::take(&mut queue, &take_of(1, vec![claim], &rules), later);
    assert_eq!(taken.items.len(), 1);
    let Ok((_, _)) = step::settle(&mut queue, claim, &Settlement::Ack, later);
    let Ok((again, _)) = step::push(&mut queue, &push, later + DEDUP_MEMORY / 2);
    assert!(again.is_duplicate, "an id is remembered after its item is done");
    let end = later + DEDUP_MEMORY * 2;
    let Ok((again, _)) = step::push(&mut queue, &push, end);
    assert!(!again.is_duplicate, "its time is over");
}

#[test]
fn an_interval_longer_than_the_ttl_is_kept_when_a_consumer_dies() {
    let mut queue = PlainQueue::default();
    let start = Timestamp::from_micros(1_000_000_000);
    let least = TTL * 10;
    let rules = rules(Interval::Group(least), 0);
    let Ok(_) = step::push(&mut queue, &push_of(1, 1, Duration::ZERO), start);
    let take = |queue: &mut PlainQueue, claim, now| {
        let Ok((taken, _)) = step::take(queue, &take_of(1, vec![ClaimId::new(claim)], &rules), now);
        taken
    };
    assert_eq!(take(&mut queue, 1, start).items.len(), 1);
    let ended = take(&mut queue, 2, start + TTL * 2);
    assert_eq!(ended.items.len(), 0, "the delivery has ended, the interval has not");
    assert_eq!(ended.look_in, Some(least - TTL * 2), "the client looks again when it has");
    assert_eq!(take(&mut queue, 3, start + least).items.len(), 1);
}

#[test]
fn a_queue_that_is_empty_leaves_nothing() {
    let mut queue = PlainQueue::default();
    let mut now = Timestamp::from_micros(1_000_000_000);
    let rules = rules(Interval::Group(TTL), 0);
    for group in 0..3 {
        let Ok(_) = step::push(&mut queue, &push_of(group, 1, Duration::ZERO), now);
    }
    let claims: Vec<ClaimId> = (0..3).map(ClaimId::new).collect();
    let Ok((taken, _)) = step::take(&mut queue, &take_of(1, claims, &rules), now);
    for item in taken.items {
        let Ok(_) = step::settle(&mut queue, item.claim, &Settlement::Ack, now);
    }
    assert!(!queue.is_idle(), "groups rest");
    now = now + TTL;
    let Ok(_) = step::take(&mut queue, &take_of(1, Vec::new(), &rules), now);
    assert!(queue.is_idle(), "{queue:?}");
}

#[test]
fn what_is_no_context_is_refused_before_anything_is_pushed() {
    // page: docs/primitives/queue.md "what travels with the item, up to 128"
    let longest = "x".repeat(CONTEXT_BYTES_MAX);
    assert_eq!(ItemContext::new(&longest).expect("128 bytes").as_str(), longest);
    let tenure = pollster::block_on(tenure_core::memory::connect("contexts")).expect("it connects");
    let queue = tenure.queue("q");
    for (context, why) in [
        (format!("{longest}x").as_str(), "the context has 129 bytes, 128 are allowed"),
        ("", "the context is empty"),
        ("two\nlines", "not printable ASCII"),
        ("\u{7f}", "not printable ASCII"),
        ("ä", "not printable ASCII"),
    ] {
        let text = context.to_owned();
        let pushes = [queue.push("x").context(context), queue.push("x").context_with(|| Some(text))];
        for push in pushes {
            let error = pollster::block_on(push.into_future()).expect_err("it is none");
            assert_eq!((error.kind(), error.resource()), (ErrorKind::Invalid, Some(&name("q"))));
            assert!(error.to_string().contains(why) && error.hint().is_some(), "{error}");
        }
        assert_eq!(ItemContext::from_stored(context.as_bytes()), None);
    }
    assert!(pollster::block_on(queue.is_empty()).expect("an answer"));
}
