//! The servers of a quorum as an operator sees them: made, raised, checked, with TLS, and with users of few rights.

use std::time::Duration;

use tenure_conformance::crew::{connect as connect_with, now, pause};
use tenure_core::engine::{Finding, Severity};
use tenure_core::{ErrorKind, Tenure};
use tenure_testkit::redis::{Fsync, RedisOptions, RedisServer, quorum_url};
use tenure_testkit::wait_for;

use crate::conformance::connector;
use crate::servers_fail::start;

const PAGE: &str = include_str!("../../../../docs/engines/redlock.md");

fn connect(url: &str) -> Tenure {
    connect_with(connector(url))
}

fn servers(count: usize) -> (Vec<RedisServer>, String) {
    let servers: Vec<RedisServer> = (0..count).map(|_| RedisServer::start(RedisOptions::default())).collect();
    let url = quorum_url(&servers);
    (servers, url)
}

fn marker(server: &RedisServer) -> String {
    server.command(&["GET", "tenure.1.boot"])
}

fn init(client: &Tenure) -> String {
    pollster::block_on(client.migrate()).expect("all servers are there").expect("it says what it did")
}

/// Takes and releases a mutex. A client that learns just then that the longest ttl has been raised asks twice.
fn works(client: &Tenure, name: &str) {
    let ttl = Duration::from_secs(1);
    let lease = wait_for("a grant", || pollster::block_on(client.mutex(name).ttl(ttl).acquire()).ok());
    pollster::block_on(lease.release()).expect("a release is answered");
}

fn finding<'a>(found: &'a [Finding], what: &str) -> &'a Finding {
    found.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {found:?}"))
}

#[test]
fn five_servers_are_made_a_quorum_once() {
    let (servers, url) = servers(5);
    let url = format!("{url}?max_ttl=3s");
    let client = connect(&url);
    assert_eq!(
        pollster::block_on(client.mutex("m").ttl(Duration::from_secs(1)).try_acquire())
            .expect_err("not yet")
            .kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(init(&client), "all 5 servers count from now on, for ttls of up to 3s");
    assert!(servers.iter().all(|server| marker(server).ends_with(" 3000")), "{}", marker(&servers[0]));
    works(&client, "m");
    let known: Vec<String> = servers.iter().map(marker).collect();
    assert_eq!(init(&client), "all 5 servers count, for ttls of up to 3s", "the second time it does nothing");
    assert_eq!(servers.iter().map(marker).collect::<Vec<_>>(), known);
    servers[4].kill();
    let (said, again) = (init(&client), init(&connect(&url)));
    assert!(said.starts_with("4 of 5 servers count") && said == again, "{said}: {again}");
    works(&client, "m");
}

#[test]
fn all_servers_that_are_away_are_named_where_no_majority_is_there() {
    let server = RedisServer::start(RedisOptions::default());
    let (one, other) = (tenure_testkit::Port::free(), tenure_testkit::Port::free());
    let (one, other) = (one.number(), other.number());
    let url = format!("redlock://127.0.0.1:{},127.0.0.1:{one},127.0.0.1:{other}", server.port());
    let connecting = Tenure::connect_with(connector(&url), tenure_core::Settings::default());
    let error = pollster::block_on(connecting).expect_err("one of three is there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for port in [one, other] {
        let named = format!("cannot connect to 127.0.0.1:{port}: connection refused");
        assert!(error.to_string().contains(&named), "{error}");
    }
    assert!(error.hint().is_some_and(|hint| hint.contains("most of the servers")), "{error:?}");
}

#[test]
fn a_client_with_a_longer_ttl_is_refused_until_an_operator_raises_it_everywhere() {
    let (servers, url) = servers(3);
    let (short, long) = (connect(&format!("{url}?max_ttl=3s")), connect(&format!("{url}?max_ttl=10s")));
    init(&short);
    let refused = wait_for("a refusal for that", || {
        let refused = pollster::block_on(long.mutex("m").ttl(Duration::from_secs(1)).try_acquire())
            .expect_err("it is longer");
        (refused.kind() == ErrorKind::Invalid).then_some(refused)
    });
    assert!(refused.to_string().contains("10s") && refused.to_string().contains("3s"), "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("doctor --init")), "{refused}");
    let found = pollster::block_on(long.check()).expect("an answer");
    assert_eq!(finding(&found, "max_ttl").severity, Severity::Bad, "{found:?}");
    let other = connect(&format!("{url}?max_ttl=1s"));
    works(&other, "one that asks for less is none the worse");
    servers[2].stop();
    pollster::block_on(long.migrate()).expect_err("it is raised on all or on none");
    servers[2].cont();
    let said = wait_for("all to be raised", || pollster::block_on(long.migrate()).ok().flatten());
    assert_eq!(said, "all 3 servers count from now on, for ttls of up to 10s");
    [&short, &long, &other].into_iter().for_each(|client| works(client, "m"));
    assert_eq!(init(&short), "all 3 servers count, for ttls of up to 10s", "nobody lowers it");
}

#[test]
fn a_server_waits_for_the_longest_ttl_of_the_quorum_and_not_of_the_client_that_sees_it() {
    let (servers, url) = servers(3);
    init(&connect(&format!("{url}?max_ttl=3s")));
    let client = connect(&format!("{url}?max_ttl=100ms"));
    let brief = client.mutex("m").ttl(Duration::from_millis(100));
    drop(pollster::block_on(brief.acquire()).expect("a majority counts"));
    servers[1].restart();
    let forgotten_at = now();
    wait_for("the server is let in", || (!marker(&servers[1]).is_empty()).then_some(()));
    assert!(now().since(forgotten_at) >= Duration::from_millis(4900), "it was let in too early");
    assert!(marker(&servers[1]).ends_with(" 3000"), "it has learned it from the others");
}

#[test]
fn the_doctor_looks_at_each_server_as_at_a_single_one() {
    let options = RedisOptions::default().persistent(Fsync::EverySecond);
    let mut servers: Vec<RedisServer> = (0..2).map(|_| RedisServer::start(options.clone())).collect();
    servers.push(RedisServer::start(RedisOptions::default()));
    let client = connect(&quorum_url(&servers));
    init(&client);
    servers[2].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let found = pollster::block_on(client.check()).expect("an answer");
    assert!(finding(&found, "version").found.starts_with("Redis "), "{found:?}");
    let of = |what: &str, severity: Severity| -> Vec<&Finding> {
        found.iter().filter(|finding| finding.what == what && finding.severity == severity).collect()
    };
    let last = servers[2].port().to_string();
    for (what, text) in [("memory", "allkeys-lru"), ("persistence", "none")] {
        let [warned] = of(what, Severity::Warning)[..] else { panic!("one {what} to warn of: {found:?}") };
        assert!(warned.found.contains(&last) && warned.found.contains(text), "{warned:?}");
        assert!(!of(what, Severity::Good).is_empty(), "the others are good: {found:?}");
    }
    assert!(of("persistence", Severity::Good)[0].found.contains("everysec"), "{found:?}");
    assert!(found.iter().all(|finding| finding.severity != Severity::Bad), "{found:?}");
}

#[test]
fn a_quorum_speaks_tls() {
    let servers: Vec<RedisServer> =
        (0..3).map(|_| RedisServer::start(RedisOptions::default().tls())).collect();
    let authorities: String = servers
        .iter()
        .map(|server| std::fs::read_to_string(server.authority()).expect("a certificate"))
        .collect();
    let file = servers[0].authority().with_file_name("all.pem");
    std::fs::write(&file, authorities).expect("a file");
    let url = quorum_url(&servers).replace("redlock://", "redlocks://");
    let client = connect(&format!("{url}?ca={}", file.display()));
    init(&client);
    works(&client, "m");
    let only_one = format!("{url}?ca={}", servers[0].authority().display());
    let refused = pollster::block_on(Tenure::connect_with(connector(&only_one), Default::default()));
    assert!(refused.is_err(), "two of three servers have certificates of nobody who is trusted");
}

#[test]
fn who_may_not_call_functions_calls_scripts_that_servers_may_forget() {
    let (servers, url) = start(3, &RedisOptions::default());
    for server in &servers {
        server.command(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", "-fcall"]);
    }
    let client = connect(&url.replace("redlock://", "redlock://worker:secret@"));
    for _ in 0..10 {
        works(&client, "m");
        servers.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
    }
    for server in &servers {
        let (known, texts) = (server.calls("evalsha"), server.calls("eval"));
        assert!(known >= 20 && texts >= 10, "{known} by their hash, {texts} by their text");
    }
}

#[test]
fn functions_that_servers_forget_are_loaded_again() {
    let (servers, url) = start(3, &RedisOptions::default());
    let client = connect(&url);
    for _ in 0..10 {
        works(&client, "m");
        // Two are enough to go on. The third must not forget while it is being told.
        wait_for("the third server", || {
            let count = || servers.iter().map(|server| server.calls("fcall")).collect::<Vec<_>>();
            let before = count();
            pause(Duration::from_millis(50));
            (count() == before).then_some(())
        });
        servers.iter().for_each(|server| drop(server.command(&["FUNCTION", "FLUSH"])));
    }
    assert!(servers.iter().all(|server| server.calls("eval") + server.calls("evalsha") == 0));
}

#[test]
fn the_rights_of_the_page_are_enough() {
    let (servers, url) = start(3, &RedisOptions::default());
    let rule = PAGE.split("```text\nACL SETUSER ").nth(1).and_then(|rest| rest.split("\n```").next());
    let rule = rule.expect("the page has the rule");
    let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(rule.split_whitespace()).collect();
    servers.iter().for_each(|server| drop(server.command(&words)));
    let url = url.replace("redlock://", "redlock://locks:secret@");
    let (one, other) = (connect(&url), connect(&url));
    pollster::block_on(async {
        let held = one.mutex("m").acquire().await.expect("it is free");
        assert!(other.mutex("m").try_acquire().await.expect("an answer").is_none());
        let mutex = other.mutex("m");
        let waiting = mutex.acquire_within(Duration::from_secs(20));
        let releasing = async {
            while one.view("m").await.expect("a view").is_none_or(|view| view.waiting == 0) {}
            held.release().await.expect("a release is answered");
        };
        let (waited, ()) = futures_util::future::join(waiting, releasing).await;
        drop(waited.expect("an answer"));
        let lock = one.rw_lock("rw");
        let reader = lock.read().acquire().await.expect("it is free");
        let slot = one.slot_pool("pool", 3).acquire().await.expect("one is free");
        let found = one.inspect("").await.expect("a list");
        assert!(found.len() >= 2, "{found:?}");
        drop((reader, slot));
        let term = one.election("e").campaign().await.expect("nobody leads");
        term.publish(b"here").await.expect("it leads");
        other.election("e").leader().await.expect("an answer").expect("one leads");
        let token = one.mutex("broken").acquire().await.expect("it is free").token();
        one.break_hold("broken", token, true).await.expect("an answer");
        let found = one.check().await.expect("an answer");
        assert!(found.iter().all(|finding| !finding.found.contains("NOPERM")), "{found:?}");
    });
    for server in &servers {
        let log = server.command(&["ACL", "LOG"]);
        assert!(log.is_empty(), "it was refused something: {log}");
    }
}

#[test]
fn a_refusal_says_why() {
    let (_servers, url) = start(3, &RedisOptions::default());
    let client = connect(&url);
    let refused =
        pollster::block_on(client.semaphore("units", 2).try_acquire()).expect_err("a quorum cannot count");
    assert!(refused.to_string().contains("a majority of servers cannot count units"), "{refused}");
    let long = client.mutex("long").ttl(Duration::from_secs(61));
    let refused = pollster::block_on(long.try_acquire()).expect_err("it is longer than max_ttl");
    assert!(refused.to_string().contains("max_ttl"), "{refused}");
    let refused = pollster::block_on(client.resize("pool", 3)).expect_err("nobody keeps it");
    assert!(
        refused.kind() == ErrorKind::Unsupported && refused.to_string().contains("no majority could agree"),
        "{refused}"
    );
}
