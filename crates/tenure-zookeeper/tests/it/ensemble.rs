//! What can go wrong with the servers of an ensemble.

use std::time::Duration;

use tenure_testkit::wait_for;
use tenure_testkit::zookeeper::{ZooKeeperEnsemble, ZooKeeperOptions};

use crate::conformance::BRIEF;
use crate::crew::{CLIENTS, SOON, assert_nothing_is_left, connect, crew, names, now, pause, raw};

/// Breaks the leader while clients work: all are served again soon, one at a time.
fn without_its_leader(
    what: &str,
    break_it: impl Fn(&ZooKeeperEnsemble, usize),
    mend: impl Fn(&ZooKeeperEnsemble, usize),
) {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::default());
    let url = format!("{}/t?{BRIEF}", ensemble.url());
    let crew = crew(&url);
    let leader = ensemble.leader();
    let broken = now();
    break_it(&ensemble, leader);
    ensemble.wait_for_new_leader(leader);
    let took = crew.wait_until_served(CLIENTS, now(), SOON, what);
    println!(
        "{what}: another led after {:?}, and all were served {took:?} later",
        now().since(broken) - took
    );
    mend(&ensemble, leader);
    crew.wait_until_served(CLIENTS, now(), SOON, "with all servers");
    let report = crew.finish(names().len());
    println!("{} sections, {} errors", report.served(), report.errors.len());
    report.assert_exclusive();
    assert_nothing_is_left(&connect(&url));
}

#[test]
fn a_leader_that_is_killed_costs_nothing_but_time() {
    let restart = |ensemble: &ZooKeeperEnsemble, server| ensemble.restart(server);
    without_its_leader("killed", |ensemble, leader| ensemble.servers()[leader].kill(), restart);
}

#[test]
fn a_leader_that_hangs_costs_nothing_but_time() {
    let goes_on = |ensemble: &ZooKeeperEnsemble, leader: usize| ensemble.servers()[leader].cont();
    without_its_leader("stopped", |ensemble, leader| ensemble.servers()[leader].stop(), goes_on);
}

#[test]
fn a_lease_outlives_the_leader() {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::default());
    // A lost connection is tried again ever less often: the session lives on if another leads within half of it.
    let url = format!("{}?session_timeout=12s&tick=200ms", ensemble.url());
    let (client, other) = (connect(&url), connect(&url));
    let lease =
        pollster::block_on(client.mutex("m").ttl(Duration::from_secs(12)).acquire()).expect("it is free");
    let leader = ensemble.leader();
    ensemble.servers()[leader].kill();
    ensemble.wait_for_new_leader(leader);
    pause(Duration::from_secs(13));
    assert!(!lease.is_lost(), "it was renewed through the new leader");
    assert!(pollster::block_on(other.mutex("m").try_acquire()).expect("an answer").is_none());
    pollster::block_on(lease.release()).expect("an answer");
    let next = pollster::block_on(other.mutex("m").acquire()).expect("it is free");
    drop(next);
}

/// The server goes on to answer reads for ten ticks, and what it answers is old: whoever believed it would work on under
/// a lease that another has by then.
#[test]
fn a_lease_ends_in_time_on_a_follower_that_is_cut_off() {
    const ROUNDS: u32 = 4;
    let ensemble = ZooKeeperEnsemble::start_separable(&ZooKeeperOptions::default());
    let follower = (ensemble.leader() + 1) % 3;
    let address = |server: usize| format!("zookeeper://127.0.0.1:{}", ensemble.servers()[server].port());
    let settings = "session_timeout=1s&tick=200ms";
    let others = format!("{}?{settings}", address(ensemble.leader()));
    let other = connect(&others);
    for round in 0..ROUNDS {
        let holder = connect(&format!("{}?{settings}", address(follower)));
        let mutex = holder.mutex("m").ttl(Duration::from_secs(1));
        // Cut right after a renewal, when the most is believed in. On a busy machine a session of one second may end before.
        let lease = wait_for("a lease that is renewed", || {
            let lease = pollster::block_on(mutex.acquire()).expect("it is free");
            let first = lease.deadline();
            while lease.deadline() == first && !lease.is_lost() {
                pause(Duration::from_millis(1));
            }
            Some(lease).filter(|lease| !lease.is_lost())
        });
        let token = lease.token();
        let (is_read, next) = raw(&address(follower), async |client| {
            ensemble.cut_off(follower);
            let waits = other.mutex("m").ttl(Duration::from_secs(1)).acquire();
            let next = std::thread::spawn(move || {
                let next = pollster::block_on(waits).expect("its turn comes");
                (next, now())
            });
            while !next.is_finished() {
                tokio::task::yield_now().await;
            }
            let lost = (lease.is_lost(), lease.deadline(), now());
            let (next, granted) = next.join().expect("no panic");
            assert!(
                lost.0 || lost.1 <= granted,
                "two hold it: one until {}, another since {granted}",
                lost.1
            );
            println!("round {round}: lost {:?} before the next was granted", granted.since(lost.1));
            (client.list_children("/m").await.map(|names| names.len()), next)
        });
        assert!(next.token() > token, "the next token is larger");
        assert!(is_read.is_ok(), "the test is worth something only if the server answers: {is_read:?}");
        pollster::block_on(next.release()).expect("an answer");
        ensemble.heal();
        drop((lease, holder));
        wait_for("a whole ensemble", || {
            let follows = ensemble.servers()[follower].mode().as_deref() == Some("follower");
            follows.then_some(())
        });
        // It may have looked like that all the time.
        pause(Duration::from_secs(3));
    }
}
