//! MySQL's and MariaDB's words, as far as both know them.
//!
//! What InnoDB locks is what its plan reads, not what the condition says. A plan that reads a whole table would wait
//! for the rows of every other lock, in an order of its own; small tables tempt the server to make one. So each text
//! names the indexes that it is meant to go by.

use tenure_sql::{Dialect, Tables, VERSION_WITH_HOLDS, push_hex};

/// The dialect of MySQL and MariaDB.
#[derive(Debug)]
pub struct MySqlDialect;

impl Dialect for MySqlDialect {
    // Never NOW(): it is the moment at which the statement began, and that may have waited for locks since.
    const CLOCK: &'static str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
    // Each connection stores when its server was started. None outlives its server.
    const LIFE: &'static str = "@tenure_life";
    // READ COMMITTED, as each session is told when it begins.
    const BEGIN: &'static [&'static str] = &["START TRANSACTION"];
    const BEGIN_LOOK: &'static [&'static str] = &[
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
    ];
    const BY_KEY: &'static str = "FORCE INDEX (PRIMARY)";
    const BY_CLAIM: &'static str = "FORCE INDEX (PRIMARY, by_claim, by_end)";

    fn push_bytes(to: &mut String, bytes: &[u8]) {
        to.push_str("X'");
        push_hex(to, bytes);
        to.push('\'');
    }

    fn hex(column: &str) -> String {
        format!("HEX({column})")
    }

    fn unless_exists(keys: &str) -> String {
        // Not INSERT IGNORE: this locks a row that exists, and for good. The first of the keys does as well as any.
        let first = keys.split(',').next().unwrap_or(keys);
        format!("ON DUPLICATE KEY UPDATE {first} = {first}")
    }

    fn or_replace(_keys: &str, columns: &[&str]) -> String {
        // MySQL has another word for this since 8.0.20, and still knows this one. MariaDB knows only this one.
        let set: Vec<String> = columns.iter().map(|column| format!("{column} = VALUES({column})")).collect();
        format!("ON DUPLICATE KEY UPDATE {}", set.join(", "))
    }

    fn renew(table: &str, claims: &str) -> String {
        let (clock, hex) = (Self::CLOCK, Self::hex("claim"));
        // MariaDB's UPDATE returns no rows. A hold that lives and is confirmed behind it has been renewed by it; one
        // that ended in between is judged by `step`. The rows are locked already, so it never waits.
        format!(
            "UPDATE {table} FORCE INDEX (by_claim) SET is_confirmed = 1, expires_at = GREATEST(expires_at, \
             LEAST({clock} + ttl, COALESCE(granted_at + max_hold, {clock} + ttl))) \
             WHERE claim IN ({claims}) AND place = 0 AND expires_at > {clock};\n\
             SELECT {hex}, token, slot, expires_at - {clock} FROM {table} FORCE INDEX (by_claim) \
             WHERE claim IN ({claims}) AND place = 0 AND is_confirmed = 1 AND expires_at > {clock}"
        )
    }

    fn lock_for_renewal(table: &str, claims: &str) -> Option<String> {
        Some(format!(
            "SELECT {} FROM {table} FORCE INDEX (by_claim) WHERE claim IN ({claims}) AND place = 0 FOR UPDATE SKIP LOCKED",
            Self::hex("claim")
        ))
    }

    fn lock_kept_for_renewal(tables: &Tables, rows: &str) -> Option<String> {
        let (hex, kept) = (Self::hex("t.hold_claim"), joined(&tables.resource, "name, hold_claim", rows));
        Some(format!("SELECT {hex} FROM {kept} FOR UPDATE SKIP LOCKED"))
    }

    fn renew_kept(tables: &Tables, rows: &str) -> Option<String> {
        let (clock, hex) = (Self::CLOCK, Self::hex("t.hold_claim"));
        let kept = joined(&tables.resource, "name, hold_claim", rows);
        // As for holds that are rows.
        Some(format!(
            "UPDATE {kept} SET t.hold_is_confirmed = 1, t.hold_expires_at = GREATEST(t.hold_expires_at, {clock} + t.hold_ttl) \
             WHERE t.hold_expires_at > {clock};\n\
             SELECT {hex}, t.hold_token, NULL, t.hold_expires_at - {clock} FROM {kept} \
             WHERE t.hold_is_confirmed = 1 AND t.hold_expires_at > {clock}"
        ))
    }

    fn entries(tables: &Tables, columns: &str, names: &str, most: i64) -> String {
        let Tables { resource, claim, .. } = tables;
        // Resources first, and then the rows of each by its key. As a condition with IN the server may turn it round.
        format!(
            "SELECT {columns} FROM (SELECT name AS resource FROM {resource} {key} WHERE name IN ({names}) AND entries > 0 \
             AND entries <= {most}) r STRAIGHT_JOIN {claim} {key} ON name = r.resource AND place >= 0 FOR UPDATE",
            key = Self::BY_KEY
        )
    }

    fn delete(table: &str, keys: &str, rows: &str, also: &str) -> String {
        format!("DELETE t FROM {} {also}", joined(table, keys, rows))
    }

    fn update(table: &str, keys: &str, rows: &str, also: &str, set: &str) -> String {
        // A condition of the join is as good as one behind WHERE.
        format!("UPDATE {} {also} SET {set}", joined(table, keys, rows))
    }
}

/// Rows of a table by their keys. A DELETE cannot name its index, and for small tables both servers would rather read all of
/// it. A join with the keys leaves no choice. No literal of ours has parentheses or commas in it.
pub(crate) fn joined(table: &str, keys: &str, rows: &str) -> String {
    let keys: Vec<&str> = keys.split(", ").collect();
    let rows = rows.trim_start_matches('(').trim_end_matches(')').split("),(").map(|row| {
        let columns = row.split(',').enumerate().map(|(at, value)| format!("{value} AS k{at}"));
        format!("SELECT {}", columns.collect::<Vec<_>>().join(", "))
    });
    let rows = rows.collect::<Vec<_>>().join(" UNION ALL ");
    let equal: Vec<String> = keys.iter().enumerate().map(|(at, key)| format!("t.{key} = k.k{at}")).collect();
    format!("({rows}) k STRAIGHT_JOIN {table} AS t {} ON {}", MySqlDialect::BY_KEY, equal.join(" AND "))
}

const END: &str = "ENGINE = InnoDB DEFAULT CHARSET = binary";

/// A hold in its resource's row.
const HOLD: [&str; 8] = [
    "hold_claim VARBINARY(16)",
    "hold_token BIGINT",
    "hold_client BIGINT",
    "hold_granted_at BIGINT",
    "hold_expires_at BIGINT",
    "hold_is_confirmed TINYINT",
    "hold_ttl BIGINT",
    "hold_label VARBINARY(1024)",
];

/// The statements that make the tables. Names, claims and labels are bytes: `A` is not `a`, and no collation counts.
pub(crate) fn schema(prefix: &str) -> Vec<String> {
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}resource (name VARBINARY(255) NOT NULL PRIMARY KEY, kind TINYINT, \
             capacity BIGINT NOT NULL DEFAULT 1, last_token BIGINT NOT NULL DEFAULT 0, used BIGINT NOT NULL DEFAULT 0, \
             waiting BIGINT NOT NULL DEFAULT 0, next_place BIGINT NOT NULL DEFAULT 1, \
             fresh_slots BIGINT NOT NULL DEFAULT 0, idle_since BIGINT NOT NULL DEFAULT 0, \
             entries BIGINT NOT NULL DEFAULT 0, finished_until BIGINT, next_slot BIGINT NOT NULL DEFAULT 1, \
             forget_at BIGINT, observed_until BIGINT, value MEDIUMBLOB, value_token BIGINT, \
             value_fresh_until BIGINT, value_keep_until BIGINT, {}, KEY by_forget (forget_at)) {END}",
            HOLD.join(", ")
        ),
        // Not unique by claim: to make sure of that, the server would lock the gaps between claims.
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}entry (name VARBINARY(255) NOT NULL, place BIGINT NOT NULL, \
             token BIGINT NOT NULL, claim VARBINARY(16), client BIGINT NOT NULL, weight BIGINT NOT NULL, slot BIGINT, \
             granted_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, is_confirmed TINYINT NOT NULL, ttl BIGINT NOT NULL, \
             max_hold BIGINT, min_hold BIGINT NOT NULL, lock_delay BIGINT NOT NULL, label VARBINARY(1024) NOT NULL, \
             unless_fresh TINYINT NOT NULL, PRIMARY KEY (name, place, token), KEY by_claim (claim), \
             KEY by_end (name, expires_at, place)) {END}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}finished (name VARBINARY(255) NOT NULL, claim VARBINARY(16) NOT NULL, \
             until BIGINT NOT NULL, PRIMARY KEY (name, claim)) {END}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}slot (name VARBINARY(255) NOT NULL, number BIGINT NOT NULL, \
             slot BIGINT NOT NULL, PRIMARY KEY (name, number)) {END}"
        ),
        version_table(&format!("{prefix}version")),
        has_version(&format!("{prefix}version")),
    ]
}

fn version_table(table: &str) -> String {
    format!("CREATE TABLE IF NOT EXISTS {table} (version INT NOT NULL PRIMARY KEY) {END}")
}

fn has_version(table: &str) -> String {
    format!("INSERT INTO {table} VALUES ({VERSION_WITH_HOLDS}) ON DUPLICATE KEY UPDATE version = version")
}

/// The statement that gives tables of version 1 the columns of version 2, of which clients at work see nothing.
pub(crate) fn add_holds(prefix: &str) -> String {
    let columns = HOLD.map(|column| format!("ADD COLUMN {column}")).join(", ");
    format!("ALTER TABLE {prefix}resource {columns}")
}

/// The statements that make tables of version 2 of those of version 1, when they have their columns. What is held stays as it is, a row,
/// until its record is written next. The last one takes effect as a whole: nobody sees the one name without the other, and from then on
/// whatever a client asks that knows version 1 alone is refused, since the table of claims is not there any more.
///
/// The column `plain_claim` stays and means nothing: not every version of the servers can drop it in an instant.
pub(crate) fn upgrade(prefix: &str) -> [String; 3] {
    let (next, last) = (format!("{prefix}version_2"), format!("{prefix}version_1"));
    [
        version_table(&next),
        has_version(&next),
        format!(
            "RENAME TABLE {prefix}claim TO {prefix}entry, {prefix}version TO {last}, {next} TO {prefix}version"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other versions of tenure read what this one writes. If this file must change, the tables need a new version, and `migrate` a way
    /// to it.
    #[test]
    fn the_tables_are_made_as_they_always_were() {
        let statements = [schema("tenure_"), crate::queues::text::schema("tenure_")].concat();
        assert_eq!(statements.join(";\n") + ";\n", include_str!("dialect/tables-2.sql"), "the tables differ");
    }

    #[test]
    fn rows_to_remove_are_joined_with() {
        assert_eq!(
            MySqlDialect::delete("x", "name, place", "(X'6d',1),(X'6e',0)", ""),
            "DELETE t FROM (SELECT X'6d' AS k0, 1 AS k1 UNION ALL SELECT X'6e' AS k0, 0 AS k1) k STRAIGHT_JOIN x AS t \
             FORCE INDEX (PRIMARY) ON t.name = k.k0 AND t.place = k.k1 "
        );
    }
}
