//! A queue on PostgreSQL beside one that is written by hand and one as job libraries have it, on as many connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tokio_postgres::types::ToSql;

use super::{COMMITS, pool, server_cpu};
use crate::measure::Outcome;
use crate::report::{Report, Target};
use crate::sql::{
    Against, Case, Measured, PAYLOAD, ROUNDS, SKIP_LOCKED, Side, TASKS, Users, add, measure, runtime,
    tenure_items,
};

/// What a peer sends for each job, and before the first of a round.
struct Statements {
    table: &'static str,
    push: &'static str,
    payload: &'static (dyn ToSql + Sync),
    /// Returns the number of the job first.
    take: &'static str,
    takes_from: &'static [&'static (dyn ToSql + Sync)],
    done: &'static str,
}

/// What everybody writes: a row for each job, which its worker has for a time. No groups, retries or dead letters.
const BY_HAND: Statements = Statements {
    table: "CREATE TABLE IF NOT EXISTS job (id bigserial PRIMARY KEY, payload bytea NOT NULL, \
        taken_until timestamptz NOT NULL DEFAULT '-infinity')",
    push: "INSERT INTO job (payload) VALUES ($1) RETURNING id",
    payload: &PAYLOAD_BYTES,
    take: "UPDATE job SET taken_until = clock_timestamp() + interval '30 s' \
        WHERE id = (SELECT id FROM job WHERE taken_until < clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) \
        RETURNING id, payload",
    takes_from: &[],
    done: "DELETE FROM job WHERE id = $1",
};
const PAYLOAD_BYTES: &[u8] = &PAYLOAD;

/// What a job library does: the shape that River uses, written anew, one row at a time. Jobs have states, attempts and priorities, and stay when they
/// are completed. River itself fetches and completes jobs in batches, has more indexes, removes old jobs and notifies workers: none of that is here.
const LIBRARY: Statements = Statements {
    table: "CREATE TABLE IF NOT EXISTS library_job (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'available', \
        attempt smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL DEFAULT 25, priority smallint NOT NULL DEFAULT 1, \
        queue text NOT NULL DEFAULT 'default', args jsonb NOT NULL, scheduled_at timestamptz NOT NULL DEFAULT now(), \
        attempted_at timestamptz, attempted_by text[], finalized_at timestamptz); \
        CREATE INDEX IF NOT EXISTS library_job_fetch ON library_job (queue, priority, scheduled_at, id) WHERE state = 'available'; \
        TRUNCATE library_job",
    push: "INSERT INTO library_job (args) VALUES ($1::text::jsonb) RETURNING id",
    payload: &PAYLOAD_JSON,
    take: "WITH locked AS (SELECT id FROM library_job WHERE state = 'available' AND queue = $1 AND scheduled_at <= now() \
        ORDER BY priority, scheduled_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) \
        UPDATE library_job AS job SET state = 'running', attempt = job.attempt + 1, attempted_at = now(), \
        attempted_by = array_append(job.attempted_by, 'bench') FROM locked WHERE job.id = locked.id \
        RETURNING job.id, job.args, job.attempt, job.max_attempts",
    takes_from: &[&"default"],
    done: "UPDATE library_job SET state = 'completed', finalized_at = now() WHERE id = $1 AND state = 'running'",
};
/// As long as the payload.
const PAYLOAD_JSON: &str = "{\"order\": \"4711\", \"customer\": \"0815\", \"total\": \"99.95\", \"note\": \"leave it at the neighbours' door\"}";
const AGAINST_LIBRARY: Against =
    ("push + next + ack against the statements of a job library", Target::AtLeast(1.0, "≥ 1.0"));

pub(crate) fn queue(report: &mut Report) -> Outcome {
    for (fsync, commits) in COMMITS {
        // Rows come and go, and what they leave behind is what a server is usually told to clear away.
        let options = PostgresOptions::default().setting("fsync", fsync).setting("autovacuum", "on");
        let server = PostgresServer::start(&options.setting("autovacuum_naptime", "1s"));
        for tasks in TASKS {
            let (mut ours, mut bare, mut library) = (Side::default(), Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_items(&server.url(), &|| server_cpu(&server), tasks))?);
                bare.add(runtime()?.block_on(jobs(&server, &BY_HAND, tasks))?);
                library.add(runtime()?.block_on(jobs(&server, &LIBRARY, tasks))?);
            }
            let case = Case { what: "postgres", tasks, commits };
            add(report, &case, SKIP_LOCKED, &ours, &bare);
            add(report, &case, AGAINST_LIBRARY, &ours, &library);
        }
    }
    Ok(())
}

async fn jobs(
    server: &PostgresServer,
    statements: &'static Statements,
    tasks: usize,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let pool = pool(&server.url())?;
    pool.get().await?.batch_execute(statements.table).await?;
    let (jobs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for _ in 0..tasks {
        let (pool, jobs) = (pool.clone(), jobs.clone());
        users.spawn(async move {
            loop {
                let connection = pool.get().await?;
                let push = connection.prepare_cached(statements.push).await?;
                connection.query(&push, &[statements.payload]).await?;
                drop(connection);
                let id: i64 = loop {
                    let connection = pool.get().await?;
                    let take = connection.prepare_cached(statements.take).await?;
                    if let Some(row) = connection.query_opt(&take, statements.takes_from).await? {
                        break row.try_get(0)?;
                    }
                };
                let connection = pool.get().await?;
                let done = connection.prepare_cached(statements.done).await?;
                connection.query(&done, &[&id]).await?;
                jobs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    measure(&|| server_cpu(server), &jobs, users).await
}
