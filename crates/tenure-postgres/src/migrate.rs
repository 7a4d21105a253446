//! The tables: made on first use.

use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Fault, VERSION};

use crate::connection::Connections;
use crate::dialect::schema;

/// Held while the tables are made: two clients that make the same table at once disturb each other.
const MIGRATION_LOCK: i64 = 0x7465_6e75_7265;

/// Makes the tables if they are not there, and refuses those of another version.
pub(crate) async fn ensure(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    match version(connections, prefix).await? {
        Some(found) if found == VERSION.to_string() => Ok(()),
        Some(found) => Err(Fault::Failed {
            kind: ErrorKind::Unsupported,
            message: format!(
                "the tables {prefix}… are of version {found}, and this program knows version {VERSION}"
            ),
            hint: "use the same version of tenure everywhere, or another `?prefix=`",
        }),
        None => migrate(connections, prefix).await,
    }
}

/// Returns the version of the tables. None: they are not there.
async fn version(connections: &Connections, prefix: &str) -> Result<Option<String>, Fault> {
    let mut connection = connections.lend().await?;
    match connection.run(format!("SELECT max(version) FROM {prefix}version")).await {
        Ok(answers) => {
            connection.keep();
            Ok(answers.into_iter().flatten().flatten().flatten().next())
        }
        // There may be room for one connection only: this one goes before another is asked for.
        Err(Fault::Failed { kind: ErrorKind::Unsupported, .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Makes the tables.
pub(crate) async fn migrate(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    let mut connection = connections.lend().await?;
    let mut script = vec!["BEGIN".to_owned(), format!("SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")];
    if let Some((schema, _)) = prefix.split_once('.') {
        // Whoever may not make schemas is refused even if it is there.
        let found = connection.run(format!("SELECT to_regnamespace('{schema}')")).await?;
        if found.into_iter().flatten().flatten().flatten().next().is_none() {
            script.push(format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
        }
    }
    script.extend(schema(prefix));
    script.push("COMMIT".to_owned());
    connection.run(script.join(";\n")).await?;
    connection.keep();
    Ok(())
}
