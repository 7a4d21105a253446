//! Renewals. Holders need no resource's lock: one statement moves the ends of all that have not ended.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::claim::{ClaimId, Grant};
use tenure_core::engine::{Incarnation, RenewAnswer, RenewRequest, renew_answer};
use tenure_core::step::{Command, Outcome};
use tokio::time::{Instant, timeout};

use crate::database::{Connection, Database};
use crate::fault::Fault;
use crate::load::{claims, rows};
use crate::text::{Columns, Dialect};
use crate::transaction::carry_out;

/// How long those that need a transaction may keep the others of their batch waiting for their answers: so long, and so
/// many times what the first statement took. One whose row somebody keeps locked must not cost the others their leases.
const REST_MAX: Duration = Duration::from_millis(300);
const REST_TRIPS: u32 = 6;
/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(60);

/// Renews holds and keeps the places of waiters.
pub(crate) async fn renew<D: Database>(
    database: &D,
    renewals: &[RenewRequest],
) -> Vec<Result<RenewAnswer, Fault>> {
    let holders: Vec<ClaimId> = renewals.iter().filter(|one| !one.is_waiter).map(|one| one.claim).collect();
    let (began, has_holders) = (Instant::now(), !holders.is_empty());
    let moved = match extend(database, holders).await {
        Ok(moved) => moved,
        // Somebody else has rows of theirs locked: under their resources' locks that is waited for, one by one.
        Err(Fault::GivenUp(_) | Fault::Locked(_)) => HashMap::new(),
        Err(fault) => return renewals.iter().map(|_| Err(fault.clone())).collect(),
    };
    // Who waits, who does not know yet that it holds, and who holds no more: `step` says which.
    let rest: Vec<(&RenewRequest, Command<'_>)> = renewals
        .iter()
        .filter(|renewal| !moved.contains_key(&renewal.claim))
        .map(|renewal| (renewal, Command::Renew(renewal.claim)))
        .collect();
    let mut settled = HashMap::new();
    if !rest.is_empty() {
        let batch: Vec<_> =
            rest.iter().map(|(renewal, command)| (&renewal.resource, command.clone())).collect();
        // Holders get their answers with these, or are in the next batch, and have deadlines.
        let patience = if has_holders { REST_MAX + REST_TRIPS * began.elapsed() } else { FOR_EVER };
        let fault = Fault::Locked(format!("no answer within {patience:?}"));
        let done = timeout(patience, carry_out(database, &batch)).await;
        let done = done.unwrap_or_else(|_| vec![Err(fault); rest.len()]);
        settled.extend(rest.iter().zip(done).map(|((renewal, _), done)| (renewal.claim, done)));
    }
    let answer = |renewal: &RenewRequest| match (moved.get(&renewal.claim), settled.get(&renewal.claim)) {
        (Some(grant), _) => Ok(renew_answer(renewal, Outcome::Renewed(*grant), Incarnation(0))),
        (None, Some(Ok(done))) => {
            Ok(renew_answer(renewal, done.transition.outcome.clone(), done.incarnation))
        }
        (None, Some(Err(fault))) => Err(fault.clone()),
        (None, None) => Err(Fault::internal("a renewal was left out")),
    };
    renewals.iter().map(answer).collect()
}

async fn extend<D: Database>(
    database: &D,
    mut holders: Vec<ClaimId>,
) -> Result<HashMap<ClaimId, Grant>, Fault> {
    if holders.is_empty() {
        return Ok(HashMap::new());
    }
    // Rows are locked in this order, as everybody does.
    holders.sort_unstable();
    let table = &database.tables().claim;
    let mut connection = database.connection().await?;
    let mut end = "";
    if let Some(lock) = D::Dialect::lock_for_renewal(table, &claims::<D::Dialect>(holders.iter().copied())) {
        let begin = D::Dialect::BEGIN;
        let locked = connection.run(format!("{};\n{lock}", begin.join(";\n"))).await?;
        let locked =
            rows(&locked, begin.len()).iter().filter_map(|row| Columns::of(row).maybe_claim().transpose());
        holders = locked.collect::<Result<_, _>>()?;
        if holders.is_empty() {
            connection.run("ROLLBACK".to_owned()).await?;
            connection.keep();
            return Ok(HashMap::new());
        }
        end = ";\nCOMMIT";
    }
    let statement = D::Dialect::renew(table, &claims::<D::Dialect>(holders));
    let answers = connection.run(statement + end).await?;
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
