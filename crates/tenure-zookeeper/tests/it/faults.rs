//! What can go wrong with one server and the way to it.

use std::time::Duration;

use tenure_conformance::{far, late_slot, silence};
use tenure_core::model::inspect::View;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, ReleaseAnswer};
use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer};
use tenure_testkit::{Loss, Proxy, wait_for};

use crate::conformance::{BRIEF, connector};
use crate::crew::{CLIENTS, SOON, assert_nothing_is_left, connect, crew, names, now, pause, raw};

/// How long callers wait for an answer, and a little more.
const ANSWERED: Duration = Duration::from_millis(2300);

fn start() -> ZooKeeperServer {
    ZooKeeperServer::start(&ZooKeeperOptions::default())
}

/// A session whose client bears [`silence::SLOW_LOGIN`] before it tries another server.
const PATIENT: &str = "session_timeout=4s&tick=200ms";

/// A server, and the way to it.
fn behind_a_proxy() -> (ZooKeeperServer, Proxy, String) {
    let server = start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = format!("zookeeper://127.0.0.1:{}?{BRIEF}", proxy.port());
    (server, proxy, url)
}

#[test]
fn who_takes_a_slot_late_has_a_larger_token() {
    let server = start();
    let url = server.url();
    late_slot::who_takes_a_slot_late_has_a_larger_token(move || connector(&url));
}

#[test]
fn a_connection_that_falls_silent_is_left_although_no_call_is_waited_for() {
    let (_server, proxy, url) = behind_a_proxy();
    let url = url.replace(BRIEF, PATIENT);
    silence::is_left(|| connector(&url), || proxy.fall_silent(silence::SLOW_LOGIN));
}

#[test]
fn a_store_far_away_is_reached() {
    let (_server, proxy, url) = behind_a_proxy();
    let url = url.replace(BRIEF, "session_timeout=10s");
    proxy.move_away(far::ONE_WAY);
    far::is_reached(|| connector(&url));
}

#[test]
fn a_session_that_has_ended_is_begun_anew_although_no_call_is_waited_for() {
    let (_server, proxy, url) = behind_a_proxy();
    let url = url.replace(BRIEF, PATIENT);
    let end_session = || {
        proxy.refuse();
        proxy.cut();
        pause(Duration::from_secs(6));
        proxy.heal();
        proxy.fall_silent(silence::SLOW_LOGIN);
    };
    silence::is_left(|| connector(&url), end_session);
}

#[test]
fn connections_that_are_cut_cost_nothing_but_time() {
    let (server, proxy, url) = behind_a_proxy();
    // It must be heard of between two cuts, on a busy machine too.
    let held = connect(&url.replace(BRIEF, PATIENT));
    let lease =
        pollster::block_on(held.mutex("held").ttl(Duration::from_secs(4)).acquire()).expect("it is free");
    let crew = crew(&url);
    let until = now() + Duration::from_secs(3);
    while now() < until {
        proxy.cut();
        pause(Duration::from_millis(300));
    }
    let took = crew.wait_until_served(CLIENTS, now(), SOON, "after the cuts");
    println!("all were served {took:?} after the last cut");
    let report = crew.finish(names().len());
    println!("{} sections, {} errors", report.served(), report.errors.len());
    report.assert_exclusive();
    assert!(!lease.is_lost(), "its client was heard of in time, each time");
    pollster::block_on(lease.release()).expect("an answer");
    assert_nothing_is_left(&connect(&format!("{}?{BRIEF}", server.url())));
}

#[test]
fn a_client_that_was_not_heard_of_begins_a_new_life() {
    let (server, proxy, url) = behind_a_proxy();
    let (client, other) = (connect(&url), connect(&format!("{}?{BRIEF}", server.url())));
    let lease =
        pollster::block_on(client.mutex("m").ttl(Duration::from_secs(2)).acquire()).expect("it is free");
    let mutex = other.mutex("m");
    let waiting = std::thread::spawn(move || {
        let next = pollster::block_on(mutex.acquire()).expect("its turn comes");
        (next, now())
    });
    pause(Duration::from_millis(300));
    let cut_at = now();
    proxy.black_hole();
    let lost = pollster::block_on(lease.lost());
    let lost_at = now();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    println!(
        "lost {:?} after the cut, {:?} after its deadline",
        lost_at.since(cut_at),
        lost_at.since(lease.deadline())
    );
    assert_in_time(lost_at.since(cut_at), Duration::from_millis(2100));
    let asked_at = now();
    let refused = pollster::block_on(client.mutex("n").try_acquire()).expect_err("nobody answers");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_in_time(now().since(asked_at), ANSWERED);
    let (next, granted_at) = waiting.join().expect("no panic");
    assert!(granted_at >= lost_at, "two held it");
    assert!(next.token() > lease.token());
    proxy.heal();
    let again = wait_for("a new life", || pollster::block_on(client.mutex("n").try_acquire()).ok()?);
    assert!(pollster::block_on(client.mutex("m").try_acquire()).expect("an answer").is_none());
    let answer = pollster::block_on(lease.release()).expect("no error");
    assert_eq!(answer, ReleaseAnswer::AlreadyLost);
    drop((again, next));
    assert_nothing_is_left(&other);
}

/// What is first known of a session after a silence leaves less than a third of it: the next answer leaves all of it.
#[test]
fn a_lease_outlives_a_server_that_stood_still_for_most_of_its_session() {
    let server = start();
    let client = connect(&format!("{}?session_timeout=10s&tick=200ms", server.url()));
    let mutex = client.mutex("m").ttl(Duration::from_secs(10));
    let lease = pollster::block_on(mutex.acquire()).expect("it is free");
    server.stop();
    pause(Duration::from_secs(7));
    server.cont();
    pause(Duration::from_secs(5));
    assert!(!lease.is_lost(), "it was renewed when the server went on");
}

/// Servers agree on a session's timeout at each connection anew, and need not allow the same.
#[test]
fn a_server_that_allows_less_time_takes_the_leases_and_nobody_holds_beside_them() {
    let (server, proxy, _) = behind_a_proxy();
    let url = |port: u16| format!("zookeeper://127.0.0.1:{port}?session_timeout=20s&tick=200ms");
    let client = connect(&url(proxy.port()));
    let ttl = Duration::from_secs(20);
    let lease = pollster::block_on(client.mutex("m").ttl(ttl).acquire()).expect("it is free");
    server.restart_with("maxSessionTimeout=2000");
    // From here on the servers end the session 2 s after they heard of it last. Its client must know less.
    let lost = wait_for("the loss", || lease.is_lost().then(now));
    let other = connect(&url(server.port()));
    let next = pollster::block_on(other.mutex("m").acquire_within(SOON)).expect("its turn comes");
    assert!(now() >= lost && next.token() > lease.token());
    drop(next);
    // The client goes on, by the shorter time.
    let again = wait_for("a new session", || pollster::block_on(client.mutex("n").try_acquire()).ok()?);
    assert!(again.deadline().since(now()) <= Duration::from_secs(2), "{:?}", again.deadline());
}

/// Whoever listens keeps the session that its client has given up no longer than its client does: it would go on, and all entries with it.
#[test]
fn a_session_that_is_given_up_ends_although_somebody_listens() {
    let server = start();
    let url = format!("{}?session_timeout=20s&tick=200ms", server.url());
    let (client, other) = (connect(&url), connect(&url));
    let queue = client.queue("q");
    let listening = std::thread::spawn(move || pollster::block_on(queue.next()).map(drop));
    wait_for("the node by which it is called", || {
        let calls = raw(&server.url(), async |raw| raw.list_children("/%queue-calls").await);
        calls.is_ok_and(|calls| !calls.is_empty()).then_some(())
    });
    let ttl = Duration::from_secs(20);
    let lease = pollster::block_on(client.mutex("m").ttl(ttl).acquire()).expect("it is free");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let next = pollster::block_on(other.mutex("m").acquire_within(SOON)).expect("its turn comes");
            (next.token(), lease.is_lost())
        });
        wait_for("a waiter", || {
            let view = pollster::block_on(client.view("m")).expect("an answer").expect("it is held");
            (view.waiting > 0).then_some(())
        });
        let mut changes = client.observe("m").expect("a good name");
        server.restart_with("maxSessionTimeout=2000");
        let (token, was_lost) = waiting.join().expect("no panic");
        assert!(token > lease.token());
        assert!(was_lost, "its holder has been told before");
        // Who only looks on goes on looking. The next one lets go of it at once.
        let is_told = |view: &View| view.last_token >= token;
        while !pollster::block_on(changes.next()).is_some_and(|seen| match seen {
            Ok(view) => view.as_ref().is_none_or(is_told),
            Err(_) => false,
        }) {}
    });
    // And it listens on, in the next session.
    wait_for("a push", || pollster::block_on(async { other.queue("q").push("x").dedup("x").await }).ok());
    listening.join().expect("no panic").expect("it is handed out");
}

#[test]
fn clients_that_lose_their_lives_together_go_on_one_at_a_time() {
    let (server, proxy, url) = behind_a_proxy();
    let crew = crew(&url);
    for _ in 0..2 {
        proxy.black_hole();
        pause(Duration::from_millis(3200));
        proxy.heal();
        let took = crew.wait_until_served(CLIENTS, now(), SOON, "after the silence");
        println!("all were served {took:?} after the silence");
    }
    let report = crew.finish(names().len());
    println!("{} sections, {} errors", report.served(), report.errors.len());
    report.assert_exclusive();
    assert_nothing_is_left(&connect(&format!("{}?{BRIEF}", server.url())));
}

#[test]
fn a_server_that_is_killed_remembers_its_leases() {
    let server = start();
    let url = format!("{}?session_timeout=8s&tick=200ms", server.url());
    let (client, other) = (connect(&url), connect(&url));
    let lease =
        pollster::block_on(client.mutex("m").ttl(Duration::from_secs(8)).acquire()).expect("it is free");
    server.kill();
    server.restart();
    let busy = wait_for("an answer", || pollster::block_on(other.mutex("m").try_acquire()).ok());
    assert!(busy.is_none(), "it is held");
    pause(Duration::from_secs(8));
    assert!(!lease.is_lost(), "it was renewed");
    assert_eq!(pollster::block_on(lease.release()).expect("an answer"), ReleaseAnswer::Released);
}

#[test]
fn a_claim_whose_answer_was_lost_finds_itself() {
    for loss in [Loss::Cut, Loss::Silence] {
        let (server, proxy, url) = behind_a_proxy();
        let (client, other) = (connect(&url), connect(&format!("{}?{BRIEF}", server.url())));
        // So that there is a container, and the first try makes the node whose answer is lost.
        let first = pollster::block_on(client.mutex("lost").acquire()).expect("it is free");
        pollster::block_on(first.release()).expect("an answer");
        proxy.lose_replies(1, b"/lost/m-1-1-", loss);
        let lease = pollster::block_on(client.mutex("lost").acquire_within(Duration::from_secs(15)));
        let lease = lease.unwrap_or_else(|error| panic!("{loss:?}: {error}"));
        let view = pollster::block_on(other.view("lost")).expect("an answer").expect("it is held");
        assert_eq!((view.holds.len(), view.waiting), (1, 0), "{loss:?}: it stands behind itself: {view:?}");
        proxy.heal();
        pollster::block_on(lease.release()).expect("an answer");
        assert_nothing_is_left(&other);
    }
}

#[test]
fn a_release_whose_answer_was_lost_is_no_error() {
    let (server, proxy, url) = behind_a_proxy();
    let (client, other) = (connect(&url), connect(&format!("{}?{BRIEF}", server.url())));
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    // What is deleted and nothing else: the code of that operation, and the path.
    proxy.lose_replies(1, b"/m/m-1-1-", Loss::Cut);
    pollster::block_on(lease.release()).expect("it is repeated");
    drop(pollster::block_on(other.mutex("m").acquire()).expect("it is free"));
    assert_nothing_is_left(&other);
}
