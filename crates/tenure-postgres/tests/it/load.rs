//! Many locks, many clients: what it costs the server, and that nothing gets into another's way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::{SqlConnection, wait_for};

use crate::crew::{connect, now, pause};

fn start() -> (PostgresServer, SqlConnection) {
    let server = PostgresServer::start(&PostgresOptions::default());
    let connection = server.connect().expect("the server takes one more");
    (server, connection)
}

fn number(connection: &mut SqlConnection, statement: &str) -> u64 {
    connection.run(statement).first().expect("a number").parse().expect("a number")
}

#[test]
fn a_thousand_locks_of_one_client_need_six_connections() {
    let (server, mut raw) = start();
    let client = connect(&server.url());
    let mutexes: Vec<_> = (0..1000).map(|at| client.mutex(&format!("m{at}"))).collect();
    let leases = pollster::block_on(join_all(mutexes.iter().map(|mutex| mutex.acquire())));
    assert!(leases.iter().all(Result::is_ok), "all were free");
    let held = number(&mut raw, "SELECT count(hold_claim) FROM tenure_resource");
    let connections =
        number(&mut raw, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'");
    assert_eq!(held, 1000);
    assert!(connections <= 6, "5 that work and 1 that listens, but there are {connections}");
}

#[test]
fn ten_thousand_leases_are_renewed_with_one_statement_for_each_batch() {
    const LEASES: usize = 10_000;
    const TTL: Duration = Duration::from_secs(15);
    let (server, mut raw) = start();
    let client = connect(&server.url());
    let mutexes: Vec<_> = (0..LEASES).map(|at| client.mutex(&format!("m{at}")).ttl(TTL)).collect();
    let leases = pollster::block_on(join_all(mutexes.iter().map(|mutex| mutex.acquire())));
    assert!(leases.iter().all(Result::is_ok), "all were free");
    let expiry = "SELECT min(hold_expires_at) FROM tenure_resource";
    let before = number(&mut raw, "SELECT max(hold_expires_at) FROM tenure_resource");
    raw.run("ALTER SYSTEM SET log_statement = 'all'");
    raw.run("SELECT pg_reload_conf()");
    let began = now();
    wait_for("renewal of all", || {
        let mut raw = server.connect().ok()?;
        (number(&mut raw, expiry) > before).then_some(())
    });
    println!("all were renewed within {:?}", now().since(began));
    let log = std::fs::read_to_string(server.directory().join("log")).expect("the server's log");
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    let (renewals, transactions) =
        (count("tenure_resource h SET"), count("BEGIN ISOLATION LEVEL READ COMMITTED"));
    println!("{renewals} statements renewed {LEASES} leases");
    assert!(renewals > 0 && renewals * 20 < LEASES, "{renewals} statements");
    assert!(transactions <= 1, "no renewal needs a transaction of its own: {transactions}");
    assert!(leases.iter().flatten().all(|lease| !lease.is_lost()));
}

#[test]
fn thousands_of_transactions_on_ten_names_end_without_an_error() {
    const CLIENTS: usize = 16;
    const TRANSACTIONS: u64 = 4_000;
    let (server, mut raw) = start();
    let names: Vec<String> = (0..10).map(|at| format!("m{at}")).collect();
    drop(connect(&server.url()));
    let statement = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'";
    let before = number(&mut raw, statement);
    let is_over = AtomicBool::new(false);
    let (url, is_over_now) = (server.url(), &is_over);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (url, names) = (&url, &names);
            scope.spawn(move || {
                let client_of = connect(url);
                // Each holds several at once, taken in its own order, so that batches overlap in every way.
                let work = names.iter().cycle().skip(client).take(names.len()).map(|name| {
                    let mutex = client_of.mutex(name);
                    async move {
                        while !is_over_now.load(Ordering::Relaxed) {
                            let wait = Duration::from_secs(60);
                            let lease = mutex.acquire_within(wait).await.expect("no error reaches a user");
                            lease.release().await.expect("no error reaches a user");
                        }
                    }
                });
                pollster::block_on(join_all(work));
            });
        }
        let began = now();
        while number(&mut raw, statement) < before + TRANSACTIONS
            && now().since(began) < Duration::from_secs(90)
        {
            pause(Duration::from_millis(100));
        }
        is_over.store(true, Ordering::Relaxed);
        println!("{:?}", now().since(began));
    });
    let done = number(&mut raw, statement) - before;
    let deadlocks = number(&mut raw, "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'");
    println!("{done} transactions, {deadlocks} deadlocks");
    assert!(done >= TRANSACTIONS, "{done} transactions");
}
