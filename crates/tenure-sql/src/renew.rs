//! Renewals. Holders need no resource's lock: one statement moves the ends of all that have not ended.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::claim::{ClaimId, Grant};
use tenure_core::engine::{Incarnation, RenewAnswer, RenewRequest, renew_answer};
use tenure_core::step::{Command, Outcome};

use crate::database::{Connection, Database};
use crate::fault::Fault;
use crate::load::{claims, rows};
use crate::text::{Columns, Dialect};
use crate::transaction::carry_out;

/// Renews holds and keeps the places of waiters.
pub(crate) async fn renew<D: Database>(
    database: &D,
    renewals: &[RenewRequest],
) -> Result<Vec<RenewAnswer>, Fault> {
    let holders: Vec<ClaimId> = renewals.iter().filter(|one| !one.is_waiter).map(|one| one.claim).collect();
    let moved = if holders.is_empty() { HashMap::new() } else { extend(database, holders).await? };
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
        let done = carry_out(database, &batch).await?;
        for ((renewal, _), done) in rest.iter().zip(done) {
            settled.insert(renewal.claim, done);
        }
    }
    let answer = |renewal: &RenewRequest| match (moved.get(&renewal.claim), settled.get(&renewal.claim)) {
        (Some(grant), _) => renew_answer(renewal, Outcome::Renewed(*grant), Incarnation(0)),
        (None, Some(done)) => renew_answer(renewal, done.transition.outcome.clone(), done.incarnation),
        (None, None) => RenewAnswer::Lost,
    };
    Ok(renewals.iter().map(answer).collect())
}

async fn extend<D: Database>(
    database: &D,
    mut holders: Vec<ClaimId>,
) -> Result<HashMap<ClaimId, Grant>, Fault> {
    // Rows are locked in this order, as everybody does.
    holders.sort_unstable();
    let statement = D::Dialect::renew(&database.tables().claim, &claims::<D::Dialect>(holders));
    let mut connection = database.connection().await?;
    let answers = connection.run(statement).await?;
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
