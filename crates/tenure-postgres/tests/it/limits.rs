//! What is waited for on the server ends there too: a client that has given up, or died, leaves nothing behind that waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::Tenure;
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::{Proxy, wait_for};

use crate::crew::{connect, now, pause};

fn number(server: &PostgresServer, statement: &str) -> u64 {
    let answer = server.connect().expect("it answers").run(statement);
    answer.first().expect("a number").parse().expect("a number")
}

/// Backends of tenure's clients that wait for a lock.
const WAITING: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'tenure'";

#[test]
fn a_locked_table_takes_no_more_than_a_clients_own_connections() {
    const CLIENTS: usize = 6;
    let server = PostgresServer::start(&PostgresOptions::default());
    let clients: Vec<Tenure> = (0..CLIENTS).map(|_| connect(&server.url())).collect();
    let held: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(at, client)| {
            let mutex = client.mutex(&format!("m{at}")).ttl(Duration::from_secs(3));
            pollster::block_on(mutex.acquire()).expect("it is free")
        })
        .collect();
    let mut somebody = server.connect().expect("it answers");
    somebody.run("BEGIN");
    somebody.run("LOCK TABLE tenure_entry IN ACCESS EXCLUSIVE MODE");
    let is_over = AtomicBool::new(false);
    let mut most = 0;
    std::thread::scope(|scope| {
        for client in &clients {
            // Somebody looks, again and again, and is told that it cannot be seen.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(pollster::block_on(client.view("m0")));
                }
            });
        }
        let until = now() + Duration::from_secs(5);
        while now() < until {
            most = most.max(number(&server, WAITING));
            pause(Duration::from_millis(100));
        }
        is_over.store(true, Ordering::Relaxed);
        somebody.run("ROLLBACK");
    });
    println!("{most} waited at most");
    // One that renews or releases, one that looks, and for each one more that was given up a moment ago.
    assert!(most <= 3 * CLIENTS as u64, "{most} backends of {CLIENTS} clients wait");
    drop(held);
    wait_for("nobody who waits", || (number(&server, WAITING) == 0).then_some(()));
}

mod alone {
    use super::*;

    /// A client that died while its renewal waited: the renewal must not move the end of what it held.
    #[test]
    fn what_a_dead_client_held_ends_after_its_ttl() {
        const TTL: Duration = Duration::from_secs(2);
        let server = PostgresServer::start(&PostgresOptions::default());
        let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
        let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
        let client = connect(&url);
        let held = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is free");
        let mut somebody = server.connect().expect("it answers");
        somebody.run("BEGIN");
        somebody.run("LOCK TABLE tenure_entry IN ACCESS EXCLUSIVE MODE");
        wait_for("a renewal that waits", || (number(&server, WAITING) > 0).then_some(()));
        let died_at = now();
        proxy.black_hole();
        proxy.cut();
        pause(Duration::from_millis(900));
        somebody.run("ROLLBACK");
        let other = connect(&server.url());
        pollster::block_on(other.mutex("m").acquire()).expect("its turn");
        let took = now().since(died_at);
        println!("free {took:?} after the death of its holder");
        assert_in_time(took, TTL + Duration::from_millis(400));
        drop(held);
    }
}
