//! What can go wrong with some servers of a quorum, and with the way to them.

use std::time::Duration;

use tenure_conformance::crew::{Crew, TTL, connect as connect_with, now, pause};
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, Tenure};
use tenure_fence::Memory;
use tenure_testkit::redis::{RedisOptions, RedisServer, quorum_url};
use tenure_testkit::{Loss, Proxy, Reply, foreign, wait_for};

use crate::conformance::{connector, init};
use crate::take_turns::take_turns_on;

const CLIENTS: usize = 6;
/// How soon everybody is served again once a fault is over.
const SOON: Duration = Duration::from_secs(8);
/// A quorum whose servers are soon let in again.
const SHORT: &str = "?max_ttl=3s";

/// Starts servers, and makes a quorum of them.
pub(crate) fn start(servers: usize, options: &RedisOptions) -> (Vec<RedisServer>, String) {
    start_with(servers, options, "")
}

/// As [`start`], with settings such as the longest ttl. The URL has them not.
pub(crate) fn start_with(
    servers: usize,
    options: &RedisOptions,
    settings: &str,
) -> (Vec<RedisServer>, String) {
    let servers: Vec<RedisServer> = (0..servers).map(|_| RedisServer::start(options.clone())).collect();
    let url = quorum_url(&servers);
    init(&format!("{url}{settings}"));
    (servers, url)
}

pub(crate) fn connect(url: &str) -> Tenure {
    connect_with(connector(url))
}

fn crew(url: &str, names: &[String]) -> Crew {
    let url = url.to_owned();
    Crew::start(move || connector(&url), CLIENTS, names)
}

fn names() -> Vec<String> {
    vec!["one".to_owned(), "two".to_owned()]
}

/// The servers as a client sees them who reaches some of them through proxies.
pub(crate) fn through(servers: &[RedisServer]) -> (Vec<Proxy>, String) {
    let proxies: Vec<Proxy> =
        servers.iter().map(|server| Proxy::start(([127, 0, 0, 1], server.port()))).collect();
    let hosts: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    (proxies, format!("redlock://{}", hosts.join(",")))
}

#[test]
fn a_minority_that_dies_is_no_trouble_and_a_majority_is_told() {
    let (servers, url) = start(5, &RedisOptions::default());
    let crew = crew(&url, &names());
    for server in &servers[..2] {
        server.kill();
        crew.wait_until_served(CLIENTS, now(), SOON, "with a minority away");
    }
    crew.finish(names().len()).assert_exclusive();
    let client = connect(&url);
    let mutex = client.mutex("third");
    let held = pollster::block_on(mutex.acquire()).expect("three of five are a majority");
    servers[2].kill();
    let asked = now();
    let refused = pollster::block_on(client.mutex("fourth").acquire()).expect_err("no majority is left");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let took = now().since(asked);
    assert_in_time(took, Duration::from_secs(5));
    drop(held);
}

#[test]
fn lost_requests_and_replies_cost_nothing_but_time() {
    let (servers, _) = start(3, &RedisOptions::default());
    let (proxies, url) = through(&servers);
    let crew = crew(&url, &names());
    let until = now() + Duration::from_secs(2);
    for proxy in proxies.iter().cycle() {
        proxy.lose_replies(1, b"FCALL", Loss::Cut);
        pause(Duration::from_millis(30));
        if now() > until {
            break;
        }
    }
    for proxy in &proxies {
        proxy.drop_requests();
        pause(Duration::from_millis(300));
        proxy.heal();
        crew.wait_until_served(CLIENTS, now(), SOON, "after requests were lost");
    }
    crew.finish(names().len()).assert_exclusive();
}

/// A client that holds by the words of two of three servers, and one that reaches them all.
fn on_two_of_three(options: &RedisOptions, settings: &str) -> (Vec<RedisServer>, Proxy, Tenure, Tenure) {
    let (servers, url) = start_with(3, options, settings);
    let proxy = Proxy::start(([127, 0, 0, 1], servers[2].port()));
    proxy.refuse();
    proxy.cut();
    let ports = [servers[0].port(), servers[1].port(), proxy.port()];
    let hosts = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let first = connect(&format!("redlock://{hosts}{settings}"));
    let other = connect(&format!("{url}{settings}"));
    (servers, proxy, first, other)
}

#[test]
fn a_clock_that_jumps_ends_exclusion_but_not_the_order_of_tokens() {
    let (servers, _proxy, first, other) = on_two_of_three(&RedisOptions::default().clock(), "");
    let lease = pollster::block_on(first.mutex("jump").acquire()).expect("two of three are a majority");
    let refused = pollster::block_on(other.mutex("jump").try_acquire()).expect("an answer");
    assert!(refused.is_none(), "it is held");
    servers[1].clock().advance(Duration::from_secs(60));
    let second = pollster::block_on(other.mutex("jump").acquire()).expect("two servers know of no hold");
    assert!(!lease.is_lost(), "this is what a jump of a clock does: two hold");
    assert!(second.token() > lease.token(), "{} came after {}", second.token(), lease.token());
    let resource = Memory::new();
    resource.check("jump", &second).expect("the later one");
    resource.check("jump", &lease).expect_err("the earlier one is refused, though it believes that it holds");
}

#[test]
fn a_server_that_has_forgotten_does_not_count_until_it_has_waited_and_learned() {
    for flushes in [false, true] {
        let (servers, _proxy, first, other) = on_two_of_three(&RedisOptions::default(), SHORT);
        let ttl = Duration::from_secs(3);
        let lease = pollster::block_on(first.mutex("memory").ttl(ttl).acquire()).expect("a majority");
        let token = lease.token().get();
        if flushes {
            servers[1].command(&["FLUSHALL"]);
        } else {
            servers[1].restart();
        }
        let forgotten_at = now();
        let tried = pollster::block_on(other.mutex("memory").ttl(ttl).try_acquire());
        let is_refused = match &tried {
            Ok(tried) => tried.is_none(),
            Err(error) => error.kind() == ErrorKind::Unavailable,
        };
        assert!(!lease.is_lost(), "the test was too slow");
        assert!(is_refused, "a server that has forgotten granted what another holds: {tried:?}");
        wait_for("the server is let in", || {
            (!servers[1].command(&["GET", "tenure.1.boot"]).is_empty()).then_some(())
        });
        assert!(now().since(forgotten_at) >= Duration::from_millis(4900), "it was let in too early");
        let known: u64 = servers[1].command(&["GET", "tenure.1.max"]).parse().expect("a number");
        assert!(known >= token, "it has learned {known}, and {token} was given");
        drop(lease);
        pollster::block_on(other.mutex("memory").ttl(TTL).acquire()).expect("it counts again");
    }
}

#[test]
fn a_quorum_that_has_forgotten_everything_is_let_in_by_an_operator_only() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start(RedisOptions::default())).collect();
    let url = quorum_url(&servers);
    let client = connect(&url);
    let refused = pollster::block_on(client.mutex("new").try_acquire()).expect_err("no server counts yet");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.hint().is_some_and(|hint| hint.contains("doctor --init")), "{refused}");
    servers[2].stop();
    let refused = pollster::block_on(client.migrate()).expect_err("one of them is away");
    assert!(refused.to_string().contains(&servers[2].port().to_string()), "it says which: {refused}");
    servers[2].cont();
    wait_for("the quorum is let in", || pollster::block_on(client.migrate()).ok());
    pollster::block_on(client.mutex("new").acquire()).expect("it is free");
    let found = pollster::block_on(client.check()).expect("an answer");
    let is_good = |what: &str| found.iter().any(|finding| finding.what == what && finding.hint.is_none());
    assert!(is_good("quorum") && is_good("marker") && is_good("clock"), "{found:?}");
}

#[test]
fn a_release_reaches_a_server_that_never_answered() {
    let (servers, _) = start(3, &RedisOptions::default());
    let (proxies, url) = through(&servers);
    let client = connect(&url);
    let holds = |server: &RedisServer| server.ask(&["EXISTS", "tenure:silent"]) == Reply::Integer(1);
    proxies[2].drop_replies();
    let lease = pollster::block_on(client.mutex("silent").acquire()).expect("two of three are a majority");
    wait_for("the third has granted it too", || holds(&servers[2]).then_some(()));
    let released = now();
    pollster::block_on(lease.release()).expect("two of three are a majority");
    proxies[2].heal();
    wait_for("no server holds it", || (!servers.iter().any(holds)).then_some(()));
    assert!(now().since(released) < Duration::from_secs(15), "it ended by itself");
}

#[test]
fn what_was_granted_in_vain_is_given_back_at_once() {
    let (servers, url) = start(3, &RedisOptions::default());
    let (one, other) = (connect(&url), connect(&url));
    let lease = pollster::block_on(one.mutex("vain").acquire()).expect("it is free");
    let held = |server: &RedisServer| server.ask(&["GET", "tenure:vain"]) != Reply::Nil;
    wait_for("all have granted it", || servers.iter().all(held).then_some(()));
    // One server has lost the key, as by an eviction, and grants it to the next who asks.
    servers[0].command(&["DEL", "tenure:vain"]);
    let tried = pollster::block_on(other.mutex("vain").try_acquire()).expect("an answer");
    assert!(tried.is_none(), "a majority holds it");
    wait_for("the vote is given back", || (!held(&servers[0])).then_some(()));
    assert!(!lease.is_lost(), "the holder goes on with two");
    pollster::block_on(lease.release()).expect("a release is answered");
    drop(pollster::block_on(other.mutex("vain").try_acquire()).expect("an answer").expect("it is free"));
}

#[test]
fn a_ttl_beyond_the_longest_is_refused_and_so_is_a_semaphore() {
    let (_servers, url) = start(3, &RedisOptions::default());
    let client = connect(&format!("{url}{SHORT}"));
    let long = client.mutex("long").ttl(Duration::from_secs(4));
    let refused = pollster::block_on(long.try_acquire()).expect_err("it is longer than max_ttl");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let units = client.semaphore("units", 2).ttl(TTL.min(Duration::from_secs(1)));
    let refused = pollster::block_on(units.try_acquire()).expect_err("a quorum cannot count");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[test]
fn node_redlock_and_a_mutex_take_turns_on_the_same_servers() {
    let (servers, url) = start(3, &RedisOptions::default());
    let client = connect(&format!("{url}?prefix=locks:"));
    take_turns_on(&servers, &client, foreign::node(), "node_redlock.js");
    let lease = pollster::block_on(client.mutex("classic").acquire()).expect("it is free");
    let set = |server: &RedisServer| server.ask(&["SET", "locks:classic", "theirs", "NX", "PX", "60000"]);
    let taken = servers.iter().filter(|server| set(server) != Reply::Nil).count();
    assert!(taken < 2, "a mutex keeps them out on a majority");
    pollster::block_on(lease.release()).expect("a release is answered");
    servers.iter().for_each(|server| drop(set(server)));
    let tried = pollster::block_on(client.mutex("classic").try_acquire()).expect("an answer");
    assert!(tried.is_none(), "they keep a mutex out on a majority");
    let view = pollster::block_on(client.view("classic")).expect("an answer").expect("it is held");
    assert_eq!(view.holds[0].label.as_str(), "theirs", "an operator sees whose it is");
}
