//! The tables: made on first use.

use std::sync::Arc;

use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Fault, VERSION};

use crate::connection::Pool;
use crate::dialect::schema;

/// Makes the tables if they are not there, and refuses those of another version.
pub(crate) async fn ensure(pool: &Arc<Pool>, prefix: &str) -> Result<(), Fault> {
    match version(pool, prefix).await? {
        Some(found) if found == VERSION.to_string() => Ok(()),
        Some(found) => Err(Fault::Failed {
            kind: ErrorKind::Unsupported,
            message: format!(
                "the tables {prefix}… are of version {found}, and this program knows version {VERSION}"
            ),
            hint: "use the same version of tenure everywhere, or another `?prefix=`",
        }),
        None => migrate(pool, prefix).await,
    }
}

/// Returns the version of the tables. None: they are not there, or not all of them.
pub(crate) async fn version(pool: &Arc<Pool>, prefix: &str) -> Result<Option<String>, Fault> {
    let mut connection = pool.lend().await?;
    match connection.run(format!("SELECT max(version) FROM {prefix}version")).await {
        Ok(answers) => {
            connection.keep();
            Ok(answers.into_iter().flatten().flatten().flatten().next())
        }
        Err(Fault::Failed { kind: ErrorKind::Unsupported, .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Makes the tables. Each statement commits by itself, so the version comes last: whoever sees it sees all of them.
/// Clients that do this at once do no harm to each other.
pub(crate) async fn migrate(pool: &Arc<Pool>, prefix: &str) -> Result<(), Fault> {
    let mut connection = pool.lend().await?;
    for statement in schema(prefix) {
        connection.run(statement).await?;
    }
    connection.keep();
    Ok(())
}
