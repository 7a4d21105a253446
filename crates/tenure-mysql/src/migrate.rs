//! The tables: made on first use.

use std::sync::Arc;

use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Fault, Purpose, QUEUE_VERSION, VERSION};

use crate::client::connection::Pool;
use crate::dialect::schema;

/// How long a table is waited for that gets a column: so long all others wait behind that. In seconds, of which it takes whole ones.
const ALTER_WAIT_S: u32 = 1;

/// Makes the tables if they are not there, and refuses those of another version.
pub(crate) async fn ensure(pool: &Arc<Pool>, prefix: &str) -> Result<(), Fault> {
    let found = version(pool, &format!("{prefix}version")).await?;
    if is_known(found, VERSION, prefix)? { Ok(()) } else { migrate(pool, prefix).await }
}

/// The same for the tables of the queues.
pub(crate) async fn ensure_queues(pool: &Arc<Pool>, prefix: &str) -> Result<(), Fault> {
    let found = version(pool, &format!("{prefix}queue_version")).await?;
    let is_known = is_known(found, QUEUE_VERSION, &format!("{prefix}queue_"))?;
    if is_known { Ok(()) } else { migrate_queues(pool, prefix).await }
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
    let mut connection = pool.lend(Purpose::Any).await?;
    match connection.run(format!("SELECT context FROM {table} LIMIT 0")).await {
        Ok(_) => {
            connection.keep();
            Ok(true)
        }
        Err(Fault::Failed { kind: ErrorKind::Unsupported, .. }) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// Whether the tables are there. Those of another version are an error.
fn is_known(found: Option<String>, known: u32, prefix: &str) -> Result<bool, Fault> {
    match found {
        Some(found) if found == known.to_string() => Ok(true),
        Some(found) => Err(Fault::Failed {
            kind: ErrorKind::Unsupported,
            message: format!(
                "the tables {prefix}… are of version {found}, and this program knows version {known}"
            ),
            hint: "use the same version of tenure everywhere, or another `?prefix=`",
        }),
        None => Ok(false),
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

/// Makes the tables of the locks.
pub(crate) async fn migrate(pool: &Arc<Pool>, prefix: &str) -> Result<(), Fault> {
    make(pool, schema(prefix)).await
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
        connection.run(statement).await?;
    }
    connection.keep();
    Ok(())
}
