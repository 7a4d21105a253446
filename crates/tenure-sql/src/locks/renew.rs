//! Renewals. Holders need no resource's lock: one statement moves the ends of all that have not ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tenure_core::engine::{Incarnation, RenewAnswer, RenewRequest, renew_answer};
use tenure_core::model::claim::{ClaimId, Grant, Name};
use tenure_core::model::step::{Renew, Renewed};
use tokio::time::{Instant, timeout};

use crate::database::{Connection, Database};
use crate::fault::Fault;
use crate::locks::load::{claims, rows};
use crate::locks::plain::{keep_waiting, push_row};
use crate::locks::transaction::run_commands;
use crate::room::Purpose;
use crate::schema::Tables;
use crate::text::{Columns, Dialect, claim_bytes};

/// How long those that need a transaction may keep the others of their batch waiting for their answers: so long, and
/// so many times what the first statement took. One whose row another transaction keeps locked must not cost the
/// others their leases.
const REST_MAX: Duration = Duration::from_millis(300);
const REST_TRIPS: u32 = 6;
/// Longer than any caller waits.
const FOR_EVER: Duration = Duration::from_secs(60);

/// Renews holds and keeps the places of waiters.
pub(crate) async fn renew<D: Database>(
    database: &D,
    renewals: &[RenewRequest],
) -> Vec<Result<RenewAnswer, Fault>> {
    // A waiter that was rung holds by now, if the ring was right, and confirms that as every holder does: in one
    // trip.
    let holds = |one: &&RenewRequest| !one.is_waiter || database.inbox().has_rung(one.claim);
    let holders = renewals.iter().filter(holds).map(|one| (one.claim, &one.resource)).collect();
    let (began, has_holders) = (Instant::now(), renewals.iter().any(|one| !one.is_waiter));
    let moved = match extend(database, holders).await {
        Ok(moved) => moved,
        // Under their resources' locks it is tried again.
        Err(Fault::GivenUp(_)) => HashMap::new(),
        // Rows that another transaction has locked are passed over: the table is locked, and whatever else were tried
        // would wait, too.
        Err(fault) => return renewals.iter().map(|_| Err(fault.clone())).collect(),
    };
    let waits = |one: &&RenewRequest| one.is_waiter && !moved.contains_key(&one.claim);
    let waiters = renewals.iter().filter(waits).map(|one| one.claim).collect();
    let kept = match keep_waiting(database, waiters).await {
        Ok(kept) => kept,
        // The holders of the batch have been renewed, and must get that answer.
        Err(fault) if moved.is_empty() => return renewals.iter().map(|_| Err(fault.clone())).collect(),
        Err(_) => HashMap::new(),
    };
    // Claims that do not know yet that they hold, and those that hold no more: `step` says which.
    let rest: Vec<(&RenewRequest, Renew)> = renewals
        .iter()
        .filter(|one| !moved.contains_key(&one.claim) && !kept.contains_key(&one.claim))
        .map(|renewal| (renewal, Renew(renewal.claim)))
        .collect();
    let mut settled = HashMap::new();
    if !rest.is_empty() {
        let batch: Vec<_> = rest.iter().map(|(renewal, command)| (&renewal.resource, command)).collect();
        // Holders get their answers with these, or are in the next batch, and have deadlines.
        let patience = if has_holders { REST_MAX + REST_TRIPS * began.elapsed() } else { FOR_EVER };
        let fault = Fault::Locked(format!("no answer within {patience:?}"));
        let done = timeout(patience, run_commands(database, &batch)).await;
        let done = done.unwrap_or_else(|_| rest.iter().map(|_| Err(fault.clone())).collect());
        settled.extend(rest.iter().zip(done).map(|((renewal, _), done)| (renewal.claim, done)));
    }
    let answer = |renewal: &RenewRequest| {
        if let Some((waiting, incarnation)) = kept.get(&renewal.claim) {
            return Ok(RenewAnswer::Waiting(*waiting, *incarnation));
        }
        match (moved.get(&renewal.claim), settled.get(&renewal.claim)) {
            (Some(grant), _) => Ok(renew_answer(renewal, Renewed::Held(*grant), Incarnation(0))),
            (None, Some(Ok(done))) => Ok(renew_answer(renewal, done.transition.answer, done.incarnation)),
            (None, Some(Err(fault))) => Err(fault.clone()),
            (None, None) => Err(Fault::internal("a renewal was left out")),
        }
    };
    renewals.iter().filter(|one| one.is_waiter).for_each(|one| database.inbox().wake_if_rung(one.claim));
    renewals.iter().map(answer).collect()
}

/// The rows of a statement for holds that are a part of their resources' rows.
fn kept_rows<D: Database>(holders: &BTreeMap<ClaimId, &Name>) -> String {
    let by_name: BTreeSet<(&Name, ClaimId)> = holders.iter().map(|(claim, name)| (*name, *claim)).collect();
    let mut rows = String::new();
    for (name, claim) in by_name {
        push_row(&mut rows, |row| {
            row.bytes::<D::Dialect>(name.as_str().as_bytes()).bytes::<D::Dialect>(&claim_bytes(claim));
        });
    }
    rows
}

/// The statements that renew holds: those that may be a part of their resources' rows, and those that may be rows.
fn renewals<D: Database>(
    tables: &Tables,
    kept: &BTreeMap<ClaimId, &Name>,
    holders: &BTreeMap<ClaimId, &Name>,
) -> String {
    let kept = (tables.keeps_holds && !kept.is_empty())
        .then(|| D::Dialect::renew_kept(tables, &kept_rows::<D>(kept)))
        .flatten();
    let rows = (!holders.is_empty())
        .then(|| D::Dialect::renew(&tables.claim, &claims::<D::Dialect>(holders.keys().copied())));
    kept.into_iter().chain(rows).collect::<Vec<_>>().join(";\n")
}

/// Locks the holds in their tables but for those that another transaction has locked, and leaves out the others. Returns false if the
/// database does that by itself.
async fn lock<D: Database>(
    database: &D,
    connection: &mut D::Connection,
    kept: &mut BTreeMap<ClaimId, &Name>,
    holders: &mut BTreeMap<ClaimId, &Name>,
) -> Result<bool, Fault> {
    let (tables, begin) = (database.tables(), D::Dialect::BEGIN);
    let list = claims::<D::Dialect>(holders.keys().copied());
    let Some(lock) = D::Dialect::lock_for_renewal(&tables.claim, &list) else { return Ok(false) };
    let first = tables
        .keeps_holds
        .then(|| D::Dialect::lock_kept_for_renewal(tables, &kept_rows::<D>(kept)))
        .flatten();
    let (at, mut script) = (begin.len() + usize::from(first.is_some()), begin.to_vec());
    script.extend(first.as_deref());
    script.push(&lock);
    let answers = connection.run(script.join(";\n")).await?;
    let locked = |at: usize| -> Result<BTreeSet<ClaimId>, Fault> {
        let claims = rows(&answers, at).iter().filter_map(|row| Columns::of(row).maybe_claim().transpose());
        claims.collect()
    };
    let (in_rows, as_rows) = (locked(begin.len())?, locked(at)?);
    kept.retain(|claim, _| in_rows.contains(claim));
    holders.retain(|claim, _| as_rows.contains(claim));
    Ok(true)
}

async fn extend<D: Database>(
    database: &D,
    mut holders: BTreeMap<ClaimId, &Name>,
) -> Result<HashMap<ClaimId, Grant>, Fault> {
    if holders.is_empty() {
        return Ok(HashMap::new());
    }
    let mut connection = database.lend(Purpose::Renewal).await?;
    let mut kept = holders.clone();
    // Rows are locked in the order of names or claims, as in every transaction.
    let is_locked = lock(database, &mut connection, &mut kept, &mut holders).await?;
    if kept.is_empty() && holders.is_empty() {
        connection.go_on("ROLLBACK".to_owned()).await?;
        connection.keep();
        return Ok(HashMap::new());
    }
    let statements = renewals::<D>(database.tables(), &kept, &holders);
    let answers = match is_locked {
        true => connection.go_on(statements + ";\nCOMMIT").await?,
        false => connection.run(statements).await?,
    };
    connection.keep();
    let mut moved = HashMap::new();
    for row in (0..answers.len()).flat_map(|at| rows(&answers, at)) {
        let mut columns = Columns::of(row);
        let Some(claim) = columns.maybe_claim()? else { continue };
        let token = columns.token()?;
        let slot = columns.maybe()?.and_then(|slot| u32::try_from(slot).ok());
        let ends_in = Duration::from_micros(columns.number()?.try_into().unwrap_or(0));
        moved.insert(claim, Grant { token, slot, ends_in });
    }
    Ok(moved)
}
