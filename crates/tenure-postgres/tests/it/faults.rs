//! What can go wrong with a server and the way to it: nothing may hang, be held twice, or be left behind.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_conformance::{far, queue_crew, silence};
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, ReleaseAnswer, Settings, Tenure};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::{Proxy, SqlConnection, wait_for};

use crate::conformance::connector;
use crate::crew::{TTL, assert_excused, connect, crew, now, pause, use_every_kind};

/// Longer than any of a test's waits.
const LONG: Duration = Duration::from_secs(60);
/// Not much longer than a statement waits for a locked row.
const SHORT: Duration = Duration::from_millis(1200);
const CLIENTS: usize = 16;
/// How soon everybody is served again once a fault is over.
const SOON: Duration = Duration::from_secs(5);
/// How long callers wait for an answer, and a little more.
const ANSWERED: Duration = Duration::from_millis(2300);
/// How long a locked row of another resource holds somebody up: for the batch that is under way, and for the next one, in
/// each 1 s to find that out and 0.7 s to go on one by one.
const HELD_UP: Duration = Duration::from_millis(3600);
/// All connections of tenure's clients.
const OURS: &str = "application_name = 'tenure' AND pid <> pg_backend_pid()";

fn start() -> PostgresServer {
    PostgresServer::start(&PostgresOptions::default())
}

fn raw(server: &PostgresServer) -> SqlConnection {
    server.connect().expect("the server takes one more")
}

fn names() -> Vec<String> {
    vec!["one".to_owned(), "two".to_owned()]
}

/// Waits until no hold and no waiter is left.
fn assert_nothing_is_left(server: &PostgresServer) {
    wait_for("an empty table", || {
        let count = raw(server).run(
            "SELECT (SELECT count(*) FROM tenure_entry) + (SELECT count(hold_claim) FROM tenure_resource)",
        );
        (count.first() == Some("0")).then_some(())
    });
}

/// Does something again and again for two seconds while clients work; all must go on, one at a time.
fn while_they_work(server: &PostgresServer, mut disturb: impl FnMut()) {
    let crew = crew(&server.url(), CLIENTS, &names());
    let until = now() + Duration::from_secs(2);
    while now() < until {
        disturb();
        pause(Duration::from_millis(100));
    }
    let over = now();
    crew.wait_until_served(CLIENTS, over, SOON, "after the fault");
    let report = crew.finish(names().len());
    report.assert_exclusive();
    assert_nothing_is_left(server);
}

#[test]
fn a_connection_that_falls_silent_is_left_although_no_call_is_waited_for() {
    let server = start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
    silence::is_left(|| connector(&url), || proxy.fall_silent(silence::SLOW_LOGIN));
}

#[test]
fn a_store_far_away_is_reached() {
    let server = start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
    proxy.move_away(far::ONE_WAY);
    far::is_reached(|| connector(&url));
}

#[test]
fn ended_connections_cost_nothing_but_time() {
    let server = start();
    let mut killer = raw(&server);
    let statement = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {OURS}");
    while_they_work(&server, || drop(killer.run(&statement)));
}

#[test]
fn ended_connections_lose_no_item() {
    let server = start();
    let mut killer = raw(&server);
    let statement = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {OURS}");
    queue_crew::while_it_works(
        || connect(&server.url()),
        SOON,
        |is_over| {
            queue_crew::again_and_again(is_over, 20, Duration::from_millis(100), |_| {
                killer.run(&statement);
            });
        },
    );
}

#[test]
fn a_server_that_is_killed_remembers_its_items() {
    let server = start();
    queue_crew::while_it_works(
        || connect(&server.url()),
        SOON,
        |_| {
            pause(Duration::from_millis(300));
            server.kill();
            server.restart();
        },
    );
}

#[test]
fn rows_that_are_purged_meanwhile_are_not_granted_twice() {
    let server = start();
    let url = server.url();
    drop(connect(&url));
    let mut purger = raw(&server);
    // As purging does it, but of rows that are needed again at once, and far more often.
    let statement = "WITH gone AS (SELECT name FROM tenure_resource WHERE entries = 0 FOR UPDATE SKIP LOCKED) \
        DELETE FROM tenure_resource WHERE name IN (SELECT name FROM gone)";
    let (is_over, is_held, grants) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let mut count = 0;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mutex = connect(&url).mutex("m");
                while !is_over.load(Ordering::Relaxed) {
                    let lease = pollster::block_on(mutex.try_acquire()).expect("no error reaches a user");
                    let Some(lease) = lease else { continue };
                    assert!(!is_held.swap(true, Ordering::SeqCst), "two hold it");
                    pause(Duration::from_millis(1));
                    is_held.store(false, Ordering::SeqCst);
                    grants.fetch_add(1, Ordering::Relaxed);
                    pollster::block_on(lease.release()).expect("an answer");
                }
            });
        }
        let (least, most) = (now() + Duration::from_secs(4), now() + Duration::from_secs(60));
        // The test is worth something only if rows are removed.
        while now() < least || (count <= 20 && now() < most) {
            count += purger.run(statement).affected;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{count} rows were removed, {grants:?} grants");
    assert!(count > 20, "{count}");
}

#[test]
fn a_server_that_is_killed_remembers_its_leases() {
    let server = start();
    let (client, other) = (connect(&server.url()), connect(&server.url()));
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    let crew = crew(&server.url(), CLIENTS, &names());
    server.kill();
    server.restart();
    let over = now();
    let took = crew.wait_until_served(CLIENTS, over, SOON, "after the restart");
    println!("all were served {took:?} after the restart");
    crew.finish(names().len()).assert_exclusive();
    assert!(!lease.is_lost(), "the server has it");
    assert!(pollster::block_on(other.mutex("m").try_acquire()).expect("an answer").is_none());
    let answer = pollster::block_on(lease.release()).expect("a release is answered");
    assert_eq!(answer, ReleaseAnswer::Released);
    assert_nothing_is_left(&server);
}

#[test]
fn a_stopped_server_takes_leases_by_their_deadline_and_serves_all_afterwards() {
    let server = start();
    let client = connect(&server.url());
    let crew = crew(&server.url(), CLIENTS, &names());
    let lease = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is free");
    let stopped_at = now();
    server.stop();
    pause((stopped_at + TTL + Duration::from_millis(100)).since(now()));
    assert!(lease.is_lost(), "its holder is told by its own clock");
    let asked_at = now();
    let refused = pollster::block_on(client.mutex("n").try_acquire()).expect_err("nobody answers");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_in_time(now().since(asked_at), ANSWERED);
    server.cont();
    let over = now();
    let took = crew.wait_until_served(CLIENTS, over, SOON, "after the server goes on");
    println!("all were served {took:?} after the server went on");
    crew.finish(names().len()).assert_exclusive();
    // The next client that asks clears away what ended by itself.
    drop(pollster::block_on(client.mutex("m").try_acquire()).expect("an answer"));
    assert_nothing_is_left(&server);
}

/// One connection hangs with a claim and one with a release, each for as long as the server lets it wait.
#[test]
fn a_short_lease_is_renewed_while_all_other_connections_wait_for_locked_rows() {
    let server = start();
    let url = server.url();
    let client = connect(&format!("{url}{}connections=2", if url.contains('?') { '&' } else { '?' }));
    let of = |name: &str, ttl| client.mutex(name).ttl(ttl);
    let released = pollster::block_on(of("a", LONG).acquire()).expect("it is free");
    pollster::block_on(async { of("c", LONG).acquire().await?.release().await }).expect("it is free");
    let lease = pollster::block_on(of("b", SHORT).acquire()).expect("it is free");
    let mut somebody = raw(&server);
    somebody.run("BEGIN");
    for table in ["tenure_resource", "tenure_entry"] {
        somebody.run(&format!("SELECT name FROM {table} WHERE name IN ('a', 'c') FOR UPDATE"));
    }
    drop(released);
    let until = now() + 4 * SHORT;
    let mut refused = 0;
    while now() < until {
        refused += usize::from(pollster::block_on(of("c", LONG).try_acquire()).is_err());
        assert!(!lease.is_lost(), "after {refused} claims that could not be answered");
    }
    assert!(refused > 0, "the row is locked");
    somebody.run("ROLLBACK");
    assert_eq!(pollster::block_on(lease.release()).expect("an answer"), ReleaseAnswer::Released);
}

/// A crowd that dials anew after each wait has no time for anything else, and on a full server another has its place then.
#[test]
fn who_waits_in_vain_for_a_locked_row_keeps_its_connection() {
    let server = start();
    let client = connect(&server.url());
    pollster::block_on(async {
        client.queue("q").push("x").group("g").await?;
        client.mutex("m").acquire().await?.release().await
    })
    .expect("it is free");
    let (mut somebody, admin) = (raw(&server), RefCell::new(raw(&server)));
    somebody.run("BEGIN");
    somebody.run("SELECT name FROM tenure_resource WHERE name = 'm' FOR UPDATE");
    somebody.run("SELECT grp FROM tenure_queue_group WHERE grp = 'g' FOR UPDATE");
    let connections = || {
        let all = "SELECT pid FROM pg_stat_activity WHERE query NOT LIKE 'LISTEN%'";
        let answer = admin.borrow_mut().run(&format!("{all} AND {OURS}"));
        answer.rows.into_iter().flatten().collect::<HashSet<_>>()
    };
    let lock = || pollster::block_on(client.mutex("m").try_acquire()).map(drop);
    let push = || pollster::block_on(async { client.queue("q").push("y").group("g").await }).map(drop);
    for (what, ask) in [("a lock", &lock as &dyn Fn() -> tenure_core::Result<()>), ("a push", &push)] {
        // On a busy machine one wait may take so long that the client gives it up.
        wait_for(&format!("a refusal of {what} that costs no connection"), || {
            let before = connections();
            let refused = ask().expect_err("its row is locked");
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            before.is_subset(&connections()).then_some(())
        });
    }
}

#[test]
fn what_somebody_locks_keeps_nobody_from_anything_else() {
    let server = start();
    let client = connect(&server.url());
    let of = |name: &str| client.mutex(name).ttl(TTL);
    let locked = pollster::block_on(of("a").acquire()).expect("it is free");
    let other = pollster::block_on(of("b").acquire()).expect("it is free");
    let mut somebody = raw(&server);
    somebody.run("BEGIN");
    somebody.run("SELECT * FROM tenure_resource WHERE name = 'a' FOR UPDATE");
    somebody.run("SELECT * FROM tenure_entry WHERE name = 'a' FOR UPDATE");
    let until = now() + TTL + Duration::from_secs(1);
    let mut rounds = 0;
    while now() < until {
        // In one batch with the one that is locked, and behind such a batch.
        let (one, other) = (of(&format!("c{rounds}")), of(&format!("d{rounds}")));
        let timed = async |mutex: &tenure_core::Mutex| {
            let asked_at = now();
            let lease = loop {
                match mutex.acquire().await {
                    Ok(lease) => break lease,
                    Err(error) => assert_excused(&error),
                }
            };
            (lease, now().since(asked_at))
        };
        let (refused, (_one, took)) =
            pollster::block_on(futures_util::future::join(of("a").try_acquire(), timed(&one)));
        let refused = refused.expect_err("its row is locked");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        let (_other, took_after) = pollster::block_on(timed(&other));
        println!("{took:?} in the batch, {took_after:?} behind it");
        assert_in_time(took.max(took_after), HELD_UP);
        rounds += 1;
    }
    assert!(locked.is_lost(), "nobody could renew it");
    assert!(!other.is_lost(), "this one was renewed all the time");
    somebody.run("ROLLBACK");
    let asked_at = now();
    pollster::block_on(of("a").acquire()).expect("it is free again");
    assert_in_time(now().since(asked_at), TTL + ANSWERED);
}

#[test]
fn a_read_only_server_grants_nothing_and_says_so() {
    let server = start();
    let client = connect(&server.url());
    let lease = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is free");
    let set = |value: &str| {
        raw(&server).run(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        raw(&server).run("SELECT pg_reload_conf()");
    };
    set("on");
    let refused = wait_for("refusal", || pollster::block_on(client.mutex("n").try_acquire()).err());
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("standby")), "{refused:?}");
    pause(TTL + Duration::from_millis(300));
    assert!(lease.is_lost(), "nobody can renew it");
    set("off");
    wait_for("grant", || pollster::block_on(client.mutex("m").try_acquire()).ok()?);
}

#[test]
fn a_full_server_refuses_new_clients_and_keeps_the_old_ones() {
    let server = PostgresServer::start(&PostgresOptions::default().setting("max_connections", "12"));
    let url = server.url();
    let client = connect(&url);
    let mut others = Vec::new();
    while let Ok(connection) = server.connect() {
        others.push(connection);
        assert!(others.len() < 20, "there is an end");
    }
    let asked_at = now();
    let refused = pollster::block_on(Tenure::connect_with(connector(&url), Settings::default()));
    let refused = refused.expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("max_connections")), "{refused:?}");
    assert_in_time(now().since(asked_at), ANSWERED);
    // It has at least one connection, and with that it can do everything.
    let mutexes: Vec<_> = (0..50).map(|at| client.mutex(&format!("m{at}")).ttl(TTL)).collect();
    let held =
        pollster::block_on(futures_util::future::join_all(mutexes.iter().map(|mutex| mutex.acquire())));
    let held: Vec<_> = held.into_iter().map(|lease| lease.expect("it is free")).collect();
    pause(TTL);
    assert!(held.iter().all(|lease| !lease.is_lost()), "they are renewed");
    drop(others);
    wait_for("room", || pollster::block_on(Tenure::connect_with(connector(&url), Settings::default())).ok());
}

#[test]
fn a_full_disk_is_told_and_work_goes_on_when_there_is_space() {
    let server = PostgresServer::start(&PostgresOptions::default().disk(64));
    let client = connect(&server.url());
    let held = pollster::block_on(client.mutex("held").acquire()).expect("it is free");
    let mut admin = raw(&server);
    admin.run("CREATE TABLE filler (text text)");
    admin.run("ALTER TABLE filler ALTER text SET STORAGE PLAIN");
    let fill = "INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, 100)";
    let full = (0..1000).find_map(|_| admin.ask(fill, &[]).err()).expect("there is an end");
    assert_eq!(full.code, "53100", "{full}");
    while admin.ask("INSERT INTO filler SELECT repeat('x', 7000)", &[]).is_ok() {}
    // What has room in the pages that there are goes on for a while.
    let (mut leases, mut longest) = (vec![held], Duration::ZERO);
    let refused = (0..5000).find_map(|at| {
        let asked_at = now();
        let tried = pollster::block_on(client.mutex(&format!("m{at}")).try_acquire());
        longest = longest.max(now().since(asked_at));
        match tried {
            Ok(lease) => {
                leases.extend(lease);
                None
            }
            Err(error) => Some(error),
        }
    });
    println!("{} claims had room", leases.len());
    let refused = refused.expect("there is no room");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("disk")), "{refused:?}");
    assert_in_time(longest, ANSWERED);
    admin.run("DROP TABLE filler");
    admin.run("CHECKPOINT");
    wait_for("grant", || pollster::block_on(client.mutex("n").try_acquire()).ok()?);
    for lease in leases {
        pollster::block_on(lease.release()).expect("an answer");
    }
}

/// A client that is stopped between its two trips: its transaction is open, and nothing comes. It is thrown out before others give up
/// who wait for its rows.
#[test]
fn a_client_that_stops_in_a_transaction_is_thrown_out() {
    let server = start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
    let stopping = connect(&format!("{url}?listen=off&application_name=stopping"));
    let other = connect(&server.url());
    // A semaphore is claimed by a transaction around `step`, always.
    pollster::block_on(async { other.semaphore("s", 2).acquire().await?.release().await })
        .expect("it is free");
    let mut somebody = raw(&server);
    somebody.run("BEGIN");
    somebody.run("SELECT name FROM tenure_resource FOR UPDATE");
    let stopped = std::thread::spawn(move || pollster::block_on(stopping.semaphore("s", 2).try_acquire()));
    wait_for("the first trip", || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'stopping'";
        (raw(&server).run(waiting).first() == Some("1")).then_some(())
    });
    proxy.drop_requests();
    somebody.run("ROLLBACK");
    let stopped_at = now();
    // A client that asks meanwhile may have the row before it.
    wait_for("the row", || {
        let idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name = 'stopping'";
        (raw(&server).run(idle).first() == Some("1")).then_some(())
    });
    // It has the row now, and keeps it.
    let lease = wait_for("grant", || pollster::block_on(other.semaphore("s", 2).try_acquire()).ok()?);
    println!("granted after {:?}", now().since(stopped_at));
    assert_in_time(now().since(stopped_at), Duration::from_millis(1900));
    let log = std::fs::read_to_string(server.directory().join("log")).expect("the server's log");
    assert!(log.contains("due to idle-in-transaction timeout"), "{log}");
    pollster::block_on(lease.release()).expect("it is held");
    stopped.join().expect("no panic").expect_err("nobody answers it");
}

#[test]
fn missing_rights_are_named() {
    let server = start();
    let mut admin = raw(&server);
    admin.run("CREATE ROLE worker LOGIN");
    let url = server.url().replace("//postgres@", "//worker@");
    let refused = pollster::block_on(Tenure::connect_with(connector(&url), Settings::default()));
    let refused = refused.expect_err("there are no tables, and it may not make them");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    // A user with the rights has made them, and granted some of those rights.
    drop(connect(&server.url()));
    admin.run("GRANT SELECT ON ALL TABLES IN SCHEMA public TO worker");
    let client = connect(&url);
    let refused = pollster::block_on(client.mutex("m").try_acquire()).expect_err("it may not write");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("INSERT")), "{refused:?}");
    let found = pollster::block_on(client.check()).expect("an answer");
    let tables = found.iter().find(|finding| finding.what == "tables").expect("a finding");
    assert!(tables.found.contains("tenure_entry"), "{tables:?}");
    admin.run("GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker");
    pollster::block_on(client.mutex("m").acquire()).expect("that is all it needs");
}

/// How many rows of each table there are: resources, entries, free slots, finished claims.
fn rows(server: &PostgresServer) -> Vec<u64> {
    let tables = ["resource", "entry", "slot", "finished"];
    let count =
        |table| raw(server).run(&format!("SELECT count(*) FROM tenure_{table}")).first()?.parse().ok();
    tables.into_iter().filter_map(count).collect()
}

#[test]
fn a_user_who_may_not_delete_marks_what_has_gone() {
    let server = start();
    drop(connect(&server.url()));
    let mut admin = raw(&server);
    admin.run("CREATE ROLE worker LOGIN");
    admin.run("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO worker");
    let url = server.url().replace("//postgres@", "//worker@");
    // Without saying so, it is told.
    let client = connect(&url);
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    pollster::block_on(lease.release()).expect("its hold is no row of its own");
    let lease = pollster::block_on(client.semaphore("s", 2).acquire()).expect("nothing is deleted yet");
    let refused = pollster::block_on(lease.release()).expect_err("it may not delete");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("purge=off")), "{refused:?}");
    let tables = |client: &Tenure| {
        let found = pollster::block_on(client.check()).expect("an answer");
        found.into_iter().find(|finding| finding.what == "tables").expect("a finding")
    };
    let found = tables(&client);
    assert!(found.found.contains("tenure_entry"), "{found:?}");
    assert!(found.hint.is_some_and(|hint| hint.contains("purge=off")), "the way out");
    drop(client);
    admin.run("DELETE FROM tenure_entry");
    admin.run("DELETE FROM tenure_resource");
    // With it, all goes on.
    let (a, b) = (connect(&format!("{url}?purge=off")), connect(&format!("{url}?purge=off")));
    assert_eq!(tables(&a).severity, tenure_core::engine::Severity::Good, "{:?}", tables(&a));
    use_every_kind(&a, &b);
    let refused = pollster::block_on(a.purge()).expect_err("it may not delete");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    println!("{:?} rows are left", rows(&server));
    assert!(rows(&server)[1] > 10, "each hold and waiter left a mark: {:?}", rows(&server));
    // A client that may delete clears away all that is not needed any more.
    admin.run("INSERT INTO tenure_finished (name, claim, until) VALUES ('f', 'f', 1)");
    let mut cleared = 0;
    // A rest that is over is found by the first one, and its resource is looked at again an hour later.
    for _ in 0..2 {
        admin.run("UPDATE tenure_resource SET forget_at = 1");
        cleared += pollster::block_on(connect(&server.url()).purge()).expect("it may").expect("a number");
    }
    // With the one that the doctor has tried.
    assert_eq!((cleared, rows(&server)), (7, vec![0; 4]));
    use_every_kind(&a, &b);
    // Marks go while their resources are in use, too.
    let held = pollster::block_on(a.mutex("m").acquire()).expect("it is free");
    assert_eq!(pollster::block_on(connect(&server.url()).purge()).expect("it may"), Some(0));
    // What is held is no row of its own, and what rests may be over.
    let left = rows(&server);
    assert!(left[1] <= 1 && left[2] == 3, "what rests and what is free, and no mark: {left:?}");
    pollster::block_on(held.release()).expect("it is held");
}

#[test]
fn dropped_tables_are_named_and_can_be_made_again() {
    let server = start();
    let client = connect(&server.url());
    raw(&server)
        .run("DROP TABLE tenure_resource, tenure_entry, tenure_finished, tenure_slot, tenure_version");
    let refused = pollster::block_on(client.mutex("m").try_acquire()).expect_err("there are no tables");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("--migrate")), "{refused:?}");
    let made = pollster::block_on(client.migrate()).expect("they are made");
    assert!(made.is_some_and(|text| text.contains("version 2")));
    pollster::block_on(client.mutex("m").acquire()).expect("it is free");
}

#[test]
fn tables_of_another_version_are_refused() {
    let server = start();
    drop(connect(&server.url()));
    raw(&server).run("UPDATE tenure_version SET version = 99");
    let refused = pollster::block_on(Tenure::connect_with(connector(&server.url()), Settings::default()));
    let refused = refused.expect_err("nobody knows what is in there");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("99"), "{refused}");
}

#[test]
fn a_listener_that_reconnects_has_missed_nothing() {
    let server = start();
    let (holder, waiter) = (connect(&server.url()), connect(&server.url()));
    let mut killer = raw(&server);
    for round in 0..5 {
        let lease = pollster::block_on(holder.mutex("m").acquire()).expect("it is free");
        let client = waiter.clone();
        let waiting = std::thread::spawn(move || {
            let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is handed over");
            let at = now();
            pollster::block_on(lease.release()).expect("an answer");
            at
        });
        wait_for("a waiter", || {
            (pollster::block_on(holder.view("m")).expect("an answer")?.waiting == 1).then_some(())
        });
        let statement =
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
        assert_eq!(killer.run(statement).first(), Some("2"), "each client has one that listens");
        pollster::block_on(lease.release()).expect("an answer");
        let released_at = now();
        let took = waiting.join().expect("no panic").since(released_at);
        println!("round {round}: {took:?}");
        // Its heartbeat would come after 1.7 s at most.
        assert_in_time(took, Duration::from_millis(1200));
        wait_for("two that listen", || {
            let statement = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
            (raw(&server).run(statement).first() == Some("2")).then_some(())
        });
    }
}

#[test]
fn idle_rows_stay_until_they_are_purged() {
    let server = start();
    let client = connect(&format!("{}?purge=off", server.url()));
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    pollster::block_on(lease.release()).expect("an answer");
    assert_eq!(pollster::block_on(client.purge()).expect("an answer"), Some(0), "its token is remembered");
    let count = || raw(&server).run("SELECT count(*) FROM tenure_resource").first().map(str::to_owned);
    assert_eq!(count().as_deref(), Some("1"));
    raw(&server).run("UPDATE tenure_resource SET forget_at = 1");
    assert_eq!(pollster::block_on(client.purge()).expect("an answer"), Some(1));
    assert_eq!(count().as_deref(), Some("0"));
}

#[test]
fn what_a_vanished_holder_left_behind_is_cleared_away() {
    let server = start();
    let client = connect(&server.url());
    let (vanished, kept) = (client.mutex("vanished"), client.mutex("kept"));
    let held =
        [vanished.acquire(), kept.acquire()].map(|lease| pollster::block_on(lease).expect("it is free"));
    let mut admin = raw(&server);
    admin.run("UPDATE tenure_resource SET hold_expires_at = 1 WHERE name = 'vanished'");
    admin.run("UPDATE tenure_resource SET forget_at = 1");
    assert_eq!(pollster::block_on(client.purge()).expect("an answer"), Some(0), "its token is remembered");
    let names =
        admin.run("SELECT convert_from(name, 'UTF8') FROM tenure_resource WHERE hold_claim IS NOT NULL").rows;
    assert_eq!(names, [[Some("kept".to_owned())]]);
    let later = "SELECT count(*) FROM tenure_resource WHERE forget_at > 3600000000";
    assert_eq!(admin.run(later).first(), Some("2"), "both are looked at again in an hour");
    admin.run("UPDATE tenure_resource SET forget_at = 1");
    assert_eq!(pollster::block_on(client.purge()).expect("an answer"), Some(1));
    drop(held);
}
