//! The tables: made on first use.

use std::sync::Arc;

use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Fault, Purpose, QUEUE_VERSION, VERSION};

use crate::client::connection::Pool;
use crate::dialect::schema;

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
    make(pool, crate::queues::schema(prefix)).await
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
