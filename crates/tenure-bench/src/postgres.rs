//! The engine `postgres` on one server, beside bare statements, prepared, on as many connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tokio_postgres::NoTls;

use crate::measure::Outcome;
use crate::report::Report;
use crate::sql::{
    CONNECTIONS, Measured, ROUNDS, Side, TASKS, Users, add, measure, processor_time, runtime, tenure_pairs,
};

/// What every lock with an expiry comes down to: a row that is taken if it is not there or has ended, and is deleted.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, claim text NOT NULL, expires_at timestamptz NOT NULL)";
const TAKE: &str = "INSERT INTO bare VALUES ($1, $2, clock_timestamp() + interval '30 s') \
     ON CONFLICT (name) DO UPDATE SET claim = excluded.claim, expires_at = excluded.expires_at \
     WHERE bare.expires_at < clock_timestamp() RETURNING claim";
const GIVE: &str = "DELETE FROM bare WHERE name = $1 AND claim = $2";

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    for (fsync, commits) in [("on", "commits synced"), ("off", "commits not synced")] {
        let server = PostgresServer::start(&PostgresOptions::default().setting("fsync", fsync));
        for tasks in TASKS {
            let (mut ours, mut bare) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_pairs(&server.url(), &|| server_cpu(&server), tasks))?);
                bare.add(runtime()?.block_on(bare_pairs(&server, tasks))?);
            }
            add(report, "postgres", tasks, commits, &ours, &bare);
        }
    }
    Ok(())
}

pub(crate) fn server_cpu(server: &PostgresServer) -> Duration {
    let pid = server.pid();
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    processor_time(list.split_whitespace().filter_map(|pid| pid.parse().ok()))
}

async fn bare_pairs(server: &PostgresServer, tasks: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(server.url().parse()?, NoTls, manager);
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
    pool.get().await?.batch_execute(TABLE).await?;
    let (pairs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for user in 0..tasks {
        let (pool, pairs) = (pool.clone(), pairs.clone());
        users.spawn(async move {
            let (name, claim) = (format!("bench/{user}"), format!("c{user}"));
            loop {
                for text in [TAKE, GIVE] {
                    let connection = pool.get().await?;
                    let plan = connection.prepare_cached(text).await?;
                    connection.query(&plan, &[&name, &claim]).await?;
                }
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    measure(&|| server_cpu(server), &pairs, users).await
}
