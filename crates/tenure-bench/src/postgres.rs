//! The engine `postgres` on one server, beside bare statements on as many connections: prepared, and behind a pooler, where they cannot be.

mod advisory;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresServer};
use tokio_postgres::NoTls;
use tokio_postgres::types::{ToSql, Type};

use crate::measure::Outcome;
use crate::report::Report;
use crate::sql::{
    CONNECTIONS, Case, Measured, ROUNDS, Side, TASKS, UPSERT, Users, add, hand_over, measure, processor_time,
    runtime, tenure_pairs,
};

pub(crate) use advisory::advisory;
pub(crate) use queue::queue;

/// What every lock with an expiry comes down to: a row that is taken if it is not there or has ended, and is deleted.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, claim text NOT NULL, expires_at timestamptz NOT NULL)";
const TAKE: &str = "INSERT INTO bare VALUES ($1, $2, clock_timestamp() + interval '30 s') \
     ON CONFLICT (name) DO UPDATE SET claim = excluded.claim, expires_at = excluded.expires_at \
     WHERE bare.expires_at < clock_timestamp() RETURNING claim";
const GIVE: &str = "DELETE FROM bare WHERE name = $1 AND claim = $2";

/// Whether the server waits for the disk.
const COMMITS: [(&str, &str); 2] = [("on", "commits synced"), ("off", "commits not synced")];

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    for (fsync, commits) in COMMITS {
        let server = PostgresServer::start(&PostgresOptions::default().setting("fsync", fsync));
        for tasks in TASKS {
            let (mut ours, mut bare) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_pairs(&server.url(), &|| server_cpu(&server), tasks))?);
                bare.add(runtime()?.block_on(bare_pairs(&server, &server.url(), true, tasks))?);
            }
            add(report, &Case { what: "postgres, uncontended", tasks, commits }, UPSERT, &ours, &bare);
        }
    }
    Ok(())
}

/// Behind PgBouncer in transaction mode, with functions in the server and without.
pub(crate) fn behind_a_pooler(report: &mut Report) -> Outcome {
    for (has_functions, what) in [
        (true, "postgres behind PgBouncer, uncontended"),
        (false, "postgres behind PgBouncer, without functions, uncontended"),
    ] {
        let server = PostgresServer::start(&PostgresOptions::default().setting("fsync", "off"));
        if !has_functions {
            server.connect()?.run("DROP EXTENSION plpgsql");
        }
        let pooler = PgBouncer::start(&server);
        let url = format!("{}?listen=off", pooler.url());
        for tasks in TASKS {
            let (mut ours, mut bare) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_pairs(&url, &|| server_cpu(&server), tasks))?);
                bare.add(runtime()?.block_on(bare_pairs(&server, &pooler.url(), false, tasks))?);
            }
            add(report, &Case { what, tasks, commits: "commits not synced" }, UPSERT, &ours, &bare);
        }
    }
    Ok(())
}

fn server_cpu(server: &PostgresServer) -> Duration {
    let pid = server.pid();
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    processor_time(list.split_whitespace().filter_map(|pid| pid.parse().ok()))
}

pub(crate) fn hand_over_behind_a_pooler(report: &mut Report) -> Outcome {
    let server = PostgresServer::start(&PostgresOptions::default());
    let pooler = PgBouncer::start(&server);
    let url = format!("{}?listen=off", pooler.url());
    runtime()?.block_on(hand_over(report, "postgres behind PgBouncer", &url, &|| server_cpu(&server)))
}

/// As many connections as the engine has, for whoever asks next.
fn pool(url: &str) -> Result<Pool, Box<dyn std::error::Error>> {
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(url.parse()?, NoTls, manager);
    Ok(Pool::builder(manager).max_size(CONNECTIONS).build()?)
}

async fn bare_pairs(
    server: &PostgresServer,
    url: &str,
    is_prepared: bool,
    tasks: usize,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let pool = pool(url)?;
    pool.get().await?.batch_execute(TABLE).await?;
    let (pairs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for user in 0..tasks {
        let (pool, pairs) = (pool.clone(), pairs.clone());
        users.spawn(async move {
            let (name, claim) = (format!("bench/{user}"), format!("c{user}"));
            loop {
                for text in [TAKE, GIVE] {
                    let connection = pool.get().await?;
                    if is_prepared {
                        let plan = connection.prepare_cached(text).await?;
                        connection.query(&plan, &[&name, &claim]).await?;
                    } else {
                        let values: [(&(dyn ToSql + Sync), Type); 2] =
                            [(&name, Type::TEXT), (&claim, Type::TEXT)];
                        connection.query_typed(text, &values).await?;
                    }
                }
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    measure(&|| server_cpu(server), &pairs, users).await
}
