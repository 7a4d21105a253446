//! A queue on PostgreSQL beside one that is written by hand, on as many connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tokio_postgres::NoTls;

use crate::measure::Outcome;
use crate::postgres::server_cpu;
use crate::report::Report;
use crate::sql::{CONNECTIONS, Measured, ROUNDS, Side, TASKS, Users, add_queue, measure, runtime};

/// What everybody writes: a row for each job, which its worker has for a time. No groups, retries or dead letters.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS job (id bigserial PRIMARY KEY, payload bytea NOT NULL, \
     taken_until timestamptz NOT NULL DEFAULT '-infinity')";
const PUSH: &str = "INSERT INTO job (payload) VALUES ($1) RETURNING id";
const TAKE: &str = "UPDATE job SET taken_until = clock_timestamp() + interval '30 s' \
     WHERE id = (SELECT id FROM job WHERE taken_until < clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) \
     RETURNING id, payload";
const DONE: &str = "DELETE FROM job WHERE id = $1";
const PAYLOAD: [u8; 100] = [7; 100];

pub(crate) fn against_skip_locked(report: &mut Report) -> Outcome {
    for (fsync, commits) in [("on", "commits synced"), ("off", "commits not synced")] {
        // Rows come and go, and what they leave behind is what a server is usually told to clear away.
        let options = PostgresOptions::default().setting("fsync", fsync).setting("autovacuum", "on");
        let server = PostgresServer::start(&options.setting("autovacuum_naptime", "1s"));
        for tasks in TASKS {
            let (mut ours, mut bare) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_jobs(&server, tasks))?);
                bare.add(runtime()?.block_on(bare_jobs(&server, tasks))?);
            }
            add_queue(report, "postgres", tasks, commits, &ours, &bare);
        }
    }
    Ok(())
}

async fn tenure_jobs(server: &PostgresServer, tasks: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    let tenure = tenure::connect(&server.url()).await?;
    let (jobs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for _ in 0..tasks {
        let (queue, jobs) = (tenure.queue("bench"), jobs.clone());
        users.spawn(async move {
            loop {
                queue.push(PAYLOAD).await?;
                queue.next().await?.ack().await?;
                jobs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let measured = measure(&|| server_cpu(server), &jobs, users).await;
    tenure.close().await;
    measured
}

async fn bare_jobs(server: &PostgresServer, tasks: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(server.url().parse()?, NoTls, manager);
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
    pool.get().await?.batch_execute(TABLE).await?;
    let (jobs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for _ in 0..tasks {
        let (pool, jobs) = (pool.clone(), jobs.clone());
        users.spawn(async move {
            loop {
                let connection = pool.get().await?;
                let push = connection.prepare_cached(PUSH).await?;
                connection.query(&push, &[&PAYLOAD.as_slice()]).await?;
                drop(connection);
                let id: i64 = loop {
                    let connection = pool.get().await?;
                    let take = connection.prepare_cached(TAKE).await?;
                    if let Some(row) = connection.query_opt(&take, &[]).await? {
                        break row.try_get(0)?;
                    }
                };
                let connection = pool.get().await?;
                let done = connection.prepare_cached(DONE).await?;
                connection.query(&done, &[&id]).await?;
                jobs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    measure(&|| server_cpu(server), &jobs, users).await
}
