//! Whether the server can be trusted: what `tenure doctor` prints.
//!
//! What is asked is here, and what follows from the answers in `judge`.

mod judge;

use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::{Finding, Severity};
use tenure_sql::{Connection, Database, Dialect, Fault, Row};
use tokio::time::Instant;

use crate::check::judge::Facts;
use crate::dialect::MySqlDialect;
use crate::engine::MySql;
use crate::migrate;

/// How many answers the latency is taken of.
const PINGS: usize = 5;

/// Looks at the server, the tables, the rights and the way to it.
pub(crate) async fn check(database: &MySql) -> Vec<Finding> {
    let facts = match facts(database).await {
        Ok(facts) => facts,
        Err(fault) => return vec![judge::unseen("server", &fault, Severity::Bad)],
    };
    let mut findings = facts.judge();
    findings.push(match migrate::version(&database.pool, &database.tables().version).await {
        Ok(version) => judge::tables(&database.config.prefix, version.as_deref()),
        Err(fault) => judge::unseen("tables", &fault, Severity::Bad),
    });
    findings.push(rights(database).await);
    findings.push(tenure_sql::try_out(database).await);
    findings.push(judge::wakes());
    findings.push(clock(database).await);
    findings.push(match pings(database).await {
        Ok(pings) => judge::latency(pings),
        Err(fault) => judge::unseen("latency", &fault, Severity::Warning),
    });
    findings
}

/// Asks for variables by pattern: one that a server does not know is then no error.
async fn facts(database: &MySql) -> Result<Facts, Fault> {
    let names = [
        "version",
        "version_comment",
        "read_only",
        "super_read_only",
        "innodb_flush_log_at_trx_commit",
        "sync_binlog",
        "log_bin",
        "binlog_format",
        "sysdate_is_now",
        "max_allowed_packet",
        "max_connections",
        "wsrep_on",
    ];
    let list = names.map(|name| format!("'{name}'")).join(",");
    let script = format!(
        "SHOW GLOBAL VARIABLES WHERE variable_name IN ({list});SHOW GLOBAL STATUS LIKE 'Threads_connected';\
         SELECT VERSION(), SYSDATE(6) = NOW(6), SLEEP(0.002), SYSDATE(6) = NOW(6)"
    );
    let mut connection = database.connection().await?;
    let answers = connection.run(script).await?;
    connection.keep();
    let rows = |at: usize| answers.get(at).map_or(&[][..], Vec::as_slice);
    let mut facts = Facts::default();
    for row in rows(0).iter().chain(rows(1)) {
        let column = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        facts.variables.insert(column(0).to_ascii_lowercase(), column(1));
    }
    // Behind a moment of sleep, a clock of its own shows another time than the beginning of the statement.
    facts.sysdate_stands = rows(2).first().and_then(|row| row.get(3)?.as_deref()) == Some("1");
    Ok(facts)
}

/// Tries what claims do, on rows that nobody has, and undoes it.
async fn rights(database: &MySql) -> Finding {
    let tables = database.tables();
    let mut missing = Vec::new();
    for (table, columns, values) in [
        (&tables.resource, "name", "X''"),
        (
            &tables.claim,
            "name, place, token, client, weight, granted_at, expires_at, is_confirmed, ttl, min_hold, \
            lock_delay, label, unless_fresh",
            "X'', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, X'', 0",
        ),
        (&tables.finished, "name, claim, until", "X'', X'', 0"),
        (&tables.slot, "name, number, slot", "X'', 0, 0"),
    ] {
        let delete = match tables.deletes {
            true => format!("DELETE FROM {table} WHERE name = X'';"),
            false => String::new(),
        };
        let script = format!(
            "START TRANSACTION;INSERT INTO {table} ({columns}) VALUES ({values}) ON DUPLICATE KEY UPDATE name = name;\
             SELECT name FROM {table} WHERE name = X'';UPDATE {table} SET name = X'' WHERE name = X'';\
             {delete}ROLLBACK"
        );
        match try_out(database, script).await {
            Ok(()) => {}
            Err(Fault::Failed { kind: tenure_core::ErrorKind::Unsupported, .. }) => {
                missing.push(table.as_str())
            }
            Err(fault) => return judge::unseen("rights", &fault, Severity::Bad),
        }
    }
    judge::rights(&missing, tables.deletes)
}

async fn try_out(database: &MySql, script: String) -> Result<(), Fault> {
    let mut connection = database.connection().await?;
    connection.run(script).await?;
    connection.keep();
    Ok(())
}

/// Returns the first row of the answer.
async fn ask(database: &MySql, statement: &str) -> Result<Row, Fault> {
    let mut connection = database.connection().await?;
    let answers = connection.run(statement.to_owned()).await?;
    connection.keep();
    let row = answers.into_iter().flatten().next();
    row.ok_or_else(|| Fault::internal("a question was not answered"))
}

/// How long the server took to answer, several times.
async fn pings(database: &MySql) -> Result<Vec<Duration>, Fault> {
    let mut connection = database.connection().await?;
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent_at = Instant::now();
        connection.run("SELECT 1".to_owned()).await?;
        took.push(sent_at.elapsed());
    }
    connection.keep();
    Ok(took)
}

async fn clock(database: &MySql) -> Finding {
    let sent_at = Instant::now();
    let answer = ask(database, &format!("SELECT {}", MySqlDialect::CLOCK)).await;
    let (took, received) = (sent_at.elapsed(), SystemClock.time_of_day());
    let row = match answer {
        Ok(row) => row,
        Err(fault) => return judge::unseen("clock", &fault, Severity::Warning),
    };
    match row.first().and_then(|text| text.as_deref()?.parse().ok()) {
        // The server looked at its clock half-way, as far as anybody knows.
        Some(micros) => judge::clock(Timestamp::from_micros(micros) + took / 2, received),
        None => judge::finding(Severity::Warning, "clock", "the server does not tell the time".to_owned()),
    }
}

#[cfg(test)]
mod tests;
