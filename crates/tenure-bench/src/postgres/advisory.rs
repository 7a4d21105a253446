//! The engine `postgres` beside advisory locks of the same server, prepared, on as many connections.
//!
//! No lock on PostgreSQL can cost less: the server keeps them in memory and writes nothing. They have no token and no expiry, they end with their
//! session, and who holds one keeps a connection from everybody else. So the ratio has no target: it says what tokens and expiry cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_testkit::postgres::{PostgresOptions, PostgresServer};

use super::{COMMITS, pool, server_cpu};
use crate::measure::Outcome;
use crate::report::{Report, Target};
use crate::sql::{Against, Case, Measured, ROUNDS, Side, TASKS, Users, add, measure, runtime, tenure_pairs};

const ADVISORY: Against = ("pairs against advisory locks, which write nothing", Target::None);
const LOCK: &str = "SELECT pg_advisory_lock($1)";
const UNLOCK: &str = "SELECT pg_advisory_unlock($1)";

pub(crate) fn advisory(report: &mut Report) -> Outcome {
    for (fsync, commits) in COMMITS {
        let server = PostgresServer::start(&PostgresOptions::default().setting("fsync", fsync));
        for tasks in TASKS {
            let (mut ours, mut theirs) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_pairs(&server.url(), &|| server_cpu(&server), tasks))?);
                theirs.add(runtime()?.block_on(advisory_pairs(&server, tasks))?);
            }
            add(report, &Case { what: "postgres, uncontended", tasks, commits }, ADVISORY, &ours, &theirs);
        }
    }
    Ok(())
}

async fn advisory_pairs(
    server: &PostgresServer,
    tasks: usize,
) -> Result<Measured, Box<dyn std::error::Error>> {
    // A pool for each round: what tasks that were stopped still hold ends with its connections.
    let pool = pool(&server.url())?;
    let (pairs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for user in 0..tasks {
        let (pool, pairs, key) = (pool.clone(), pairs.clone(), i64::try_from(user)?);
        users.spawn(async move {
            loop {
                // Only the session that locked it can unlock it.
                let session = pool.get().await?;
                let lock = session.prepare_cached(LOCK).await?;
                session.query_one(&lock, &[&key]).await?;
                let unlock = session.prepare_cached(UNLOCK).await?;
                let was_held: bool = session.query_one(&unlock, &[&key]).await?.try_get(0)?;
                if !was_held {
                    return Err(format!("lock {key} was not held").into());
                }
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    measure(&|| server_cpu(server), &pairs, users).await
}
