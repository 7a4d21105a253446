//! The tables: made on first use.

use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Fault, QUEUE_VERSION, VERSION};

use crate::connection::Connections;
use crate::dialect::schema;

/// Held while the tables are made: two clients that make the same table at once disturb each other.
const MIGRATION_LOCK: i64 = 0x7465_6e75_7265;

/// Makes the tables if they are not there, and refuses those of another version.
pub(crate) async fn ensure(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    let version = version(connections, &format!("{prefix}version")).await?;
    if is_known(version, VERSION, prefix)? {
        return Ok(());
    }
    make_unless(connections, prefix, schema(prefix), Some(&format!("{prefix}version"))).await
}

/// The same for the tables of the queues.
pub(crate) async fn ensure_queues(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    let version = version(connections, &format!("{prefix}queue_version")).await?;
    if is_known(version, QUEUE_VERSION, &format!("{prefix}queue_"))? {
        return Ok(());
    }
    let last = format!("{prefix}queue_version");
    make_unless(connections, prefix, crate::queue::schema(prefix), Some(&last)).await
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

/// Returns the version of the tables. None: they are not there.
async fn version(connections: &Connections, table: &str) -> Result<Option<String>, Fault> {
    let mut connection = connections.lend().await?;
    match connection.run(format!("SELECT max(version) FROM {table}")).await {
        Ok(answers) => {
            connection.keep();
            Ok(answers.into_iter().flatten().flatten().flatten().next())
        }
        // There may be room for one connection only: this one goes before another is asked for.
        Err(Fault::Failed { kind: ErrorKind::Unsupported, .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Makes the tables of the locks.
pub(crate) async fn migrate(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    make(connections, prefix, schema(prefix)).await
}

/// Makes the tables of the queues.
pub(crate) async fn migrate_queues(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    make(connections, prefix, crate::queue::schema(prefix)).await
}

async fn make(connections: &Connections, prefix: &str, tables: Vec<String>) -> Result<(), Fault> {
    make_unless(connections, prefix, tables, None).await
}

/// Makes tables, unless this last one of them is there by the time that nobody else makes any. To make what exists locks it
/// against those who are at work already, and might deadlock with them.
async fn make_unless(
    connections: &Connections,
    prefix: &str,
    tables: Vec<String>,
    last: Option<&str>,
) -> Result<(), Fault> {
    let mut connection = connections.lend().await?;
    let mut script = Vec::new();
    if let Some((schema, _)) = prefix.split_once('.') {
        // Whoever may not make schemas is refused even if it is there.
        let found = connection.run(format!("SELECT to_regnamespace('{schema}')")).await?;
        if found.into_iter().flatten().flatten().flatten().next().is_none() {
            script.push(format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
        }
    }
    // Whoever makes the tables at this moment is waited for.
    let begin = format!("BEGIN; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})");
    connection.run(begin).await?;
    let mut is_there = false;
    if let Some(last) = last {
        let found = connection.run(format!("SELECT to_regclass('{last}')")).await?;
        is_there = found.into_iter().flatten().flatten().flatten().next().is_some();
    }
    if !is_there {
        script.extend(tables);
    }
    script.push("COMMIT".to_owned());
    connection.run(script.join(";\n")).await?;
    connection.keep();
    Ok(())
}
