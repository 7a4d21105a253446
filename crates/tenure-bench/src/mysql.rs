//! The engine `mysql` on one MariaDB server, beside bare statements on as many connections.

mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tenure_testkit::SqlConnection;
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};

use crate::measure::Outcome;
use crate::report::Report;
use crate::sql::{
    CONNECTIONS, Case, Measured, ROUNDS, Side, TASKS, UPSERT, Users, add, hand_over, measure, processor_time,
    runtime, tenure_pairs,
};

pub(crate) use queue::queue;

/// What every lock with an expiry comes down to: a row that is taken if it is not there or has ended, and is deleted.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare (name VARBINARY(255) PRIMARY KEY, claim VARBINARY(16) NOT NULL, \
    expires_at BIGINT NOT NULL) ENGINE = InnoDB";

/// When a commit is on the disk: at once, or within a second.
const COMMITS: [(&str, &str); 2] = [("1", "commits synced"), ("2", "commits not synced")];

fn start(flush: &str) -> MariaDbServer {
    MariaDbServer::start(&MariaDbOptions::default().setting("innodb-flush-log-at-trx-commit", flush))
}

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    for (flush, commits) in COMMITS {
        let server = start(flush);
        let on_server = || processor_time(std::iter::once(server.pid()));
        for tasks in TASKS {
            let (mut ours, mut bare) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_pairs(&server.url(), &on_server, tasks))?);
                bare.add(by_hand(&server, TABLE, tasks, pairs)?);
            }
            add(report, &Case { what: "mariadb, uncontended", tasks, commits }, UPSERT, &ours, &bare);
        }
    }
    Ok(())
}

pub(crate) fn hand_over_by_looks(report: &mut Report) -> Outcome {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let on_server = || processor_time(std::iter::once(server.pid()));
    runtime()?.block_on(hand_over(report, "mariadb", &server.url(), &on_server))
}

/// What a thread does until it is over.
struct Work {
    connection: SqlConnection,
    /// The tasks that are its share.
    tasks: Vec<usize>,
    done: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Work {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Measures what is written by hand. Each connection has a thread that does its share of the tasks' work: nobody waits for a pool or a runtime.
fn by_hand(
    server: &MariaDbServer,
    table: &str,
    tasks: usize,
    work: fn(Work),
) -> Result<Measured, Box<dyn std::error::Error>> {
    server.connect()?.run(table);
    let (done, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let threads = (0..tasks.min(CONNECTIONS)).map(|thread| {
        let tasks = (thread..tasks).step_by(CONNECTIONS).collect();
        let share =
            Work { connection: server.connect()?, tasks, done: done.clone(), is_over: is_over.clone() };
        Ok(std::thread::spawn(move || work(share)))
    });
    let threads = threads.collect::<Result<Vec<_>, tenure_testkit::SqlError>>()?;
    let on_server = || processor_time(std::iter::once(server.pid()));
    let measured = runtime()?.block_on(measure(&on_server, &done, Users::new()));
    is_over.store(true, Ordering::Relaxed);
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a user has panicked"))?;
    measured
}

fn pairs(mut work: Work) {
    let clock = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
    for at in (0..work.tasks.len()).cycle() {
        if work.is_over() {
            return;
        }
        let user = work.tasks[at];
        work.connection.run(&format!(
            "INSERT INTO bare VALUES ('bench/{user}', 'c{user}', {clock} + 30000000) ON DUPLICATE KEY UPDATE \
             claim = IF(expires_at < {clock}, VALUES(claim), claim), expires_at = IF(claim = VALUES(claim), VALUES(expires_at), expires_at)"
        ));
        work.connection.run(&format!("DELETE FROM bare WHERE name = 'bench/{user}' AND claim = 'c{user}'"));
        work.count();
    }
}
