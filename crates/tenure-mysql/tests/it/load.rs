//! Many locks, many clients: what it costs the server, and that nothing gets into another's way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};
use tenure_testkit::{SqlConnection, wait_for};

use crate::crew::{connect, now, pause};

fn start() -> (MariaDbServer, SqlConnection) {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let connection = server.connect().expect("the server takes one more");
    (server, connection)
}

fn number(connection: &mut SqlConnection, statement: &str) -> u64 {
    connection.run(statement).first().expect("a number").parse().expect("a number")
}

/// What the server has counted since it was started.
fn status(connection: &mut SqlConnection, name: &str) -> u64 {
    let statement = format!(
        "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status WHERE variable_name = '{name}'"
    );
    number(connection, &statement)
}

#[test]
fn a_thousand_locks_of_one_client_need_four_connections() {
    let (server, mut raw) = start();
    let client = connect(&server.url());
    let mutexes: Vec<_> = (0..1000).map(|at| client.mutex(&format!("m{at}"))).collect();
    let leases = pollster::block_on(join_all(mutexes.iter().map(|mutex| mutex.acquire())));
    assert!(leases.iter().all(Result::is_ok), "all were free");
    let held = number(&mut raw, "SELECT count(hold_claim) FROM tenure_resource");
    let most = status(&mut raw, "Max_used_connections");
    assert_eq!(held, 1000);
    assert!(most <= 4 + 1, "4 and this one, but there were {most}");
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
    let before = number(&mut raw, "SELECT max(hold_expires_at) FROM tenure_resource");
    let (updates, inserts) = (status(&mut raw, "Com_update_multi"), status(&mut raw, "Com_insert"));
    let began = now();
    wait_for("renewal of all", || {
        let mut raw = server.connect().ok()?;
        (number(&mut raw, "SELECT min(hold_expires_at) FROM tenure_resource") > before).then_some(())
    });
    println!("all were renewed within {:?}", now().since(began));
    let renewals = status(&mut raw, "Com_update_multi") - updates;
    println!("{renewals} statements renewed {LEASES} leases");
    assert!(renewals > 0 && renewals as usize * 20 < LEASES, "{renewals} statements");
    let transactions = status(&mut raw, "Com_insert") - inserts;
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
    let before = status(&mut raw, "Com_commit") + status(&mut raw, "Com_rollback");
    let is_over = AtomicBool::new(false);
    let (url, is_over_now) = (server.url(), &is_over);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (url, names) = (&url, &names);
            scope.spawn(move || {
                let client_of = connect(url);
                // Each asks for all of them in its own order, so that batches overlap in every way. It does not wait: waiters
                // of other clients learn of their turn by heartbeat, and that would be most of the time.
                let work = names.iter().cycle().skip(client).take(names.len()).map(|name| {
                    let mutex = client_of.mutex(name);
                    async move {
                        while !is_over_now.load(Ordering::Relaxed) {
                            let lease = mutex.try_acquire().await.expect("no error reaches a user");
                            let Some(lease) = lease else { continue };
                            lease.release().await.expect("no error reaches a user");
                        }
                    }
                });
                pollster::block_on(join_all(work));
            });
        }
        let began = now();
        while status(&mut raw, "Com_commit") + status(&mut raw, "Com_rollback") < before + TRANSACTIONS
            && now().since(began) < Duration::from_secs(90)
        {
            pause(Duration::from_millis(100));
        }
        is_over.store(true, Ordering::Relaxed);
        println!("{:?}", now().since(began));
    });
    let done = status(&mut raw, "Com_commit") + status(&mut raw, "Com_rollback") - before;
    let deadlocks = status(&mut raw, "Innodb_deadlocks");
    println!("{done} transactions, {deadlocks} deadlocks");
    assert!(done >= TRANSACTIONS, "{done} transactions");
}

/// InnoDB locks what it reads. A plan that reads a whole table waits for everybody's rows, and takes longer the more there are.
#[test]
fn no_statement_reads_rows_of_other_resources() {
    const OTHERS: usize = 2_000;
    /// Those of the resource itself, a few times over, for each of the round trips.
    const ROWS_MAX: u64 = 60;
    let (server, mut raw) = start();
    let (client, second) = (connect(&server.url()), connect(&server.url()));
    let others: Vec<_> = (0..OTHERS).map(|at| client.mutex(&format!("m{at}"))).collect();
    let held = pollster::block_on(join_all(others.iter().map(|mutex| mutex.acquire())));
    let mut count = || {
        let statement = "SELECT CAST(SUM(variable_value) AS SIGNED) FROM information_schema.global_status \
            WHERE variable_name LIKE 'Handler_read%'";
        number(&mut raw, statement)
    };
    // Counting reads rows, too.
    let own = {
        let first = count();
        count() - first
    };
    let mut read_at_most = |most: u64, what: &str, work: &mut dyn FnMut()| {
        let before = count();
        work();
        let rows = (count() - before).saturating_sub(own);
        println!("{what}: {rows} rows");
        assert!(rows <= most, "{what}: {rows} rows");
    };
    // Marks are looked for among all claims once, without a lock.
    read_at_most(OTHERS as u64 + ROWS_MAX, "a purge", &mut || {
        pollster::block_on(second.purge()).expect("an answer");
    });
    let mut read = |what: &str, work: &mut dyn FnMut()| read_at_most(ROWS_MAX, what, work);
    read("acquire and release", &mut || {
        let lease = pollster::block_on(second.mutex("new").acquire()).expect("it is free");
        pollster::block_on(lease.release()).expect("an answer");
    });
    read("a try", &mut || {
        assert!(pollster::block_on(second.mutex("m7").try_acquire()).expect("an answer").is_none());
    });
    read("a slot", &mut || {
        let pool = second.slot_pool("pool", 3);
        for _ in 0..2 {
            let slot = pollster::block_on(pool.acquire()).expect("it is free");
            pollster::block_on(slot.release()).expect("an answer");
        }
    });
    read("a look", &mut || drop(pollster::block_on(second.view("m7")).expect("an answer")));
    drop(held);
}
