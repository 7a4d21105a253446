//! A pool that the program already has: who may use how many of its connections, and when.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::testing::busy::{assert_in_time, stretched};
use tenure_core::{ErrorKind, Mutex, Settings, Tenure};
use tenure_postgres::Config;
use tenure_postgres::deadpool_postgres::{Manager, Pool};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::wait_for;
use tokio::runtime::Runtime;

use crate::crew::{TTL, now, pause};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A pool as programs have them: without time limits of its own.
fn pool(server: &PostgresServer, size: usize) -> Pool {
    let mut config: tokio_postgres::Config = server.url().parse().expect("a URL");
    config.application_name("program");
    Pool::builder(Manager::new(config, tokio_postgres::NoTls)).max_size(size).build().expect("a pool")
}

/// Hundreds of calls stand in line for two connections here.
async fn tenure(config: Config) -> Tenure {
    waiting(config, stretched(Duration::from_secs(2))).await
}

async fn waiting(config: Config, answer_timeout: Duration) -> Tenure {
    let settings = Settings::new().answer_timeout(answer_timeout);
    Tenure::connect_with(config.into(), settings).await.expect("the server is there")
}

fn backends(server: &PostgresServer) -> Option<String> {
    let statement = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
        AND pid <> pg_backend_pid()";
    let mut raw = server.connect().expect("the server takes one more");
    raw.run(statement).first().map(str::to_owned)
}

/// Waits until the server has so many: one whose connection was given up may still be ending.
fn has_backends(server: &PostgresServer, count: &str) {
    wait_for("backends", || (backends(server).as_deref() == Some(count)).then_some(()));
}

fn named(tenure: &Tenure, count: usize) -> Vec<Mutex> {
    (0..count).map(|at| tenure.mutex(&format!("m{at}")).ttl(TTL)).collect()
}

#[test]
fn a_pool_of_two_with_one_taken_out_serves_two_hundred_leases() {
    let server = PostgresServer::start(&PostgresOptions::default());
    runtime().block_on(async {
        let pool = pool(&server, 2);
        let own = pool.get().await.expect("a connection");
        own.batch_execute("BEGIN; CREATE TEMP TABLE mine (x int)").await.expect("a transaction");
        let tenure = tenure(Config::from_pool(pool.clone()).expect("a pool")).await;
        assert!(!tenure.capability().tells_waiters, "nobody listens");
        let mutexes = named(&tenure, 200);
        let leases = join_all(mutexes.iter().map(Mutex::acquire)).await;
        let leases: Vec<_> = leases.into_iter().map(|lease| lease.expect("it is free")).collect();
        pause(2 * TTL);
        assert!(leases.iter().all(|lease| !lease.is_lost()), "they are renewed");
        has_backends(&server, "2");
        own.batch_execute("INSERT INTO mine VALUES (1); COMMIT").await.expect("nobody else was on it");
        join_all(leases.into_iter().map(|lease| lease.release())).await.into_iter().for_each(|released| {
            released.expect("an answer");
        });
        has_backends(&server, "2");
    });
}

#[test]
fn no_more_connections_are_taken_than_was_said() {
    let server = PostgresServer::start(&PostgresOptions::default());
    runtime().block_on(async {
        let pool = pool(&server, 8);
        let config = Config::from_pool(pool.clone()).expect("a pool");
        let tenure = tenure(config.with("connections", "2").expect("a number")).await;
        let mutexes = named(&tenure, 200);
        let _held = join_all(mutexes.iter().map(Mutex::acquire)).await;
        // Each of these is a transaction of its own, and all have one connection. Who waits too long for it is told, and asks again.
        let view = async || loop {
            match tenure.view("m0").await {
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                view => break view,
            }
        };
        let views = join_all((0..200).map(|_| view())).await;
        assert!(views.iter().all(Result::is_ok), "all are answered");
        assert!(pool.status().size <= 2, "{:?}", pool.status());
    });
}

#[test]
fn a_pool_without_a_free_connection_is_told_in_time_and_used_again() {
    let server = PostgresServer::start(&PostgresOptions::default());
    runtime().block_on(async {
        let pool = pool(&server, 1);
        let answer_timeout = Duration::from_secs(2);
        let tenure = waiting(Config::from_pool(pool.clone()).expect("a pool"), answer_timeout).await;
        let mutex = tenure.mutex("m").ttl(TTL);
        let lease = mutex.acquire().await.expect("it is free");
        let own = pool.get().await.expect("a connection");
        let asked_at = now();
        let refused = tenure.mutex("n").try_acquire().await.expect_err("no connection is free");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert_in_time(now().since(asked_at).saturating_sub(answer_timeout), Duration::from_millis(300));
        lease.lost().await;
        drop(own);
        mutex.acquire().await.expect("it is free again").release().await.expect("held");
    });
}

/// What tenure connects goes on when tenure has ended: it belongs to the pool.
#[test]
fn connections_outlive_the_client_that_made_them() {
    let server = PostgresServer::start(&PostgresOptions::default());
    runtime().block_on(async {
        let pool = pool(&server, 1);
        let tenure = tenure(Config::from_pool(pool.clone()).expect("a pool")).await;
        tenure.mutex("m").acquire().await.expect("it is free").release().await.expect("held");
        let backend = async || {
            let own = pool.get().await.expect("a connection");
            own.query_one("SELECT pg_backend_pid()", &[]).await.expect("it lives").get::<_, i32>(0)
        };
        let before = backend().await;
        tenure.close().await;
        assert_eq!(backend().await, before, "the same connection");
    });
}

#[test]
fn with_a_url_beside_it_waiters_hear_at_once() {
    let server = PostgresServer::start(&PostgresOptions::default());
    runtime().block_on(async {
        let pool = pool(&server, 2);
        let config = || Config::parse(&server.url()).and_then(|config| config.with_pool(pool.clone()));
        let (a, b) = (tenure(config().expect("a pool")).await, tenure(config().expect("a pool")).await);
        assert!(a.capability().tells_waiters && b.capability().tells_waiters);
        let lease = a.mutex("m").acquire().await.expect("it is free");
        let waits = b.mutex("m");
        let waiting = tokio::spawn(async move { waits.acquire().await.map(|_lease| now()) });
        while b.view("m").await.expect("an answer").is_none_or(|view| view.waiting == 0) {
            tokio::task::yield_now().await;
        }
        lease.release().await.expect("held");
        let released_at = now();
        let took = waiting.await.expect("no panic").expect("its turn").since(released_at);
        // Its heartbeat would come after 1.7 s.
        assert_in_time(took, Duration::from_millis(800));
        assert_eq!(backends(&server).as_deref(), Some("4"), "two of the pool, and two that listen");
    });
}

#[test]
fn settings_do_as_well_as_a_url() {
    let server = PostgresServer::start(&PostgresOptions::default());
    assert_eq!(
        Config::from_pool(pool(&server, 1)).expect_err("outside of a runtime").kind(),
        ErrorKind::Invalid
    );
    runtime().block_on(async {
        let listens = Config::from_pool(pool(&server, 1)).and_then(|config| config.with("listen", "on"));
        assert_eq!(listens.expect_err("nobody knows where").kind(), ErrorKind::Invalid);
        let config = Config::new(server.url().parse().expect("a URL"));
        let config = config.with("schema", "locks").and_then(|config| config.with("prefix", "own_"));
        let tenure = tenure(config.expect("settings")).await;
        tenure.mutex("m").acquire().await.expect("it is free").release().await.expect("held");
    });
    let count = server.connect().expect("the server").run("SELECT count(*) FROM locks.own_resource");
    assert_eq!(count.first(), Some("1"));
}
