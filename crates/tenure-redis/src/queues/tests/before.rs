//! Clients of before contexts, on one server with those of now. What they call is the library as it was, in a file.

use tenure_core::engine::queue::{Dispatched, ItemView};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// One queue, and both kinds of clients.
struct Both<'a, 'b> {
    world: &'a mut World<'b>,
    claims: u128,
}

fn queue() -> Name {
    Name::new("q").unwrap()
}

fn key(letter: char) -> String {
    format!("tenure.1.{letter}:tenure:q")
}

impl<'a, 'b> Both<'a, 'b> {
    fn new(world: &'a mut World<'b>) -> Both<'a, 'b> {
        let loaded = world.server.ask(&["FUNCTION", "LOAD", "REPLACE", include_str!("before-contexts.lua")]);
        assert!(matches!(loaded, Reply::Bytes(_)), "{loaded:?}");
        Both { world, claims: 0 }
    }

    /// Calls what a client of before calls.
    fn before(&self, operation: &str, arguments: &[&str]) -> Vec<Reply> {
        let mut call =
            vec!["FCALL".to_owned(), format!("tenure_queue_1_before_{operation}"), "14".to_owned()];
        call.extend("blgnioczjudtym".chars().map(key));
        call.extend(["q", INBOX, "PUBLISH"].map(str::to_owned));
        call.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let answer = self.world.server.ask(&call);
        assert!(!answer.parts().is_empty(), "{operation}: {answer:?}");
        answer.parts()[1..].to_vec()
    }

    /// The claim and the value of what a client of before is given.
    fn take_before(&mut self) -> Option<(String, String)> {
        self.claims += 1;
        let claim = ClaimId::new(self.claims).to_string();
        let client = ClientId::new(7).to_string();
        let label = Label::new("host", 1, "program", "text");
        let take = [&client, "1000000000", "-", "0", "0", "0", label.as_str(), "1", &claim];
        let answers = self.before("take", &take);
        let [_, _, _, _, value] = answers[0].parts() else { return None };
        Some((claim, value.to_string()))
    }

    fn settle_before(&self, claim: &str, how: &[&str]) {
        let answers = self.before("settle", &[&[claim], how].concat());
        assert_eq!(answers, [Reply::Integer(1)]);
    }

    fn push(&mut self, group: Option<&str>, payload: &str, context: Option<&str>, delay: Duration) {
        let push = Push {
            queue: queue(),
            group: group.map(|group| Name::new(group).unwrap()),
            payload: payload.as_bytes().into(),
            delay,
            dedup: None,
            context: context.map(|context| ItemContext::new(context).unwrap()),
        };
        self.world.runtime.block_on(self.world.queues.push(vec![push])).remove(0).unwrap();
    }

    fn try_take(&mut self) -> Option<Dispatched> {
        self.claims += 1;
        let (ttl, label) = (DAY, Label::new("host", 1, "program", "text"));
        let rules = Arc::new(Rules { ttl, interval: Interval::Off, attempts_max: 0, label });
        let (client, claims) = (ClientId::new(1), vec![ClaimId::new(self.claims)]);
        let take = Take { queue: queue(), client, claims, rules, floor: Token::ZERO };
        self.world.runtime.block_on(self.world.queues.take(vec![take])).remove(0).unwrap().items.pop()
    }

    /// Takes the item of this payload, and returns its claim and what travelled with it.
    fn take(&mut self, payload: &str) -> (ClaimId, Option<String>) {
        let item = self.try_take().expect("an item is ready");
        assert_eq!(&*item.payload, payload.as_bytes());
        (item.claim, item.context.map(|context| context.as_str().to_owned()))
    }

    fn settle(&mut self, claim: ClaimId, settlement: Settlement) {
        let settle = Settle { queue: queue(), claim, settlement };
        let answer = self.world.runtime.block_on(self.world.queues.settle(vec![settle])).remove(0).unwrap();
        assert_eq!(answer, SettleAnswer::Settled);
    }

    fn fail(&mut self, claim: ClaimId) {
        self.settle(claim, Settlement::Fail { reason: "never".to_owned() });
    }

    fn replay(&mut self) {
        assert_eq!(self.world.runtime.block_on(self.world.queues.replay(queue(), None, 9)).unwrap(), 1);
    }

    fn dead(&mut self) -> Vec<ItemView> {
        self.world.runtime.block_on(self.world.queues.items(queue(), Which::Dead, None, 9)).unwrap()
    }

    /// How many contexts the server has, and how many days they last if nothing happens. -2: there are none.
    fn contexts(&self) -> (i64, i64) {
        let number = |command: &[&str]| match self.world.server.ask(command) {
            Reply::Integer(number) => number,
            other => panic!("{command:?}: {other:?}"),
        };
        let left = number(&["PTTL", &key('p')]);
        let count = number(&["HLEN", &key('p')]);
        assert_eq!(number(&["ZCARD", &key('f')]), count, "each is known by its number");
        assert_eq!(number(&["PTTL", &key('f')]), left, "both end together");
        (count, if left < 0 { left } else { left / 86_400_000 })
    }

    fn pass(&mut self, period: Duration) {
        self.world.server.clock().advance(period);
        self.world.now = self.world.now + period;
    }
}

#[test]
fn clients_of_before_contexts_share_queues_with_those_of_now() {
    world(["", ""], true, |world| {
        let mut both = Both::new(world);
        for group in [None, Some("g")] {
            let value = |payload| format!("{}\t{payload}", group.unwrap_or_default());
            both.push(group, "1", Some("c1"), Duration::ZERO);
            both.push(group, "2", None, Duration::ZERO);
            let (claim, given) = both.take_before().expect("an item");
            assert_eq!(given[32..], value("1"), "the payload is what was pushed");
            both.settle_before(&claim, &["b"]);
            let (claim, context) = both.take("1");
            assert_eq!(context.as_deref(), Some("c1"), "who does not know it leaves it");
            both.settle(claim, Settlement::Return);
            let (claim, _) = both.take_before().expect("an item");
            both.settle_before(&claim, &["f", "never"]);
            let dead = both.dead();
            assert_eq!(dead[0].context.as_ref().map(ItemContext::as_str), Some("c1"), "a dead letter has it");
            both.replay();
            let (claim, given) = both.take_before().expect("an item");
            assert_eq!(given[32..], value("2"));
            both.settle_before(&claim, &["a"]);
            let (claim, context) = both.take("1");
            assert_eq!(context.as_deref(), Some("c1"), "and has it again in line");
            both.fail(claim);
            // An item that an older client gives a new number loses its context, and nothing else.
            assert_eq!(both.before("replay", &["", "9"]), [Reply::Integer(1)]);
            let (claim, context) = both.take("1");
            assert_eq!(context, None);
            both.settle(claim, Settlement::Ack);
            assert_eq!(both.contexts(), (0, -2), "nothing is left of an empty queue");

            both.before("push", &[group.unwrap_or_default(), "0", "", "3"]);
            let (claim, context) = both.take("3");
            assert_eq!(context, None);
            both.settle(claim, Settlement::Ack);
        }
    });
}

/// A client that does not know contexts leaves them behind when it removes their items.
#[test]
fn contexts_that_were_left_behind_go() {
    let check = |world: &mut World<'_>| {
        let mut both = Both::new(world);
        both.push(None, "stays", Some("c"), 60 * DAY);
        for _ in 0..100 {
            both.push(None, "x", Some("c"), Duration::ZERO);
        }
        while let Some((claim, _)) = both.take_before() {
            both.settle_before(&claim, &["a"]);
        }
        assert_eq!(both.contexts(), (101, 120), "as long as the last one may need it");
        // A later push looks at more of them than it adds.
        for _ in 0..300 {
            both.push(None, "x", Some("c"), Duration::ZERO);
        }
        let (count, _) = both.contexts();
        assert!((301..351).contains(&count), "{count} contexts of 301 items");
        for _ in 0..300 {
            let (claim, context) = both.take("x");
            assert_eq!(context.as_deref(), Some("c"), "that of an item is never removed");
            both.settle(claim, Settlement::Ack);
        }
        let (left, _) = both.contexts();
        assert_eq!(left, count - 300, "who knows them removes them");
        let purged = both.world.queues.purge(queue(), Which::Live, None, 9);
        assert_eq!(both.world.runtime.block_on(purged).unwrap(), 1);
        assert_eq!(both.contexts(), (0, -2), "nothing is left of an empty queue");
    };
    world(["", ""], true, check);
    let rules = [
        ("pushes look for them", "sweep_contexts(2 * contexts)", ""),
        ("what is done has none", "forget_context(first)\n", ""),
        ("an empty queue has none", "call('DEL', CONTEXTS, CONTEXT_NUMBERS)", ""),
        ("they last as long as their items", "or call('PTTL', CONTEXTS) < CONTEXT_LIFE_MS / 2", ""),
        ("and those that are held back", "max(contexts_due, now)", "now"),
        ("an item keeps its own", "if not call('ZSCORE', NUMBERS, number) and not", "if not"),
    ];
    let missed = single::missed(&rules, |world| {
        check(world);
        lasting(world);
    });
    assert_eq!(missed, [""; 0], "nothing differs without these rules");
}

/// Contexts last while a client that knows them uses the queue, and at least 30 days longer.
fn lasting(world: &mut World<'_>) {
    let mut both = Both::new(world);
    both.push(None, "x", Some("c"), Duration::ZERO);
    let (claim, _) = both.take("x");
    both.fail(claim);
    for _ in 0..5 {
        both.pass(20 * DAY);
        assert!(both.try_take().is_none(), "nothing waits");
        let (count, days) = both.contexts();
        assert!(count == 1 && (30..=60).contains(&days), "who looks for work keeps them: {days} days");
    }
    both.replay();
    let (claim, context) = both.take("x");
    assert_eq!(context.as_deref(), Some("c"));
    both.fail(claim);
    // The last one who knows them is gone.
    both.pass(61 * DAY);
    assert_eq!(both.contexts(), (0, -2));
    both.replay();
    assert_eq!(both.take("x").1, None, "the item is there");
}

#[test]
fn contexts_last_while_a_client_that_knows_them_uses_the_queue() {
    world(["", ""], true, lasting);
}
