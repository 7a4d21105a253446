//! The short path: a free mutex with nothing special is claimed by one statement, and released by one. A waiter for
//! one is put in line by another, and keeps its place by one.
//!
//! A transaction around `step` is two round trips and some ten statements. For the commonest of all cases the answer of
//! `step` is known beforehand, so one statement does it all, where the dialect has one that can: it says itself under
//! which condition it applies, and whatever it does not answer takes the long way. The resource's row says whose
//! *plain* hold the record consists of, if it is nothing else but claims that are remembered as finished: what a statement sees in
//! other tables may be older than the row it has waited for.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tenure_core::engine::{ClaimAnswer, Incarnation, ReleaseRequest};
use tenure_core::model::claim::{Claim, ClaimId, Grant, HoldLimits, Kind, Name, Waiting};
use tenure_core::model::record::{Hold, Record};
use tenure_core::model::step::Release;
use tenure_core::model::token::Token;
use tenure_core::model::window::Window;

use crate::database::{Connection, Database, Row};
use crate::fault::Fault;
use crate::locks::load::claims as claim_list;
use crate::text::{Columns, Dialect, Values, claim_bytes, client_number, micros, signed};

/// Whose hold the record consists of, if that is all there is to it.
pub(crate) fn plain_claim(window: &Window, entries: i64) -> Option<ClaimId> {
    let is_alone = entries == 1 && window.head().ok()??.waiting == 0 && window.value().ok()?.is_none();
    plain_hold(window).filter(|_| is_alone)?.claim
}

/// The only hold of a mutex, if there is nothing special about it.
pub(crate) fn plain_hold(window: &Window) -> Option<Hold> {
    let kind = window.head().ok()??.kind;
    let mut holds = window.holds(2).ok()?;
    let hold = holds.pop().filter(|_| kind == Kind::Mutex && holds.is_empty())?;
    (hold.claim.is_some() && hold.limits == HoldLimits::default()).then_some(hold)
}

/// What a statement of the short path does for several resources, in order of their names.
#[derive(Clone, Copy, Debug)]
pub enum Plain<'a> {
    /// As [`Dialect::claim_plain`].
    Claims(&'a [&'a Claim]),
    /// As [`Dialect::release_plain`].
    Releases(&'a [(&'a Name, ClaimId)]),
}

impl Plain<'_> {
    /// For how many.
    pub fn count(&self) -> usize {
        match self {
            Plain::Claims(claims) => claims.len(),
            Plain::Releases(releases) => releases.len(),
        }
    }
}

fn is_plain(claim: &Claim) -> bool {
    let terms = &claim.terms;
    terms.kind == Kind::Mutex
        && terms.limits == HoldLimits::default()
        && !terms.unless_fresh
        && !claim.floor_forced
}

/// Claims what is free, and puts waiters in line for mutexes that are held. Those that are not in the answer are to
/// be asked for in a transaction.
pub(crate) async fn claim<D: Database>(
    database: &D,
    claims: &[Claim],
) -> Result<HashMap<ClaimId, ClaimAnswer>, Fault> {
    // One for each name, in the order in which rows are locked.
    let mut first: BTreeMap<&Name, &Claim> = BTreeMap::new();
    for claim in claims {
        first.entry(&claim.resource).or_insert(claim);
    }
    let plain: Vec<&Claim> = first.values().copied().filter(|claim| is_plain(claim)).collect();
    let granted = match database.run_plain(Plain::Claims(&plain)).await {
        Some(rows) => unless_late(rows)?,
        None => {
            let rows = claim_rows::<D>(plain.iter());
            let statement = (!rows.is_empty()).then(|| D::Dialect::claim_plain(database.tables(), &rows));
            run(database, statement.flatten()).await?
        }
    };
    let mut answers = HashMap::new();
    for row in granted {
        let mut columns = Columns::of(&row);
        let Some(id) = columns.maybe_claim()? else { continue };
        let token = columns.token()?;
        let claim = claims.iter().find(|claim| claim.id == id);
        let claim = claim.ok_or_else(|| Fault::internal("a claim was granted that nobody made"))?;
        // The client counts from before it sent this.
        answers.insert(id, ClaimAnswer::Granted(Grant { token, slot: None, ends_in: claim.terms.ttl }));
    }
    let waits = |claim: &&&Claim| is_plain(claim) && claim.wait && !answers.contains_key(&claim.id);
    let rows = claim_rows::<D>(first.values().filter(waits));
    for row in
        run(database, (!rows.is_empty()).then(|| D::Dialect::wait_plain(database.tables(), &rows)).flatten())
            .await?
    {
        let mut columns = Columns::of(&row);
        let Some(id) = columns.maybe_claim()? else { continue };
        let (position, horizon) = (columns.small()?, columns.token()?);
        let look_in = columns.maybe()?.map(|micros| Duration::from_micros(micros.unsigned_abs()));
        let incarnation = Incarnation(columns.unsigned()?);
        answers.insert(id, ClaimAnswer::Waiting(Waiting { position, horizon, look_in }, incarnation));
    }
    Ok(answers)
}

fn claim_rows<'a, D: Database>(claims: impl Iterator<Item = &'a &'a Claim>) -> String {
    let mut rows = String::new();
    for claim in claims {
        push_row(&mut rows, |row| {
            row.bytes::<D::Dialect>(claim.resource.as_str().as_bytes()).number(signed(claim.floor.get()));
            row.bytes::<D::Dialect>(&claim_bytes(claim.id)).number(client_number(claim.client));
            row.number(micros(claim.terms.ttl)).bytes::<D::Dialect>(claim.terms.label.as_str().as_bytes());
        });
    }
    rows
}

/// Keeps the places of waiters. Those that are not in the answer are to be asked for in a transaction.
///
/// This locks no resource, so a grant may be under way that is committed only afterwards: a waiter that hears of one must
/// ask, which the largest of horizons makes it do.
pub(crate) async fn keep_waiting<D: Database>(
    database: &D,
    mut waiters: Vec<ClaimId>,
) -> Result<HashMap<ClaimId, (Waiting, Incarnation)>, Fault> {
    waiters.sort_unstable();
    let list = claim_list::<D::Dialect>(waiters.iter().copied());
    let mut kept = HashMap::new();
    let statement = (!waiters.is_empty()).then(|| D::Dialect::keep_waiting(database.tables(), &list));
    for row in run(database, statement.flatten()).await? {
        let mut columns = Columns::of(&row);
        let Some(id) = columns.maybe_claim()? else { continue };
        let position = columns.small()?;
        let look_in = columns.maybe()?.map(|micros| Duration::from_micros(micros.unsigned_abs()));
        let waiting = Waiting { position, horizon: Token::new(u64::MAX), look_in };
        kept.insert(id, (waiting, Incarnation(columns.unsigned()?)));
    }
    Ok(kept)
}

/// What became of the releases that a statement could do: whether the hold had not ended by then.
pub(crate) async fn release<D: Database>(
    database: &D,
    releases: &[ReleaseRequest],
) -> Result<HashMap<ClaimId, bool>, Fault> {
    let mut first: BTreeMap<&Name, &Release> = BTreeMap::new();
    for ReleaseRequest { resource, release } in releases {
        first.entry(resource).or_insert(release);
    }
    let known = first.into_iter().filter(|(_, release)| !release.maybe_in_flight);
    let plain: Vec<(&Name, ClaimId)> = known.map(|(name, release)| (name, release.claim)).collect();
    let ended = match database.run_plain(Plain::Releases(&plain)).await {
        Some(rows) => unless_late(rows)?,
        None => {
            let mut rows = String::new();
            for (name, claim) in &plain {
                push_row(&mut rows, |row| {
                    row.bytes::<D::Dialect>(name.as_str().as_bytes())
                        .bytes::<D::Dialect>(&claim_bytes(*claim));
                });
            }
            let statement = (!rows.is_empty()).then(|| D::Dialect::release_plain(database.tables(), &rows));
            run(database, statement.flatten()).await?
        }
    };
    let mut released = HashMap::new();
    for row in ended {
        let mut columns = Columns::of(&row);
        if let Some(id) = columns.maybe_claim()? {
            released.insert(id, columns.number()? != 0);
        }
    }
    Ok(released)
}

pub(crate) fn push_row(rows: &mut String, fill: impl FnOnce(&mut Values<'_>)) {
    rows.push_str(if rows.is_empty() { "(" } else { ",(" });
    fill(&mut Values::new(rows));
    rows.push(')');
}

/// Runs a statement, and returns the rows of all that it says. No statement, no rows.
async fn run<D: Database>(database: &D, statement: Option<String>) -> Result<Vec<Row>, Fault> {
    let Some(statement) = statement else { return Ok(Vec::new()) };
    unless_late(run_text(database, statement).await)
}

/// Runs a text that is a whole transaction, and returns the rows of all its statements.
///
/// # Errors
/// As those of [`Connection::run`].
pub async fn run_text<D: Database>(database: &D, text: String) -> Result<Vec<Row>, Fault> {
    let mut connection = database.connection().await?;
    let answers = connection.run(text).await?;
    connection.keep();
    Ok(answers.into_iter().flatten().collect())
}

/// No rows where others had them locked: nothing was executed, and the long way waits, or tries again.
fn unless_late(rows: Result<Vec<Row>, Fault>) -> Result<Vec<Row>, Fault> {
    match rows {
        Err(fault) if fault.is_given_up() => Ok(Vec::new()),
        rows => rows,
    }
}
