//! What a transaction writes.

use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{ClaimId, HoldLimits, Label, Name};
use tenure_core::model::record::{Hold, Record, Waiter};
use tenure_core::model::step::forget_at;
use tenure_core::model::token::Token;
use tenure_core::model::window::{Changes, Window};

use crate::fault::Fault;
use crate::locks::load::{Entries, HOLD, Script, Stored, kind_number, names};
use crate::locks::plain::{plain_claim, plain_hold};
use crate::locks::purge::{FORGET_GRAIN, LOOK_AFTER};
use crate::schema::Tables;
use crate::text::{Dialect, Values, claim_bytes, client_number, micros, moment, signed};

const HEAD: [&str; 13] = [
    "name",
    "kind",
    "capacity",
    "last_token",
    "used",
    "waiting",
    "next_place",
    "fresh_slots",
    "idle_since",
    "entries",
    "finished_until",
    "next_slot",
    "forget_at",
];
const CLAIM: [&str; 16] = [
    "name",
    "place",
    "token",
    "claim",
    "client",
    "weight",
    "slot",
    "granted_at",
    "expires_at",
    "is_confirmed",
    "ttl",
    "max_hold",
    "min_hold",
    "lock_delay",
    "label",
    "unless_fresh",
];

/// A resource whose commands have all been carried out.
pub(crate) struct Written<'a> {
    pub(crate) name: &'a Name,
    pub(crate) stored: &'a Stored,
    /// What has been loaded beside its row.
    pub(crate) rows: &'a Entries,
    pub(crate) window: &'a Window,
    pub(crate) now: Timestamp,
}

/// Rows of one table, for one statement.
#[derive(Default)]
struct Rows(String);

impl Rows {
    fn row<'a>(&mut self, fill: impl FnOnce(&mut Values<'_>) + 'a) {
        self.0.push_str(if self.0.is_empty() { "(" } else { ",(" });
        fill(&mut Values::new(&mut self.0));
        self.0.push(')');
    }

    fn replace<D: Dialect>(&self, script: &mut Script, table: &str, keys: &str, columns: &[&str]) {
        if !self.0.is_empty() {
            let (list, end) = (columns.join(", "), D::or_replace(keys, columns));
            script.add(&format!("INSERT INTO {table} ({list}) VALUES {} {end}", self.0));
        }
    }

    fn remove<D: Dialect>(&self, script: &mut Script, tables: &Tables, table: &str, keys: &str) {
        if !self.0.is_empty() {
            remove::<D>(script, tables, table, keys, &self.0, "");
        }
    }
}

/// Claims that have gone end last, so that a search for the first that ends does not come across them.
const MARK_CLAIM: &str = "place = -1 - place, claim = NULL, expires_at = 9223372036854775807";
const MARK_SLOT: &str = "number = -number";

/// Removes claims or slots; or marks them, where nothing may be deleted.
fn remove<D: Dialect>(script: &mut Script, tables: &Tables, table: &str, keys: &str, rows: &str, also: &str) {
    let mark = if table == tables.claim { MARK_CLAIM } else { MARK_SLOT };
    script.add(&match tables.deletes {
        true => D::delete(table, keys, rows, also),
        // Places, tokens and numbers are not given out twice, so no mark is in the way of another.
        false => D::update(table, keys, rows, also, mark),
    });
}

/// Adds the statements that write what has changed, and returns whether anything has.
pub(crate) fn write<D: Dialect>(
    script: &mut Script,
    tables: &Tables,
    resources: &[Written<'_>],
) -> Result<bool, Fault> {
    let all: Vec<(&Written<'_>, Changes)> = resources
        .iter()
        .map(|written| (written, written.window.changes()))
        .filter(|(_, changes)| *changes != Changes::default())
        .collect();
    if all.is_empty() {
        return Ok(false);
    }
    let (mut heads, mut gone, mut claims, mut finished, mut taken, mut free) = (
        Rows::default(),
        Rows::default(),
        Rows::default(),
        Rows::default(),
        Rows::default(),
        Rows::default(),
    );
    for (written, changes) in &all {
        let Written { name, stored, .. } = written;
        let name_bytes = name.as_str().as_bytes();
        forget::<D>(script, tables, name, changes);
        let own = tables.keeps_holds.then(|| plain_hold(written.window)).flatten();
        push_head::<D>(&mut heads, tables, written, changes, own.as_ref())?;
        push_holds::<D>(&mut claims, &mut gone, written, changes, own.as_ref());
        for place in &changes.gone_waiters {
            gone.row(|row| {
                row.bytes::<D>(name_bytes).number(signed(*place)).number(0);
            });
        }
        changes.waiters.iter().for_each(|waiter| push_waiter::<D>(&mut claims, name, waiter));
        for (claim, until) in &changes.finished {
            finished.row(|row| {
                row.bytes::<D>(name_bytes).bytes::<D>(&claim_bytes(*claim)).number(moment(*until));
            });
        }
        for number in &changes.taken_slots {
            taken.row(|row| {
                row.bytes::<D>(name_bytes).number(signed(*number));
            });
        }
        for (number, slot) in (stored.next_slot..).zip(&changes.free_slots) {
            free.row(|row| {
                row.bytes::<D>(name_bytes).number(number).number(i64::from(*slot));
            });
        }
    }
    let own: &[&str] = if tables.keeps_holds { &HOLD } else { &["plain_claim"] };
    heads.replace::<D>(script, &tables.resource, "name", &[&HEAD, own].concat());
    gone.remove::<D>(script, tables, &tables.claim, "name, place, token");
    claims.replace::<D>(script, &tables.claim, "name, place, token", &CLAIM);
    finished.replace::<D>(script, &tables.finished, "name, claim", &["name", "claim", "until"]);
    taken.remove::<D>(script, tables, &tables.slot, "name, number");
    free.replace::<D>(script, &tables.slot, "name, number", &["name", "number", "slot"]);
    for (written, changes) in &all {
        push_value::<D>(script, tables, written.name, changes);
    }
    Ok(true)
}

/// Removes free slots that are none any more, and claims that are forgotten.
fn forget<D: Dialect>(script: &mut Script, tables: &Tables, name: &Name, changes: &Changes) {
    let row = format!("({})", names::<D>([name]));
    if let Some(from) = changes.gone_slots_from {
        remove::<D>(
            script,
            tables,
            &tables.slot,
            "name",
            &row,
            &format!("AND slot >= {from} AND number > 0"),
        );
    }
    // Those that stay are known to be over by their own time.
    if let Some(until) = changes.forget_finished.filter(|_| tables.deletes) {
        script.add(&D::delete(&tables.finished, "name", &row, &format!("AND until <= {}", moment(until))));
    }
}

fn push_head<D: Dialect>(
    heads: &mut Rows,
    tables: &Tables,
    written: &Written<'_>,
    changes: &Changes,
    own: Option<&Hold>,
) -> Result<(), Fault> {
    let stored = written.stored;
    let Some(head) = changes.head.as_ref().or(stored.head.as_ref()) else {
        return Err(Fault::internal("a record changed that has no head"));
    };
    let forget_at = match forget_at(written.window, false, written.now) {
        Ok(at) => at.unwrap_or(written.now + LOOK_AFTER).max(stored.observed_until.unwrap_or_default()),
        Err(miss) => return Err(Fault::internal(format!("when to forget a record is not known: {miss:?}"))),
    };
    heads.row(|row| {
        row.bytes::<D>(written.name.as_str().as_bytes()).number(kind_number(head.kind));
        row.number(i64::from(head.capacity)).number(signed(head.last_token.get()));
        row.number(i64::from(head.used)).number(i64::from(head.waiting));
        row.number(signed(head.next_place)).number(i64::from(head.fresh_slots));
        row.number(moment(head.idle_since)).number(stored.entries + changes.entries);
        row.maybe(written.window.last_finished().map(moment));
        row.number(stored.next_slot + changes.free_slots.len() as i64).number(moment(coarse(forget_at)));
        match own {
            _ if !tables.keeps_holds => {
                push_claim::<D>(row, plain_claim(written.window, stored.entries + changes.entries));
            }
            Some(hold) => push_own_hold::<D>(row, hold),
            None => HOLD.iter().for_each(|_| {
                row.maybe(None);
            }),
        }
    });
    Ok(())
}

/// The columns [`HOLD`].
fn push_own_hold<D: Dialect>(row: &mut Values<'_>, hold: &Hold) {
    push_claim::<D>(row, hold.claim);
    row.number(signed(hold.token.get())).number(client_number(hold.client));
    row.number(moment(hold.granted_at)).number(moment(hold.expires_at));
    row.number(i64::from(hold.is_confirmed)).number(micros(hold.ttl));
    row.bytes::<D>(hold.label.as_str().as_bytes());
}

/// The rows of holds: those that come and go, but for the one that is a part of its resource's row. That one may have been a row, or
/// become one.
fn push_holds<D: Dialect>(
    claims: &mut Rows,
    gone: &mut Rows,
    written: &Written<'_>,
    changes: &Changes,
    own: Option<&Hold>,
) {
    let Written { name, stored, rows, window, .. } = written;
    let is_own = |token: Token| own.is_some_and(|own| own.token == token);
    let was_own = |token: Token| stored.hold.as_ref().is_some_and(|hold| hold.token == token);
    let became_own = own.map(|own| own.token).filter(|token| rows.holds.contains_key(token));
    for token in changes.gone_holds.iter().filter(|token| !was_own(**token)).chain(&became_own) {
        gone.row(|row| {
            row.bytes::<D>(name.as_str().as_bytes()).number(0).number(signed(token.get()));
        });
    }
    changes
        .holds
        .iter()
        .filter(|hold| !is_own(hold.token))
        .for_each(|hold| push_hold::<D>(claims, name, hold));
    let is_written = |token: Token| changes.holds.iter().any(|hold| hold.token == token);
    if let Some(hold) = &stored.hold
        && !is_own(hold.token)
        && !is_written(hold.token)
        && matches!(window.hold(hold.token), Ok(Some(_)))
    {
        push_hold::<D>(claims, name, hold);
    }
}

/// Rounds up. The moment is indexed, and a database that need not write its index for a row that is claimed and released
/// thousands of times (PostgreSQL: heap-only tuples) is several times as fast there.
fn coarse(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.micros().div_ceil(FORGET_GRAIN).saturating_mul(FORGET_GRAIN))
}

fn push_hold<D: Dialect>(rows: &mut Rows, name: &Name, hold: &Hold) {
    rows.row(|row| {
        row.bytes::<D>(name.as_str().as_bytes()).number(0).number(signed(hold.token.get()));
        push_claim::<D>(row, hold.claim);
        row.number(client_number(hold.client)).number(i64::from(hold.weight));
        row.maybe(hold.slot.map(i64::from)).number(moment(hold.granted_at)).number(moment(hold.expires_at));
        row.number(i64::from(hold.is_confirmed)).number(micros(hold.ttl));
        push_rest::<D>(row, &hold.limits, &hold.label, false);
    });
}

fn push_waiter<D: Dialect>(rows: &mut Rows, name: &Name, waiter: &Waiter) {
    rows.row(|row| {
        row.bytes::<D>(name.as_str().as_bytes()).number(signed(waiter.place)).number(0);
        push_claim::<D>(row, Some(waiter.claim));
        row.number(client_number(waiter.client)).number(i64::from(waiter.weight));
        row.maybe(None).number(0).number(moment(waiter.expires_at)).number(0).number(micros(waiter.ttl));
        push_rest::<D>(row, &waiter.limits, &waiter.label, waiter.unless_fresh);
    });
}

fn push_claim<D: Dialect>(row: &mut Values<'_>, claim: Option<ClaimId>) {
    match claim {
        Some(claim) => row.bytes::<D>(&claim_bytes(claim)),
        None => row.maybe(None),
    };
}

fn push_rest<D: Dialect>(row: &mut Values<'_>, limits: &HoldLimits, label: &Label, unless_fresh: bool) {
    row.maybe(limits.max_hold.map(micros)).number(micros(limits.min_hold)).number(micros(limits.lock_delay));
    row.bytes::<D>(label.as_str().as_bytes()).number(i64::from(unless_fresh));
}

fn push_value<D: Dialect>(script: &mut Script, tables: &Tables, name: &Name, changes: &Changes) {
    let Some(value) = &changes.value else { return };
    let (name, table) = (names::<D>([name]), &tables.resource);
    let Some(value) = value else {
        script.add(&format!("UPDATE {table} SET value = NULL, value_token = NULL WHERE name = {name}"));
        return;
    };
    let (mut bytes, mut keep) = (String::new(), String::new());
    D::push_bytes(&mut bytes, &value.bytes);
    Values::new(&mut keep).maybe(value.keep_until.map(moment));
    script.add(&format!(
        "UPDATE {table} SET value = {bytes}, value_token = {}, value_fresh_until = {}, value_keep_until = {keep} \
         WHERE name = {name}",
        signed(value.token.get()),
        moment(value.fresh_until)
    ));
}
