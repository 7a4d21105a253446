//! Whether the server can be trusted: what `tenure doctor` prints.
//!
//! What is asked is here, and what follows from the answers in `judge`.

mod judge;

use tenure_core::engine::finding::{Finding, Severity};
use tenure_sql::doctor::{ask, clock, latency, unseen};
use tenure_sql::{Database, Dialect, Fault};

use crate::config::Config;
use crate::dialect::{PostgresDialect, literal};
use crate::doctor::judge::{Facts, Others, Tables};
use crate::statement::Plans;

/// Looks at the server, the way to it, and the tables.
pub(crate) async fn check<D>(database: &D, config: &Config, plans: Plans) -> Vec<Finding>
where
    D: Database<Dialect = PostgresDialect>,
{
    let facts = match ask(database, facts_asked()).await {
        Ok(row) => Facts::read(&row),
        Err(fault) => return vec![unseen::<D>(Severity::Bad, "server", &fault)],
    };
    let mut findings = facts.judge();
    // Beside each other: the operator waits for all of it, and each is some trips.
    let (tables, others, trial, clock) = futures_util::future::join4(
        tables(database, config),
        others(database),
        tenure_sql::try_out(database),
        clock(database),
    )
    .await;
    findings.push(match tables {
        Ok(tables) => tables.judge(),
        Err(fault) => unseen::<D>(Severity::Bad, "tables", &fault),
    });
    findings.extend(match others {
        Ok(others) => others.judge(),
        Err(fault) => vec![unseen::<D>(Severity::Warning, "owner", &fault)],
    });
    findings.push(trial);
    findings.push(judge::wakes(config.listens, database.hears()));
    findings.push(judge::plans(plans));
    findings.push(clock);
    findings.push(latency(database).await);
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

async fn tables<D: Database>(database: &D, config: &Config) -> Result<Tables, Fault> {
    let tables = database.tables();
    let all = [&tables.resource, &tables.claim, &tables.finished, &tables.slot];
    // What is not deleted is updated.
    let needed = ["SELECT", "INSERT", "UPDATE", if tables.deletes { "DELETE" } else { "UPDATE" }];
    let rights = all.map(|table| {
        let table = literal(table);
        let may = |right| format!("has_table_privilege(to_regclass('{table}'), '{right}')");
        format!("coalesce({}, false)", needed.map(may).join(" AND "))
    });
    let row = ask(database, format!("SELECT {}", rights.join(", "))).await?;
    let missing = all.into_iter().zip(&row).filter(|(_, may)| may.as_deref() != Some("t"));
    let missing: Vec<String> = missing.map(|(table, _)| table.clone()).collect();
    let statement = format!(
        "SELECT max(version), (SELECT count(*) FROM {}), (SELECT count(*) FROM {} WHERE forget_at <= {}) FROM {}",
        tables.resource,
        tables.resource,
        PostgresDialect::CLOCK,
        tables.version
    );
    let row = ask(database, statement).await?;
    let number = |at: usize| row.get(at).and_then(|text| text.as_deref()?.parse::<u64>().ok());
    Ok(Tables {
        prefix: config.prefix.clone(),
        version: number(0),
        rows: number(1).unwrap_or(0),
        idle: number(2).unwrap_or(0),
        purges: config.purges,
        missing,
    })
}

/// Other roles that could change what the tables do. Those that may do so anyway are trusted: superusers, the owners
/// of the database and of the schema, and the roles that this user is a member of.
async fn others<D: Database>(database: &D) -> Result<Others, Fault> {
    let tables = database.tables();
    let all = [&tables.resource, &tables.claim, &tables.finished, &tables.slot, &tables.version];
    let all = all.map(|table| format!("to_regclass('{}')", literal(table))).join(", ");
    let is_trusted = "(o.rolsuper OR o.oid IN (me.oid, d.datdba, n.nspowner) OR o.rolname = 'pg_database_owner' \
        OR NOT me.rolsuper AND pg_has_role(me.oid, o.oid, 'MEMBER'))";
    let row = ask(
        database,
        format!(
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

#[cfg(test)]
mod tests;
