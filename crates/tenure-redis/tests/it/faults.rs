//! What can go wrong with one server and the way to it: nothing may hang, be held twice, or be left behind.

use std::time::Duration;

use tenure_conformance::{far, silence};
use tenure_core::{ErrorKind, ReleaseAnswer};
use tenure_testkit::redis::{Fsync, RedisOptions, RedisServer};
use tenure_testkit::{Loss, Proxy, Reply, wait_for};

use crate::conformance::connector;
use crate::crew::{TTL, connect, crew, now, pause};

const CLIENTS: usize = 8;
/// How soon everybody is served again once a fault is over.
const SOON: Duration = Duration::from_secs(5);

fn names() -> Vec<String> {
    vec!["one".to_owned(), "two".to_owned()]
}

/// The address of a server behind a proxy.
fn through(proxy: &Proxy) -> String {
    format!("redis://127.0.0.1:{}", proxy.port())
}

fn before(server: &RedisServer) -> Proxy {
    Proxy::start(([127, 0, 0, 1], server.port()))
}

/// Waits until nothing is left but the last token.
fn assert_nothing_is_left(server: &RedisServer) {
    wait_for("an empty server", || {
        let keys = server.ask(&["KEYS", "*"]);
        let is_shared =
            |key: &str| key.starts_with("tenure.1.token:") || key.starts_with("tenure.1.finished:");
        keys.parts().iter().all(|key| is_shared(&key.to_string())).then_some(())
    });
}

/// Does something again and again for two seconds while clients work; all must go on, one at a time.
fn while_they_work(server: &RedisServer, url: &str, mut disturb: impl FnMut()) {
    let crew = crew(url, CLIENTS, &names());
    let until = now() + Duration::from_secs(2);
    while now() < until {
        disturb();
        pause(Duration::from_millis(40));
    }
    let over = now();
    crew.wait_until_served(CLIENTS, over, SOON, "after the fault");
    let report = crew.finish(names().len());
    report.assert_exclusive();
    assert_nothing_is_left(server);
}

#[test]
fn lost_replies_cost_nothing_but_time() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = before(&server);
    while_they_work(&server, &through(&proxy), || proxy.lose_replies(1, b"FCALL", Loss::Cut));
}

#[test]
fn replies_that_never_come_cost_nothing_but_time() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = before(&server);
    let crew = crew(&through(&proxy), CLIENTS, &names());
    for _ in 0..3 {
        proxy.drop_replies();
        pause(Duration::from_millis(300));
        proxy.heal();
        let healed_at = now();
        crew.wait_until_served(CLIENTS, healed_at, SOON, "after the replies come again");
    }
    crew.finish(names().len()).assert_exclusive();
    assert_nothing_is_left(&server);
}

#[test]
fn a_connection_that_falls_silent_is_left_although_no_call_is_waited_for() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = before(&server);
    silence::is_left(|| connector(&through(&proxy)), || proxy.fall_silent(silence::SLOW_LOGIN));
}

#[test]
fn a_store_far_away_is_reached() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = before(&server);
    proxy.move_away(far::ONE_WAY);
    far::is_reached(|| connector(&through(&proxy)));
}

#[test]
fn killed_connections_cost_nothing_but_time() {
    let server = RedisServer::start(RedisOptions::default());
    while_they_work(&server, &server.url(), || {
        server.ask(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]);
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    });
}

#[test]
fn forgotten_functions_are_loaded_again() {
    let server = RedisServer::start(RedisOptions::default());
    while_they_work(&server, &server.url(), || drop(server.ask(&["FUNCTION", "FLUSH"])));
}

/// Returns how often a command was called, and how often refused.
fn calls(server: &RedisServer, command: &str) -> (u64, u64) {
    let stats = server.ask(&["INFO", "commandstats"]).to_string();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:"))).unwrap_or("");
    let number = |what: &str| {
        let found = line.split(',').find_map(|part| part.strip_prefix(what)?.strip_prefix('='));
        found.map_or(0, |text| text.parse().expect("a number"))
    };
    (number("calls"), number("rejected_calls"))
}

#[test]
fn who_may_not_call_functions_calls_scripts() {
    for missing in ["-fcall", "-function"] {
        let server = RedisServer::start(RedisOptions::default());
        server.ask(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", missing]);
        let url = server.url().replace("redis://", "redis://worker:secret@");
        while_they_work(&server, &url, || drop(server.ask(&["SCRIPT", "FLUSH"])));
        let ((functions, refused), (scripts, _)) = (calls(&server, "fcall"), calls(&server, "evalsha"));
        // Each client tries once, or a few times at the same moment.
        assert!(functions + refused < 10 * CLIENTS as u64, "{missing}: {functions} and {refused}");
        assert!(scripts > 100, "{missing}: {scripts}");
    }
}

#[test]
fn functions_are_what_is_called() {
    let server = RedisServer::start(RedisOptions::default());
    while_they_work(&server, &server.url(), || {});
    assert!(calls(&server, "fcall").0 > 100);
    assert_eq!((calls(&server, "eval").0, calls(&server, "evalsha").0), (0, 0));
}

#[test]
fn a_connection_that_cannot_keep_up_is_made_anew() {
    let line = "client-output-buffer-limit pubsub 200kb 0 0";
    let server = RedisServer::start(RedisOptions::default().line(line));
    let flood = vec![b'x'; 400 * 1024];
    while_they_work(&server, &server.url(), || {
        for inbox in server.ask(&["PUBSUB", "CHANNELS", "tenure.1.inbox:*"]).parts() {
            // It does not fit, so the server ends the connection, and with it what else was to be told.
            server.ask(&[b"PUBLISH", inbox.to_string().as_bytes(), &flood]);
        }
    });
}

#[test]
fn a_server_that_forgets_takes_its_leases_along_at_once() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    server.kill();
    server.restart();
    let until = now() + SOON;
    while !lease.is_lost() {
        assert!(now() < until, "the new server knows nothing of the lease, whose ttl is 30 s");
        pause(Duration::from_millis(5));
    }
    let token = lease.token();
    let answer = pollster::block_on(lease.release()).expect("a release is answered");
    assert_eq!(answer, ReleaseAnswer::AlreadyLost);
    let next = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    assert!(next.token() > token, "the clock and the floor keep tokens growing");
}

#[test]
fn a_server_that_remembers_keeps_its_leases() {
    let server = RedisServer::start(RedisOptions::default().persistent(Fsync::Always));
    let (client, other) = (connect(&server.url()), connect(&server.url()));
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    server.kill();
    server.restart();
    pause(Duration::from_secs(2));
    assert!(!lease.is_lost(), "the server has it, and it has been renewed");
    assert!(pollster::block_on(other.mutex("m").try_acquire()).expect("an answer").is_none());
    let answer = pollster::block_on(lease.release()).expect("a release is answered");
    assert_eq!(answer, ReleaseAnswer::Released);
}

#[test]
fn a_stopped_server_takes_leases_by_their_deadline_and_serves_all_afterwards() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    let crew = crew(&server.url(), CLIENTS, &names());
    let lease = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is free");
    let stopped_at = now();
    server.stop();
    pause((stopped_at + TTL + Duration::from_millis(100)).since(now()));
    assert!(lease.is_lost(), "its holder is told by its own clock");
    pause(Duration::from_millis(500));
    server.cont();
    let over = now();
    crew.wait_until_served(CLIENTS, over, SOON, "after the server goes on");
    crew.finish(names().len()).assert_exclusive();
    assert_nothing_is_left(&server);
}

#[test]
fn a_full_server_grants_nothing_and_takes_back_everything() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    let held = pollster::block_on(client.mutex("held").ttl(TTL).acquire()).expect("it is free");
    // Its renewal, its queue and its hand-over write to structures, which a full server refuses at first.
    let unit = pollster::block_on(client.semaphore("s", 1).ttl(TTL).acquire()).expect("it is free");
    let next = connect(&server.url());
    let waiting = std::thread::spawn(move || {
        pollster::block_on(next.semaphore("s", 1).ttl(TTL).acquire_within(Duration::from_secs(20)))
            .map(|lease| lease.token())
    });
    wait_for("a waiter", || {
        (pollster::block_on(client.view("s")).expect("an answer")?.waiting == 1).then_some(())
    });
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = pollster::block_on(client.mutex("other").try_acquire()).expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("OOM"), "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("maxmemory")), "{refused:?}");
    pause(TTL + Duration::from_millis(200));
    assert!(!held.is_lost() && !unit.is_lost(), "what is held can be renewed");
    let answer = pollster::block_on(unit.release()).expect("it is handed over");
    assert_eq!(answer, ReleaseAnswer::Released);
    waiting.join().expect("the waiter does not panic").expect("whoever waits already is served");
    let answer = pollster::block_on(held.release()).expect("and released");
    assert_eq!(answer, ReleaseAnswer::Released);
}

#[test]
fn a_replica_is_not_written_to() {
    let (server, master) =
        (RedisServer::start(RedisOptions::default()), RedisServer::start(RedisOptions::default()));
    let client = connect(&server.url());
    let lease = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is free");
    server.ask(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    pause(TTL + Duration::from_millis(300));
    assert!(lease.is_lost(), "nobody can renew it");
    let refused = pollster::block_on(client.mutex("m").try_acquire()).expect_err("a replica grants nothing");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
}

#[test]
fn a_clock_that_is_set_forward_takes_its_leases_along_at_once() {
    let server = RedisServer::start(RedisOptions::default().clock());
    let client = connect(&server.url());
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    server.clock().advance(Duration::from_secs(60));
    let until = now() + SOON;
    while !lease.is_lost() {
        assert!(now() < until, "the hold has ended, and its ttl is 30 s");
        // Any answer tells.
        drop(pollster::block_on(client.mutex("other").try_acquire()).expect("an answer"));
        pause(Duration::from_millis(20));
    }
    let next = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    server.clock().step_back(Duration::from_secs(60));
    let token = next.token();
    pollster::block_on(next.release()).expect("a release is answered");
    let last = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    assert!(last.token() > token, "tokens grow although the clock went back");
}

#[test]
fn a_clock_that_is_set_back_keeps_no_hold_longer_than_to_its_renewal() {
    let server = RedisServer::start(RedisOptions::default().clock());
    let client = connect(&server.url());
    let lease = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is free");
    server.clock().step_back(Duration::from_secs(3600));
    pause(TTL);
    assert!(!lease.is_lost(), "it is renewed");
    // Counted from the time as it is now: were its holder killed, nobody would wait for an hour.
    let Reply::Integer(ends_in) = server.ask(&["PTTL", "tenure:m"]) else { panic!("a number") };
    assert!((1..=TTL.as_millis() as i64).contains(&ends_in), "{ends_in}");
}

#[test]
fn a_second_call_does_not_wait_for_the_answer_to_the_first() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = before(&server);
    let client = connect(&through(&proxy));
    // The library is loaded, and nothing else is under way.
    pollster::block_on(async { client.mutex("warm").acquire().await?.release().await }).expect("it is free");
    proxy.drop_replies();
    let (sent, mut asked) = (calls(&server, "fcall").0, Vec::new());
    let mut ask = |names: std::ops::Range<u32>| {
        for name in names {
            let mut claim = Box::pin(client.mutex(&name.to_string()).acquire());
            assert!(pollster::block_on(futures_util::future::poll_immediate(&mut claim)).is_none());
            asked.push(claim);
        }
    };
    let until = |count: u64| {
        wait_for("a call", || (calls(&server, "fcall").0 >= sent + count).then_some(()));
        assert_eq!(calls(&server, "fcall").0, sent + count);
    };
    ask(0..1);
    until(1);
    // Too few to be worth a call of their own, and then enough.
    ask(1..2);
    pause(Duration::from_millis(50));
    until(1);
    ask(2..10);
    until(2);
    // And no third one, however many there are.
    ask(11..40);
    pause(Duration::from_millis(50));
    until(2);
}
