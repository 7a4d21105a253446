//! A queue on MariaDB beside one that is written by hand, on as many connections.

use tenure_testkit::SqlConnection;

use super::{COMMITS, Work, by_hand, start};
use crate::measure::Outcome;
use crate::report::Report;
use crate::sql::{
    Case, PAYLOAD, ROUNDS, SKIP_LOCKED, Side, TASKS, add, processor_time, runtime, tenure_items,
};

/// What everybody writes: a row for each job, which its worker has for a time. No groups, retries or dead letters.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS job (id BIGINT AUTO_INCREMENT PRIMARY KEY, payload VARBINARY(255) NOT NULL, \
    taken_until DATETIME(6) NOT NULL DEFAULT '1970-01-01') ENGINE = InnoDB";
/// Under REPEATABLE READ, the server's default, a look keeps locks on rows and gaps that it only passed: four tasks then cost the server up to twice as much for a job.
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
const LOOK: &str =
    "SELECT id, payload FROM job WHERE taken_until < NOW(6) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(crate) fn queue(report: &mut Report) -> Outcome {
    for (flush, commits) in COMMITS {
        let server = start(flush);
        let on_server = || processor_time(std::iter::once(server.pid()));
        for tasks in TASKS {
            let (mut ours, mut bare) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_items(&server.url(), &on_server, tasks))?);
                bare.add(by_hand(&server, TABLE, tasks, jobs)?);
            }
            add(report, &Case { what: "mariadb", tasks, commits }, SKIP_LOCKED, &ours, &bare);
        }
    }
    Ok(())
}

/// All tasks of a share push, then all take, then all are done: as tasks that wait for one connection by turns do.
fn jobs(mut work: Work) {
    let payload = String::from_utf8_lossy(&PAYLOAD);
    let push = format!("INSERT INTO job (payload) VALUES ('{payload}')");
    work.connection.run(ISOLATION);
    while !work.is_over() {
        for _ in &work.tasks {
            work.connection.run(&push);
        }
        let taken: Vec<String> = work.tasks.iter().map(|_| take(&mut work.connection)).collect();
        for id in taken {
            work.connection.run(&format!("DELETE FROM job WHERE id = {id}"));
            work.count();
        }
    }
}

/// Takes the first job that nobody has or is about to take, and asks again at once if there is none.
fn take(connection: &mut SqlConnection) -> String {
    loop {
        connection.run("START TRANSACTION");
        let found = connection.run(LOOK).first().map(str::to_owned);
        if let Some(id) = &found {
            connection
                .run(&format!("UPDATE job SET taken_until = NOW(6) + INTERVAL 30 SECOND WHERE id = {id}"));
        }
        connection.run("COMMIT");
        if let Some(id) = found {
            return id;
        }
    }
}
