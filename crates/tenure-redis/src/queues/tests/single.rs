//! What chance seldom meets: many items, large ones, and some that were changed in the server.

use tenure_core::ErrorKind;
use tenure_core::engine::queue::{Dispatched, Taken};

use super::*;

/// One queue of a server with a frozen clock.
struct Bench<'a, 'b> {
    world: &'a mut World<'b>,
    rules: Arc<Rules>,
    claims: u128,
}

impl<'a, 'b> Bench<'a, 'b> {
    fn new(world: &'a mut World<'b>, attempts_max: u32) -> Bench<'a, 'b> {
        let (ttl, label) = (Duration::from_secs(1), Label::new("host", 1, "program", "text"));
        let rules = Arc::new(Rules { ttl, interval: Interval::Off, attempts_max, label });
        Bench { world, rules, claims: 0 }
    }

    /// Pushes items of one size.
    fn push(&mut self, group: Option<&str>, count: usize, size: usize) -> Vec<ItemId> {
        let push = Push {
            queue: Name::new("q").unwrap(),
            group: group.map(|group| Name::new(group).unwrap()),
            payload: vec![b'x'; size].into(),
            delay: Duration::ZERO,
            dedup: None,
            context: None,
        };
        let pushed = self.world.runtime.block_on(self.world.queues.push(vec![push; count]));
        pushed.into_iter().map(|pushed| pushed.unwrap().item).collect()
    }

    fn take_with(&mut self, counts: &[usize], floor: u64) -> Vec<tenure_core::Result<Taken>> {
        let takes = Vec::from_iter(counts.iter().map(|count| {
            let claims = (0..*count as u128).map(|at| ClaimId::new(self.claims + at)).collect();
            self.claims += *count as u128;
            let (queue, client) = (Name::new("q").unwrap(), ClientId::new(1));
            Take { queue, client, claims, rules: self.rules.clone(), floor: Token::new(floor) }
        }));
        self.world.runtime.block_on(self.world.queues.take(takes))
    }

    fn take(&mut self, count: usize) -> Taken {
        self.take_with(&[count], 0).remove(0).unwrap()
    }

    fn stats(&mut self) -> QueueStats {
        self.world.runtime.block_on(self.world.queues.stats(Name::new("q").unwrap())).unwrap()
    }

    fn views(&mut self, which: Which) -> Vec<tenure_core::engine::queue::ItemView> {
        let items = self.world.queues.items(Name::new("q").unwrap(), which, None, 99);
        self.world.runtime.block_on(items).unwrap()
    }

    fn settle(&mut self, claim: ClaimId) -> SettleAnswer {
        let settle = Settle { queue: Name::new("q").unwrap(), claim, settlement: Settlement::Ack };
        self.world.runtime.block_on(self.world.queues.settle(vec![settle])).remove(0).unwrap()
    }

    fn advance(&mut self, period: Duration) {
        self.world.server.clock().advance(period);
        self.world.now = self.world.now + period;
    }
}

fn key(letter: char) -> String {
    format!("tenure.1.{letter}:tenure:q")
}

/// Returns the rules without which a check passes all the same.
pub(super) fn missed(
    rules: &[(&'static str, &str, &str)],
    check: impl Fn(&mut World<'_>) + std::panic::RefUnwindSafe,
) -> Vec<&'static str> {
    let is_missed = |(_, old, new): &&(&str, &str, &str)| {
        world([old, new], true, |world| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(world))).is_ok()
        })
    };
    rules.iter().filter(is_missed).map(|(rule, ..)| *rule).collect()
}

#[test]
fn tokens_that_are_used_up_are_said_and_not_repeated() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world, 0);
        bench.push(None, 5, 1);
        let book = format!("{:016}{:016}{:016}", 1, (1_u64 << 53) - 3, 0);
        bench.world.server.command(&["SET", &key('b'), &book]);
        let taken = bench.take(4);
        let tokens = taken.items.iter().map(|item| item.token.get()).collect::<Vec<_>>();
        assert_eq!(tokens, [(1 << 53) - 2, (1 << 53) - 1], "and no token twice");
        let error = bench.take_with(&[1], 0).remove(0).expect_err("there is no larger token");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    };
    world(["", ""], true, check);
    let rules = [("tokens end", "if bytes_left <= 0 or last_token >= TOKEN_MAX then break end", "")];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// A fleet that died leaves many items that no attempt is left for.
#[test]
fn a_call_buries_few_of_many_items() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world, 1);
        bench.push(None, 100, 1);
        while !bench.take(64).items.is_empty() {}
        bench.advance(Duration::from_secs(2));
        bench.push(None, 1, 1);
        for dead in [32, 64, 96] {
            let taken = bench.take(1);
            assert_eq!(
                (taken.items.len(), taken.look_in),
                (0, Some(Duration::ZERO)),
                "it is to go on at once"
            );
            assert_eq!(bench.stats().dead, dead);
        }
        assert_eq!(bench.take(1).items.len(), 1);
        assert_eq!(bench.stats().dead, 100);
    };
    world(["", ""], true, check);
    let rules = [(
        "burials are bounded",
        "READ_AT_ONCE, BYTES_MAX, BURIED_MAX = 32, 4, 1048576, 32",
        "READ_AT_ONCE, BYTES_MAX, BURIED_MAX = 32, 4, 1048576, 999",
    )];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// The takes of one call together.
#[test]
fn a_call_answers_with_a_mebibyte_and_what_it_had_begun() {
    let check = |world: &mut World<'_>| {
        const SIZE: usize = 256 * 1024 - 100;
        let mut bench = Bench::new(world, 0);
        let items = bench.push(None, 12, SIZE);
        let mut taken = Vec::new();
        let mut calls = 0;
        while taken.len() < items.len() {
            let some = bench.take_with(&[8, 8, 8], 0);
            let some = Vec::from_iter(some.into_iter().map(|taken| taken.unwrap()));
            let count: usize = some.iter().map(|taken| taken.items.len()).sum();
            assert!(count * SIZE <= (1 << 20) + SIZE && count > 0, "{count} items of 256 KiB in one call");
            let are_cut = some.iter().filter(|taken| taken.items.len() < 8);
            assert!(calls > 1 || are_cut.clone().all(|taken| taken.look_in == Some(Duration::ZERO)));
            taken.extend(some.into_iter().flat_map(|taken| taken.items).map(|item: Dispatched| item.item));
            calls += 1;
        }
        assert_eq!(taken, items, "in their order");
    };
    world(["", ""], true, check);
    let rules = [
        ("bytes are counted", "bytes_left = bytes_left - #value", ""),
        (
            "for the call",
            "bytes_left, burials_left = BYTES_MAX, BURIED_MAX\n  local answers, i = { now_text }, 4\n  while ARGV[i] do",
            "local answers, i = { now_text }, 4\n  while ARGV[i] do\n    bytes_left, burials_left = BYTES_MAX, BURIED_MAX",
        ),
    ];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

#[test]
fn an_item_that_somebody_has_changed_costs_itself() {
    let check = |world: &mut World<'_>| {
        for (group, damage) in
            [(None, "oops"), (Some("g"), "oops"), (Some("g"), "0000000000000000000000000000000xother\tx")]
        {
            let mut bench = Bench::new(world, 0);
            let items = bench.push(group, 2, 1);
            let others = bench.push(None, 2, 1);
            bench.world.server.command(&["HSET", &key('i'), &items[0].to_string(), damage]);
            assert_eq!(bench.views(Which::Live).len(), 4, "they can be looked at");
            let taken = Vec::from_iter(bench.take(9).items);
            let got = Vec::from_iter(taken.iter().map(|item| item.item));
            let expected = [items[1], others[0], others[1]];
            assert_eq!(BTreeSet::from_iter(got), BTreeSet::from(expected), "{damage}");
            let dead = bench.views(Which::Dead);
            assert_eq!(dead.len(), 1, "it is not met again");
            assert!(damage.as_bytes().ends_with(&dead[0].payload), "what is there is shown");
            for item in taken {
                assert_eq!(bench.settle(item.claim), SettleAnswer::Settled);
            }
            let replayed = bench.world.queues.replay(Name::new("q").unwrap(), None, 9);
            assert_eq!(bench.world.runtime.block_on(replayed).unwrap(), 1);
            let again = bench.take(1).items.remove(0);
            assert!(again.payload.ends_with(b"oops") || again.payload.ends_with(b"x"));
            assert_eq!(bench.settle(again.claim), SettleAnswer::Settled);
            assert_eq!(bench.stats().waiting + bench.stats().in_flight, 0);
        }
    };
    world(["", ""], true, check);
    let rules = [
        ("items are looked at", "or not is_item(lane, value) then", "then"),
        ("dead ones too", "(not tab or tab == 33) and", "tab == 33 and"),
    ];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// The state of a lane names the claim of its first item.
#[test]
fn a_state_that_somebody_has_changed_costs_its_lane() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world, 0);
        let (items, others) = (bench.push(Some("g"), 2, 1), bench.push(None, 1, 1));
        let taken = bench.take(9).items;
        assert_eq!(taken.len(), 2);
        bench.world.server.command(&["HSET", &key('g'), ":g", "oops"]);
        assert_eq!(bench.settle(taken[0].claim), SettleAnswer::Lost);
        assert_eq!(bench.settle(taken[1].claim), SettleAnswer::Settled);
        assert_eq!((taken[0].item, taken[1].item), (items[0], others[0]));
        assert_eq!(bench.views(Which::Live).len(), 2);
        bench.advance(Duration::from_secs(2));
        for item in items {
            let again = bench.take(1).items.remove(0);
            assert_eq!(again.item, item, "the lane goes on");
            assert_eq!(bench.settle(again.claim), SettleAnswer::Settled);
        }
    };
    world(["", ""], true, check);
    let rules = [("states are looked at", "if state and (#state < 122", "if false and (#state < 122")];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// Other versions of tenure read what this one writes. If this file must change, the layout needs a new number, and what reads the old one.
#[test]
fn layout_1_is_written_as_it_always_was() {
    world(["", ""], true, |world| {
        let mut bench = Bench::new(world, 1);
        bench.push(None, 2, 3);
        bench.push(Some("group"), 2, 3);
        let dedup = Push {
            queue: Name::new("q").unwrap(),
            group: None,
            payload: b"later".as_slice().into(),
            delay: Duration::from_secs(60),
            dedup: Some(Name::new("dedup").unwrap()),
            context: Some(
                ItemContext::new("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067ab0cd902e7-01").unwrap(),
            ),
        };
        bench.world.runtime.block_on(bench.world.queues.push(vec![dedup])).remove(0).unwrap();
        assert_eq!(bench.take(3).items.len(), 3);
        assert_eq!(bench.settle(ClaimId::new(0)), SettleAnswer::Settled);
        let fail = Settlement::Fail { reason: "no such order".into() };
        let settle = Settle { queue: Name::new("q").unwrap(), claim: ClaimId::new(1), settlement: fail };
        bench.world.runtime.block_on(bench.world.queues.settle(vec![settle])).remove(0).unwrap();
        assert_eq!(bench.world.server.dump(), include_str!("layout-1.txt"), "the layout of queues differs");
    });
}
