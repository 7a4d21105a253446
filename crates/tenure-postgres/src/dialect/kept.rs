//! The short path where a free mutex and its hold are one row: one index is looked into, and none is written.

use tenure_sql::{Dialect, FORGET_GRAIN, Tables};

use super::{
    ARRIVED, FLOOR_AHEAD, LOOK_AFTER_MICROS, PostgresDialect, TOKEN_MEMORY_MICROS, is_unobserved, may_be_new,
};

/// As [`super::claim_plain`].
pub(super) fn claim(tables: &Tables, source: &str, sorted: &str) -> String {
    let (clock, resource) = (PostgresDialect::CLOCK, &tables.resource);
    let (may_be_new, is_unobserved) = (may_be_new(tables, "excluded.hold_claim"), is_unobserved());
    // The token is made once, for it is written twice. The end of a hold whose row had to be waited for is counted from afterwards.
    format!(
        "WITH v (name, floor, claim, client, ttl, label) AS ({source}) \
         INSERT INTO {resource} AS r (name, kind, last_token, used, entries, forget_at, hold_claim, hold_token, hold_client, \
           hold_granted_at, hold_expires_at, hold_is_confirmed, hold_ttl, hold_label) \
         SELECT v.name, 1, v.token, 1, 1, ((v.now + {LOOK_AFTER_MICROS}) / {FORGET_GRAIN} + 1) * {FORGET_GRAIN}, v.claim, v.token, v.client, \
           v.now, v.now + v.ttl, 1, v.ttl, v.label \
         FROM (SELECT n.*, greatest(n.floor + 1, n.now) AS token FROM (SELECT v.*, {clock} AS now FROM v) n \
           WHERE n.floor <= n.now + {FLOOR_AHEAD}) v {sorted}\
         ON CONFLICT (name) DO UPDATE SET kind = 1, capacity = 1, used = 1, entries = 1, forget_at = excluded.forget_at, \
           last_token = greatest(r.last_token + 1, excluded.last_token), hold_token = greatest(r.last_token + 1, excluded.last_token), \
           hold_claim = excluded.hold_claim, hold_client = excluded.hold_client, hold_granted_at = excluded.hold_granted_at, \
           hold_expires_at = {clock} + excluded.hold_ttl, hold_is_confirmed = 1, hold_ttl = excluded.hold_ttl, hold_label = excluded.hold_label \
         WHERE r.used = 0 AND r.waiting = 0 AND r.entries = 0 AND r.fresh_slots = 0 AND {may_be_new} \
           AND r.value_token IS NULL AND {is_unobserved} \
         RETURNING {}, r.last_token",
        PostgresDialect::hex("r.hold_claim")
    )
}

/// As [`super::release_plain`].
pub(super) fn release(tables: &Tables, source: &str, is_in_order: bool) -> String {
    let (clock, resource) = (PostgresDialect::CLOCK, &tables.resource);
    let is_alone =
        format!("r.entries = 1 AND r.waiting = 0 AND r.value_token IS NULL AND {}", is_unobserved());
    let (locked, which, and) = match is_in_order {
        true => (String::new(), "v", format!(" AND {is_alone}")),
        false => (
            format!(
                ", l AS (SELECT r.name, v.claim FROM {resource} r JOIN v ON v.name = r.name AND v.claim = r.hold_claim \
                 WHERE {is_alone} ORDER BY r.name FOR UPDATE OF r)"
            ),
            "l",
            String::new(),
        ),
    };
    format!(
        "WITH v (name, claim) AS ({source}){locked} \
         UPDATE {resource} r SET used = 0, entries = 0, idle_since = {clock}, hold_claim = NULL, \
           forget_at = greatest((({clock} + {TOKEN_MEMORY_MICROS}) / {FORGET_GRAIN} + 1) * {FORGET_GRAIN}, r.last_token + 1) FROM {which} v \
         WHERE r.name = v.name AND r.hold_claim = v.claim{and} \
         RETURNING {}, (r.hold_expires_at > r.idle_since)::int",
        PostgresDialect::hex("v.claim")
    )
}

/// As [`Dialect::renew_kept`].
pub(super) fn renew(tables: &Tables, rows: &str) -> String {
    let (clock, resource) = (PostgresDialect::CLOCK, &tables.resource);
    // As for holds that are rows: what somebody works on is left out, and a lock of the table may have been waited for.
    format!(
        "WITH v (name, claim) AS (VALUES {rows}), \
         l AS (SELECT r.name, v.claim FROM {resource} r JOIN v ON v.name = r.name AND v.claim = r.hold_claim ORDER BY r.name \
           FOR UPDATE OF r SKIP LOCKED) \
         UPDATE {resource} h SET hold_is_confirmed = 1, hold_expires_at = greatest(h.hold_expires_at, {ARRIVED} + h.hold_ttl) FROM l \
         WHERE h.name = l.name AND h.hold_claim = l.claim AND h.hold_expires_at > {clock} \
         RETURNING {}, h.hold_token, NULL, h.hold_expires_at - {clock}",
        PostgresDialect::hex("h.hold_claim")
    )
}
