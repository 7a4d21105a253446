//! The tables: made on first use.

use std::time::Duration;

use tenure_core::error::ErrorKind;
use tenure_sql::{
    Connection, Fault, Purpose, QUEUE_VERSION, VERSION, VERSION_WITH_HOLDS, VERSIONS, known_version, pause,
    present_version,
};

use crate::client::connection::Connections;
use crate::config::Config;
use crate::dialect::{literal, schema, upgrade};
use crate::queues::text;

/// Held while the tables are made: two clients that make the same table at once disturb each other.
const MIGRATION_LOCK: i64 = 0x7465_6e75_7265;
/// How long a table is waited for that gets a column: so long all others wait behind that. In milliseconds.
const ALTER_WAIT_MS: u32 = 300;
/// How often tables that somebody uses are waited for to make another version of them, and how long others have between.
const UPGRADE_TRIES: u32 = 20;
const UPGRADE_PAUSE: Duration = Duration::from_millis(100);

/// Returns what the names of the tables begin with, as statements have them: with the schema, since no search path is trusted
/// later on. That is the one of the settings; else the one that the user's own path leads to, or would make tables in.
pub(crate) async fn place(connections: &Connections, config: &Config) -> Result<String, Fault> {
    if config.has_schema() {
        return Ok(config.prefix.clone());
    }
    let prefix = &config.prefix;
    // The only statement that goes by the user's path, so it says of all else where it is from.
    let statement = format!(
        "SELECT pg_catalog.quote_ident(coalesce((SELECT n.nspname FROM pg_catalog.pg_class c, pg_catalog.pg_namespace n \
           WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('{prefix}version') \
             AND n.oid OPERATOR(pg_catalog.=) c.relnamespace), pg_catalog.current_schema()))"
    );
    let mut connection = connections.lend(Purpose::Any).await?;
    let found = connection.go_on(statement).await?;
    connection.keep();
    match found.into_iter().flatten().flatten().flatten().next() {
        Some(schema) => Ok(format!("{schema}.{prefix}")),
        None => Err(Fault::Failed {
            kind: ErrorKind::Unsupported,
            message: "no schema of the user's `search_path` exists".to_owned(),
            hint: "name one with `?schema=`",
        }),
    }
}

/// Makes the tables if they are not there, and returns their version. Those that are older are used as they are, for clients of before
/// are refused by any others; those of a version that nobody knows here are refused.
pub(crate) async fn ensure(connections: &Connections, prefix: &str) -> Result<u32, Fault> {
    let table = format!("{prefix}version");
    if let Some(version) = known_version(version(connections, &table).await?, &VERSIONS, prefix)? {
        return Ok(version);
    }
    make_unless(connections, prefix, schema(prefix), Some(&table)).await?;
    // An older client may have been quicker.
    let made = known_version(version(connections, &table).await?, &VERSIONS, prefix)?;
    made.ok_or_else(|| Fault::internal("tables that were made have no version"))
}

/// The same for the tables of the queues.
pub(crate) async fn ensure_queues(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    let version = version(connections, &format!("{prefix}queue_version")).await?;
    if known_version(version, &[QUEUE_VERSION], &format!("{prefix}queue_"))?.is_some() {
        return Ok(());
    }
    let last = format!("{prefix}queue_version");
    make_unless(connections, prefix, text::schema(prefix), Some(&last)).await
}

/// Returns the version of tables that were there before.
pub(crate) async fn present(connections: &Connections, prefix: &str) -> Result<u32, Fault> {
    present_version(version(connections, &format!("{prefix}version")).await?, prefix)
}

/// Gives the tables of the queues their column of contexts, if an older version has made them, and says whether they have it. A user
/// who may not change tables goes on without, and so does one who would have to wait: other clients would wait behind it.
pub(crate) async fn ensure_contexts(connections: &Connections, prefix: &str) -> Result<bool, Fault> {
    let mut connection = connections.lend(Purpose::Any).await?;
    let has = format!(
        "SELECT count(*) = 2 FROM pg_attribute WHERE attname = 'context' AND NOT attisdropped \
         AND attrelid IN (to_regclass('{0}queue_item'), to_regclass('{0}queue_dead'))",
        literal(prefix)
    );
    let found = connection.run(has).await?;
    if found.into_iter().flatten().flatten().flatten().next().as_deref() == Some("t") {
        connection.keep();
        return Ok(true);
    }
    for statement in text::contexts(prefix) {
        if let Err(fault) =
            connection.run(format!("SET LOCAL lock_timeout = {ALTER_WAIT_MS}; {statement}")).await
        {
            tracing::debug!(?fault, "the tables of the queues have no column of contexts, and get none now");
            return Ok(false);
        }
    }
    connection.keep();
    Ok(true)
}

/// Returns the version of the tables, or `None` if they are not there.
async fn version(connections: &Connections, table: &str) -> Result<Option<String>, Fault> {
    let mut connection = connections.lend(Purpose::Any).await?;
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

/// Makes the tables of the locks, or makes version 2 of those of version 1, and returns the version. Clients at work go on: those
/// that know both versions look which it is.
pub(crate) async fn migrate(connections: &Connections, prefix: &str) -> Result<u32, Fault> {
    let table = format!("{prefix}version");
    let found = known_version(version(connections, &table).await?, &VERSIONS, prefix)?;
    if found != Some(VERSION) {
        make(connections, prefix, schema(prefix)).await?;
        return Ok(VERSION_WITH_HOLDS);
    }
    let mut tries = UPGRADE_TRIES;
    loop {
        match upgrade_once(connections, prefix).await {
            Err(fault) if fault.is_given_up() && tries > 1 => tries -= 1,
            upgraded => return upgraded.map(|()| VERSION_WITH_HOLDS),
        }
        // Whoever has waited behind this goes on meanwhile.
        pause(UPGRADE_PAUSE).await;
    }
}

async fn upgrade_once(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    let mut connection = connections.lend(Purpose::Any).await?;
    connection.run(alone()).await?;
    let found = connection.go_on(format!("SELECT max(version) FROM {prefix}version")).await?;
    let found = found.into_iter().flatten().flatten().flatten().next();
    let mut script = Vec::new();
    // Another operator may have been quicker.
    if known_version(found, &VERSIONS, prefix)? == Some(VERSION) {
        script.push(format!("SET LOCAL lock_timeout = {ALTER_WAIT_MS}"));
        script.extend(upgrade(prefix));
    }
    script.push("COMMIT".to_owned());
    connection.go_on(script.join(";\n")).await?;
    connection.keep();
    Ok(())
}

/// Makes the tables of the queues.
pub(crate) async fn migrate_queues(connections: &Connections, prefix: &str) -> Result<(), Fault> {
    make(connections, prefix, text::schema(prefix)).await?;
    let mut connection = connections.lend(Purpose::Any).await?;
    for statement in text::contexts(prefix) {
        connection.run(statement).await?;
    }
    connection.keep();
    Ok(())
}

async fn make(connections: &Connections, prefix: &str, tables: Vec<String>) -> Result<(), Fault> {
    make_unless(connections, prefix, tables, None).await
}

/// Begins what one client does at a time. One that is at it at this moment is waited for.
pub(crate) fn alone() -> String {
    format!("BEGIN; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
}

/// Makes tables, unless this last one of them is there by the time that no other client makes any. To make what
/// exists locks it against clients that are at work already, and might deadlock with them.
async fn make_unless(
    connections: &Connections,
    prefix: &str,
    tables: Vec<String>,
    last: Option<&str>,
) -> Result<(), Fault> {
    let mut connection = connections.lend(Purpose::Any).await?;
    let mut script = Vec::new();
    if let Some((name, _)) = prefix.rsplit_once('.') {
        // A user that may not make schemas is refused even if it is there.
        let schema = literal(name);
        let found = connection.run(format!("SELECT to_regnamespace('{schema}')")).await?;
        if found.into_iter().flatten().flatten().flatten().next().is_none() {
            script.push(format!("CREATE SCHEMA IF NOT EXISTS {name}"));
        }
    }
    connection.run(alone()).await?;
    let mut is_there = false;
    if let Some(last) = last {
        let found = connection.go_on(format!("SELECT to_regclass('{}')", literal(last))).await?;
        is_there = found.into_iter().flatten().flatten().flatten().next().is_some();
    }
    if !is_there {
        script.extend(tables);
    }
    script.push("COMMIT".to_owned());
    connection.go_on(script.join(";\n")).await?;
    connection.keep();
    Ok(())
}
