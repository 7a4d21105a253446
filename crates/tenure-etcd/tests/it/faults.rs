//! What can go wrong with servers and the way to them: nothing may hang, be held twice, or be left behind.

use std::future::IntoFuture;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_conformance::{far, late_slot, queue_crew, silence};
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{Delivery, ErrorKind, Queue, ReleaseAnswer};
use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer};
use tenure_testkit::{Proxy, wait_for};

use crate::conformance::connector;
use crate::crew::{
    TTL, assert_nothing_is_left, connect, crew, hasty, keys, lease_of, leases, now, pause, take,
    wait_for_waiters, with_hasty,
};

const CLIENTS: usize = 16;
/// How soon everybody is served after a server is lost: the longest that was measured, 4.3 s, and 2 s.
const RECOVERED: Duration = Duration::from_millis(6300);
/// How soon everybody is served again once a fault is over at which no leader was lost.
const SOON: Duration = Duration::from_secs(5);
/// How long callers wait for an answer: 2 s, the half second for which an endpoint is looked for the last time, and a
/// little more.
const ANSWERED: Duration = Duration::from_millis(2800);
/// Longer than any of a test's waits.
const LONG: Duration = Duration::from_secs(60);
/// The ttl of items in a full database: making room again stops the server for a while.
const ITEM_TTL: Duration = Duration::from_secs(4);

fn names() -> Vec<String> {
    vec!["one".to_owned(), "two".to_owned()]
}

/// The address of servers through proxies.
fn url_through(proxies: &[Proxy]) -> String {
    let hosts: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    format!("etcd://{}", hosts.join(","))
}

fn proxies(cluster: &EtcdCluster) -> Vec<Proxy> {
    cluster.servers().iter().map(|server| Proxy::start(([127, 0, 0, 1], server.port()))).collect()
}

/// Does something again and again for two seconds while clients work; all must go on, one at a time.
fn while_they_work(url: &str, server: &EtcdServer, mut disturb: impl FnMut(usize)) {
    let crew = crew(url, CLIENTS, &names());
    let until = now() + Duration::from_secs(2);
    for round in 0.. {
        if now() >= until {
            break;
        }
        disturb(round);
        pause(Duration::from_millis(100));
    }
    let over = now();
    let took = crew.wait_until_served(CLIENTS, over, SOON, "after the fault");
    println!("all were served {took:?} after the fault");
    let report = crew.finish(names().len());
    println!("{} were served, {} errors", report.served(), report.errors.len());
    report.assert_exclusive();
    assert_nothing_is_left(server);
}

#[test]
fn who_takes_a_slot_late_has_a_larger_token() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let url = server.url();
    late_slot::who_takes_a_slot_late_has_a_larger_token(move || connector(&url));
}

#[test]
fn a_killed_leader_costs_an_election() {
    let cluster = EtcdCluster::start(&hasty());
    let url = with_hasty(&cluster.url());
    let client = connect(&url);
    let lease = take(&client, "m", Duration::from_secs(20));
    let crew = crew(&url, CLIENTS, &names());
    let leader = cluster.leader();
    cluster.servers()[leader].kill();
    let took = crew.wait_until_served(CLIENTS, now(), RECOVERED, "after the leader was killed");
    println!("all were served {took:?} after the leader was killed");
    crew.finish(names().len()).assert_exclusive();
    assert!(!lease.is_lost(), "the others have it");
    assert_eq!(pollster::block_on(lease.release()).expect("an answer"), ReleaseAnswer::Released);
    assert_nothing_is_left(&cluster.servers()[(leader + 1) % 3]);
}

#[test]
fn a_stopped_leader_costs_an_election_and_finds_itself_replaced() {
    let cluster = EtcdCluster::start(&hasty());
    let url = with_hasty(&cluster.url());
    let crew = crew(&url, CLIENTS, &names());
    let leader = cluster.leader();
    cluster.servers()[leader].stop();
    let took = crew.wait_until_served(CLIENTS, now(), RECOVERED, "after the leader was stopped");
    println!("all were served {took:?} after the leader was stopped");
    cluster.servers()[leader].cont();
    crew.wait_until_served(CLIENTS, now(), SOON, "after it went on");
    crew.finish(names().len()).assert_exclusive();
    assert_nothing_is_left(&cluster.servers()[leader]);
}

#[test]
fn cut_connections_cost_nothing_but_time() {
    let cluster = EtcdCluster::start(&hasty());
    let proxies = proxies(&cluster);
    let url = with_hasty(&url_through(&proxies));
    while_they_work(&url, &cluster.servers()[0], |_| proxies.iter().for_each(Proxy::cut));
}

#[test]
fn silent_endpoints_are_left_for_others() {
    let cluster = EtcdCluster::start(&hasty());
    let proxies = proxies(&cluster);
    let url = with_hasty(&url_through(&proxies));
    while_they_work(&url, &cluster.servers()[0], |round| {
        proxies.iter().for_each(Proxy::heal);
        proxies[round / 5 % 3].black_hole();
        if round >= 18 {
            proxies.iter().for_each(Proxy::heal);
        }
    });
}

#[test]
fn a_connection_that_falls_silent_is_left_although_no_call_is_waited_for() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = url_through(std::slice::from_ref(&proxy));
    silence::is_left(|| connector(&url), || proxy.fall_silent(silence::SLOW_LOGIN));
}

#[test]
fn a_store_far_away_is_reached() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = url_through(std::slice::from_ref(&proxy));
    proxy.move_away(far::ONE_WAY);
    far::is_reached(|| connector(&url));
}

#[test]
fn lost_replies_leave_nobody_behind_in_a_line() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = url_through(std::slice::from_ref(&proxy));
    while_they_work(&url, &server, |_| {
        proxy.lose_replies(3, b"tenure/line/", tenure_testkit::Loss::Cut);
    });
}

#[test]
fn lost_replies_and_cut_connections_lose_no_item() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = url_through(std::slice::from_ref(&proxy));
    queue_crew::while_it_works(
        || connect(&url),
        SOON,
        |is_over| {
            queue_crew::again_and_again(is_over, 20, Duration::from_millis(100), |round| {
                if round % 4 == 3 {
                    proxy.cut();
                } else {
                    proxy.lose_replies(1, b"tenure/queue/", tenure_testkit::Loss::Cut);
                }
            });
        },
    );
}

#[test]
fn all_servers_down_take_leases_by_their_deadline_and_serve_all_afterwards() {
    let cluster = EtcdCluster::start(&hasty());
    let url = with_hasty(&cluster.url());
    let client = connect(&url);
    let crew = crew(&url, CLIENTS, &names());
    let lease = take(&client, "m", TTL);
    let kept = take(&client, "kept", Duration::from_secs(30));
    let down_at = now();
    cluster.servers().iter().for_each(|server| server.kill());
    pause((down_at + TTL + Duration::from_millis(100)).since(now()));
    assert!(lease.is_lost(), "its holder is told by its own clock");
    let asked_at = now();
    let refused = pollster::block_on(client.mutex("n").try_acquire()).expect_err("nobody answers");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_in_time(now().since(asked_at), ANSWERED);
    std::thread::scope(|scope| {
        cluster.servers().iter().for_each(|server| drop(scope.spawn(|| server.restart())));
    });
    let took = crew.wait_until_served(CLIENTS, now(), RECOVERED, "after the restart");
    println!("all were served {took:?} after the restart");
    crew.finish(names().len()).assert_exclusive();
    assert!(!kept.is_lost(), "the servers have it");
    assert_eq!(pollster::block_on(kept.release()).expect("an answer"), ReleaseAnswer::Released);
    assert_nothing_is_left(&cluster.servers()[0]);
}

#[test]
fn an_operator_who_revokes_a_lease_frees_its_locks_at_once() {
    const TTL: Duration = Duration::from_secs(6);
    let server = EtcdServer::start(&EtcdOptions::default());
    let (holder, waiter) = (connect(&server.url()), connect(&server.url()));
    let lease = take(&holder, "m", TTL);
    let next = waiter.mutex("m").ttl(LONG);
    let waiting = std::thread::spawn(move || pollster::block_on(next.acquire_within(LONG)));
    wait_for_waiters(&holder, "m", 1);
    let revoked_at = now();
    server.ctl(&["lease", "revoke", &lease_of(&server, "m", lease.claim())]);
    let next = waiting.join().expect("no panic").expect("it is free");
    println!("the next one had it after {:?}", now().since(revoked_at));
    assert_in_time(now().since(revoked_at), Duration::from_secs(1));
    assert!(next.token() > lease.token());
    let known = wait_for("loss", || lease.is_lost().then(now));
    assert_in_time(known.since(revoked_at), TTL / 3 + Duration::from_secs(1));
    assert_eq!(pollster::block_on(lease.release()).expect("an answer"), ReleaseAnswer::AlreadyLost);
    assert!(!next.is_lost());
    // The client goes on with another lease of etcd's.
    drop(take(&holder, "n", TTL));
}

/// What Jepsen found in etcd 3.4.3: a waiter was granted the lock although its lease had ended while it waited.
#[test]
fn a_waiter_whose_lease_has_ended_is_not_granted_but_waits_anew() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let clients = [(); 3].map(|()| connect(&server.url()));
    let lease = take(&clients[0], "m", Duration::from_secs(40));
    let wait = |client: usize| {
        let mutex = clients[client].mutex("m").ttl(LONG);
        std::thread::spawn(move || pollster::block_on(mutex.acquire_within(LONG)).expect("it is handed over"))
    };
    let first = wait(1);
    wait_for_waiters(&clients[0], "m", 1);
    let leases_then = leases(&server);
    let second = wait(2);
    wait_for_waiters(&clients[0], "m", 2);
    let of_holder = lease_of(&server, "m", lease.claim());
    let of_waiter =
        leases_then.into_iter().find(|lease| *lease != of_holder).expect("that of the first waiter");
    server.ctl(&["lease", "revoke", &of_waiter]);
    // It finds out by its heartbeat, and is behind the second one then.
    wait_for_waiters(&clients[0], "m", 2);
    pollster::block_on(lease.release()).expect("an answer");
    let second = second.join().expect("no panic");
    pause(Duration::from_millis(300));
    assert!(!first.is_finished(), "the second holds it");
    assert!(!second.is_lost());
    let token = second.token();
    pollster::block_on(second.release()).expect("an answer");
    assert!(first.join().expect("no panic").token() > token);
}

/// Writes until the server takes no more. It was started with a small quota.
fn fill(server: &EtcdServer) {
    let large = "x".repeat(100_000);
    wait_for("a full database", || server.try_ctl(&["put", "large", &large]).err());
}

/// Does what the page says is to be done then.
fn make_room(server: &EtcdServer) {
    let revision = server.ctl(&["get", "large", "--write-out=json", "--keys-only"]);
    let revision = revision.split("\"revision\":").nth(1).expect("a revision");
    let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
    server.ctl(&["compact", &revision]);
    server.ctl(&["defrag"]);
    server.ctl(&["alarm", "disarm"]);
}

#[test]
fn a_full_database_keeps_what_is_held_and_grants_nothing_more() {
    let server = EtcdServer::start(&EtcdOptions::default().flag("--quota-backend-bytes=2000000"));
    let client = connect(&server.url());
    let lease = take(&client, "m", TTL);
    fill(&server);
    let refused = wait_for("a refusal", || pollster::block_on(client.mutex("n").try_acquire()).err());
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("disarm")), "{refused:?}");
    let found = pollster::block_on(client.check()).expect("an answer");
    let alarms = found.iter().find(|finding| finding.what == "alarms").expect("a finding");
    assert!(alarms.found.starts_with("NOSPACE"), "{alarms:?}");
    pause(TTL + Duration::from_millis(500));
    assert!(!lease.is_lost(), "a renewal writes nothing");
    assert_eq!(pollster::block_on(lease.release()).expect("an answer"), ReleaseAnswer::Released);
    make_room(&server);
    wait_for("a grant", || pollster::block_on(client.mutex("n").try_acquire()).ok().flatten());
}

#[test]
fn what_is_given_up_goes_from_a_full_database_although_no_note_can_be_left() {
    let server = EtcdServer::start(&EtcdOptions::default().flag("--quota-backend-bytes=2000000"));
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let client = connect(&url_through(std::slice::from_ref(&proxy)));
    drop(take(&client, "other", LONG));
    wait_for("release", || keys(&server, "tenure/line/").is_empty().then_some(()));
    proxy.drop_replies();
    let refused = pollster::block_on(client.mutex("m").ttl(LONG).acquire_within(Duration::from_millis(800)));
    assert!(refused.is_err(), "nobody answers");
    assert_eq!(keys(&server, "tenure/line/").len(), 1, "it was carried out");
    fill(&server);
    proxy.heal();
    wait_for("a free lock", || keys(&server, "tenure/line/").is_empty().then_some(()));
    make_room(&server);
    // Now that it can be written, a copy that comes late is not let in.
    wait_for("a note", || (keys(&server, "tenure/done/").len() == 1).then_some(()));
}

/// Returns the next item of a queue, which is there.
fn next(queue: &Queue) -> Delivery {
    let next = || pollster::block_on(queue.next_within(Duration::from_millis(500))).ok().flatten();
    wait_for("an item", next)
}

#[test]
fn a_full_database_keeps_what_consumers_have_and_lets_them_acknowledge_it() {
    let server = EtcdServer::start(&EtcdOptions::default().flag("--quota-backend-bytes=2000000"));
    let (client, other) = (connect(&server.url()), connect(&server.url()));
    let queue = client.queue("q").ttl(ITEM_TTL);
    let large = "p".repeat(2000);
    for (payload, group) in [("kept", "a"), (&large[..], "b"), ("behind", "b"), ("put back", "c")] {
        pollster::block_on(queue.push(payload).group(group).into_future()).expect("there is room");
    }
    let [kept, done, back] = [next(&queue), next(&queue), next(&queue)];
    fill(&server);
    wait_for("a refusal", || pollster::block_on(queue.push("n").into_future()).err());
    // By the store's clock, their deliveries are over.
    pause(2 * ITEM_TTL + Duration::from_millis(500));
    assert!(
        !kept.lease().is_lost() && !done.lease().is_lost() && !back.lease().is_lost(),
        "a sign of life writes nothing"
    );
    assert_eq!(done.payload(), large.as_bytes());
    pollster::block_on(done.ack()).expect("what is only deleted can be done");
    make_room(&server);
    let taken = next(&other.queue("q").ttl(ITEM_TTL));
    assert_eq!(
        taken.payload(),
        b"behind",
        "what was acknowledged is gone, and what is held is nobody else's"
    );
    let theirs = other.queue("q").ttl(ITEM_TTL);
    let twice = pollster::block_on(theirs.next_within(2 * ITEM_TTL)).expect("an answer");
    let lost = (kept.lease().is_lost(), back.lease().is_lost());
    assert!(
        twice.is_none(),
        "{:?} is handed out; lost: {lost:?}",
        twice.map(|twice| twice.payload().to_vec())
    );
    assert!(!kept.lease().is_lost() && !back.lease().is_lost());
    pollster::block_on(back.retry()).expect("it can be written again");
    pollster::block_on(kept.ack()).expect("it is held");
    let back = next(&other.queue("q").ttl(ITEM_TTL));
    assert_eq!(back.payload(), b"put back");
    pollster::block_on(back.ack()).expect("it is held");
    pollster::block_on(taken.ack()).expect("it is held");
    let stats = pollster::block_on(client.queue("q").stats()).expect("an answer");
    assert_eq!((stats.waiting, stats.dead), (0, 0), "{stats:?}");
}

#[test]
fn a_consumer_that_dies_while_the_database_is_full_is_replaced_afterwards() {
    let server = EtcdServer::start(&EtcdOptions::default().flag("--quota-backend-bytes=2000000"));
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let (client, other) = (connect(&url_through(std::slice::from_ref(&proxy))), connect(&server.url()));
    let queue = client.queue("q").ttl(ITEM_TTL);
    pollster::block_on(queue.push("one").into_future()).expect("there is room");
    let delivery = next(&queue);
    fill(&server);
    pause(2 * ITEM_TTL);
    assert!(!delivery.lease().is_lost());
    proxy.refuse();
    proxy.cut();
    wait_for("the loss", || delivery.lease().is_lost().then_some(()));
    make_room(&server);
    assert_eq!(next(&other.queue("q").ttl(ITEM_TTL)).payload(), b"one");
}

#[test]
fn a_waiter_behind_what_was_compacted_is_woken_all_the_same() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let holder = connect(&server.url());
    let waiter = connect(&url_through(std::slice::from_ref(&proxy)));
    let lease = take(&holder, "m", LONG);
    let mutex = waiter.mutex("m").ttl(LONG);
    let waiting = std::thread::spawn(move || {
        let lease = pollster::block_on(mutex.acquire_within(LONG)).expect("it is handed over");
        (now(), lease)
    });
    wait_for_waiters(&holder, "m", 1);
    // The revision from which it watches is forgotten, and it must begin to watch anew.
    for value in 0..10 {
        server.ctl(&["put", "other", &value.to_string()]);
    }
    let revision = server.ctl(&["get", "other", "--write-out=json"]);
    let revision = revision.split("\"revision\":").nth(1).expect("a revision");
    let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
    server.ctl(&["compact", &revision]);
    proxy.refuse();
    proxy.cut();
    pollster::block_on(lease.release()).expect("an answer");
    let healed_at = now();
    proxy.heal();
    let (at, _lease) = waiting.join().expect("no panic");
    println!("served {:?} after the network was back", at.since(healed_at));
    // Its heartbeat would come after 1.7 s at most.
    assert_in_time(at.since(healed_at), Duration::from_millis(1200));
}

/// Sets a user's password to what it is: the server then forgets all tokens of the user.
fn set_password(server: &EtcdServer, user: &str, password: &str) {
    let mut child = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", server.endpoint()))
        .arg(format!("--cacert={}", server.authority().display()))
        .args(["--user=root:secret-of-root", "user", "passwd", user, "--interactive=false"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("etcdctl");
    let mut stdin = child.stdin.take().expect("a pipe");
    writeln!(stdin, "{password}").expect("it reads");
    drop(stdin);
    assert!(child.wait().expect("it ends").success(), "the password is set");
}

#[test]
fn tokens_that_are_refused_are_replaced_while_all_go_on() {
    // Each login costs the server a tenth of a second's work, unless it is told to be less careful.
    let options = EtcdOptions::default().login("ann", "secret").tls().flag("--bcrypt-cost=4");
    let server = EtcdServer::start(&options);
    let url = format!("{}?ca={}", server.url(), server.authority().display());
    while_they_work(&url, &server, |_| set_password(&server, "ann", "secret"));
}

mod alone {
    use super::*;

    /// A leader that is cut off does not know it at once, and keeps leases alive that the next leader does not.
    #[test]
    fn a_lease_at_a_leader_that_is_cut_off_is_lost_before_it_is_granted_elsewhere() {
        let cluster = EtcdCluster::start_separable(&hasty());
        for round in 0..3 {
            let leader = cluster.leader();
            let there = connect(&with_hasty(&cluster.servers()[leader].url()));
            let elsewhere = connect(&with_hasty(&cluster.servers()[(leader + 1) % 3].url()));
            let name = format!("m{round}");
            let lease = take(&there, &name, TTL);
            let mutex = elsewhere.mutex(&name).ttl(TTL);
            let waiting = std::thread::spawn(move || pollster::block_on(mutex.acquire_within(LONG)));
            wait_for_waiters(&there, &name, 1);
            cluster.cut_off(leader);
            let cut_at = now();
            let lost = {
                let until = wait_for("loss", || lease.is_lost().then(now));
                until.since(cut_at)
            };
            assert!(!waiting.is_finished(), "granted while its holder did not know");
            let next = waiting.join().expect("no panic");
            println!("lost after {lost:?}, granted after {:?}", now().since(cut_at));
            assert!(lost < TTL + crate::crew::ELECTION + Duration::from_millis(500), "{lost:?}");
            cluster.heal();
            drop((next, lease));
            cluster.leader();
            pause(Duration::from_millis(500));
        }
    }
}
