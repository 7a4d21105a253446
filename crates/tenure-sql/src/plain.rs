//! The short path: a free mutex with nothing special is claimed by one statement, and released by one.
//!
//! A transaction around `step` is two round trips and some ten statements. For the commonest of all cases the answer of
//! `step` is known beforehand, so one statement does it all, where the dialect has one that can: it says itself under
//! which condition it applies, and whatever it does not answer takes the long way. The resource's row says whose
//! *plain* hold the record consists of, if it is nothing else: no other table needs to be looked at, for what
//! a statement sees there may be older than the row it has waited for.

use std::collections::{BTreeMap, HashMap};

use tenure_core::claim::{Claim, ClaimId, Grant, HoldLimits, Kind, Name};
use tenure_core::engine::ReleaseRequest;
use tenure_core::record::Record;
use tenure_core::step::Release;
use tenure_core::window::Window;

use crate::database::{Connection, Database, Row};
use crate::fault::Fault;
use crate::text::{Columns, Dialect, Values, claim_bytes, client_number, micros, signed};

/// Whose hold the record consists of, if that is all there is to it.
pub(crate) fn plain_claim(window: &Window, entries: i64) -> Option<ClaimId> {
    let head = window.head().ok()??;
    let is_alone =
        head.kind == Kind::Mutex && entries == 1 && head.waiting == 0 && window.last_finished().is_none();
    if !is_alone || window.value().ok()?.is_some() {
        return None;
    }
    let hold = window.holds(1).ok()?.pop()?;
    hold.claim.filter(|_| hold.limits == HoldLimits::default())
}

fn is_plain(claim: &Claim) -> bool {
    let terms = &claim.terms;
    terms.kind == Kind::Mutex
        && terms.limits == HoldLimits::default()
        && !terms.unless_fresh
        && !claim.floor_forced
}

/// Claims what is free. Those that are not in the answer are to be asked for in a transaction.
pub(crate) async fn claim<D: Database>(
    database: &D,
    claims: &[Claim],
) -> Result<HashMap<ClaimId, Grant>, Fault> {
    // One for each name, in the order in which rows are locked.
    let mut first: BTreeMap<&Name, &Claim> = BTreeMap::new();
    for claim in claims {
        first.entry(&claim.resource).or_insert(claim);
    }
    let mut rows = String::new();
    for claim in first.values().filter(|claim| is_plain(claim)) {
        push_row(&mut rows, |row| {
            row.bytes::<D::Dialect>(claim.resource.as_str().as_bytes()).number(signed(claim.floor.get()));
            row.bytes::<D::Dialect>(&claim_bytes(claim.id)).number(client_number(claim.client));
            row.number(micros(claim.terms.ttl)).bytes::<D::Dialect>(claim.terms.label.as_str().as_bytes());
        });
    }
    let mut granted = HashMap::new();
    for row in
        run(database, (!rows.is_empty()).then(|| D::Dialect::claim_plain(database.tables(), &rows)).flatten())
            .await?
    {
        let mut columns = Columns::of(&row);
        let Some(id) = columns.maybe_claim()? else { continue };
        let token = columns.token()?;
        let claim = claims.iter().find(|claim| claim.id == id);
        let claim = claim.ok_or_else(|| Fault::internal("a claim was granted that nobody made"))?;
        // The client counts from before it sent this.
        granted.insert(id, Grant { token, slot: None, ends_in: claim.terms.ttl });
    }
    Ok(granted)
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
    let mut rows = String::new();
    for (name, release) in first.iter().filter(|(_, release)| !release.maybe_in_flight) {
        push_row(&mut rows, |row| {
            row.bytes::<D::Dialect>(name.as_str().as_bytes())
                .bytes::<D::Dialect>(&claim_bytes(release.claim));
        });
    }
    let mut released = HashMap::new();
    for row in run(
        database,
        (!rows.is_empty()).then(|| D::Dialect::release_plain(database.tables(), &rows)).flatten(),
    )
    .await?
    {
        let mut columns = Columns::of(&row);
        if let Some(id) = columns.maybe_claim()? {
            released.insert(id, columns.number()? != 0);
        }
    }
    Ok(released)
}

fn push_row(rows: &mut String, fill: impl FnOnce(&mut Values<'_>)) {
    rows.push_str(if rows.is_empty() { "(" } else { ",(" });
    fill(&mut Values::new(rows));
    rows.push(')');
}

/// Runs a statement, and returns the rows of all that it says. No statement, no rows.
async fn run<D: Database>(database: &D, statement: Option<String>) -> Result<Vec<Row>, Fault> {
    let Some(statement) = statement else { return Ok(Vec::new()) };
    let mut connection = database.connection().await?;
    match connection.run(statement).await {
        Ok(answers) => {
            connection.keep();
            Ok(answers.into_iter().flatten().collect())
        }
        // Nothing was executed: the long way waits, or tries again.
        Err(Fault::GivenUp(_) | Fault::Locked(_)) => Ok(Vec::new()),
        Err(fault) => Err(fault),
    }
}
