//! What `tenure doctor` tries for itself: whether claims, renewals and releases go through, by each of their ways.
//!
//! A server may let a claim pass and refuse the release: by a right, a trigger, or a setting that an administrator
//! made for people who type. No list of settings is ever complete, so the real statements are sent, for a name that
//! no other code uses.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::engine::{ClaimAnswer, Finding, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest};
use tenure_core::model::claim::{Claim, ClaimId, Label, Name, Terms};
use tenure_core::model::step::{Claimed, Release};
use tenure_core::model::token::Token;

use crate::database::Database;
use crate::fault::Fault;
use crate::locks::plain;
use crate::locks::renew::renew;
use crate::locks::transaction::run_command;

/// The name that is claimed. Doctors that try at the same time refuse each other, which is as good an answer as any.
const NAME: &str = "tenure.doctor";
/// Long enough for what is tried, and soon over if a release does not go through.
const TTL: Duration = Duration::from_secs(5);

/// Claims, renews and releases for real, and says what came of it.
pub async fn try_out<D: Database>(database: &D) -> Finding {
    let mut attempt = "claim";
    match all(database, &mut attempt).await {
        Ok(found) => Finding::good("trial", found),
        Err(fault) => {
            let error = fault.to_error(attempt);
            Finding::bad("trial", format!("failed to {error}")).hint_of(&error)
        }
    }
}

async fn all<D: Database>(database: &D, attempt: &mut &'static str) -> Result<&'static str, Fault> {
    let name = Name::new(NAME).map_err(|error| Fault::internal(error.to_string()))?;
    let label = Label::new("", std::process::id(), "tenure doctor", "");
    let claim = || Claim {
        resource: name.clone(),
        id: ClaimId::new(u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..))),
        client: database.inbox().client(),
        terms: Arc::new(Terms { ttl: TTL, ..Terms::of_mutex(label.clone()) }),
        wait: false,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    };
    // By one statement, where the database has such.
    let short = claim();
    let answered = plain::claim(database, std::slice::from_ref(&short)).await?;
    if let Some(ClaimAnswer::Granted(_)) = answered.get(&short.id) {
        *attempt = "release";
        let release = Release { claim: short.id, maybe_in_flight: false, is_unused: false };
        let request = ReleaseRequest { resource: name.clone(), release };
        if plain::release(database, &[request]).await?.get(&short.id) != Some(&true) {
            return Err(unexpected("the hold was not there"));
        }
    }
    // By a transaction around `step`.
    *attempt = "claim";
    let long = claim();
    match run_command(database, &name, &long).await? {
        Ok(Claimed::Granted(_)) => {}
        Ok(Claimed::Busy(_)) => return Ok("another doctor has just claimed for real"),
        other => return Err(unexpected(format!("{other:?}"))),
    }
    *attempt = "renew";
    let request = RenewRequest { resource: name.clone(), claim: long.id, is_waiter: false };
    match renew(database, &[request]).await.pop() {
        Some(Ok(RenewAnswer::Renewed { .. })) => {}
        Some(Err(fault)) => return Err(fault),
        other => return Err(unexpected(format!("{other:?}"))),
    }
    *attempt = "release";
    let release = Release { claim: long.id, maybe_in_flight: false, is_unused: false };
    match run_command(database, &name, &release).await? {
        ReleaseAnswer::Released => Ok("claimed, renewed and released for real"),
        other => Err(unexpected(format!("{other:?}"))),
    }
}

fn unexpected(what: impl std::fmt::Display) -> Fault {
    Fault::internal(format!("an answer that no server should give: {what}"))
}
