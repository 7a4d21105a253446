//! The short path of a free mutex and its release, where the hold is a part of the resource's row.
//!
//! One that is alone is one UPDATE that was prepared, and a transaction by itself: the server says in its answer how many rows it has
//! changed, and the number that `LAST_INSERT_ID` was given, which is the token. Several are an UPDATE of all rows at once, which are
//! locked before.
//!
//! What somebody else has locked is not waited for: the long way behind this waits for locks, and its caller for no more than both.

use tenure_core::model::claim::{Claim, ClaimId, Name};
use tenure_core::model::step::TOKEN_MEMORY;
use tenure_core::model::token::FLOOR_AHEAD_MAX;
use tenure_sql::{
    Connection, Database, Dialect, FORGET_GRAIN, Fault, LOOK_AFTER, Plain, Purpose, Row, Tables, claim_bytes,
    client_number, micros, push_hex, signed,
};

use crate::dialect::MySqlDialect;
use crate::engine::MySql;
use crate::queues::text::{bytes, literal};

const CLOCK: &str = MySqlDialect::CLOCK;
const BY_KEY: &str = MySqlDialect::BY_KEY;
/// The moment at which rows were locked.
const NOW: &str = "@tenure_now";
/// How many rows one UPDATE is for at most: for each it goes through the names of all.
const UPDATE_MAX: usize = 64;
/// MariaDB's way to wait for no row in one statement, and to give a statement that is prepared its values in a text. MySQL has neither, so
/// that there one that is alone goes as several do.
const WITHOUT_WAITING: &str = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR";
/// What a connection has prepared: to read such a text takes the server longer than to carry it out.
const CLAIM: &str = "tenure_claim";
const RELEASE: &str = "tenure_release";
/// A value that is given when the statement is executed.
const UNKNOWN: &str = "?";

/// Carries it out, and returns a row for each that was done: the claim, and its token, or 1 where its hold had not ended and 0 where it
/// had. `None` if the tables have no holds in resources' rows, or nothing is to be done.
pub(crate) async fn run(database: &MySql, work: Plain<'_>) -> Option<Result<Vec<Row>, Fault>> {
    if work.count() == 0 || !database.tables().keeps_holds {
        return None;
    }
    Some(carry_out(database, work).await)
}

async fn carry_out(database: &MySql, work: Plain<'_>) -> Result<Vec<Row>, Fault> {
    let mut connection = database.lend(Purpose::Any).await?;
    let tables = database.tables();
    if !connection.is_mariadb() || work.count() > 1 {
        let answers = connection.run(several(tables, work)).await?;
        connection.keep();
        return Ok(answers.into_iter().flatten().collect());
    }
    let (statement, values, claim) = match work {
        Plain::Claims(claims) => (CLAIM, Values::of(claims).in_order(), claims[0].id),
        Plain::Releases(releases) => (RELEASE, Holds::of(releases).in_order(), releases[0].1),
    };
    let done = connection.execute(|| prepare(tables), &format!("EXECUTE {statement} USING {values}")).await;
    // It was a transaction by itself, of which nothing is left if it failed since a row is locked.
    if done.is_ok() || matches!(done, Err(Fault::Locked(_))) {
        connection.keep();
    }
    let (changed, number) = done?;
    Ok(Vec::from_iter((changed > 0).then(|| vec![Some(hex(claim)), Some(number.to_string())])))
}

/// The statements that prepare those for one that is alone. None of these has a quote in it.
fn prepare(tables: &Tables) -> String {
    let (claim, release) = (grant(tables, &Values::unknown(), CLOCK), end(tables, &Holds::unknown(), CLOCK));
    format!(
        "PREPARE {CLAIM} FROM '{WITHOUT_WAITING} {claim}';\nPREPARE {RELEASE} FROM '{WITHOUT_WAITING} {release}'"
    )
}

/// The text for several. With their rows locked nothing about them changes between its statements but the clock, which is read once.
fn several(tables: &Tables, work: Plain<'_>) -> String {
    let resource = &tables.resource;
    let mut script: Vec<String> = MySqlDialect::BEGIN.iter().map(|text| (*text).to_owned()).collect();
    // Of names alone the server would rather read the whole index, and lock it.
    let lock = |names: &str| {
        format!(
            "SELECT MAX({CLOCK}), MAX(used) INTO {NOW}, @tenure_used FROM {resource} {BY_KEY} \
             WHERE name IN ({names}) FOR UPDATE NOWAIT"
        )
    };
    let hex = MySqlDialect::hex("hold_claim");
    match work {
        Plain::Claims(claims) => {
            let names = list(claims.iter().map(|claim| literal(bytes(&claim.resource))));
            let ids = list(claims.iter().map(|claim| id(claim.id)));
            script.push(lock(&names));
            script.extend(claims.chunks(UPDATE_MAX).map(|some| grant(tables, &Values::of(some), NOW)));
            script.push(format!(
                "SELECT {hex}, hold_token FROM {resource} {BY_KEY} WHERE name IN ({names}) AND hold_claim IN ({ids}) \
                 AND hold_granted_at = {NOW}"
            ));
        }
        Plain::Releases(releases) => {
            let holds = Holds::of(releases);
            script.push(lock(&holds.names));
            script.push(format!(
                "SELECT {hex}, hold_expires_at > {NOW} FROM {resource} {BY_KEY} WHERE {}",
                holds.are_all(NOW)
            ));
            script.push(end(tables, &holds, NOW));
        }
    }
    script.push("COMMIT".to_owned());
    script.join(";\n")
}

/// What claims are made with, as expressions of a statement for all of them.
struct Values {
    names: String,
    floor: String,
    above_floor: String,
    claim: String,
    /// All of them.
    claims: String,
    client: String,
    ttl: String,
    label: String,
}

impl Values {
    fn of(claims: &[&Claim]) -> Values {
        let names = list(claims.iter().map(|claim| literal(bytes(&claim.resource))));
        let text = |value: &dyn Fn(&Claim) -> String| {
            pick(&names, claims.iter().map(|claim| value(claim)).collect())
        };
        let number = |value: &dyn Fn(&Claim) -> i64| match claims {
            [claim] => value(claim).to_string(),
            // What is picked is a text, and a text beside a number makes a floating one.
            _ => format!("CAST({} AS SIGNED)", text(&|claim| value(claim).to_string())),
        };
        Values {
            floor: number(&|claim| signed(claim.floor.get())),
            above_floor: number(&|claim| signed(claim.floor.get()).saturating_add(1)),
            claim: text(&|claim| id(claim.id)),
            claims: list(claims.iter().map(|claim| id(claim.id))),
            client: number(&|claim| client_number(claim.client)),
            ttl: number(&|claim| micros(claim.terms.ttl)),
            label: text(&|claim| literal(claim.terms.label.as_str().as_bytes())),
            names,
        }
    }

    /// What is given when the statement is executed.
    fn unknown() -> Values {
        let [names, floor, above_floor, claim, claims, client, ttl, label] = [UNKNOWN; 8].map(str::to_owned);
        Values { names, floor, above_floor, claim, claims, client, ttl, label }
    }

    /// As they stand in [`grant`].
    fn in_order(&self) -> String {
        let Values { names, floor, above_floor, claim, claims, client, ttl, label } = self;
        [above_floor, claim, client, ttl, ttl, label, names, floor, floor, claims]
            .map(String::as_str)
            .join(",")
    }
}

/// Which holds are released, and of what. No claim is made for two names.
struct Holds {
    names: String,
    claims: String,
}

impl Holds {
    fn of(releases: &[(&Name, ClaimId)]) -> Holds {
        let names = list(releases.iter().map(|(name, _)| literal(bytes(name))));
        Holds { names, claims: list(releases.iter().map(|(_, claim)| id(*claim))) }
    }

    fn unknown() -> Holds {
        Holds { names: UNKNOWN.to_owned(), claims: UNKNOWN.to_owned() }
    }

    /// As they stand in [`end`].
    fn in_order(&self) -> String {
        format!("{},{}", self.names, self.claims)
    }

    /// The condition that one of them is all that a record consists of.
    fn are_all(&self, now: &str) -> String {
        format!(
            "name IN ({}) AND hold_claim IN ({}) AND entries = 1 AND waiting = 0 AND value_token IS NULL \
             AND (observed_until IS NULL OR observed_until <= {now})",
            self.names, self.claims
        )
    }
}

/// The statement that grants what is free. The clock is read once a row, when it is locked: of the columns of one table, each is set
/// before those behind it are made.
///
/// Whether a claim is remembered as finished is looked for when its row is locked: who is withdrawn at this moment would be granted after
/// all. So that look is compared with something of the row (which is true), and cannot be done before the row is read.
fn grant(tables: &Tables, values: &Values, now: &str) -> String {
    let Values { names, floor, above_floor, claim, claims, client, ttl, label } = values;
    let Tables { resource, finished, .. } = tables;
    format!(
        "UPDATE {resource} {BY_KEY} SET kind = 1, capacity = 1, used = 1, entries = 1, hold_granted_at = {now}, \
         last_token = LAST_INSERT_ID(GREATEST(last_token + 1, {above_floor}, hold_granted_at)), hold_token = last_token, \
         hold_claim = {claim}, hold_client = {client}, hold_expires_at = hold_granted_at + {ttl}, hold_is_confirmed = 1, \
         hold_ttl = {ttl}, hold_label = {label}, forget_at = {} \
         WHERE name IN ({names}) AND used = 0 AND waiting = 0 AND entries = 0 AND fresh_slots = 0 \
         AND last_token < 9223372036854775807 AND value_token IS NULL AND (observed_until IS NULL OR observed_until <= {now}) \
         AND (last_token >= {floor} OR {floor} <= {now} + {}) \
         AND (finished_until IS NULL OR finished_until <= {now} OR NOT EXISTS (SELECT 1 FROM {finished} f {BY_KEY} \
           WHERE f.name = {resource}.name AND f.claim IN ({claims}) AND f.until > {resource}.capacity))",
        forget_at("hold_granted_at", LOOK_AFTER.as_micros()),
        FLOOR_AHEAD_MAX.as_micros(),
    )
}

/// The statement that ends holds which are all that their records consist of. Of a hold that is gone no other column means anything.
fn end(tables: &Tables, holds: &Holds, now: &str) -> String {
    format!(
        "UPDATE {} {BY_KEY} SET used = 0, entries = 0, hold_claim = NULL, idle_since = {now}, \
         hold_is_confirmed = LAST_INSERT_ID(hold_expires_at > idle_since), forget_at = GREATEST({}, last_token + 1) WHERE {}",
        tables.resource,
        forget_at("idle_since", TOKEN_MEMORY.as_micros()),
        holds.are_all(now)
    )
}

/// When a row of a mutex is looked at again, whose hold begins or ended at a moment.
fn forget_at(moment: &str, after: u128) -> String {
    format!("(({moment} + {after}) DIV {FORGET_GRAIN} + 1) * {FORGET_GRAIN}")
}

/// The value of the row's name, where there may be one for each.
fn pick(names: &str, values: Vec<String>) -> String {
    match &values[..] {
        [first, rest @ ..] if rest.iter().all(|value| value == first) => first.clone(),
        _ => format!("ELT(FIELD(name, {names}), {})", values.join(",")),
    }
}

fn list(values: impl Iterator<Item = String>) -> String {
    values.collect::<Vec<_>>().join(",")
}

fn id(claim: ClaimId) -> String {
    literal(&claim_bytes(claim))
}

fn hex(claim: ClaimId) -> String {
    let mut text = String::new();
    push_hex(&mut text, &claim_bytes(claim));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_prepared_is_given_as_many_values_as_it_has_places() {
        let tables = Tables::with_holds("tenure_");
        let (values, holds) = (Values::unknown(), Holds::unknown());
        let count = |text: &str| text.matches(UNKNOWN).count();
        assert_eq!(count(&grant(&tables, &values, CLOCK)), count(&values.in_order()));
        assert_eq!(count(&end(&tables, &holds, CLOCK)), count(&holds.in_order()));
        assert_eq!(prepare(&tables).matches('\'').count(), 4, "two texts between quotes, and none in them");
    }
}
