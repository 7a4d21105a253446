//! Many locks: one life for all of a client's, and nothing that stays behind.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::ErrorKind;
use tenure_core::model::claim::{ClaimId, ClientId, Kind};
use tenure_core::model::line::Entry;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::testing::random::more;
use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer};
use tenure_testkit::{Proxy, wait_for};
use zookeeper_client::{Acls, CreateMode};

use crate::crew::{assert_excused, connect, connect_patiently, now, pause, raw};

/// What a server counts.
fn count(server: &ZooKeeperServer, what: &str) -> u64 {
    let answer = server.word("mntr").expect("the server answers");
    let value = answer.lines().find_map(|line| line.strip_prefix(what)).expect("it counts that");
    value.trim().parse().expect("a number")
}

#[test]
fn a_release_wakes_one_waiter_and_no_herd() {
    const WAITERS: u64 = 50;
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    let url = format!("{}?session_timeout=10s&tick=200ms", server.url());
    let (holder, waiter) = (connect(&url), connect(&url));
    let lease = pollster::block_on(holder.mutex("m").acquire()).expect("it is free");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let mutex = waiter.mutex("m");
            std::thread::spawn(move || {
                loop {
                    match pollster::block_on(mutex.acquire()) {
                        Ok(lease) => break lease.token(),
                        Err(error) => assert_excused(&error),
                    }
                }
            })
        })
        .collect();
    wait_for("all wait", || {
        let view = pollster::block_on(holder.view("m")).expect("an answer")?;
        (u64::from(view.waiting) == WAITERS && count(&server, "zk_watch_count") == WAITERS).then_some(())
    });
    let began = now();
    pollster::block_on(lease.release()).expect("an answer");
    let tokens: Vec<_> = waiting.into_iter().map(|turn| turn.join().expect("its turn")).collect();
    assert_eq!(tokens.len() as u64, WAITERS);
    let took = now().since(began);
    println!("{WAITERS} hand-overs took {took:?}");
    // By their heartbeats alone each would take more than a second.
    assert_in_time(took, Duration::from_secs(15));
    wait_for("no watch is left", || (count(&server, "zk_watch_count") == 0).then_some(()));
}

/// Puts entries of another client's waiting claims into a line, as that client would: each claim of it would list the line before
/// it waits, which takes minutes for so many.
fn fill_line(server: &ZooKeeperServer, name: &str, waiters: u128) {
    raw(&server.url(), async |client| {
        let options = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
        let created = (1..=waiters).map(|claim| {
            let (claim, owner) = (ClaimId::new(claim), ClientId::new(7));
            let (kind, capacity, weight) = (Kind::Mutex, 1, 1);
            let entry = Entry { claim, client: owner, kind, capacity, weight, about: None };
            let path = format!("/{name}/m-1-1-{claim}-{owner}-");
            let (options, data) = (&options, entry.encode());
            async move { client.create(&path, data.as_bytes(), options).await }
        });
        assert!(join_all(created).await.iter().all(Result::is_ok), "they are made");
    });
}

// page: docs/engines/zookeeper.md "2,000 waiters for a name"
#[test]
fn two_thousand_wait_for_a_name_and_the_next_one_is_refused() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    let client = connect_patiently(&format!("{}?session_timeout=10s&tick=200ms", server.url()));
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    fill_line(&server, "m", 1999);
    let mut last = client.mutex("m").acquire();
    let answered = pollster::block_on(last.answered());
    assert!(answered.is_none(), "it has the last place: {answered:?}");
    let error = pollster::block_on(client.mutex("m").acquire()).expect_err("there is no room");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("2000 claims wait already"), "{error}");
    let view = pollster::block_on(client.view("m")).expect("an answer").expect("it is held");
    assert_eq!(view.waiting, 2000);
    // From far away they are read for longer than a second, which each of them has.
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let far =
        connect_patiently(&format!("zookeeper://127.0.0.1:{}?session_timeout=10s&tick=200ms", proxy.port()));
    proxy.delay(Duration::from_millis(100));
    let view = pollster::block_on(far.view("m")).expect("an answer").expect("it is held");
    assert_eq!(view.waiting, 2000);
    drop((last, lease));
}

/// Each of thousands of leases is renewed by a read of its node every 10 s: what works beside that takes their time from them.
mod alone {
    use super::*;

    #[test]
    fn thousands_of_locks_have_one_life_and_leave_nothing_behind() {
        let many = more(3_000, 10_000);
        // Servers remove 10,000 in a minute at most, unless they are told otherwise.
        let options = ZooKeeperOptions::default().property("znode.container.maxPerMinute", "1000000");
        let server = ZooKeeperServer::start(&options);
        let url = format!("{}/many?session_timeout=30s&tick=200ms", server.url());
        let client = connect_patiently(&url);
        let nodes = count(&server, "zk_znode_count");
        // A machine that is busy with other tests reads 1,000 nodes in a second, and not always 3,000.
        let ttl = Duration::from_secs(30);
        let mutexes: Vec<_> = (0..many).map(|at| client.mutex(&format!("lock/{at}")).ttl(ttl)).collect();
        let began = now();
        let leases = pollster::block_on(join_all(mutexes.iter().map(|mutex| mutex.acquire())));
        let leases: Vec<_> = leases.into_iter().map(|lease| lease.expect("it is free")).collect();
        println!("{many} locks were taken in {:?}", now().since(began));
        assert_eq!(count(&server, "zk_ephemerals_count"), many as u64);
        assert_eq!(count(&server, "zk_global_sessions"), 1, "one life for all");
        // Long enough that each was renewed, twice.
        pause(ttl + Duration::from_secs(2));
        assert_eq!(leases.iter().filter(|lease| lease.is_lost()).count(), 0, "each is renewed in time");
        let began = now();
        let released = pollster::block_on(join_all(leases.into_iter().map(|lease| lease.release())));
        assert!(released.into_iter().all(|answer| answer.is_ok()));
        println!("and released in {:?}", now().since(began));
        assert_eq!(count(&server, "zk_ephemerals_count"), 0);
        wait_for("the servers to remove the nodes of idle names", || {
            (count(&server, "zk_znode_count") <= nodes).then_some(())
        });
    }
}
