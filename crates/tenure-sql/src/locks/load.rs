//! What a transaction reads: the statements, and what their rows say.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::clock::Timestamp;
use tenure_core::engine::Incarnation;
use tenure_core::model::claim::{ClaimId, HoldLimits, Kind, Name};
use tenure_core::model::record::{Head, Hold, Value, Waiter};
use tenure_core::model::token::Token;
use tenure_core::model::window::{Loaded, Reach};

use crate::database::Row;
use crate::fault::Fault;
use crate::schema::Tables;
use crate::text::{Columns, Dialect, Values, claim_bytes, signed};

/// Records with more entries than this are loaded in part.
pub(crate) const ENTRIES_WHOLE: i64 = 64;

/// Statements that are sent in one piece.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) text: String,
    statements: usize,
}

impl Script {
    /// Adds a statement, and returns the number of its answer.
    pub(crate) fn add(&mut self, statement: &str) -> usize {
        self.text.push_str(statement);
        self.text.push_str(";\n");
        self.statements += 1;
        self.statements - 1
    }
}

/// The columns of a hold that is a part of its resource's row; the first is NULL if there is none.
pub(crate) const HOLD: [&str; 8] = [
    "hold_claim",
    "hold_token",
    "hold_client",
    "hold_granted_at",
    "hold_expires_at",
    "hold_is_confirmed",
    "hold_ttl",
    "hold_label",
];

/// The part of a resource's row that every step reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) head: Option<Head>,
    /// How many holds and waiters there are.
    pub(crate) entries: i64,
    pub(crate) finished_until: Option<Timestamp>,
    /// The number that the next free slot is stored under.
    pub(crate) next_slot: i64,
    pub(crate) value: Option<Value>,
    /// Until when it has observers.
    pub(crate) observed_until: Option<Timestamp>,
    /// The hold that is a part of this row.
    pub(crate) hold: Option<Hold>,
}

pub(crate) fn head_columns<D: Dialect>(tables: &Tables, with_bytes: bool) -> String {
    let bytes = if with_bytes { D::hex("value") } else { "NULL".to_owned() };
    let hold = match tables.keeps_holds {
        true => {
            let read = |name: &&str| match *name {
                "hold_claim" | "hold_label" => D::hex(name),
                name => name.to_owned(),
            };
            HOLD.iter().map(read).collect::<Vec<_>>().join(", ")
        }
        false => "NULL".to_owned(),
    };
    format!(
        "{}, kind, capacity, last_token, used, waiting, next_place, fresh_slots, idle_since, entries, finished_until, \
         next_slot, observed_until, value_token, value_fresh_until, value_keep_until, {bytes}, {hold}",
        D::hex("name")
    )
}

/// Reads a row of [`head_columns`].
pub(crate) fn stored(row: &Row) -> Result<(Name, Stored), Fault> {
    let mut columns = Columns::of(row);
    let name = read_name(&columns.bytes()?)?;
    let kind = columns.maybe()?;
    let mut head = Head::new(Kind::Mutex, columns.maybe()?.unwrap_or(1).try_into().unwrap_or(u32::MAX));
    head.last_token = columns.token()?;
    (head.used, head.waiting) = (columns.small()?, columns.small()?);
    (head.next_place, head.fresh_slots) = (columns.unsigned()?, columns.small()?);
    head.idle_since = columns.moment()?;
    let entries = columns.number()?;
    let finished_until = columns.maybe()?.map(|at| Timestamp::from_micros(at.unsigned_abs()));
    let next_slot = columns.number()?;
    let observed_until = columns.maybe()?.map(|at| Timestamp::from_micros(at.unsigned_abs()));
    let value = match columns.maybe()? {
        Some(token) => Some(Value {
            token: Token::new(token.unsigned_abs()),
            fresh_until: columns.moment()?,
            keep_until: columns.maybe()?.map(|at| Timestamp::from_micros(at.unsigned_abs())),
            bytes: columns.maybe_bytes()?.unwrap_or_default().into(),
        }),
        None => {
            columns.skip(3);
            None
        }
    };
    let hold = own_hold(&mut columns)?;
    let head = match kind {
        Some(kind) => Some(Head { kind: kind_of(kind)?, ..head }),
        None => None,
    };
    Ok((name, Stored { head, entries, finished_until, next_slot, value, observed_until, hold }))
}

/// Reads the columns [`HOLD`].
fn own_hold(columns: &mut Columns<'_>) -> Result<Option<Hold>, Fault> {
    let Some(claim) = columns.maybe_claim()? else { return Ok(None) };
    let (token, client) = (columns.token()?, columns.client()?);
    let (granted_at, expires_at) = (columns.moment()?, columns.moment()?);
    let (is_confirmed, ttl) = (columns.number()? != 0, columns.period()?);
    Ok(Some(Hold {
        claim: Some(claim),
        client,
        weight: 1,
        slot: None,
        token,
        granted_at,
        expires_at,
        is_confirmed,
        ttl,
        limits: HoldLimits::default(),
        label: columns.label()?,
    }))
}

/// Reads a name that was stored as bytes.
///
/// # Errors
/// If it is none.
pub fn read_name(bytes: &[u8]) -> Result<Name, Fault> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| Name::new(text).ok()).ok_or_else(|| Fault::internal("a stored name is none"))
}

pub(crate) fn kind_number(kind: Kind) -> i64 {
    match kind {
        Kind::Mutex => 1,
        Kind::RwLock => 2,
        Kind::Semaphore => 3,
        Kind::SlotPool => 4,
        _ => 0,
    }
}

fn kind_of(number: i64) -> Result<Kind, Fault> {
    match number {
        1 => Ok(Kind::Mutex),
        2 => Ok(Kind::RwLock),
        3 => Ok(Kind::Semaphore),
        4 => Ok(Kind::SlotPool),
        _ => Err(Fault::internal(format!("{number} is no kind"))),
    }
}

pub(crate) fn claim_columns<D: Dialect>() -> String {
    format!(
        "{}, place, token, {}, client, weight, slot, granted_at, expires_at, is_confirmed, ttl, max_hold, min_hold, \
         lock_delay, {}, unless_fresh",
        D::hex("name"),
        D::hex("claim"),
        D::hex("label")
    )
}

/// A row of the claims: what holds or rests, or waits.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Hold(Hold),
    Waiter(Waiter),
}

/// Reads a row of [`claim_columns`].
pub(crate) fn entry(row: &Row) -> Result<(Name, Entry), Fault> {
    let mut columns = Columns::of(row);
    let name = read_name(&columns.bytes()?)?;
    let (place, token) = (columns.unsigned()?, columns.token()?);
    let (claim, client) = (columns.maybe_claim()?, columns.client()?);
    let (weight, slot) = (columns.small()?, columns.maybe()?);
    let (granted_at, expires_at) = (columns.moment()?, columns.moment()?);
    let is_confirmed = columns.number()? != 0;
    let ttl = columns.period()?;
    let max_hold = columns.maybe()?.map(|micros| std::time::Duration::from_micros(micros.unsigned_abs()));
    let limits = HoldLimits { max_hold, min_hold: columns.period()?, lock_delay: columns.period()? };
    let label = columns.label()?;
    let unless_fresh = columns.number()? != 0;
    if place == 0 {
        let slot = slot.and_then(|slot| u32::try_from(slot).ok());
        let hold = Hold {
            claim,
            client,
            weight,
            slot,
            token,
            granted_at,
            expires_at,
            is_confirmed,
            ttl,
            limits,
            label,
        };
        return Ok((name, Entry::Hold(hold)));
    }
    let claim = claim.ok_or_else(|| Fault::internal("a waiter has no claim"))?;
    let waiter = Waiter { place, claim, client, weight, expires_at, ttl, limits, label, unless_fresh };
    Ok((name, Entry::Waiter(waiter)))
}

/// Appends names as literals, with commas between.
pub(crate) fn names<'a, D: Dialect>(names: impl IntoIterator<Item = &'a Name>) -> String {
    let mut text = String::new();
    let mut values = Values::new(&mut text);
    for name in names {
        values.bytes::<D>(name.as_str().as_bytes());
    }
    text
}

pub(crate) fn claims<D: Dialect>(claims: impl IntoIterator<Item = ClaimId>) -> String {
    let mut text = String::new();
    let mut values = Values::new(&mut text);
    for claim in claims {
        values.bytes::<D>(&claim_bytes(claim));
    }
    text
}

/// What has been loaded of a resource beside its row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    pub(crate) holds: BTreeMap<Token, Hold>,
    pub(crate) waiters: BTreeMap<u64, Waiter>,
    followers: BTreeMap<u64, Option<u64>>,
    finished: Option<BTreeSet<ClaimId>>,
    free_slots: Vec<(u64, u32)>,
}

impl Entries {
    pub(crate) fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Hold(hold) => drop(self.holds.insert(hold.token, hold)),
            Entry::Waiter(waiter) => drop(self.waiters.insert(waiter.place, waiter)),
        }
    }

    /// Returns it all as a window is made of it.
    pub(crate) fn loaded(&self, stored: &Stored, reach: Reach) -> Loaded {
        Loaded {
            head: stored.head.clone(),
            finished_until: stored.finished_until,
            value: stored.value.clone(),
            holds: self.holds.values().chain(&stored.hold).cloned().collect(),
            waiters: self.waiters.values().cloned().collect(),
            is_complete: reach.entries.is_none(),
            followers: self.followers.clone(),
            finished: self.finished.clone(),
            free_slots: self.free_slots.iter().copied().collect(),
            has_all_free_slots: self.free_slots.len() < reach.free_slots,
        }
    }
}

/// The numbers of the answers to a [`part`].
#[derive(Debug, Default)]
pub(crate) struct Part {
    entries: Vec<usize>,
    followers: Option<usize>,
    finished: Option<usize>,
    free_slots: Option<usize>,
}

/// Adds statements that load a resource's entries, as far as a reach says.
pub(crate) fn part<D: Dialect>(
    script: &mut Script,
    tables: &Tables,
    name: &Name,
    reach: Reach,
    claim_ids: &[ClaimId],
    tokens: &[Token],
    lock: &str,
) -> Part {
    let (columns, table, index) = (claim_columns::<D>(), &tables.claim, D::BY_CLAIM);
    let name = names::<D>([name]);
    let mut part = Part::default();
    let add = |script: &mut Script, rest: String| {
        script.add(&format!("SELECT {columns} FROM {table} {index} WHERE name = {name} {rest} {lock}"))
    };
    match reach.entries {
        None => part.entries.push(add(script, "AND place >= 0 ORDER BY place, token".to_owned())),
        Some(most) => {
            for order in [
                "place = 0 ORDER BY token",
                "place = 0 ORDER BY expires_at, token",
                "place > 0 ORDER BY place",
                "place > 0 ORDER BY expires_at, place",
            ] {
                part.entries.push(add(script, format!("AND {order} LIMIT {most}")));
            }
            if !tokens.is_empty() {
                let mut list = String::new();
                let mut values = Values::new(&mut list);
                for token in tokens {
                    values.number(signed(token.get()));
                }
                part.entries.push(add(script, format!("AND place = 0 AND token IN ({list})")));
            }
            if !claim_ids.is_empty() {
                let list = claims::<D>(claim_ids.iter().copied());
                part.entries.push(add(script, format!("AND claim IN ({list}) ORDER BY claim")));
                let behind =
                    format!("SELECT MIN(b.place) FROM {table} b WHERE b.name = {name} AND b.place > a.place");
                let all = format!(
                    "SELECT a.place, ({behind}) FROM {table} a {index} WHERE a.name = {name} AND a.place > 0 AND a.claim IN ({list})"
                );
                part.followers = Some(script.add(&all));
                part.entries.push(add(script, format!(
                    "AND place IN (SELECT ({behind}) FROM {table} a WHERE a.name = {name} AND a.place > 0 AND a.claim IN ({list}))"
                )));
            }
        }
    }
    if reach.finished && !claim_ids.is_empty() {
        let list = claims::<D>(claim_ids.iter().copied());
        let hex = D::hex("claim");
        part.finished = Some(script.add(&format!(
            "SELECT {hex} FROM {} WHERE name = {name} AND claim IN ({list}) AND until > {}",
            tables.finished,
            D::CLOCK
        )));
    }
    if reach.free_slots > 0 {
        part.free_slots = Some(script.add(&format!(
            "SELECT number, slot FROM {} WHERE name = {name} AND number > 0 ORDER BY number LIMIT {}",
            tables.slot, reach.free_slots
        )));
    }
    part
}

impl Part {
    /// Reads the answers to its statements.
    pub(crate) fn read(&self, answers: &[Vec<Row>]) -> Result<Entries, Fault> {
        let mut entries = Entries::default();
        for row in self.entries.iter().flat_map(|at| rows(answers, *at)) {
            entries.add(entry(row)?.1);
        }
        for row in self.followers.into_iter().flat_map(|at| rows(answers, at)) {
            let mut columns = Columns::of(row);
            let place = columns.unsigned()?;
            entries.followers.insert(place, columns.maybe()?.map(i64::unsigned_abs));
        }
        if let Some(at) = self.finished {
            let claims =
                rows(answers, at).iter().filter_map(|row| Columns::of(row).maybe_claim().transpose());
            entries.finished = Some(claims.collect::<Result<_, _>>()?);
        }
        for row in self.free_slots.into_iter().flat_map(|at| rows(answers, at)) {
            let mut columns = Columns::of(row);
            entries.free_slots.push((columns.unsigned()?, columns.small()?));
        }
        Ok(entries)
    }
}

pub(crate) fn rows(answers: &[Vec<Row>], at: usize) -> &[Row] {
    answers.get(at).map_or(&[], Vec::as_slice)
}

/// The statement that asks for the time, and whose it is.
pub(crate) fn moment_asked<D: Dialect>() -> String {
    format!("SELECT {}, {}", D::CLOCK, D::LIFE)
}

/// Reads the answer to [`moment_asked`].
pub(crate) fn moment(answers: &[Vec<Row>], at: usize) -> Result<(Timestamp, Incarnation), Fault> {
    let row = rows(answers, at).first().ok_or_else(|| Fault::internal("the clock is not answered"))?;
    let mut columns = Columns::of(row);
    Ok((columns.moment()?, Incarnation(columns.unsigned()?)))
}
