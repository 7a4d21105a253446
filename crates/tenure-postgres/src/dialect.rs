//! PostgreSQL's words.

use tenure_sql::{Dialect, push_hex};

/// The dialect of PostgreSQL.
#[derive(Debug)]
pub struct PostgresDialect;

impl Dialect for PostgresDialect {
    const CLOCK: &'static str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    const LIFE: &'static str = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";
    // A client that is paused in here is thrown out by the server, and others do not wait for it for long.
    const BEGIN: &'static [&'static str] = &[
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "SET LOCAL lock_timeout = 1000",
        "SET LOCAL idle_in_transaction_session_timeout = 2000",
    ];
    const BEGIN_LOOK: &'static [&'static str] = &["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"];

    fn push_bytes(to: &mut String, bytes: &[u8]) {
        to.push_str("decode('");
        push_hex(to, bytes);
        to.push_str("','hex')");
    }

    fn hex(column: &str) -> String {
        format!("encode({column}, 'hex')")
    }

    fn unless_exists(keys: &str) -> String {
        format!("ON CONFLICT ({keys}) DO NOTHING")
    }

    fn or_replace(keys: &str, columns: &[&str]) -> String {
        let set: Vec<String> = columns.iter().map(|column| format!("{column} = excluded.{column}")).collect();
        format!("ON CONFLICT ({keys}) DO UPDATE SET {}", set.join(", "))
    }

    fn renew(table: &str, claims: &str) -> String {
        let (clock, hex) = (Self::CLOCK, Self::hex("h.claim"));
        // A row that somebody works on is not waited for: it is renewed by itself, under its resource's lock.
        format!(
            "UPDATE {table} h SET is_confirmed = 1, expires_at = greatest(h.expires_at, \
             least({clock} + h.ttl, h.granted_at + h.max_hold)) \
             FROM (SELECT name, token FROM {table} WHERE claim IN ({claims}) AND place = 0 ORDER BY claim FOR UPDATE SKIP LOCKED) l \
             WHERE h.name = l.name AND h.place = 0 AND h.token = l.token AND h.expires_at > {clock} \
             RETURNING {hex}, h.token, h.slot, h.expires_at - {clock}"
        )
    }
}

/// The statements that make the tables.
pub(crate) fn schema(prefix: &str) -> Vec<String> {
    let index = prefix.rsplit('.').next().unwrap_or(prefix);
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}resource (name bytea PRIMARY KEY, kind smallint, \
             capacity bigint NOT NULL DEFAULT 1, last_token bigint NOT NULL DEFAULT 0, used bigint NOT NULL DEFAULT 0, \
             waiting bigint NOT NULL DEFAULT 0, next_place bigint NOT NULL DEFAULT 1, \
             fresh_slots bigint NOT NULL DEFAULT 0, idle_since bigint NOT NULL DEFAULT 0, \
             entries bigint NOT NULL DEFAULT 0, finished_until bigint, next_slot bigint NOT NULL DEFAULT 1, \
             forget_at bigint DEFAULT 0, observed_until bigint, value bytea, value_token bigint, \
             value_fresh_until bigint, value_keep_until bigint)"
        ),
        format!(
            "CREATE INDEX IF NOT EXISTS {index}resource_forget ON {prefix}resource (forget_at) WHERE forget_at IS NOT NULL"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}claim (name bytea NOT NULL, place bigint NOT NULL, token bigint NOT NULL, \
             claim bytea, client bigint NOT NULL, weight bigint NOT NULL, slot bigint, granted_at bigint NOT NULL, \
             expires_at bigint NOT NULL, is_confirmed smallint NOT NULL, ttl bigint NOT NULL, max_hold bigint, \
             min_hold bigint NOT NULL, lock_delay bigint NOT NULL, label bytea NOT NULL, unless_fresh smallint NOT NULL, \
             PRIMARY KEY (name, place, token))"
        ),
        format!("CREATE UNIQUE INDEX IF NOT EXISTS {index}claim_claim ON {prefix}claim (claim, name)"),
        format!(
            "CREATE INDEX IF NOT EXISTS {index}claim_end ON {prefix}claim (name, (place > 0), expires_at)"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}finished (name bytea NOT NULL, claim bytea NOT NULL, \
             until bigint NOT NULL, PRIMARY KEY (name, claim))"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}slot (name bytea NOT NULL, number bigint NOT NULL, \
             slot bigint NOT NULL, PRIMARY KEY (name, number))"
        ),
        format!("CREATE TABLE IF NOT EXISTS {prefix}version (version integer PRIMARY KEY)"),
        format!("INSERT INTO {prefix}version VALUES ({}) ON CONFLICT DO NOTHING", tenure_sql::VERSION),
    ]
}
