//! Many locks, many clients: what it costs the servers, and that nothing stays behind.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use futures_util::future::join_all;
use tenure_core::model::claim::{ClaimId, ClientId, Kind};
use tenure_core::model::line::Entry;
use tenure_core::{ErrorKind, Lease, Tenure};
use tenure_testkit::etcd::{EtcdOptions, EtcdServer};
use tenure_testkit::{Proxy, wait_for};

use crate::crew::{assert_nothing_is_left, connect, keys, leases, now, pause, take, wait_for_waiters};

fn start() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::default())
}

fn transactions(server: &EtcdServer) -> u64 {
    server.metric("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\"")
}

fn keep_alives(server: &EtcdServer) -> u64 {
    server.metric("grpc_server_msg_received_total{grpc_method=\"LeaseKeepAlive\"")
}

fn take_all(client: &Tenure, count: usize, ttl: Duration) -> Vec<Lease> {
    let mutexes: Vec<_> = (0..count).map(|at| client.mutex(&format!("m{at}")).ttl(ttl)).collect();
    let leases = pollster::block_on(join_all(mutexes.iter().map(|mutex| mutex.acquire())));
    leases.into_iter().map(|lease| lease.expect("it is free")).collect()
}

#[test]
fn ten_thousand_locks_of_one_client_are_on_one_lease_and_renewed_in_few_calls() {
    const LOCKS: usize = 10_000;
    const TTL: Duration = Duration::from_secs(15);
    let server = start();
    let client = connect(&server.url());
    let began = now();
    let held = take_all(&client, LOCKS, TTL);
    println!("{LOCKS} were taken within {:?}", now().since(began));
    let known = leases(&server);
    assert_eq!(known.len(), 1, "{known:?}");
    let listed = server.ctl(&["lease", "timetolive", &known[0], "--keys", "--write-out=json"]);
    let on_it = listed.matches("\",\"").count() + 1;
    assert_eq!(on_it, LOCKS);
    let before = (transactions(&server), keep_alives(&server));
    // Each is renewed once in a third of the ttl.
    pause(TTL / 3);
    let (called, kept) = (transactions(&server) - before.0, keep_alives(&server) - before.1);
    println!("{called} transactions and {kept} keep-alives renewed {LOCKS} leases");
    assert!(called > 0 && called < LOCKS as u64 / 20, "{called}");
    assert!((1..30).contains(&kept), "{kept}");
    assert!(held.iter().all(|lease| !lease.is_lost()));
    let began = now();
    let released = pollster::block_on(join_all(held.into_iter().map(Lease::release)));
    assert!(released.iter().all(Result::is_ok));
    println!("and released within {:?}", now().since(began));
    assert_nothing_is_left(&server);
}

#[test]
fn nothing_stays_behind_of_clients_that_have_waited_and_gone() {
    const CLIENTS: usize = 8;
    const TTL: Duration = Duration::from_secs(2);
    let server = start();
    let watchers = || server.metric("etcd_debugging_mvcc_watcher_total");
    let before = watchers();
    let clients: Vec<Tenure> = (0..CLIENTS).map(|_| connect(&server.url())).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let (mutex, pool) = (client.mutex("m").ttl(TTL), client.slot_pool("pool", 2).ttl(TTL));
                for _ in 0..10 {
                    drop(pollster::block_on(mutex.acquire()).expect("it is handed over"));
                    drop(pollster::block_on(pool.acquire()).expect("it is handed over"));
                }
            });
        }
    });
    // The clients are there, and wait for nothing.
    wait_for("the end of all watches", || (watchers() == before).then_some(()));
    assert_nothing_is_left(&server);
    // Some are in the way of others when they go.
    let lease = pollster::block_on(clients[0].mutex("m").ttl(TTL).acquire()).expect("it is free");
    let waiting: Vec<_> = clients[1..4]
        .iter()
        .map(|client| {
            let mutex = client.mutex("m").ttl(TTL);
            std::thread::spawn(move || {
                // Given up, and not handed over.
                pollster::block_on(mutex.acquire_within(Duration::from_millis(1500))).map(drop).unwrap_err()
            })
        })
        .collect();
    wait_for_waiters(&clients[0], "m", 3);
    wait_for("their watches", || (watchers() > before).then_some(()));
    waiting.into_iter().for_each(|waiter| drop(waiter.join().expect("no panic")));
    wait_for("the end of their watches", || (watchers() == before).then_some(()));
    drop(lease);
    assert_nothing_is_left(&server);
    clients.into_iter().for_each(|client| pollster::block_on(client.close()));
    // But for those of ids that are finished, which end after two minutes.
    let done = keys(&server, "tenure/done/");
    let of_done = |lease: &String| {
        let listed = server.ctl(&["lease", "timetolive", lease, "--keys"]);
        listed.contains("tenure/done/") || listed.contains("granted with TTL(120s)")
    };
    wait_for("the end of all other leases", || leases(&server).iter().all(of_done).then_some(()));
    println!("{} ids are remembered", done.len());
}

/// A heartbeat that is answered while its claim leaves begins no watch, which nobody would end.
#[test]
fn who_gives_up_while_a_heartbeat_is_under_way_leaves_no_watch() {
    const WAITERS: u32 = 20;
    let server = start();
    let watchers = || server.metric("etcd_debugging_mvcc_watcher_total");
    let before = watchers();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let (holder, client) = (connect(&server.url()), connect(&format!("etcd://127.0.0.1:{}", proxy.port())));
    let lease = pollster::block_on(holder.mutex("m").acquire()).expect("it is free");
    proxy.delay(Duration::from_millis(100));
    let mutex = client.mutex("m").ttl(Duration::from_secs(2));
    let patience = |at: u32| Duration::from_secs(1) + Duration::from_millis(50) * at;
    let waits = (0..WAITERS).map(|at| mutex.acquire_within(patience(at)));
    assert!(pollster::block_on(join_all(waits)).iter().all(Result::is_err), "it is not handed over");
    wait_for("the end of their watches", || (watchers() == before).then_some(()));
    drop(lease);
}

/// Whether it is a holder or a waiter who finds out: its waiters wait anew, in the next one.
#[test]
fn a_session_that_ends_leaves_no_watch() {
    const TTL: Duration = Duration::from_secs(2);
    let server = start();
    let watchers = || server.metric("etcd_debugging_mvcc_watcher_total");
    let before = watchers();
    let (other, client) = (connect(&server.url()), connect(&server.url()));
    let lease = pollster::block_on(other.mutex("m").acquire()).expect("it is free");
    let mut ended = leases(&server);
    let mutex = client.mutex("m").ttl(TTL);
    let waiting = std::thread::spawn(move || {
        pollster::block_on(mutex.acquire_within(Duration::from_secs(8))).map(drop)
    });
    for round in 0..3 {
        let of_session = wait_for("a session that waits", || {
            let new = leases(&server).into_iter().find(|lease| !ended.contains(lease));
            new.filter(|_| watchers() > before)
        });
        // Whose renewals are not the waiter's.
        let held: Vec<Lease> = (0..6)
            .map(|at| {
                pause(Duration::from_millis(70));
                take(&client, &format!("held {round} {at}"), TTL)
            })
            .collect();
        server.ctl(&["lease", "revoke", &of_session]);
        ended.push(of_session);
        wait_for("the end of what was held", || held.iter().all(Lease::is_lost).then_some(()));
    }
    waiting.join().expect("no panic").expect_err("it is not handed over");
    wait_for("the end of all watches", || (watchers() == before).then_some(()));
    drop(lease);
}

#[test]
fn a_release_wakes_one_waiter_and_not_all() {
    const WAITERS: usize = 50;
    let server = start();
    let clients: Vec<Tenure> = (0..10).map(|_| connect(&server.url())).collect();
    let lease = pollster::block_on(clients[0].mutex("m").acquire()).expect("it is free");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|at| {
            let mutex = clients[at % clients.len()].mutex("m");
            std::thread::spawn(move || {
                let lease = pollster::block_on(mutex.acquire()).expect("it is handed over");
                pollster::block_on(lease.release()).expect("an answer");
            })
        })
        .collect();
    wait_for_waiters(&clients[0], "m", u32::try_from(WAITERS).expect("few"));
    let before = transactions(&server);
    pollster::block_on(lease.release()).expect("an answer");
    waiting.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
    let called = transactions(&server) - before;
    println!("{called} transactions for {WAITERS} changes of holders");
    // A look and a release each; the rest is heartbeats.
    assert!(called < WAITERS as u64 * 4, "{called}");
}

#[test]
fn a_waiters_heartbeat_does_not_read_those_who_wait_beside_it() {
    const WAITERS: usize = 200;
    const TTL: Duration = Duration::from_secs(2);
    let server = start();
    let clients: Vec<Tenure> = (0..10).map(|_| connect(&server.url())).collect();
    let lease = pollster::block_on(clients[0].mutex("m").ttl(TTL).acquire()).expect("it is free");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|at| {
            let mutex = clients[at % clients.len()].mutex("m").ttl(TTL);
            std::thread::spawn(move || {
                let lease = pollster::block_on(mutex.acquire()).expect("it is handed over");
                pollster::block_on(lease.release()).expect("an answer");
            })
        })
        .collect();
    wait_for_waiters(&clients[0], "m", u32::try_from(WAITERS).expect("few"));
    // What they read when they came is answered.
    pause(TTL / 2);
    let (before, called) =
        (server.metric("etcd_network_client_grpc_sent_bytes_total"), transactions(&server));
    pause(TTL);
    let sent = server.metric("etcd_network_client_grpc_sent_bytes_total") - before;
    let called = transactions(&server) - called;
    println!("{sent} bytes in {called} transactions for the heartbeats of {WAITERS} waiters");
    // Three heartbeats each. A line of 200 has 30 KB: ten megabytes if each heartbeat reads it. Some read it once more, since others
    // have come behind them.
    assert!(called > 0 && sent < 1_500_000, "{sent} bytes");
    pollster::block_on(lease.release()).expect("an answer");
    waiting.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
}

/// Puts entries of another client's waiting claims into a line, as that client would: each claim of it would read the line before
/// it waits, which takes a server minutes for so many.
fn fill_line(server: &EtcdServer, name: &str, waiters: u128) {
    let text = |bytes: String| base64::engine::general_purpose::STANDARD.encode(bytes);
    let (claims, client): (Vec<u128>, _) = ((1..=waiters).collect(), ClientId::new(7));
    for claims in claims.chunks(128) {
        let puts = claims.iter().map(|claim| {
            let claim = ClaimId::new(*claim);
            let (kind, capacity, weight) = (Kind::Mutex, 1, 1);
            let entry = Entry { claim, client, kind, capacity, weight, about: None };
            let key = text(format!("tenure/line/{name}\x1fc{claim}"));
            format!(r#"{{"requestPut":{{"key":"{key}","value":"{}"}}}}"#, text(entry.encode()))
        });
        let body = format!(r#"{{"success":[{}]}}"#, puts.collect::<Vec<_>>().join(","));
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server");
        let head = format!("POST /v3/kv/txn HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains(r#""succeeded":true"#), "{answer}");
    }
}

// page: docs/engines/etcd.md "At most 10,000 waiters for a resource"
#[test]
fn ten_thousand_wait_for_a_name_and_the_next_one_is_refused() {
    let server = start();
    let client = connect(&server.url());
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    fill_line(&server, "m", 9999);
    let mut last = client.mutex("m").acquire();
    let answered = pollster::block_on(last.answered());
    assert!(answered.is_none(), "it has the last place: {answered:?}");
    let error = pollster::block_on(client.mutex("m").acquire()).expect_err("there is no room");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("10000 claims wait already"), "{error}");
    wait_for_waiters(&client, "m", 10_000);
    drop((last, lease));
}
