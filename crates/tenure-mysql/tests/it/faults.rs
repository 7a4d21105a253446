//! What can go wrong with a server and the way to it: nothing may hang, be held twice, or be left behind.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure_conformance::{far, queue_crew, silence};
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, ReleaseAnswer, Settings, Tenure};
use tenure_mysql::Config;
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};
use tenure_testkit::{Proxy, SqlConnection, wait_for};

use crate::conformance::connector;
use crate::crew::{TTL, assert_excused, connect, crew, now, pause, use_every_kind};

/// Longer than any of a test's waits.
const LONG: Duration = Duration::from_secs(60);
/// Not much longer than a statement waits for a locked row.
const SHORT: Duration = Duration::from_millis(1200);
const CLIENTS: usize = 16;
/// How soon everybody is served again once a fault is over. Eight of them wait in one queue.
const SOON: Duration = Duration::from_secs(20);
/// How long callers wait for an answer, and a little more.
const ANSWERED: Duration = Duration::from_millis(2300);
/// How long a locked row of another resource holds somebody up: for the batch that is under way, and for the next one, in
/// each 1 s to find that out and 0.7 s to go on one by one.
const HELD_UP: Duration = Duration::from_millis(3600);

fn start() -> MariaDbServer {
    MariaDbServer::start(&MariaDbOptions::default())
}

fn raw(server: &MariaDbServer) -> SqlConnection {
    server.connect().expect("the server takes one more")
}

fn names() -> Vec<String> {
    vec!["one".to_owned(), "two".to_owned()]
}

/// Makes a user without any of the rights that let a superuser pass, and a database where it has these rights alone: in
/// `test` everybody has all. Returns the URLs for it and for the superuser.
pub(crate) fn plain_user(server: &MariaDbServer, rights: &str) -> (String, String) {
    let mut admin = raw(server);
    admin.run("CREATE DATABASE locks");
    admin.run("CREATE USER worker@'%'");
    admin.run(&format!("GRANT {rights} ON locks.* TO worker@'%'"));
    let url = server.url().replace("/test", "/locks");
    (url.replace("//root@", "//worker@"), url)
}

/// Waits until no hold and no waiter is left.
fn assert_nothing_is_left(server: &MariaDbServer) {
    wait_for("an empty table", || {
        let count = raw(server)
            .run("SELECT (SELECT count(*) FROM tenure_entry) + count(hold_claim) FROM tenure_resource");
        (count.first() == Some("0")).then_some(())
    });
}

/// Ends all connections but this one, and returns how many.
fn kill_all(killer: &mut SqlConnection) -> usize {
    let others = killer
        .run("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = 'test'");
    // One that has gone meanwhile is no error.
    others.rows.iter().flatten().flatten().filter(|id| killer.ask(&format!("KILL {id}"), &[]).is_ok()).count()
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
    let crew = crew(&server.url(), CLIENTS, &names());
    let (until, mut killed) = (now() + Duration::from_secs(3), 0);
    while now() < until {
        killed += kill_all(&mut killer);
        pause(Duration::from_millis(100));
    }
    println!("{killed} connections were ended");
    assert!(killed > CLIENTS, "{killed}");
    let took = crew.wait_until_served(CLIENTS, now(), SOON, "after the fault");
    println!("all were served {took:?} after it");
    crew.finish(names().len()).assert_exclusive();
    assert_nothing_is_left(&server);
}

#[test]
fn ended_connections_lose_no_item() {
    let server = start();
    let mut killer = raw(&server);
    queue_crew::while_it_works(
        || connect(&server.url()),
        SOON,
        |is_over| {
            queue_crew::again_and_again(is_over, 20, Duration::from_millis(100), |_| {
                kill_all(&mut killer);
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
fn a_server_that_is_killed_remembers_its_leases() {
    let server = start();
    let (client, other) = (connect(&server.url()), connect(&server.url()));
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    let crew = crew(&server.url(), CLIENTS, &names());
    server.kill();
    server.restart();
    let took = crew.wait_until_served(CLIENTS, now(), SOON, "after the restart");
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
    let took = crew.wait_until_served(CLIENTS, now(), SOON, "after the server goes on");
    println!("all were served {took:?} after the server went on");
    crew.finish(names().len()).assert_exclusive();
    // The next client that asks clears away what ended by itself.
    drop(pollster::block_on(client.mutex("m").try_acquire()).expect("an answer"));
    assert_nothing_is_left(&server);
}

#[test]
fn a_client_that_ends_takes_its_leave() {
    let server = start();
    let admin = RefCell::new(raw(&server));
    let ask = |statement: &str| admin.borrow_mut().run(statement).first().map(str::to_owned);
    let status =
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'ABORTED_CLIENTS'";
    let come_and_go = || {
        let client = connect(&server.url());
        let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
        pollster::block_on(lease.release()).expect("an answer");
        pollster::block_on(client.close());
        wait_for("the end of its connections", || {
            let others = "SELECT count(*) FROM information_schema.processlist \
                 WHERE id <> CONNECTION_ID() AND db = 'test'";
            (ask(others).as_deref() == Some("0")).then_some(())
        });
    };
    // Who finds no tables gives up the connection that said so.
    come_and_go();
    let before = ask(status);
    (0..3).for_each(|_| come_and_go());
    assert_eq!(ask(status), before, "the log has no aborted connection");
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
    somebody.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    somebody.run("START TRANSACTION");
    // By another index the server would lock what lies between.
    somebody
        .run("SELECT name FROM tenure_resource FORCE INDEX (PRIMARY) WHERE name IN ('a', 'c') FOR UPDATE");
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
    let other = somebody.run("SELECT CONNECTION_ID()").first().expect("a number").to_owned();
    somebody.run("START TRANSACTION");
    somebody.run("SELECT name FROM tenure_resource WHERE name = 'm' FOR UPDATE");
    somebody.run("SELECT grp FROM tenure_queue_group WHERE grp = 'g' FOR UPDATE");
    let connections = || {
        let all = "SELECT id FROM information_schema.processlist WHERE db = 'test'";
        let answer = admin.borrow_mut().run(&format!("{all} AND id NOT IN (CONNECTION_ID(), {other})"));
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

/// A client that is paused in a transaction holds its locks as this somebody does.
#[test]
fn what_somebody_locks_keeps_nobody_from_anything_else() {
    let server = start();
    let client = connect(&server.url());
    let of = |name: &str| client.mutex(name).ttl(TTL);
    let locked = pollster::block_on(of("a").acquire()).expect("it is free");
    let other = pollster::block_on(of("b").acquire()).expect("it is free");
    let mut somebody = raw(&server);
    somebody.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    somebody.run("START TRANSACTION");
    somebody.run("SELECT name FROM tenure_resource WHERE name = 'a' FOR UPDATE");
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
        let (refused, (_one, took)) = pollster::block_on(join(of("a").try_acquire(), timed(&one)));
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
    let client = connect(&plain_user(&server, "ALL").0);
    let lease = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is free");
    raw(&server).run("SET GLOBAL read_only = 1");
    let refused = wait_for("refusal", || pollster::block_on(client.mutex("n").try_acquire()).err());
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("replica")), "{refused:?}");
    pause(TTL + Duration::from_millis(300));
    assert!(lease.is_lost(), "nobody can renew it");
    raw(&server).run("SET GLOBAL read_only = 0");
    wait_for("grant", || pollster::block_on(client.mutex("m").try_acquire()).ok()?);
}

#[test]
fn a_full_server_refuses_new_clients_and_keeps_the_old_ones() {
    let server = MariaDbServer::start(&MariaDbOptions::default().setting("max-connections", "12"));
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
    let held = pollster::block_on(join_all(mutexes.iter().map(|mutex| mutex.acquire())));
    let held: Vec<_> = held.into_iter().map(|lease| lease.expect("it is free")).collect();
    pause(TTL);
    assert!(held.iter().all(|lease| !lease.is_lost()), "they are renewed");
    drop(others);
    wait_for("room", || pollster::block_on(Tenure::connect_with(connector(&url), Settings::default())).ok());
}

#[test]
fn missing_rights_are_named() {
    let server = start();
    let (url, admin) = plain_user(&server, "SELECT");
    let refused = pollster::block_on(Tenure::connect_with(connector(&url), Settings::default()));
    let refused = refused.expect_err("there are no tables, and it may not make them");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    // A user with the rights has made them.
    drop(connect(&admin));
    let client = connect(&url);
    let refused = pollster::block_on(client.mutex("m").try_acquire()).expect_err("it may not write");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("INSERT")), "{refused:?}");
    let found = pollster::block_on(client.check()).expect("an answer");
    let rights = found.iter().find(|finding| finding.what == "rights").expect("a finding");
    assert!(rights.found.contains("tenure_entry") && rights.hint.is_some(), "{rights:?}");
    raw(&server).run("GRANT INSERT, UPDATE, DELETE ON locks.* TO worker@'%'");
    let client = connect(&url);
    pollster::block_on(client.mutex("m").acquire()).expect("that is all it needs");
}

/// How many rows of each table there are: resources, claims, free slots, finished claims.
fn rows(server: &MariaDbServer) -> Vec<u64> {
    let tables = ["resource", "entry", "slot", "finished"];
    let count =
        |table| raw(server).run(&format!("SELECT count(*) FROM locks.tenure_{table}")).first()?.parse().ok();
    tables.into_iter().filter_map(count).collect()
}

#[test]
fn a_user_who_may_not_delete_marks_what_has_gone() {
    let server = start();
    let (url, admin) = plain_user(&server, "SELECT, INSERT, UPDATE");
    let privileged = connect(&admin);
    // Without saying so, it is told.
    let client = connect(&url);
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    pollster::block_on(lease.release()).expect("its hold is no row of its own");
    let lease = pollster::block_on(client.semaphore("s", 2).acquire()).expect("nothing is deleted yet");
    let refused = pollster::block_on(lease.release()).expect_err("it may not delete");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("purge=off")), "{refused:?}");
    let rights = |client: &Tenure| {
        let found = pollster::block_on(client.check()).expect("an answer");
        found.into_iter().find(|finding| finding.what == "rights").expect("a finding")
    };
    let found = rights(&client);
    assert!(found.found.contains("tenure_entry"), "{found:?}");
    assert!(found.hint.is_some_and(|hint| hint.contains("purge=off")), "the way out");
    drop(client);
    raw(&server).run("DELETE FROM locks.tenure_entry");
    raw(&server).run("DELETE FROM locks.tenure_resource");
    // With it, all goes on.
    let (a, b) = (connect(&format!("{url}?purge=off")), connect(&format!("{url}?purge=off")));
    assert_eq!(rights(&a).severity, tenure_core::engine::Severity::Good, "{:?}", rights(&a));
    use_every_kind(&a, &b);
    let refused = pollster::block_on(a.purge()).expect_err("it may not delete");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    println!("{:?} rows are left", rows(&server));
    assert!(rows(&server)[1] > 10, "each hold and waiter left a mark: {:?}", rows(&server));
    // A client that may delete clears away all that is not needed any more.
    raw(&server).run("INSERT INTO locks.tenure_finished (name, claim, until) VALUES (X'66', X'66', 1)");
    let mut cleared = 0;
    // A rest that is over is found by the first one, and its resource is looked at again an hour later.
    for _ in 0..2 {
        raw(&server).run("UPDATE locks.tenure_resource SET forget_at = 1");
        cleared += pollster::block_on(privileged.purge()).expect("it may").expect("a number");
    }
    // One is what the doctor claimed.
    assert_eq!((cleared, rows(&server)), (7, vec![0; 4]));
    use_every_kind(&a, &b);
    // Marks go while their resources are in use, too.
    let held = pollster::block_on(a.mutex("m").acquire()).expect("it is free");
    assert_eq!(pollster::block_on(privileged.purge()).expect("it may"), Some(0));
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
fn settings_do_as_well_as_a_url() {
    let server = start();
    let config = Config::new("127.0.0.1", server.port(), "root", "", "test").expect("parts");
    let config = config.with("prefix", "own_").and_then(|config| config.with("connections", "1"));
    let config = config.expect("settings");
    let connected = Tenure::new(config);
    let client = pollster::block_on(connected).expect("the server is there");
    drop(pollster::block_on(client.mutex("m").acquire()).expect("it is free"));
    assert_eq!(raw(&server).run("SELECT count(*) FROM own_resource").first(), Some("1"));
    assert!(
        Config::new("h", 1, "me", "hunter2", "").is_err_and(|error| !error.to_string().contains("hunter2"))
    );
}
