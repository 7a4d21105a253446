//! Whether the server can be trusted: what `tenure doctor` prints.
//!
//! What is asked is here, and what follows from the answers in `judge`.

mod judge;

use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::{Finding, Severity};
use tenure_sql::{Connection, Database, Dialect, Fault, Purpose, Row};
use tokio::time::Instant;

use crate::check::judge::{Facts, Others, Tables};
use crate::dialect::PostgresDialect;
use crate::engine::Postgres;
use crate::migrate::literal;

/// How many answers the latency is taken of.
const PINGS: usize = 5;

/// Looks at the server, the way to it, and the tables.
pub(crate) async fn check(database: &Postgres) -> Vec<Finding> {
    let facts = match ask(database, &facts_asked()).await {
        Ok(row) => Facts::read(&row),
        Err(fault) => return vec![judge::unseen("server", &fault, Severity::Bad)],
    };
    let mut findings = facts.judge();
    // Beside each other: whoever asks waits for all of it, and each is some trips.
    let (tables, others, trial, clock) = futures_util::future::join4(
        tables(database),
        others(database),
        tenure_sql::try_out(database),
        clock(database),
    )
    .await;
    findings.push(match tables {
        Ok(tables) => tables.judge(),
        Err(fault) => judge::unseen("tables", &fault, Severity::Bad),
    });
    findings.extend(match others {
        Ok(others) => others.judge(),
        Err(fault) => vec![judge::unseen("owner", &fault, Severity::Warning)],
    });
    findings.push(trial);
    findings.push(judge::wakes(database.config.listens, database.hears()));
    findings.push(clock);
    findings.push(match pings(database).await {
        Ok(pings) => judge::latency(pings),
        Err(fault) => judge::unseen("latency", &fault, Severity::Warning),
    });
    findings
}

/// The statement whose row [`Facts`] are read from. Everybody may ask it; what a user may not see is counted as none.
fn facts_asked() -> String {
    let settings = [
        "server_version",
        "server_version_num",
        "transaction_read_only",
        "synchronous_commit",
        "fsync",
        "synchronous_standby_names",
        "autovacuum",
        "max_connections",
        "superuser_reserved_connections",
    ];
    let settings = settings.map(|name| format!("current_setting('{name}', true)")).join(", ");
    format!(
        "SELECT {settings}, pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication), \
         (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL)"
    )
}

/// Returns the first row of the answer.
async fn ask(database: &Postgres, statement: &str) -> Result<Row, Fault> {
    let mut connection = database.connections.lend(Purpose::Any).await?;
    let answers = connection.run(statement.to_owned()).await?;
    connection.keep();
    let row = answers.into_iter().flatten().next();
    row.ok_or_else(|| Fault::internal("a question was not answered"))
}

async fn tables(database: &Postgres) -> Result<Tables, Fault> {
    let tables = database.tables();
    let all = [&tables.resource, &tables.claim, &tables.finished, &tables.slot];
    // What is not deleted is updated.
    let needed = ["SELECT", "INSERT", "UPDATE", if tables.deletes { "DELETE" } else { "UPDATE" }];
    let rights = all.map(|table| {
        let table = literal(table);
        let may = |right| format!("has_table_privilege(to_regclass('{table}'), '{right}')");
        format!("coalesce({}, false)", needed.map(may).join(" AND "))
    });
    let row = ask(database, &format!("SELECT {}", rights.join(", "))).await?;
    let missing = all.into_iter().zip(&row).filter(|(_, may)| may.as_deref() != Some("t"));
    let missing: Vec<String> = missing.map(|(table, _)| table.clone()).collect();
    let statement = format!(
        "SELECT max(version), (SELECT count(*) FROM {}), (SELECT count(*) FROM {} WHERE forget_at <= {}) FROM {}",
        tables.resource,
        tables.resource,
        PostgresDialect::CLOCK,
        tables.version
    );
    let row = ask(database, &statement).await?;
    let number = |at: usize| row.get(at).and_then(|text| text.as_deref()?.parse::<u64>().ok());
    Ok(Tables {
        prefix: database.config.prefix.clone(),
        version: number(0),
        rows: number(1).unwrap_or(0),
        idle: number(2).unwrap_or(0),
        purges: database.config.purges,
        missing,
    })
}

/// Who else could change what the tables do. Whoever may do so anyway is trusted: superusers, the owners of the database and of
/// the schema, and the roles that this user is a member of.
async fn others(database: &Postgres) -> Result<Others, Fault> {
    let tables = database.tables();
    let all = [&tables.resource, &tables.claim, &tables.finished, &tables.slot, &tables.version];
    let all = all.map(|table| format!("to_regclass('{}')", literal(table))).join(", ");
    let is_trusted = "(o.rolsuper OR o.oid IN (me.oid, d.datdba, n.nspowner) OR o.rolname = 'pg_database_owner' \
        OR NOT me.rolsuper AND pg_has_role(me.oid, o.oid, 'MEMBER'))";
    let row = ask(
        database,
        &format!(
            "SELECT n.nspname, me.rolname, \
               (SELECT string_agg(DISTINCT o.rolname, ', ') FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner \
                WHERE c.oid IN ({all}) AND NOT {is_trusted}), \
               (SELECT string_agg(DISTINCT coalesce(o.rolname, 'everybody'), ', ') \
                FROM aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a LEFT JOIN pg_roles o ON o.oid = a.grantee \
                WHERE a.privilege_type = 'CREATE' AND (a.grantee = 0 OR NOT {is_trusted})) \
             FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace, pg_database d, pg_roles me \
             WHERE v.oid = to_regclass('{}') AND d.datname = current_database() AND me.rolname = current_user",
            literal(&tables.version)
        ),
    )
    .await?;
    let text = |at: usize| row.get(at).cloned().flatten();
    Ok(Others {
        schema: text(0).unwrap_or_default(),
        user: text(1).unwrap_or_default(),
        owners: text(2),
        makers: text(3),
    })
}

/// How long the server took to answer, several times.
async fn pings(database: &Postgres) -> Result<Vec<Duration>, Fault> {
    let mut connection = database.connections.lend(Purpose::Any).await?;
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent_at = Instant::now();
        connection.run("SELECT 1".to_owned()).await?;
        took.push(sent_at.elapsed());
    }
    connection.keep();
    Ok(took)
}

async fn clock(database: &Postgres) -> Finding {
    let sent_at = Instant::now();
    let answer = ask(database, &format!("SELECT {}", PostgresDialect::CLOCK)).await;
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
