//! The tables: made on first use.

use deadpool_postgres::Pool;
use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Fault, VERSION};

use crate::config::Config;
use crate::connection::lend;
use crate::dialect::schema;

/// Held while the tables are made: two clients that make the same table at once disturb each other.
const MIGRATION_LOCK: i64 = 0x7465_6e75_7265;

/// Makes the tables if they are not there, and refuses those of another version.
pub(crate) async fn ensure(pool: &Pool, config: &Config) -> Result<(), Fault> {
    let prefix = &config.prefix;
    let mut connection = lend(pool, config).await?;
    let answer = connection.run(format!("SELECT max(version) FROM {prefix}version")).await;
    let version = match answer {
        Ok(answers) => {
            connection.keep();
            answers.into_iter().flatten().flatten().flatten().next()
        }
        Err(Fault::Failed { kind: ErrorKind::Unsupported, .. }) => None,
        Err(fault) => return Err(fault),
    };
    match version {
        Some(found) if found == VERSION.to_string() => Ok(()),
        Some(found) => Err(Fault::Failed {
            kind: ErrorKind::Unsupported,
            message: format!(
                "the tables {prefix}… are of version {found}, and this program knows version {VERSION}"
            ),
            hint: "use the same version of tenure everywhere, or another `?prefix=`",
        }),
        None => migrate(pool, config).await,
    }
}

/// Makes the tables.
pub(crate) async fn migrate(pool: &Pool, config: &Config) -> Result<(), Fault> {
    let prefix = &config.prefix;
    let mut connection = lend(pool, config).await?;
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
