//! What chance seldom meets: calls whose requests concern each other, keys that cannot be read, crowds.

use super::*;

/// One client library's view of a server with a frozen clock: calls of any requests on any names.
struct Bench<'a, 'b> {
    world: &'a mut World<'b>,
    connection: Connection,
    keys: Keys,
}

const TTL: Duration = Duration::from_secs(9);

fn terms() -> Terms {
    Terms { ttl: TTL, ..Terms::of_mutex(Label::new("host", 17, "program", "")) }
}

fn claim_of(name: &str, id: u128, client: u64, terms: Terms) -> Claim {
    let (resource, id, client) = (Name::new(name).unwrap(), ClaimId::new(id), ClientId::new(client));
    Claim {
        resource,
        id,
        client,
        terms: Arc::new(terms),
        wait: true,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

impl<'a, 'b> Bench<'a, 'b> {
    fn new(world: &'a mut World<'b>) -> Bench<'a, 'b> {
        let connection = redis::Client::open(world.server.url()).unwrap().get_connection().unwrap();
        Bench { world, connection, keys: Keys::new("tenure:", false) }
    }

    fn call<R>(
        &mut self,
        script: fn(&Library) -> &Script,
        arguments: &Arguments<R>,
        requests: &[(&str, R)],
    ) -> (Timestamp, Vec<Value>) {
        let script = script(&self.world.scripts.library);
        let mut cmd = script.command(&self.keys, 0, requests.len(), Form::Function);
        for (name, _) in requests {
            cmd.arg(self.keys.of(&Name::new(name).unwrap()).unwrap().text);
        }
        push_header(&mut cmd, &self.keys, 0, Incarnation(7), false);
        arguments.push(&mut cmd, &requests.iter().map(|(_, request)| request).collect::<Vec<_>>());
        let answers = answer::answers(cmd.query(&mut self.connection).unwrap()).unwrap();
        (answers.now, answers.items)
    }

    /// Claims: the name, the claim's number, the client's number, the kind and the capacity.
    fn claim(&mut self, claims: &[(&str, u128, u64, Kind, u32)]) -> Vec<Result<Claimed, answer::Unexpected>> {
        let claims = Vec::from_iter(claims.iter().map(|(name, id, client, kind, capacity)| {
            (*name, claim_of(name, *id, *client, Terms { kind: *kind, capacity: *capacity, ..terms() }))
        }));
        let (now, items) = self.call(|library| &library.claim, &CLAIM_ARGUMENTS, &claims);
        let answers = claims.iter().zip(items).map(|((_, claim), item)| answer::claimed(claim, now, item));
        answers.map(|answer| answer.map(|claimed| claimed.expect("not refused"))).collect()
    }

    fn claim_mutex(&mut self, name: &str, id: u128, client: u64) -> Claimed {
        self.claim(&[(name, id, client, Kind::Mutex, 1)]).remove(0).unwrap()
    }

    /// Renews: the name, the claim's number, whether it is believed to wait.
    fn renew(&mut self, renewals: &[(&str, u128, bool)]) -> Vec<Result<Renewed, answer::Unexpected>> {
        let requests = Vec::from_iter(renewals.iter().map(|(name, id, is_waiter)| {
            let (resource, claim) = (Name::new(name).unwrap(), ClaimId::new(*id));
            (*name, RenewRequest { resource, claim, is_waiter: *is_waiter })
        }));
        let items = self.call(|library| &library.renew, &RENEW_ARGUMENTS, &requests).1;
        items.into_iter().map(answer::renewed).collect()
    }

    fn release(&mut self, releases: &[(&str, u128)]) -> Vec<Result<ReleaseAnswer, answer::Unexpected>> {
        let requests = Vec::from_iter(releases.iter().map(|(name, id)| {
            let release = Release { claim: ClaimId::new(*id), maybe_in_flight: false, is_unused: false };
            (*name, ReleaseRequest { resource: Name::new(name).unwrap(), release })
        }));
        let items = self.call(|library| &library.release, &RELEASE_ARGUMENTS, &requests).1;
        items.into_iter().map(answer::released).collect()
    }

    fn resize(&mut self, name: &str, capacity: u32) -> Value {
        let mut cmd = self.world.scripts.library.resize.command(&self.keys, 0, 1, Form::Function);
        cmd.arg(self.keys.of(&Name::new(name).unwrap()).unwrap().text);
        push_header(&mut cmd, &self.keys, 0, Incarnation(7), false);
        cmd.arg(capacity);
        answer::answers(cmd.query(&mut self.connection).unwrap()).unwrap().items.remove(0)
    }

    fn advance(&mut self, period: Duration) {
        self.world.server.clock().advance(period);
        self.world.now += period;
    }

    fn ask(&self, command: &[&str]) -> i64 {
        match self.world.server.ask(command) {
            Reply::Integer(number) => number,
            other => panic!("{command:?}: {other:?}"),
        }
    }

    /// How often the server has run a command.
    fn runs(&self, command: &str) -> u64 {
        let stats = self.world.server.command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    /// How many commands the server has run, but for those that ask for this.
    fn all_runs(&self) -> u64 {
        let stats = self.world.server.command(&["INFO", "commandstats"]);
        let calls = stats
            .lines()
            .filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok());
        calls.sum::<u64>() - self.runs("info")
    }
}

const HEARD: u64 = 1;
const UNHEARD: u64 = 5;
const MUTEX: (Kind, u32) = (Kind::Mutex, 1);

/// A client hears of no grant, for its inbox is being connected, and confirms it in the very call that makes it.
fn unheard_grants_that_are_confirmed(world: &mut World<'_>) {
    let mut bench = Bench::new(world);
    for is_waiter in [true, false] {
        bench.world.server.ask(&["SET", "tenure:m", "theirs", "PX", "100"]);
        for (id, client) in [(1, UNHEARD), (2, HEARD)] {
            assert!(matches!(bench.claim_mutex("m", id, client), Claimed::Waiting(_)));
        }
        bench.advance(Duration::from_millis(200));
        let got = bench.renew(&[("m", 2, true), ("m", 1, is_waiter)]).remove(1).unwrap();
        assert!(matches!(got, Renewed::Held(grant) if grant.ends_in == TTL), "{got:?}");
        assert_eq!(bench.ask(&["PTTL", "tenure:m"]), 8999, "what was promised is there");
        assert_eq!(bench.release(&[("m", 2), ("m", 1)]).len(), 2);
    }
}

/// A client hears of no grant, but it is gone in the same call, and the next waiter hears of its own.
fn unheard_grants_that_pass_on(world: &mut World<'_>) {
    let mut bench = Bench::new(world);
    bench.world.server.ask(&["SET", "tenure:m", "theirs", "PX", "100"]);
    for (id, client) in [(3, UNHEARD), (4, HEARD)] {
        assert!(matches!(bench.claim_mutex("m", id, client), Claimed::Waiting(_)));
    }
    bench.advance(Duration::from_millis(200));
    bench.release(&[("m", 9), ("m", 3)]);
    assert_eq!(bench.ask(&["PTTL", "tenure:m"]), 4999, "the window of another was cut");
}

/// The client of the first waiter has gone: what is granted to it then lasts for half a second, and the next one is granted.
fn unheard_grant_for_the_gone(world: &mut World<'_>) {
    let mut bench = Bench::new(world);
    bench.world.server.ask(&["SET", "tenure:m", "theirs", "PX", "100"]);
    for (id, client) in [(1, UNHEARD), (2, HEARD)] {
        assert!(matches!(bench.claim_mutex("m", id, client), Claimed::Waiting(_)));
    }
    bench.advance(Duration::from_millis(200));
    let waits = |bench: &mut Bench<'_, '_>| {
        matches!(bench.renew(&[("m", 2, true)]).remove(0).unwrap(), Renewed::Waiting(_))
    };
    assert!(waits(&mut bench));
    assert_eq!(bench.ask(&["PTTL", "tenure:m"]), 499);
    bench.advance(Duration::from_millis(499));
    assert!(waits(&mut bench), "it may be reconnecting");
    bench.advance(Duration::from_millis(1));
    assert!(!waits(&mut bench));
}

// page: docs/concepts/queue-order.md "cut to half a second"
#[test]
fn an_unheard_grant_lives_for_half_a_second() {
    world(["", ""], Form::Function, unheard_grant_for_the_gone);
    let rules = [("a short window", "5000, 500, 15000", "5000, 4900, 15000")];
    assert_eq!(missed(&rules, unheard_grant_for_the_gone), [""; 0], "nothing differs with another window");
}

#[test]
fn a_call_cuts_only_what_it_has_granted_and_not_confirmed() {
    let check = |world: &mut World<'_>| {
        unheard_grants_that_are_confirmed(world);
        unheard_grants_that_pass_on(world);
    };
    world(["", ""], Form::Function, check);
    let rules = [
        ("on the short path", "confirmed[id] = true\n        end\n        answers", "end\n        answers"),
        ("on the long path", "if wakes then\n      confirmed", "if false then\n      confirmed"),
        ("only itself", "if hold and hold.id == woken.id and hold.token == woken.token then", "if hold then"),
    ];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// Claims of mutexes, and among them one of a name that no script can read.
#[test]
fn one_unreadable_key_costs_one_answer() {
    let check = |world: &mut World<'_>| {
        let server = world.server;
        server.command(&[
            "HSET",
            "tenure:bad",
            "kind",
            "s",
            "capacity",
            "2",
            "used",
            "1",
            "fresh",
            "0",
            "until",
            "9",
        ]);
        server.command(&["SET", "tenure.1.e:tenure:bad", "text"]);
        let names = Vec::from_iter((0..17).map(|at| format!("good{at}")));
        let name = |at: usize| if at == 8 { "bad" } else { names[at].as_str() };
        let mut bench = Bench::new(world);
        let (kind, capacity) = MUTEX;
        let claims = Vec::from_iter((0..17).map(|at| match at {
            8 => (name(at), 8, HEARD, Kind::Semaphore, 2),
            _ => (name(at), at as u128, HEARD, kind, capacity),
        }));
        for (at, got) in bench.claim(&claims).into_iter().enumerate() {
            assert_eq!(matches!(got, Ok(Claimed::Granted(_))), at != 8, "{at}: {got:?}");
            assert_eq!(got.is_err(), at == 8, "nobody knows whether it was granted: {got:?}");
        }
        let renewals = Vec::from_iter((0..17).map(|at| (name(at), at as u128, at % 2 == 0)));
        for (at, got) in bench.renew(&renewals).into_iter().enumerate() {
            assert_eq!(matches!(got, Ok(Renewed::Held(_))), at != 8, "{at}: {got:?}");
            assert_eq!(got.is_err(), at == 8, "{got:?}");
        }
        let releases = Vec::from_iter((0..17).map(|at| (name(at), at as u128)));
        for (at, got) in bench.release(&releases).into_iter().enumerate() {
            assert_eq!(got.ok(), (at != 8).then_some(ReleaseAnswer::Released), "{at}");
        }
    };
    world(["", ""], Form::Function, check);
    let rules = [("a request fails alone", "pcall(run, ...)", "true, run(...)")];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// A line whose list of places is deleted was for a semaphore; the next one is for a mutex.
#[test]
fn a_new_line_remembers_nothing_of_one_that_was_deleted() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        for id in 1..3 {
            bench.claim(&[("x", id, HEARD, Kind::Semaphore, 1)]).remove(0).unwrap();
        }
        bench.world.server.ask(&["DEL", "tenure:x", "tenure.1.q:tenure:x"]);
        assert!(matches!(bench.claim_mutex("x", 3, HEARD), Claimed::Granted(_)));
        assert!(matches!(bench.claim_mutex("x", 4, HEARD), Claimed::Waiting(_)));
        bench.world.server.ask(&["DEL", "tenure:x"]);
        let got = bench.renew(&[("x", 4, true)]).remove(0).unwrap();
        assert!(matches!(got, Renewed::Held(_)), "{got:?}");
        assert_eq!(bench.world.server.command(&["TYPE", "tenure:x"]), "string", "it asked for a mutex");
    };
    world(["", ""], Form::Function, check);
    let rules = [("a line begins empty", "if is_new then call('DEL', record.waiters, record.lives) end", "")];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// An operator breaks the holds of a semaphore by `DEL`.
#[test]
fn who_waits_for_a_deleted_semaphore_keeps_its_place_and_gets_its_units() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        let claims = [1, 2, 3, 4, 5].map(|id| ("x", id, HEARD, Kind::Semaphore, 2));
        bench.claim(&claims);
        bench.world.server.ask(&["DEL", "tenure:x"]);
        let got = bench.renew(&[("x", 5, true), ("x", 4, true), ("x", 3, true)]);
        assert!(
            matches!(got[..], [Ok(Renewed::Waiting(_)), Ok(Renewed::Held(_)), Ok(Renewed::Held(_))]),
            "{got:?}"
        );
    };
    world(["", ""], Form::Function, check);
    let rules = [("it is stored with the line", "if not wanted then return end", "do return end")];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// Two wait for a mutex. Its key is deleted, and what says that they wait, and somebody claims the name as a semaphore.
#[test]
fn who_waits_for_a_mutex_gets_no_units_of_a_semaphore() {
    let check = |world: &mut World<'_>| {
        for is_full in [false, true] {
            let mut bench = Bench::new(world);
            for id in 0..3 {
                bench.claim_mutex("m", id, HEARD);
            }
            bench.world.server.ask(&["DEL", "tenure:m", "tenure.1.queues:tenure:"]);
            let capacity = if is_full { 1 } else { 3 };
            let got = bench.claim(&[("m", 3, HEARD, Kind::Semaphore, capacity)]).remove(0);
            assert!(matches!(got, Ok(Claimed::Granted(_))), "{got:?}");
            if is_full {
                let got = bench.renew(&[("m", 1, true)]).remove(0);
                assert!(matches!(got, Ok(Renewed::Waiting(_))), "{got:?}");
                assert_eq!(bench.resize("m", 3), Value::Int(1));
            }
            let got = bench.renew(&[("m", 1, true), ("m", 2, true)]);
            assert!(matches!(got[..], [Ok(Renewed::Lost), Ok(Renewed::Lost)]), "both hold a mutex: {got:?}");
            bench.release(&[("m", 3)]);
        }
    };
    world(["", ""], Form::Function, check);
    let rules = [
        ("a line is for one kind", "if stored[2] ~= awaited(record) then return forget_line(record) end", ""),
        ("and stays so", "call('HGET', record.waiters, 'kind') ~= awaited(record)", "false"),
    ];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// `DEL tenure.1.queues:`: waiters keep their places, and soon no claim passes them any more.
#[test]
fn who_waits_is_found_though_the_list_of_queues_is_deleted() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        for (name, id) in [("m", 1), ("m", 2), ("m", 3), ("n", 4), ("n", 5)] {
            bench.claim_mutex(name, id, HEARD);
        }
        bench.world.server.ask(&["DEL", "tenure.1.queues:tenure:"]);
        // Another queue is noted again, and goes.
        bench.renew(&[("n", 5, true)]);
        let got = bench.renew(&[("m", 2, true), ("m", 3, true)]);
        let place = |at: usize| match &got[at] {
            Ok(Renewed::Waiting(waiting)) => waiting.position,
            other => panic!("{other:?}"),
        };
        assert_eq!([place(0), place(1)], [1, 2], "they have kept their places");
        bench.release(&[("n", 5), ("n", 4), ("m", 1)]);
        let got = bench.claim_mutex("m", 6, HEARD);
        assert!(matches!(&got, Claimed::Waiting(waiting) if waiting.position == 2), "{got:?} passes them");
    };
    world(["", ""], Form::Function, check);
    let rules = [
        ("a waiter is known to wait", "if has_queues or waits then", "if has_queues then"),
        (
            "each queue is noted",
            "not is_new and has_queues and call('ZSCORE', QUEUES, record.key)",
            "t + QUEUE_LIFE",
        ),
    ];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// A value of another client can be of any size, and every waiter reads it again and again.
#[test]
fn a_large_foreign_value_is_not_read_by_those_who_wait() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        let value = "a".repeat(1 << 20);
        bench.world.server.ask(&["SET", "tenure:m", &value, "PX", "60000"]);
        bench.claim_mutex("m", 1, HEARD);
        let before = bench.runs("get");
        for _ in 0..5 {
            let got = bench.renew(&[("m", 1, true)]).remove(0).unwrap();
            assert!(matches!(got, Renewed::Waiting(_)), "{got:?}");
        }
        // The last token, once in each call.
        assert!(bench.runs("get") - before <= 5, "they read it all");
        let Claimed::Waiting(claimed) = bench.claim_mutex("m", 1, HEARD) else { panic!("it waits") };
        assert_eq!(bench.renew(&[("m", 1, true)]).remove(0).unwrap(), Renewed::Waiting(claimed));
    };
    world(["", ""], Form::Function, check);
    let rules = [("only its beginning is read", "if may_read_range then", "if false then")];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// A client with many waiters dies. No call removes them all, none publishes to the dead, and all go on at once.
#[test]
fn a_crowd_that_died_is_removed_in_steps() {
    const DEAD: u128 = 1000;
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        bench.claim_mutex("m", 0, HEARD);
        let dead = Vec::from_iter((1..=DEAD).map(|id| ("m", id, HEARD, Kind::Mutex, 1)));
        for some in dead.chunks(100) {
            bench.claim(some);
        }
        bench.advance(TTL - Duration::from_secs(1));
        bench.renew(&[("m", 0, false)]);
        bench.claim_mutex("m", DEAD + 1, UNHEARD);
        bench.advance(Duration::from_secs(2));
        let (published, mut left, mut calls) = (bench.runs("publish"), DEAD as i64 + 1, 0);
        while left > 1 {
            let before = bench.all_runs();
            let got = bench.renew(&[("m", DEAD + 1, true)]).remove(0).unwrap();
            let runs = bench.all_runs() - before;
            assert!(runs < 40, "{runs} commands in one call");
            let now_left = bench.ask(&["ZCARD", "tenure.1.q:tenure:m"]);
            assert!(left - now_left <= 64 && now_left < left, "{left} became {now_left}");
            let Renewed::Waiting(waiting) = got else { panic!("{got:?}") };
            assert!(now_left == 1 || waiting.look_in == Some(Duration::ZERO), "it is to go on at once");
            (left, calls) = (now_left, calls + 1);
        }
        assert_eq!(calls, 16);
        assert!(bench.runs("publish") - published <= 1, "the dead are told of their places");
    };
    world(["", ""], Form::Function, check);
    let rules = [
        ("a call removes few", "'LIMIT', 0, PRUNED_MAX)", "'LIMIT', 0, 5000)"),
        ("the dead are told nothing", "head and not is_dead(record, head) and", "head and"),
        ("who is left goes on", "if record.has_dead then look = 0 end", ""),
    ];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// A released lock is not granted to the dead, however many there are.
#[test]
fn the_dead_are_granted_nothing() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        bench.claim_mutex("m", 0, HEARD);
        for id in 1..=100 {
            bench.claim_mutex("m", id, HEARD);
        }
        bench.advance(TTL - Duration::from_secs(1));
        bench.claim_mutex("m", 101, HEARD);
        bench.advance(Duration::from_secs(2));
        let mut got = bench.renew(&[("m", 101, true)]).remove(0).unwrap();
        assert_eq!(bench.ask(&["EXISTS", "tenure:m"]), 0, "it was granted to somebody who is dead");
        if matches!(got, Renewed::Waiting(_)) {
            got = bench.renew(&[("m", 101, true)]).remove(0).unwrap();
        }
        assert!(matches!(got, Renewed::Held(_)), "{got:?}");
    };
    world(["", ""], Form::Function, check);
    let rules = [("a dead head waits", "if record.has_dead and is_dead(record, head) then return end", "")];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// What a crowd that only waits costs the server.
#[test]
fn heartbeats_of_a_crowd_take_few_commands() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        for (kind, capacity, name, most) in [(Kind::Mutex, 1, "m", 4), (Kind::Semaphore, 3, "s", 4)] {
            let claims = Vec::from_iter((0..128).map(|id| (name, id, HEARD, kind, capacity)));
            bench.claim(&claims);
            let holders = u128::from(capacity);
            let renewals = Vec::from_iter((holders..128).map(|id| (name, id, true)));
            let before = bench.all_runs();
            assert!(bench.renew(&renewals).iter().all(|got| matches!(got, Ok(Renewed::Waiting(_)))));
            let runs = bench.all_runs() - before;
            assert!(runs < most * 128, "{runs} commands for 128 heartbeats of a {kind}");
        }
    };
    world(["", ""], Form::Function, check);
    let rules = [("one look serves all", "    settled[key] = record\n", "")];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// An operator makes a pool smaller, and then says the same again: but for its slots nothing is written.
#[test]
fn a_pool_that_is_resized_to_what_it_is_leaves_no_key_for_ever() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        for id in 1..=3 {
            bench.claim(&[("p", id, HEARD, Kind::SlotPool, 3)]).remove(0).unwrap();
        }
        bench.release(&[("p", 1)]);
        for _ in 0..2 {
            assert_eq!(bench.resize("p", 1), Value::Int(1));
            let ends = bench.ask(&["PEXPIRETIME", "tenure.1.s:tenure:p"]);
            assert!(ends > 0, "the free slot is kept until {ends}");
        }
    };
    world(["", ""], Form::Function, check);
    let rules = [(
        "only what goes is removed",
        "if record.fresh > capacity and capacity < old then",
        "if record.fresh > capacity then",
    )];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// A hold that may not be extended any more is renewed in its last millisecond.
#[test]
fn a_hold_lasts_to_the_end_that_its_renewal_names() {
    let check = |world: &mut World<'_>| {
        let mut bench = Bench::new(world);
        let longest = Duration::from_millis(200);
        let limits = HoldLimits { max_hold: Some(longest), ..HoldLimits::default() };
        let claim = claim_of("m", 1, HEARD, Terms { limits, ..terms() });
        bench.call(|library| &library.claim, &CLAIM_ARGUMENTS, &[("m", claim)]);
        bench.advance(longest - Duration::from_millis(1));
        let got = bench.renew(&[("m", 1, false)]).remove(0);
        assert!(
            matches!(got, Ok(Renewed::Held(grant)) if grant.ends_in == Duration::from_millis(1)),
            "{got:?}"
        );
        assert!(
            matches!(bench.claim_mutex("m", 2, HEARD), Claimed::Waiting(_)),
            "it was granted to another before that"
        );
        bench.advance(Duration::from_millis(1));
        assert!(matches!(bench.claim_mutex("m", 2, HEARD), Claimed::Granted(_)));
    };
    world(["", ""], Form::Function, check);
    let rules = [(
        "its end stays",
        "if expiry > t then call('PEXPIREAT', record.key, expiry) end",
        "call('PEXPIREAT', record.key, expiry)",
    )];
    assert_eq!(missed(&rules, check), [""; 0], "nothing differs without these rules");
}

/// Other versions of tenure read what this one writes. If this file must change, the layout needs a new number, and what reads the old one.
#[test]
fn layout_1_is_written_as_it_always_was() {
    world(["", ""], Form::Function, |world| {
        let mut bench = Bench::new(world);
        // A mutex with those who wait for it, a semaphore, a slot pool with a slot that rests, a side of a read-write lock.
        (1..4).for_each(|id| drop(bench.claim_mutex("m", id, HEARD)));
        let (semaphore, slots, lock) = (Kind::Semaphore, Kind::SlotPool, Kind::RwLock);
        for (name, id, kind, capacity) in [
            ("s", 11, semaphore, 2),
            ("s", 12, semaphore, 2),
            ("p", 21, slots, 3),
            ("l", 31, lock, CAPACITY_MAX),
        ] {
            drop(bench.claim(&[(name, id, HEARD, kind, capacity)]).remove(0).unwrap());
        }
        drop(bench.renew(&[("m", 1, false), ("m", 2, true)]));
        drop(bench.release(&[("s", 11)]));
        assert_eq!(bench.world.server.dump(), include_str!("layout-1.txt"), "the layout of locks differs");
    });
}
