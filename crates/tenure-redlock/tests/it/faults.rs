//! What a server of a quorum forgets in part, hears late, or is counted for twice.

use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::Severity;
use tenure_core::model::token::Token;
use tenure_core::{ErrorKind, Settings, Tenure};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::{Proxy, Reply, wait_for};

use crate::conformance::connector;
use crate::servers_fail::{connect, start, start_with, through};
use tenure_conformance::{crew::pause, far, silence};

/// The URL of a client that reaches two of three servers only.
fn without(servers: &[RedisServer], away: usize, proxy: &Proxy) -> String {
    let port = |at: usize| if at == away { proxy.port() } else { servers[at].port() };
    let hosts: Vec<String> = (0..servers.len()).map(|at| format!("127.0.0.1:{}", port(at))).collect();
    format!("redlock://{}", hosts.join(","))
}

/// Takes a mutex and gives it back on all servers.
fn take(client: &Tenure, servers: &[RedisServer], name: &str) -> Token {
    let lease = pollster::block_on(client.mutex(name).ttl(Duration::from_millis(500)).acquire());
    let lease = lease.expect("a majority is there");
    let token = lease.token();
    pollster::block_on(lease.release()).expect("a release is answered");
    let key = format!("tenure:{name}");
    let is_free = || servers.iter().all(|server| server.ask(&["EXISTS", &key]) == Reply::Integer(0));
    wait_for("no server holds it", || is_free().then_some(()));
    token
}

fn counter(server: &RedisServer) -> Reply {
    server.ask(&["GET", "tenure.1.C:tenure:k"])
}

#[test]
fn a_server_that_starts_anew_from_its_snapshot_gives_no_token_twice() {
    const SHORT: &str = "?max_ttl=500ms";
    let (servers, url) = start_with(3, &RedisOptions::default(), SHORT);
    let nowhere = Proxy::start(([127, 0, 0, 1], servers[0].port()));
    nowhere.refuse();
    let all = connect(&format!("{url}{SHORT}"));
    // Once a client's clock was ahead: from then on tokens are counted.
    let ahead = connect(&format!("{url}{SHORT}"));
    let wall = SystemClock.time_of_day().micros();
    ahead.raise_floor("k", Token::new(wall + 60_000_000)).expect("a good name");
    take(&ahead, &servers, "k");
    // A server that is slow may miss one.
    wait_for("all to have the same counter", || {
        take(&all, &servers, "k");
        let counters: Vec<Reply> = servers.iter().map(counter).collect();
        (counters[0] != Reply::Nil && counters.iter().all(|other| *other == counters[0])).then_some(())
    });
    servers[1].command(&["SAVE"]);
    let first = connect(&format!("{}{SHORT}", without(&servers, 2, &nowhere)));
    let before = take(&first, &servers, "k");
    let marker = || servers[1].command(&["GET", "tenure.1.boot"]);
    let old = marker();
    servers[1].restart();
    wait_for("the server is let in again", || (marker() != old).then_some(()));
    let second = connect(&format!("{}{SHORT}", without(&servers, 0, &nowhere)));
    let after = take(&second, &servers, "k");
    assert!(after > before, "{after} was given after {before}");
}

#[test]
fn a_server_without_its_largest_number_does_not_count_until_it_has_learned_it() {
    const SHORT: &str = "?max_ttl=500ms";
    let (servers, url) = start_with(3, &RedisOptions::default(), SHORT);
    let client = connect(&format!("{url}{SHORT}"));
    let token = take(&client, &servers, "k");
    servers[1].command(&["DEL", "tenure.1.max"]);
    let again = wait_for("a grant by the two others", || {
        let tried = pollster::block_on(client.mutex("k").ttl(Duration::from_millis(500)).try_acquire());
        tried.ok().flatten()
    });
    assert!(again.token() > token);
    drop(again);
    wait_for("it has learned", || {
        let known = servers[1].ask(&["GET", "tenure.1.max"]);
        (known != Reply::Nil && known.to_string().parse::<u64>().expect("a number") >= token.get())
            .then_some(())
    });
}

#[test]
fn one_server_that_is_named_twice_is_refused() {
    let (servers, _) = start(3, &RedisOptions::default());
    let [one, other] = [servers[0].port(), servers[1].port()];
    let url = format!("redlock://127.0.0.1:{one},localhost:{one},127.0.0.1:{other}");
    for is_other_dead in [false, true] {
        if is_other_dead {
            servers[1].kill();
        }
        let refused = pollster::block_on(Tenure::connect_with(connector(&url), Settings::default()));
        let refused = refused.expect_err("one server would have two votes of three");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains("localhost"), "{refused}");
    }
}

#[test]
fn a_server_that_turns_out_to_be_another_one_is_counted_once() {
    let (servers, _) = start(3, &RedisOptions::default());
    let ports = [servers[0].port(), servers[1].port(), servers[0].port()];
    let proxies = ports.map(|port| Proxy::start(([127, 0, 0, 1], port)));
    proxies[2].refuse();
    let hosts: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let client = connect(&format!("redlock://{}", hosts.join(",")));
    drop(pollster::block_on(client.mutex("m").try_acquire()).expect("two of three").expect("it is free"));
    // Its name leads to another server now.
    proxies[2].heal();
    wait_for("a connection", || (proxies[2].connections() > 0).then_some(()));
    let found = wait_for("the doctor to see it", || {
        let found = pollster::block_on(client.check()).expect("an answer");
        found.into_iter().find(|finding| finding.severity == Severity::Bad && finding.what == "server")
    });
    assert!(found.found.contains(&proxies[2].port().to_string()), "{found:?}");
    servers[1].kill();
    let refused = pollster::block_on(client.mutex("other").try_acquire());
    let refused = refused.expect_err("one server is no majority");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
}

#[test]
fn connections_that_fall_silent_are_left_although_no_call_is_waited_for() {
    let (servers, _) = start(3, &RedisOptions::default());
    let (proxies, url) = through(&servers);
    silence::is_left(
        || connector(&url),
        || proxies.iter().for_each(|proxy| proxy.fall_silent(silence::SLOW_LOGIN)),
    );
}

#[test]
fn a_store_far_away_is_reached() {
    let (servers, _) = start(3, &RedisOptions::default());
    let (proxies, url) = through(&servers);
    proxies.iter().for_each(|proxy| proxy.move_away(far::ONE_WAY));
    far::is_reached(|| connector(&url));
}

#[test]
fn a_claim_that_arrives_after_its_release_holds_nothing() {
    let (servers, _) = start(3, &RedisOptions::default());
    let (proxies, url) = through(&servers);
    let client = connect(&url);
    wait_for("three connections", || proxies.iter().all(|proxy| proxy.connections() > 0).then_some(()));
    take(&client, &servers, "warm");
    let executed = || servers[2].calls("fcall");
    // The third server's old connection carries the claim, and a new one the release.
    proxies[2].hold_back();
    let lease = pollster::block_on(client.mutex("late").acquire()).expect("two of three are a majority");
    wait_for("a new connection", || (proxies[2].connections() > 1).then_some(()));
    pause(Duration::from_millis(300));
    let before = executed();
    pollster::block_on(lease.release()).expect("a release is answered");
    let after = wait_for("the release to arrive", || Some(executed()).filter(|calls| *calls > before));
    proxies[2].heal();
    wait_for("the claim to arrive", || (executed() > after).then_some(()));
    let holds = servers[2].ask(&["EXISTS", "tenure:late"]);
    assert_eq!(holds, Reply::Integer(0), "the server holds for nobody");
}

#[test]
fn who_may_only_read_and_publish_takes_nothing_and_grants_nothing() {
    let (servers, url) = start(3, &RedisOptions::default());
    for server in &servers {
        let rights =
            ["+@read", "+@connection", "+info", "+role", "+time", "+fcall", "+eval", "+evalsha", "+@pubsub"];
        let user = ["ACL", "SETUSER", "monitor", "on", ">secret", "~*", "&*"];
        server.command(&[&user[..], &rights[..]].concat());
    }
    let client = connect(&url);
    let monitor = connect(&url.replace("redlock://", "redlock://monitor:secret@"));
    pollster::block_on(monitor.mutex("m").try_acquire()).expect_err("it may not write");
    let held = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    let waiter = connect(&url);
    let waiting = std::thread::spawn(move || {
        pollster::block_on(waiter.mutex("m").acquire_within(Duration::from_secs(1)))
    });
    for server in &servers {
        let waiters = wait_for("a waiter", || {
            let texts = server.ask(&["HGETALL", "tenure.1.W:tenure:m"]);
            Some(texts).filter(|texts| texts.parts().len() == 2)
        });
        let [id, text] = waiters.parts() else { panic!("one waits: {waiters:?}") };
        let text = text.to_string();
        let inbox = format!("tenure.1.inbox:{}", text.split(' ').nth(2).expect("a client"));
        let mut connection = server.connect().expect("it is up");
        connection.ask(&["AUTH", "monitor", "secret"]).expect("an answer");
        for _ in 0..10 {
            let told = connection.ask(&["PUBLISH", &inbox, &format!("L {id}")]).expect("an answer");
            assert_eq!(told, Reply::Integer(1), "the waiter hears it");
        }
    }
    let waited = waiting.join().expect("a waiter does not panic");
    assert_eq!(waited.expect_err("a message is no grant").kind(), ErrorKind::Timeout);
    assert!(!held.is_lost());
    pollster::block_on(held.release()).expect("it held until now");
}
