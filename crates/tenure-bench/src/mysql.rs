//! The engine `mysql` on one MariaDB server, beside bare statements on as many connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_testkit::SqlConnection;
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};

use crate::measure::Outcome;
use crate::report::Report;
use crate::sql::{
    CONNECTIONS, Measured, ROUNDS, Side, TASKS, Users, add, hand_over, measure, processor_time, runtime,
    tenure_pairs,
};

/// What every lock with an expiry comes down to: a row that is taken if it is not there or has ended, and is deleted.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare (name VARBINARY(255) PRIMARY KEY, claim VARBINARY(16) NOT NULL, \
    expires_at BIGINT NOT NULL) ENGINE = InnoDB";

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    for (flush, commits) in [("1", "commits synced"), ("2", "commits not synced")] {
        let options = MariaDbOptions::default().setting("innodb-flush-log-at-trx-commit", flush);
        let server = MariaDbServer::start(&options);
        let on_server = || processor_time(std::iter::once(server.pid()));
        for tasks in TASKS {
            let (mut ours, mut bare) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_pairs(&server.url(), &on_server, tasks))?);
                bare.add(bare_pairs(&server, &on_server, tasks)?);
            }
            add(report, "mariadb", tasks, commits, &ours, &bare);
        }
    }
    Ok(())
}

pub(crate) fn hand_over_by_looks(report: &mut Report) -> Outcome {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let on_server = || processor_time(std::iter::once(server.pid()));
    runtime()?.block_on(hand_over(report, "mariadb", &server.url(), &on_server))
}

/// Each connection has a thread that goes through its share of the tasks' names: nobody waits for a pool or a runtime.
fn bare_pairs(
    server: &MariaDbServer,
    on_server: &impl Fn() -> Duration,
    tasks: usize,
) -> Result<Measured, Box<dyn std::error::Error>> {
    server.connect()?.run(TABLE);
    let (pairs, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let threads = (0..tasks.min(CONNECTIONS)).map(|thread| {
        let (pairs, is_over) = (pairs.clone(), is_over.clone());
        let connection = server.connect()?;
        Ok(std::thread::spawn(move || work(connection, thread, tasks, &pairs, &is_over)))
    });
    let threads = threads.collect::<Result<Vec<_>, tenure_testkit::SqlError>>()?;
    let measured = runtime()?.block_on(measure(on_server, &pairs, Users::new()));
    is_over.store(true, Ordering::Relaxed);
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a user has panicked"))?;
    measured
}

fn work(mut connection: SqlConnection, thread: usize, tasks: usize, pairs: &AtomicU64, is_over: &AtomicBool) {
    let clock = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
    for user in (0..tasks).skip(thread).step_by(CONNECTIONS).cycle() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        connection.run(&format!(
            "INSERT INTO bare VALUES ('bench/{user}', 'c{user}', {clock} + 30000000) ON DUPLICATE KEY UPDATE \
             claim = IF(expires_at < {clock}, VALUES(claim), claim), expires_at = IF(claim = VALUES(claim), VALUES(expires_at), expires_at)"
        ));
        connection.run(&format!("DELETE FROM bare WHERE name = 'bench/{user}' AND claim = 'c{user}'"));
        pairs.fetch_add(1, Ordering::Relaxed);
    }
}
