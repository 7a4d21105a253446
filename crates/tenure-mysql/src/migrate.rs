//! The tables: made on first use.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::ErrorKind;
use tenure_sql::{
    Connection, Fault, Purpose, QUEUE_VERSION, VERSION, VERSION_WITH_HOLDS, VERSIONS, known_version, pause,
    present_version,
};

use crate::client::connection::Pool;
use crate::dialect::{add_holds, schema, upgrade};

/// How long a table is waited for that gets a column: so long all others wait behind that. In seconds, of which it takes whole ones.
const ALTER_WAIT_S: u32 = 1;

/// How often tables that somebody uses are waited for to make another version of them, and how long others have between.
const UPGRADE_TRIES: u32 = 5;
const UPGRADE_PAUSE: Duration = Duration::from_millis(300);
/// A server whose binary log is of statements takes these. What it refuses is told to whoever claims, and by the doctor.
const FOR_ANY_LOG: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";

/// Makes the tables if they are not there, and returns their version. Those that are older are used as they are, for clients of before
/// are refused by any others; those of a version that nobody knows here are refused.
pub(crate) async fn ensure(pool: &Arc<Pool>, prefix: &str) -> Result<u32, Fault> {
    let table = format!("{prefix}version");
    if let Some(version) = known_version(version(pool, &table).await?, &VERSIONS, prefix)? {
        return Ok(version);
    }
    make(pool, schema(prefix)).await?;
    // An older client may have been quicker.
    let made = known_version(version(pool, &table).await?, &VERSIONS, prefix)?;
    made.ok_or_else(|| Fault::internal("tables that were made have no version"))
}

/// Returns the version of tables that were there before.
pub(crate) async fn present(pool: &Arc<Pool>, prefix: &str) -> Result<u32, Fault> {
    present_version(version(pool, &format!("{prefix}version")).await?, prefix)
}

/// The same for the tables of the queues.
pub(crate) async fn ensure_queues(pool: &Arc<Pool>, prefix: &str) -> Result<(), Fault> {
    let found = version(pool, &format!("{prefix}queue_version")).await?;
    match known_version(found, &[QUEUE_VERSION], &format!("{prefix}queue_"))? {
        Some(_) => Ok(()),
        None => migrate_queues(pool, prefix).await,
    }
}

/// Gives the tables of the queues their column of contexts, if an older version has made them, and says whether they have it. A user
/// who may not change tables goes on without, and so does one who would have to wait: other clients would wait behind it.
pub(crate) async fn ensure_contexts(pool: &Arc<Pool>, prefix: &str) -> Result<bool, Fault> {
    for (table, add) in crate::queues::contexts(prefix) {
        if has_contexts(pool, &table).await? {
            continue;
        }
        let mut connection = pool.lend(Purpose::Any).await?;
        let added = connection.run(format!("SET SESSION lock_wait_timeout = {ALTER_WAIT_S};\n{add}")).await;
        // With that setting it is for nothing else.
        drop(connection);
        if let Err(fault) = added
            && !has_contexts(pool, &table).await?
        {
            tracing::debug!(?fault, "the tables of the queues have no column of contexts, and get none now");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a table has a column of contexts.
async fn has_contexts(pool: &Arc<Pool>, table: &str) -> Result<bool, Fault> {
    has_column(pool, table, "context").await
}

async fn has_column(pool: &Arc<Pool>, table: &str, column: &str) -> Result<bool, Fault> {
    let mut connection = pool.lend(Purpose::Any).await?;
    match connection.run(format!("SELECT {column} FROM {table} LIMIT 0")).await {
        Ok(_) => {
            connection.keep();
            Ok(true)
        }
        Err(Fault::Failed { kind: ErrorKind::Unsupported, .. }) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// Returns the version of the tables, or `None` if they are not there, or not all of them.
pub(crate) async fn version(pool: &Arc<Pool>, table: &str) -> Result<Option<String>, Fault> {
    let mut connection = pool.lend(Purpose::Any).await?;
    match connection.run(format!("SELECT max(version) FROM {table}")).await {
        Ok(answers) => {
            connection.keep();
            Ok(answers.into_iter().flatten().flatten().flatten().next())
        }
        Err(Fault::Failed { kind: ErrorKind::Unsupported, .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Makes the tables of the locks, or makes version 2 of those of version 1, and returns the version. Clients at work go on: those
/// that know both versions look which it is.
pub(crate) async fn migrate(pool: &Arc<Pool>, prefix: &str) -> Result<u32, Fault> {
    let found = known_version(version(pool, &format!("{prefix}version")).await?, &VERSIONS, prefix)?;
    if found != Some(VERSION) {
        make(pool, schema(prefix)).await?;
        return Ok(VERSION_WITH_HOLDS);
    }
    let mut tries = UPGRADE_TRIES;
    loop {
        match upgrade_once(pool, prefix).await {
            Ok(()) => return Ok(VERSION_WITH_HOLDS),
            Err(fault) if fault.is_given_up() && tries > 1 => tries -= 1,
            // Another operator may have been quicker.
            Err(fault) if present(pool, prefix).await? == VERSION => return Err(fault),
            Err(_) => return Ok(VERSION_WITH_HOLDS),
        }
        // Whoever has waited behind this goes on meanwhile.
        pause(UPGRADE_PAUSE).await;
    }
}

/// What an earlier try has done already is left out; the last statement does the rest or nothing.
async fn upgrade_once(pool: &Arc<Pool>, prefix: &str) -> Result<(), Fault> {
    let mut script = Vec::new();
    if !has_column(pool, &format!("{prefix}resource"), "hold_claim").await? {
        script.push(add_holds(prefix));
    }
    script.extend(upgrade(prefix));
    let mut connection = pool.lend(Purpose::Any).await?;
    connection.run(format!("SET SESSION lock_wait_timeout = {ALTER_WAIT_S}")).await?;
    for statement in script {
        connection.run(format!("{FOR_ANY_LOG};\n{statement}")).await?;
    }
    // With that setting it is for nothing else.
    drop(connection);
    let mut connection = pool.lend(Purpose::Any).await?;
    connection.run(format!("DROP TABLE IF EXISTS {prefix}version_1, {prefix}version_2")).await?;
    connection.keep();
    Ok(())
}

/// Makes the tables of the queues.
pub(crate) async fn migrate_queues(pool: &Arc<Pool>, prefix: &str) -> Result<(), Fault> {
    make(pool, crate::queues::schema(prefix)).await?;
    for (table, add) in crate::queues::contexts(prefix) {
        if !has_contexts(pool, &table).await? {
            make(pool, vec![add]).await?;
        }
    }
    Ok(())
}

/// Makes tables. Each statement commits by itself, so the version comes last: a client that sees it sees all of them.
/// Clients that do this at once do no harm to each other.
async fn make(pool: &Arc<Pool>, tables: Vec<String>) -> Result<(), Fault> {
    let mut connection = pool.lend(Purpose::Any).await?;
    for statement in tables {
        connection.run(format!("{FOR_ANY_LOG};\n{statement}")).await?;
    }
    connection.keep();
    Ok(())
}
