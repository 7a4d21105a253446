//! What one server does with messages that come late, in an order that no network can be made to produce.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{Engine, ReleaseAnswer, ReleaseRequest};
use tenure_core::model::claim::{CAPACITY_MAX, Claim, ClaimId, ClientId, Keep, Kind, Label, Name, Terms};
use tenure_core::model::step::Release;
use tenure_core::model::token::Token;
use tenure_redis::server::{number, pause};
use tenure_testkit::redis::{RedisOptions, RedisServer, quorum_url};

use super::{Quorum, Redlock};
use crate::config::Config;
use crate::library::LIBRARY;
use crate::rounds::claims::Attempt;
use crate::rounds::node::{Request, Said};
use crate::rounds::own::{Copies, Own};
use crate::rounds::text::{self, Ending};

const WITHIN: Duration = Duration::from_secs(5);

fn claim(id: u128, name: &str) -> Claim {
    let terms = Terms::of_mutex(Label::from_stored("tests"));
    Claim {
        resource: Name::new(name).expect("a good name"),
        id: ClaimId::new(id),
        client: ClientId::new(1),
        terms: Arc::new(terms),
        wait: false,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

fn attempt(claim: &Claim, attempt: u32) -> Own {
    let mut own = Own::new(claim.clone(), 7, SystemClock.now(), &Copies::new(3));
    own.attempt = attempt;
    own
}

/// Makes a quorum, and asks its first server alone.
fn with_a_quorum(test: impl AsyncFnOnce(&Arc<Quorum>)) {
    with_servers(&RedisOptions::default(), async |quorum, _| test(quorum).await);
}

fn with_servers(options: &RedisOptions, test: impl AsyncFnOnce(&Arc<Quorum>, &[RedisServer])) {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start(options.clone())).collect();
    let config = Config::parse(&quorum_url(&servers)).expect("the kit's URLs are right");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let engine = Redlock::connect(config, ClientId::new(1)).await.expect("the servers answer");
        engine.migrate().await.expect("all servers are there");
        test(&engine.quorum, &servers).await;
    });
}

async fn ask(quorum: &Quorum, request: Request) -> Said {
    let said = quorum.ask(0, WITHIN, true, &request).await.expect("the server answers");
    assert!(said.counts, "it counts");
    said
}

async fn asks(quorum: &Quorum, own: &Own) -> Value {
    let mut request = Request::new(&LIBRARY.claim);
    let proposal = SystemClock.time_of_day().micros();
    text::claims(&mut request, &[(own.clone(), None)], proposal, |own| quorum.key_text(&own.claim.resource));
    ask(quorum, request).await.items.remove(0)
}

async fn ends(quorum: &Quorum, own: &Own, ending: Ending) -> Value {
    let mut request = Request::new(&LIBRARY.release);
    let how = text::ending(Some(own), ending);
    request.ask(quorum.key_text(&own.claim.resource), own.claim.id, vec![how]);
    ask(quorum, request).await.items.remove(0)
}

#[test]
fn what_a_later_attempt_was_granted_is_not_given_back_by_an_earlier_one() {
    with_a_quorum(async |quorum: &Arc<Quorum>| {
        for ending in [Ending::Cancelled, Ending::GivenBack] {
            let claim = claim(1, "late");
            let (first, second) = (attempt(&claim, 1), attempt(&claim, 2));
            let Value::Int(number) = asks(quorum, &first).await else { panic!("it is free") };
            // No answer was heard, so it is asked for again; the first attempt's give-back is still under way.
            let again = text::answer(asks(quorum, &second).await).expect("an answer");
            let text::NodeAnswer::Granted { number: same, .. } = again else {
                panic!("it has it: {again:?}")
            };
            assert_eq!(same, number.cast_unsigned(), "it is the same grant");
            // A second copy of the first attempt arrives behind the second one, from a connection that was given up.
            let late = text::answer(asks(quorum, &first).await).expect("an answer");
            assert!(matches!(late, text::NodeAnswer::Granted { .. }), "it has it: {late:?}");
            assert_eq!(ends(quorum, &first, ending).await, Value::Int(0), "{ending:?} comes too late");
            let other =
                text::answer(asks(quorum, &attempt(&self::claim(2, "late"), 1)).await).expect("an answer");
            assert!(matches!(other, text::NodeAnswer::Busy(_)), "the claim still holds: {other:?}");
            assert_eq!(ends(quorum, &second, ending).await, Value::Int(1), "its own does give it back");
            // It waits on, where it gave back only what it was granted in vain.
            let released = Ending::Released { is_unused: true, is_finished: false };
            ends(quorum, &second, released).await;
        }
    });
}

#[test]
fn a_slot_that_an_earlier_attempt_was_granted_is_no_vote_for_another_one() {
    with_a_quorum(async |quorum: &Arc<Quorum>| {
        let of_pool = |id, number| {
            let mut own = attempt(&claim(id, "pool"), number);
            let label = Label::from_stored("tests");
            own.claim.terms = Arc::new(Terms { kind: Kind::SlotPool, capacity: 2, ..Terms::of_mutex(label) });
            own
        };
        let asks = async |own: &Own, slot: u32| {
            let mut request = Request::new(&LIBRARY.claim);
            let proposal = SystemClock.time_of_day().micros();
            text::claims(&mut request, &[(own.clone(), Some(slot))], proposal, |_| "tenure:pool".to_owned());
            text::answer(ask(quorum, request).await.items.remove(0)).expect("an answer")
        };
        let is_granted = |answer: &text::NodeAnswer| matches!(answer, text::NodeAnswer::Granted { .. });
        // The first attempt came to nothing elsewhere, and this server has not heard of that yet.
        assert!(is_granted(&asks(&of_pool(1, 1), 0).await), "it is free");
        assert!(is_granted(&asks(&of_pool(1, 2), 1).await), "the other slot is free");
        assert!(!is_granted(&asks(&of_pool(2, 1), 1).await), "the later attempt has it");
        assert!(is_granted(&asks(&of_pool(3, 1), 0).await), "nobody believes in the first one");
        // A copy of the first attempt that comes late takes nothing back.
        asks(&of_pool(1, 1), 0).await;
        assert!(!is_granted(&asks(&of_pool(2, 2), 1).await), "the later attempt has it");
    });
}

#[test]
fn readers_of_one_batch_all_get_in_where_two_servers_are_a_few_numbers_apart() {
    with_servers(&RedisOptions::default(), async |quorum, servers| {
        let reader = |id| {
            let mut claim = claim(id, "shared");
            let label = Label::from_stored("tests");
            claim.terms =
                Arc::new(Terms { kind: Kind::RwLock, capacity: CAPACITY_MAX, ..Terms::of_mutex(label) });
            claim
        };
        // Numbers that are ahead of the clock, so that no proposal brings the servers together.
        let ahead = SystemClock.time_of_day().micros() + 60_000_000;
        let first = Claim { floor: Token::new(ahead), ..reader(1) };
        let won = quorum.attempt(vec![first]).await;
        assert!(matches!(won[..], [Attempt::Won(_)]), "it is free: {won:?}");
        // One of them has granted once more, in vain.
        asks(quorum, &attempt(&reader(2), 1)).await;
        servers[2].kill();
        let won = quorum.attempt((3..40).map(reader).collect()).await;
        let tokens: BTreeSet<Token> = won
            .iter()
            .map(|attempt| match attempt {
                Attempt::Won(grant) => grant.token,
                other => panic!("a reader shares it: {other:?}"),
            })
            .collect();
        assert_eq!(tokens.len(), won.len(), "each has a token of its own");
    });
}

#[test]
fn a_batch_grants_each_name_once_and_says_what_is_alike_once() {
    with_a_quorum(async |quorum: &Arc<Quorum>| {
        let names = ["a", "b", "a", "c"];
        let owns: Vec<(Own, Option<u32>)> =
            names.iter().zip(1..).map(|(name, id)| (attempt(&claim(id, name), 1), None)).collect();
        let mut request = Request::new(&LIBRARY.claim);
        let key = |own: &Own| quorum.key_text(&own.claim.resource);
        text::claims(&mut request, &owns, SystemClock.time_of_day().micros(), key);
        let answers: Vec<text::NodeAnswer> = ask(quorum, request)
            .await
            .items
            .into_iter()
            .map(|item| text::answer(item).expect("an answer"))
            .collect();
        let is_granted = |at: usize| matches!(answers[at], text::NodeAnswer::Granted { .. });
        assert!(is_granted(0) && is_granted(1) && is_granted(3), "{answers:?}");
        assert!(
            matches!(answers[2], text::NodeAnswer::Busy(_)),
            "the name is taken in the same batch: {answers:?}"
        );
        let mut request = Request::new(&LIBRARY.release);
        let how = Ending::Released { is_unused: false, is_finished: false };
        for (own, _) in &owns {
            request.ask(key(own), own.claim.id, vec![text::ending(Some(own), how)]);
        }
        let ended = ask(quorum, request).await.items;
        assert_eq!(ended, [1, 1, 0, 1].map(Value::Int), "only what was held has ended");
    });
}

#[test]
fn a_token_is_acknowledged_only_where_the_claim_holds_and_no_larger_number_was_given() {
    with_servers(&RedisOptions::default(), async |quorum: &Arc<Quorum>, servers| {
        let own = attempt(&claim(1, "k"), 1);
        let Value::Int(granted) = asks(quorum, &own).await else { panic!("it is free") };
        let granted = granted.cast_unsigned();
        let stamp = async |token: u64| {
            let mut request = Request::new(&LIBRARY.stamp);
            request.ask(quorum.key_text(&own.claim.resource), own.claim.id, vec![token.to_string()]);
            match ask(quorum, request).await.items.remove(0) {
                Value::Array(items) => number(&items[0]).expect("a number"),
                other => number(&other).expect("a number"),
            }
        };
        assert_eq!(stamp(granted + 5).await, granted + 5, "the counter is below it");
        // Somebody who shares the resource was given a larger number here, or the claim itself, whose answer was lost.
        servers[0].command(&["SET", "tenure.1.C:tenure:k", &(granted + 20).to_string()]);
        assert!(stamp(granted + 10).await > granted + 20, "it must take a larger one");
        ends(quorum, &own, Ending::Released { is_unused: true, is_finished: false }).await;
        assert_eq!(stamp(granted + 30).await, 0, "it does not hold any more");
    });
}

#[test]
fn a_repeated_claim_is_believed_no_longer_than_a_majority_keeps_it() {
    with_a_quorum(async |quorum: &Arc<Quorum>| {
        let mut claim = claim(1, "bounded");
        let longest = Duration::from_secs(1);
        let mut terms = Terms::clone(&claim.terms);
        terms.limits.max_hold = Some(longest);
        claim.terms = Arc::new(terms);
        // A first copy was granted by two servers, and no answer came.
        for node in [0, 1] {
            let mut request = Request::new(&LIBRARY.claim);
            let proposal = SystemClock.time_of_day().micros();
            let key = |own: &Own| quorum.key_text(&own.claim.resource);
            text::claims(&mut request, &[(attempt(&claim, 1), None)], proposal, key);
            quorum.ask(node, WITHIN, true, &request).await.expect("the server answers");
        }
        let passes = Duration::from_millis(400);
        pause::sleep(passes).await;
        let attempts = quorum.attempt(vec![claim]).await;
        let [Attempt::Won(grant)] = &attempts[..] else { panic!("it has it: {attempts:?}") };
        assert!(grant.ends_in <= longest - passes, "two servers keep it no longer: {grant:?}");
        assert!(grant.ends_in > Duration::ZERO);
    });
}

/// Claims the turn to load a value, for as long as it is not fresh.
async fn asks_for_a_value(quorum: &Arc<Quorum>, id: u128) -> Attempt {
    let mut claim = claim(id, "value");
    claim.terms = Arc::new(Terms { unless_fresh: true, ..Terms::clone(&claim.terms) });
    quorum.attempt(vec![claim]).await.remove(0)
}

/// A loader dies while it publishes: one server has the value, and the others say that it is being loaded.
#[test]
fn a_value_that_one_server_has_is_served_only_when_a_majority_has_it() {
    for is_looked_at in [false, true] {
        with_servers(&RedisOptions::default(), async |quorum, servers| {
            let Attempt::Won(grant) = asks_for_a_value(quorum, 1).await else {
                panic!("nobody has loaded it")
            };
            // So it is these two that are heard.
            servers[2].kill();
            let (resource, token) = (Name::new("value").expect("a good name"), grant.token.to_string());
            let publish = Request::new(&LIBRARY.publish).key(quorum.key_text(&resource));
            let publish = publish.arg(ClaimId::new(1).to_string()).arg(&token).arg("60000").arg("120000");
            ask(quorum, publish.arg("new").since(quorum.clock.now())).await;
            let shown = || {
                servers[..2]
                    .iter()
                    .filter(|server| server.command(&["EXISTS", "tenure.1.V:tenure:value"]) == "1")
            };
            assert_eq!(shown().count(), 1, "one has it");
            if is_looked_at {
                let view = quorum.read_views("inspect", &[resource]).await.expect("they answer").remove(0);
                let value = view.and_then(|view| view.value);
                assert_eq!(value.as_deref(), Some(&b"new"[..]));
            } else {
                let answer = asks_for_a_value(quorum, 2).await;
                assert!(matches!(&answer, Attempt::Fresh(value) if *value.bytes == *b"new"), "{answer:?}");
            }
            assert_eq!(shown().count(), 2, "whoever asks next may hear the others alone");
        });
    }
}

/// A value is being forgotten: it is gone from one server, which says that somebody holds, and another one shows it still.
#[test]
fn a_value_that_one_server_has_is_not_served_where_another_had_a_newer_one() {
    with_servers(&RedisOptions::default(), async |quorum, servers| {
        let Attempt::Won(grant) = asks_for_a_value(quorum, 1).await else { panic!("nobody has loaded it") };
        servers[2].kill();
        let resource = Name::new("value").expect("a good name");
        let forget = Request::new(&LIBRARY.publish).key(quorum.key_text(&resource));
        let forget = forget.arg(ClaimId::new(1).to_string()).arg(grant.token.to_string()).arg("0").arg("0");
        let forget = forget.arg("").since(quorum.clock.now());
        quorum.ask(1, WITHIN, true, &forget).await.expect("the server answers");
        let older = (grant.token.get() - 1).to_string();
        let until = (SystemClock.time_of_day().micros() / 1000 + 60_000).to_string();
        let value = ["bytes", "old", "token", &older, "claim", "", "fresh", &until, "keep", &until];
        servers[0].command(&[&["HSET", "tenure.1.V:tenure:value"], &value[..]].concat());
        let answer = asks_for_a_value(quorum, 2).await;
        assert!(!matches!(answer, Attempt::Fresh(_)), "{answer:?}");
    });
}

/// What a server does late, since it hung, is not to bring back what has ended elsewhere.
#[test]
fn a_value_that_comes_late_lasts_no_longer_than_elsewhere() {
    with_servers(&RedisOptions::default(), async |quorum, servers| {
        let Attempt::Won(_) = asks_for_a_value(quorum, 1).await else { panic!("nobody has loaded it") };
        servers[2].stop();
        let resource = Name::new("value").expect("a good name");
        let part = Duration::from_secs(1);
        let is_kept =
            quorum.publish(&resource, ClaimId::new(1), b"v", Keep::For { fresh: part, stale: part }).await;
        assert!(is_kept.expect("two are enough"));
        pause::sleep(part).await;
        servers[2].cont();
        let left = |server: &RedisServer| -> i64 {
            server.command(&["PTTL", "tenure.1.V:tenure:value"]).parse().expect("a number")
        };
        while left(&servers[2]) == -2 && left(&servers[0]) > 0 {
            pause::sleep(Duration::from_millis(1)).await;
        }
        let (late, in_time) = (left(&servers[2]), left(&servers[0]));
        assert!(late <= in_time + 100, "it would last longer there: {late} and {in_time} ms");
        assert!(
            servers[0].command(&["PTTL", "tenure:value"]) != "-2",
            "it is held, so that it could be published"
        );
    });
}

#[test]
fn with_one_server_away_the_others_say_who_holds() {
    with_servers(&RedisOptions::default(), async |quorum, servers| {
        let attempts = quorum.attempt(vec![claim(1, "held")]).await;
        assert!(matches!(attempts[..], [Attempt::Won(_)]), "{attempts:?}");
        servers[0].kill();
        while quorum.nodes[0].is_up() {
            pause::sleep(Duration::from_millis(10)).await;
        }
        for id in 2..20 {
            let attempts = quorum.attempt(vec![claim(id, "held")]).await;
            assert!(matches!(attempts[..], [Attempt::Busy(_)]), "two of three answer: {attempts:?}");
        }
    });
}

/// The server that was heard first had a number that no other one has, and is away when the claim is granted.
#[test]
fn a_waiter_gets_a_larger_token_than_it_was_told_whichever_servers_answer() {
    with_servers(&RedisOptions::default(), async |quorum, servers| {
        let mut holder = claim(1, "told");
        let won = quorum.attempt(vec![holder.clone()]).await;
        assert!(matches!(won[..], [Attempt::Won(_)]), "it is free: {won:?}");
        let ahead = SystemClock.time_of_day().micros() + 60_000_000;
        let key = quorum.key_text(&holder.resource);
        servers[0].command(&["SET", &format!("tenure.1.C:{key}"), &format!("{ahead:016}")]);
        holder.id = ClaimId::new(2);
        let waiter = Claim { wait: true, ..holder };
        let told = loop {
            // Until the first server is among those that are heard.
            match &quorum.attempt(vec![waiter.clone()]).await[..] {
                [Attempt::Waiting(waiting)] if waiting.horizon.get() >= ahead => break waiting.horizon,
                [Attempt::Waiting(_)] => {}
                other => panic!("it waits: {other:?}"),
            }
        };
        servers[0].stop();
        let release = Release { claim: ClaimId::new(1), is_unused: false, maybe_in_flight: false };
        let released = ReleaseRequest { resource: waiter.resource.clone(), release };
        quorum.release_all(&[released]).await;
        let won = quorum.attempt(vec![waiter]).await;
        servers[0].cont();
        let [Attempt::Won(grant)] = &won[..] else { panic!("it is free: {won:?}") };
        assert!(grant.token > told, "{} lies beyond {told}", grant.token);
    });
}

/// No server follows a proposal that is more than an hour ahead: it would be left with its own count, which others do not have.
#[test]
fn a_horizon_that_is_far_ahead_is_not_proposed() {
    with_a_quorum(async |quorum: &Arc<Quorum>| {
        let before = SystemClock.time_of_day().micros();
        let told = Token::new(before + 2 * 3_600_000_000);
        let mut own = attempt(&claim(1, "far"), 1);
        own.told = told;
        let Value::Int(number) = asks(quorum, &own).await else { panic!("it is free") };
        assert!(number.cast_unsigned() >= before, "{number} is the server's own count, at {before}");
    });
}

/// Takes and gives back so many mutexes, one after the other.
async fn take_turns(quorum: &Arc<Quorum>, count: u128) {
    for id in 1..=count {
        let claim = claim(id, &format!("turn {id}"));
        let resource = claim.resource.clone();
        let attempts = quorum.attempt(vec![claim]).await;
        assert!(matches!(attempts[..], [Attempt::Won(_)]), "{attempts:?}");
        let release = Release { claim: ClaimId::new(id), is_unused: false, maybe_in_flight: false };
        let released = quorum.release_all(&[ReleaseRequest { resource, release }]).await;
        assert!(matches!(released[..], [Ok(ReleaseAnswer::Released)]), "{released:?}");
    }
}

#[test]
fn releases_that_a_dead_server_does_not_hear_leave_nothing_behind() {
    with_servers(&RedisOptions::default(), async |quorum, servers| {
        servers[2].kill();
        while quorum.nodes[2].is_up() {
            pause::sleep(Duration::from_millis(10)).await;
        }
        take_turns(quorum, 300).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(tasks < 60, "{tasks} tasks are left after 300 releases");
        assert_eq!(quorum.nodes[2].pending.len(), 0, "no claim has reached it");
    });
}

#[test]
fn a_hung_server_is_told_all_that_it_has_missed_when_it_is_back() {
    with_servers(&RedisOptions::default(), async |quorum, servers| {
        servers[2].stop();
        take_turns(quorum, 300).await;
        while quorum.nodes[2].is_up() {
            pause::sleep(Duration::from_millis(10)).await;
        }
        while quorum.nodes[2].pending.len() == 0 {
            pause::sleep(Duration::from_millis(10)).await;
        }
        servers[2].cont();
        while quorum.nodes[2].pending.len() > 0 {
            pause::sleep(Duration::from_millis(10)).await;
        }
        let left = servers[2].command(&["KEYS", "tenure:*"]);
        assert!(left.is_empty(), "it holds for nobody: {left}");
    });
}

mod damage;
