//! PostgreSQL's words.

mod kept;

use tenure_core::model::claim::WAITERS_MAX;
use tenure_core::model::record::POSITION_EXACT_MAX;
use tenure_core::model::step::{TOKEN_MEMORY, WAITER_LIFE_MAX};
use tenure_core::model::token::FLOOR_AHEAD_MAX;
use tenure_sql::{Dialect, FORGET_GRAIN, LOOK_AFTER, Tables, VERSION_WITH_HOLDS, push_hex};

/// What a transaction is given to go by, in the piece that begins it: names that say no schema are PostgreSQL's own,
/// whichever role may make operators and functions elsewhere; and what waits or works here ends when the client has
/// given it up at the latest. SET calls no function, so nothing is looked up before.
pub(crate) const SURROUNDINGS: [&str; 3] = [
    "SET LOCAL search_path = pg_catalog, pg_temp",
    "SET LOCAL lock_timeout = 1000",
    "SET LOCAL statement_timeout = 2500",
];

/// Begins what is one trip: the long way behind it waits for locks, so this does not for long.
const BEGIN_PLAIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 50";
/// How far a floor may lie ahead of the clock, and how long an idle row is kept, in microseconds.
pub(crate) const FLOOR_AHEAD: u128 = FLOOR_AHEAD_MAX.as_micros();
/// When the server received what it carries out.
const ARRIVED: &str = "(extract(epoch FROM transaction_timestamp()) * 1000000)::bigint";
const TOKEN_MEMORY_MICROS: u128 = TOKEN_MEMORY.as_micros();
const WAITER_LIFE: u128 = WAITER_LIFE_MAX.as_micros();
const LOOK_AFTER_MICROS: u128 = LOOK_AFTER.as_micros();

/// Rows of which each is found by its key. The planner takes a list of rows with keys of several columns for a long OR, which no index
/// answers by itself: where bitmaps are off (sessions that queues use), it reads the whole table.
struct Joined {
    values: String,
    on: String,
}

impl Joined {
    /// None where a list does as well: for one row, or a key of one column.
    fn new(keys: &str, rows: &str) -> Option<Joined> {
        if !keys.contains(',') || !rows.contains("),(") {
            return None;
        }
        let keys = || keys.split(", ").enumerate();
        let columns: Vec<String> = keys().map(|(at, _)| format!("k{at}")).collect();
        let on: Vec<String> = keys().map(|(at, key)| format!("{key} = v.k{at}")).collect();
        Some(Joined { values: format!("(VALUES {rows}) v ({})", columns.join(", ")), on: on.join(" AND ") })
    }
}

/// The dialect of PostgreSQL.
#[derive(Debug)]
pub struct PostgresDialect;

impl Dialect for PostgresDialect {
    const CLOCK: &'static str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    const LIFE: &'static str = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";
    // A client that is paused in here is thrown out by the server, and sooner than the clients give up that wait for
    // its rows (`lock_timeout`): else a waiting client keeps rows of its own until then, for which others wait, and
    // none gets on for seconds.
    const BEGIN: &'static [&'static str] =
        &["BEGIN ISOLATION LEVEL READ COMMITTED", "SET LOCAL idle_in_transaction_session_timeout = 700"];
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

    fn delete(table: &str, keys: &str, rows: &str, also: &str) -> String {
        match Joined::new(keys, rows) {
            Some(Joined { values, on }) => format!("DELETE FROM {table} USING {values} WHERE {on} {also}"),
            None => format!("DELETE FROM {table} WHERE ({keys}) IN ({rows}) {also}"),
        }
    }

    fn update(table: &str, keys: &str, rows: &str, also: &str, set: &str) -> String {
        match Joined::new(keys, rows) {
            Some(Joined { values, on }) => {
                format!("UPDATE {table} SET {set} FROM {values} WHERE {on} {also}")
            }
            None => format!("UPDATE {table} SET {set} WHERE ({keys}) IN ({rows}) {also}"),
        }
    }

    fn or_replace(keys: &str, columns: &[&str]) -> String {
        let set: Vec<String> = columns.iter().map(|column| format!("{column} = excluded.{column}")).collect();
        format!("ON CONFLICT ({keys}) DO UPDATE SET {}", set.join(", "))
    }

    fn claim_plain(tables: &Tables, rows: &str) -> Option<String> {
        Some(format!("{BEGIN_PLAIN}; {}; COMMIT", claim_plain(tables, &format!("VALUES {rows}"), false)))
    }

    fn wait_plain(tables: &Tables, rows: &str) -> Option<String> {
        let clock = Self::CLOCK;
        let Tables { resource, claim, .. } = tables;
        let may_be_new = may_be_new(tables, "v.claim");
        // On the row itself, where they are evaluated again if it had to be waited for. What else is looked for may be older; then
        // the unique index of claims refuses a second copy, and a hold that has ended is found by the first heartbeat.
        let is_unobserved = is_unobserved();
        let mut may_wait = format!(
            "r.kind = 1 AND r.used > 0 AND r.waiting < {WAITERS_MAX} AND {may_be_new} \
             AND {is_unobserved} AND r.last_token < 9223372036854775807"
        );
        let (ends_first, also) = match tables.keeps_holds {
            true => {
                let goes_on = "r.hold_claim IS NULL OR r.hold_claim <> v.claim AND r.hold_expires_at >";
                may_wait.push_str(&format!(" AND ({goes_on} {clock})"));
                ("CASE WHEN r.hold_claim IS NOT NULL THEN r.hold_expires_at END", "")
            }
            false => ("NULL::bigint", "plain_claim = NULL, "),
        };
        Some(format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; \
             WITH v (name, floor, claim, client, ttl, label) AS (VALUES {rows}), \
             l AS (SELECT r.name FROM {resource} r JOIN v ON v.name = r.name WHERE {may_wait} AND v.floor <= {clock} + {FLOOR_AHEAD} \
               AND NOT EXISTS (SELECT 1 FROM {claim} e WHERE e.claim = v.claim AND e.name = v.name) \
               AND NOT EXISTS (SELECT 1 FROM {claim} e WHERE e.name = v.name AND e.expires_at <= {clock}) \
               ORDER BY r.name FOR UPDATE OF r), \
             u AS (UPDATE {resource} r SET waiting = r.waiting + 1, next_place = r.next_place + 1, entries = r.entries + 1, \
                 {also}last_token = greatest(r.last_token, v.floor), \
                 forget_at = (({clock} + {LOOK_AFTER_MICROS}) / {FORGET_GRAIN} + 1) * {FORGET_GRAIN} \
               FROM l JOIN v ON v.name = l.name WHERE r.name = l.name AND {may_wait} \
               RETURNING r.name, r.waiting, r.last_token, r.next_place - 1 AS place, {ends_first} AS ends_first), \
             i AS (INSERT INTO {claim} (name, place, token, claim, client, weight, granted_at, expires_at, is_confirmed, ttl, \
                 min_hold, lock_delay, label, unless_fresh) \
               SELECT u.name, u.place, 0, v.claim, v.client, 1, 0, {clock} + least(v.ttl, {WAITER_LIFE}), 0, v.ttl, 0, 0, v.label, 0 \
               FROM u JOIN v ON v.name = u.name) \
             SELECT {}, u.waiting, u.last_token, CASE WHEN u.waiting = 1 THEN greatest(0, least(u.ends_first, \
                 (SELECT min(h.expires_at) FROM {claim} h WHERE h.name = u.name AND h.place = 0)) - {clock}) END, {} \
             FROM u JOIN v ON v.name = u.name; COMMIT",
            Self::hex("v.claim"),
            Self::LIFE
        ))
    }

    fn keep_waiting(tables: &Tables, claims: &str) -> Option<String> {
        let Tables { resource, claim, .. } = tables;
        let clock = Self::CLOCK;
        let (has_not_ended, ends_first) = match tables.keeps_holds {
            true => (
                format!(
                    " AND NOT EXISTS (SELECT 1 FROM {resource} r WHERE r.name = w.name AND r.hold_claim IS NOT NULL \
                       AND r.hold_expires_at <= (SELECT now FROM t))"
                ),
                format!(
                    "(SELECT r.hold_expires_at FROM {resource} r WHERE r.name = p.name AND r.hold_claim IS NOT NULL)"
                ),
            ),
            false => (String::new(), "NULL::bigint".to_owned()),
        };
        // A place is written anew when a third of its life is over, so most heartbeats only read. A row that another
        // transaction has locked is left out, and asks under its resource's lock.
        Some(format!(
            "WITH t AS MATERIALIZED (SELECT {clock} AS now), \
             s AS MATERIALIZED (SELECT w.name, w.place, w.claim, w.expires_at - t.now < least(w.ttl, {WAITER_LIFE}) / 3 * 2 AS is_due \
               FROM {claim} w, t WHERE w.claim IN ({claims}) AND w.place > 0 AND w.expires_at > t.now \
               AND NOT EXISTS (SELECT 1 FROM {claim} e WHERE e.name = w.name AND e.expires_at <= (SELECT now FROM t)){has_not_ended}), \
             l AS (SELECT w.name, w.place, w.token FROM {claim} w JOIN s ON s.name = w.name AND s.place = w.place AND s.claim = w.claim \
               WHERE s.is_due ORDER BY w.claim FOR UPDATE OF w SKIP LOCKED), \
             u AS (UPDATE {claim} w SET expires_at = greatest(w.expires_at, {ARRIVED} + least(w.ttl, {WAITER_LIFE})) FROM l \
               WHERE w.name = l.name AND w.place = l.place AND w.token = l.token RETURNING w.claim), \
             p AS (SELECT s.*, (SELECT count(*) FROM (SELECT 1 FROM {claim} a WHERE a.name = s.name AND a.place > 0 \
                 AND a.place < s.place LIMIT {POSITION_EXACT_MAX}) x) AS ahead FROM s) \
             SELECT {}, CASE WHEN p.ahead < {POSITION_EXACT_MAX} THEN p.ahead + 1 \
                 ELSE p.place + 1 - (SELECT min(a.place) FROM {claim} a WHERE a.name = p.name AND a.place > 0) END, \
               CASE WHEN p.ahead = 0 THEN greatest(0, least({ends_first}, \
                 (SELECT min(h.expires_at) FROM {claim} h WHERE h.name = p.name AND h.place = 0)) - t.now) END, {} \
             FROM p, t WHERE NOT p.is_due OR p.claim IN (SELECT claim FROM u)",
            Self::hex("p.claim"),
            Self::LIFE
        ))
    }

    fn release_plain(tables: &Tables, rows: &str) -> Option<String> {
        let statement = release_plain(tables, &format!("VALUES {rows}"), false);
        Some(format!("{BEGIN_PLAIN}; {statement}; COMMIT"))
    }

    fn renew(table: &str, claims: &str) -> String {
        let (clock, hex) = (Self::CLOCK, Self::hex("h.claim"));
        // A row that another transaction has locked is not waited for: it is renewed by itself, under its resource's
        // lock. A lock of the table is, and the sender of this may have died meanwhile: what it held ends as if that
        // had not been waited for.
        format!(
            "UPDATE {table} h SET is_confirmed = 1, expires_at = greatest(h.expires_at, \
             least({ARRIVED} + h.ttl, h.granted_at + h.max_hold)) \
             FROM (SELECT name, token FROM {table} WHERE claim IN ({claims}) AND place = 0 ORDER BY claim FOR UPDATE SKIP LOCKED) l \
             WHERE h.name = l.name AND h.place = 0 AND h.token = l.token AND h.expires_at > {clock} \
             RETURNING {hex}, h.token, h.slot, h.expires_at - {clock}"
        )
    }

    fn renew_kept(tables: &Tables, rows: &str) -> Option<String> {
        Some(kept::renew(tables, rows))
    }
}

/// Whether nobody observes the resource of the row `r`.
fn is_unobserved() -> String {
    format!("(r.observed_until IS NULL OR r.observed_until <= {})", PostgresDialect::CLOCK)
}

/// Whether the claim is not remembered as finished, in a condition on the row `r` of its resource.
///
/// A statement that has waited for the row looks for finished claims as of before: one that was withdrawn meanwhile would be granted
/// after all. So that look counts only if the row is the very one that the statement saw when it began, for whoever remembers
/// a claim writes the row of its resource, too.
fn may_be_new(tables: &Tables, claim: &str) -> String {
    let (clock, Tables { resource, finished, .. }) = (PostgresDialect::CLOCK, tables);
    format!(
        "CASE WHEN r.finished_until IS NULL OR r.finished_until <= {clock} THEN true \
         ELSE r.ctid = (SELECT s.ctid FROM {resource} s WHERE s.name = r.name) \
           AND NOT EXISTS (SELECT 1 FROM {finished} f WHERE f.name = r.name AND f.claim = {claim}) END"
    )
}

/// Claims what is free of the rows of `source`, which are as for [`Dialect::claim_plain`]. `is_in_order`: they come in the order of their
/// names, and whoever sends this sees to it that they are carried out in that order.
pub(crate) fn claim_plain(tables: &Tables, source: &str, is_in_order: bool) -> String {
    let sorted = if is_in_order { "" } else { "ORDER BY v.name " };
    if tables.keeps_holds {
        return kept::claim(tables, source, sorted);
    }
    let is_unobserved = is_unobserved();
    let (clock, may_be_new) = (PostgresDialect::CLOCK, may_be_new(tables, "excluded.plain_claim"));
    let Tables { resource, claim, .. } = tables;
    // All conditions are on the row itself: they are evaluated again if it had to be waited for.
    format!(
        "WITH v (name, floor, claim, client, ttl, label) AS ({source}), \
         r AS (INSERT INTO {resource} AS r (name, kind, last_token, used, entries, forget_at, plain_claim) \
           SELECT v.name, 1, greatest(v.floor + 1, {clock}), 1, 1, (({clock} + {LOOK_AFTER_MICROS}) / {FORGET_GRAIN} + 1) * {FORGET_GRAIN}, v.claim FROM v \
           WHERE v.floor <= {clock} + {FLOOR_AHEAD} {sorted}\
           ON CONFLICT (name) DO UPDATE SET kind = 1, capacity = 1, used = 1, entries = 1, forget_at = excluded.forget_at, \
             last_token = greatest(r.last_token + 1, excluded.last_token, {clock}), plain_claim = excluded.plain_claim \
           WHERE r.used = 0 AND r.waiting = 0 AND r.entries = 0 AND r.fresh_slots = 0 AND {may_be_new} \
             AND r.value_token IS NULL AND {is_unobserved} \
           RETURNING r.name, r.last_token) \
         INSERT INTO {claim} (name, place, token, claim, client, weight, granted_at, expires_at, is_confirmed, ttl, \
           min_hold, lock_delay, label, unless_fresh) \
         SELECT r.name, 0, r.last_token, v.claim, v.client, 1, {clock}, {clock} + v.ttl, 1, v.ttl, 0, 0, v.label, 0 \
         FROM r JOIN v ON v.name = r.name RETURNING {}, token",
        PostgresDialect::hex("claim")
    )
}

/// Releases what is all that its record consists of, of the rows of `source`, which are as for [`Dialect::release_plain`].
/// Those that are not in the order of their names by themselves are locked in it first, which would cost the others a sixth of their time.
pub(crate) fn release_plain(tables: &Tables, source: &str, is_in_order: bool) -> String {
    if tables.keeps_holds {
        return kept::release(tables, source, is_in_order);
    }
    let clock = PostgresDialect::CLOCK;
    let Tables { resource, claim, deletes, .. } = tables;
    let gone = match deletes {
        true => format!("DELETE FROM {claim} c USING r"),
        false => format!("UPDATE {claim} c SET place = -1, claim = NULL FROM r"),
    };
    let is_alone = format!("r.waiting = 0 AND r.value_token IS NULL AND {}", is_unobserved());
    let (locked, which, and) = match is_in_order {
        true => (String::new(), "v", format!(" AND {is_alone}")),
        false => (
            format!(
                "l AS (SELECT r.name, v.claim FROM {resource} r JOIN v ON v.name = r.name AND v.claim = r.plain_claim \
                 WHERE {is_alone} ORDER BY r.name FOR UPDATE OF r), "
            ),
            "l",
            String::new(),
        ),
    };
    format!(
        "WITH v (name, claim) AS ({source}), {locked}\
         r AS (UPDATE {resource} r SET used = 0, entries = 0, idle_since = {clock}, plain_claim = NULL, \
           forget_at = greatest((({clock} + {TOKEN_MEMORY_MICROS}) / {FORGET_GRAIN} + 1) * {FORGET_GRAIN}, r.last_token + 1) FROM {which} v \
           WHERE r.name = v.name AND r.plain_claim = v.claim{and} RETURNING r.name, v.claim) \
         {gone} WHERE c.name = r.name AND c.place = 0 AND c.claim = r.claim \
         RETURNING {}, (c.expires_at > {clock})::int",
        PostgresDialect::hex("r.claim")
    )
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
             value_fresh_until bigint, value_keep_until bigint, {}) WITH (fillfactor = 70)",
            HOLD.join(", ")
        ),
        format!(
            "CREATE INDEX IF NOT EXISTS {index}resource_forget ON {prefix}resource (forget_at) WHERE forget_at IS NOT NULL"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}entry (name bytea NOT NULL, place bigint NOT NULL, token bigint NOT NULL, \
             claim bytea, client bigint NOT NULL, weight bigint NOT NULL, slot bigint, granted_at bigint NOT NULL, \
             expires_at bigint NOT NULL, is_confirmed smallint NOT NULL, ttl bigint NOT NULL, max_hold bigint, \
             min_hold bigint NOT NULL, lock_delay bigint NOT NULL, label bytea NOT NULL, unless_fresh smallint NOT NULL, \
             PRIMARY KEY (name, place, token))"
        ),
        format!("CREATE UNIQUE INDEX IF NOT EXISTS {index}entry_claim ON {prefix}entry (claim, name)"),
        format!(
            "CREATE INDEX IF NOT EXISTS {index}entry_end ON {prefix}entry (name, (place > 0), expires_at)"
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
        format!("INSERT INTO {prefix}version VALUES ({VERSION_WITH_HOLDS}) ON CONFLICT DO NOTHING"),
    ]
}

/// A hold in its resource's row.
const HOLD: [&str; 8] = [
    "hold_claim bytea",
    "hold_token bigint",
    "hold_client bigint",
    "hold_granted_at bigint",
    "hold_expires_at bigint",
    "hold_is_confirmed smallint",
    "hold_ttl bigint",
    "hold_label bytea",
];

/// The statements that make tables of version 2 of those of version 1, in a transaction. What is held stays as it is, a row, until
/// its record is written next: so nothing is read or moved while all wait for this. The table of claims has another name
/// afterwards, so that whatever a client asks that knows version 1 alone is refused.
pub(crate) fn upgrade(prefix: &str) -> Vec<String> {
    let index = prefix.rsplit('.').next().unwrap_or(prefix);
    let columns = HOLD.map(|column| format!("ADD COLUMN {column}")).join(", ");
    let renamed =
        |name: &str| format!("ALTER INDEX IF EXISTS {prefix}claim_{name} RENAME TO {index}entry_{name}");
    vec![
        // In the order in which transactions lock them.
        format!("LOCK TABLE {prefix}resource, {prefix}claim IN ACCESS EXCLUSIVE MODE"),
        format!("ALTER TABLE {prefix}resource DROP COLUMN plain_claim, {columns}"),
        format!("ALTER TABLE {prefix}claim RENAME TO {index}entry"),
        renamed("pkey"),
        renamed("claim"),
        renamed("end"),
        format!("UPDATE {prefix}version SET version = {VERSION_WITH_HOLDS}"),
    ]
}

/// A name between quotes, for functions that read names. Schemas that are not chosen in the settings may be called
/// anything.
pub(crate) fn literal(name: &str) -> String {
    name.replace('\'', "''")
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
}
