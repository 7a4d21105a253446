//! Whether the server can be trusted: what `tenure doctor` prints.
//!
//! What is asked is here, and what follows from the answers in `judge`.

mod judge;

use tenure_core::engine::finding::{Finding, Severity};
use tenure_sql::doctor::{clock, latency, unseen};
use tenure_sql::{Connection, Database, Fault};

use crate::doctor::judge::Facts;

/// Looks at the server, the tables, the rights and the way to it. `version` reads that of the tables.
pub(crate) async fn check<D: Database>(
    database: &D,
    prefix: &str,
    version: impl Future<Output = Result<Option<String>, Fault>>,
) -> Vec<Finding> {
    let facts = match facts(database).await {
        Ok(facts) => facts,
        Err(fault) => return vec![unseen::<D>(Severity::Bad, "server", &fault)],
    };
    let mut findings = facts.judge();
    findings.push(match version.await {
        Ok(version) => judge::tables(prefix, version.as_deref()),
        Err(fault) => unseen::<D>(Severity::Bad, "tables", &fault),
    });
    findings.push(rights(database).await);
    findings.push(tenure_sql::try_out(database).await);
    findings.push(judge::wakes());
    findings.push(clock(database).await);
    findings.push(latency(database).await);
    findings
}

/// Asks for variables by pattern: one that a server does not know is then no error.
async fn facts<D: Database>(database: &D) -> Result<Facts, Fault> {
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

/// Tries what claims do, on rows that no client uses, and undoes it.
async fn rights<D: Database>(database: &D) -> Finding {
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
            Err(fault) => return unseen::<D>(Severity::Bad, "rights", &fault),
        }
    }
    judge::rights(&missing, tables.deletes)
}

async fn try_out<D: Database>(database: &D, script: String) -> Result<(), Fault> {
    let mut connection = database.connection().await?;
    connection.run(script).await?;
    connection.keep();
    Ok(())
}

#[cfg(test)]
mod tests;
