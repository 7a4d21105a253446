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

/// The statement for holds that are a part of their resources' rows.
fn renew_kept<D: Database>(tables: &Tables, holders: &BTreeMap<ClaimId, &Name>) -> Option<String> {
    if !tables.keeps_holds {
        return None;
    }
    let by_name: BTreeSet<(&Name, ClaimId)> = holders.iter().map(|(claim, name)| (*name, *claim)).collect();
    let mut rows = String::new();
    for (name, claim) in by_name {
        push_row(&mut rows, |row| {
            row.bytes::<D::Dialect>(name.as_str().as_bytes()).bytes::<D::Dialect>(&claim_bytes(claim));
        });
    }
    D::Dialect::renew_kept(tables, &rows)
}

async fn extend<D: Database>(
    database: &D,
    mut holders: BTreeMap<ClaimId, &Name>,
) -> Result<HashMap<ClaimId, Grant>, Fault> {
    if holders.is_empty() {
        return Ok(HashMap::new());
    }
    let mut connection = database.lend(Purpose::Renewal).await?;
    let tables = database.tables();
    let table = &tables.claim;
    let mut end = "";
    // Rows are locked in the order of claims, as in every transaction.
    if let Some(lock) = D::Dialect::lock_for_renewal(table, &claims::<D::Dialect>(holders.keys().copied())) {
        let begin = D::Dialect::BEGIN;
        let locked = connection.run(format!("{};\n{lock}", begin.join(";\n"))).await?;
        let locked =
            rows(&locked, begin.len()).iter().filter_map(|row| Columns::of(row).maybe_claim().transpose());
        let locked: BTreeSet<ClaimId> = locked.collect::<Result<_, _>>()?;
        holders.retain(|claim, _| locked.contains(claim));
        if holders.is_empty() {
            connection.go_on("ROLLBACK".to_owned()).await?;
            connection.keep();
            return Ok(HashMap::new());
        }
        end = ";\nCOMMIT";
    }
    let mut statement = D::Dialect::renew(table, &claims::<D::Dialect>(holders.keys().copied()));
    if let Some(first) = renew_kept::<D>(tables, &holders) {
        statement = format!("{first};\n{statement}");
    }
    let answers = match end {
        "" => connection.run(statement).await?,
        _ => connection.go_on(statement + end).await?,
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
