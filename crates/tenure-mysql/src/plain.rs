//! The short path of a claim or release that is alone: a free mutex is claimed by one text, and released by one, where the transaction around `step` takes two trips.
//!
//! What is to be changed is read and locked first, and only if nobody else has it locked: the long way behind this waits for locks, and its
//! caller for no more than both. What was found is kept in variables of the session, which are NULL if it was not; then the statements
//! behind it change nothing, and no row says that anything was done.

use tenure_core::model::claim::{Claim, ClaimId, Name};
use tenure_core::model::step::TOKEN_MEMORY;
use tenure_core::model::token::FLOOR_AHEAD_MAX;
use tenure_sql::{
    Dialect, FORGET_GRAIN, LOOK_AFTER, Plain, Tables, claim_bytes, client_number, micros, push_hex, signed,
};

use crate::dialect::MySqlDialect;
use crate::queues::text::{bytes, literal};

const CLOCK: &str = MySqlDialect::CLOCK;
const BY_KEY: &str = MySqlDialect::BY_KEY;
/// Rows that nobody else has locked, and locks them.
const IF_FREE: &str = "FOR UPDATE SKIP LOCKED";

/// Returns the text for it, if it is for one: several cost less by statements for all of them together. If it is done it is a row: the
/// claim, and its token, or 1 where its hold had not ended and 0 where it had.
pub(crate) fn text(tables: &Tables, work: Plain<'_>) -> Option<String> {
    let text = match work {
        Plain::Claims([one]) => claim(tables, one),
        Plain::Releases([(name, claim)]) => release(tables, name, *claim),
        _ => return None,
    };
    Some(format!("{};\n{text};\nCOMMIT", MySqlDialect::BEGIN.join(";\n")))
}

/// When a row of a mutex is looked at again, whose hold begins or ended just now.
fn forget_at(after: u128) -> String {
    format!("((@tenure_now + {after}) DIV {FORGET_GRAIN} + 1) * {FORGET_GRAIN}")
}

fn hex(claim: ClaimId) -> String {
    let mut text = String::new();
    push_hex(&mut text, &claim_bytes(claim));
    text
}

fn claim(tables: &Tables, claim: &Claim) -> String {
    let Tables { resource, claim: table, .. } = tables;
    let (name, id, floor) =
        (literal(bytes(&claim.resource)), literal(&claim_bytes(claim.id)), signed(claim.floor.get()));
    let (client, ttl) = (client_number(claim.client), micros(claim.terms.ttl));
    let label = literal(claim.terms.label.as_str().as_bytes());
    let token = "GREATEST(@tenure_last + 1, @tenure_now)";
    // The clock is read when the row is locked, and not more often than it must be: that is what costs most here. A claim that is
    // remembered as finished is forgotten by the long way, in time.
    format!(
        "SELECT MAX(name), MAX(GREATEST(last_token, {floor})), MAX({CLOCK}) INTO @tenure_name, @tenure_last, @tenure_now \
           FROM {resource} {BY_KEY} WHERE name = {name} AND used = 0 AND waiting = 0 AND entries = 0 AND fresh_slots = 0 \
           AND last_token < 9223372036854775807 AND finished_until IS NULL AND value_token IS NULL \
           AND (observed_until IS NULL OR observed_until <= {CLOCK}) \
           AND (last_token >= {floor} OR {floor} <= {CLOCK} + {}) {IF_FREE};\n\
         UPDATE {resource} {BY_KEY} SET kind = 1, capacity = 1, used = 1, entries = 1, last_token = {token}, \
           plain_claim = {id}, forget_at = {} WHERE name = @tenure_name;\n\
         INSERT INTO {table} (name, place, token, claim, client, weight, granted_at, expires_at, is_confirmed, ttl, min_hold, \
           lock_delay, label, unless_fresh) SELECT @tenure_name, 0, {token}, {id}, {client}, 1, @tenure_now, \
           @tenure_now + {ttl}, 1, {ttl}, 0, 0, {label}, 0 FROM DUAL WHERE @tenure_name IS NOT NULL;\n\
         SELECT '{}', {token} FROM DUAL WHERE @tenure_name IS NOT NULL",
        FLOOR_AHEAD_MAX.as_micros(),
        forget_at(LOOK_AFTER.as_micros()),
        hex(claim.id),
    )
}

fn release(tables: &Tables, name: &Name, claim: ClaimId) -> String {
    let Tables { resource, claim: table, deletes, .. } = tables;
    let (name, id) = (literal(bytes(name)), literal(&claim_bytes(claim)));
    let gone = match deletes {
        true => format!("DELETE FROM {table}"),
        false => {
            format!("UPDATE {table} {BY_KEY} SET place = -1, claim = NULL, expires_at = 9223372036854775807")
        }
    };
    format!(
        "SELECT MAX(r.name), MAX(c.token), MAX(c.expires_at), MAX({CLOCK}) \
           INTO @tenure_name, @tenure_token, @tenure_end, @tenure_now \
           FROM {resource} r {BY_KEY} STRAIGHT_JOIN {table} c {BY_KEY} ON c.name = r.name AND c.place = 0 AND c.claim = {id} \
           WHERE r.name = {name} AND r.plain_claim = {id} AND r.waiting = 0 AND r.value_token IS NULL \
           AND (r.observed_until IS NULL OR r.observed_until <= {CLOCK}) {IF_FREE};\n\
         UPDATE {resource} {BY_KEY} SET used = 0, entries = 0, idle_since = @tenure_now, plain_claim = NULL, \
           forget_at = GREATEST({}, last_token + 1) WHERE name = @tenure_name;\n\
         {gone} WHERE name = @tenure_name AND place = 0 AND token = @tenure_token;\n\
         SELECT '{}', @tenure_end > @tenure_now FROM DUAL WHERE @tenure_name IS NOT NULL",
        forget_at(TOKEN_MEMORY.as_micros()),
        hex(claim),
    )
}
