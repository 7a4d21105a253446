//! Renewing claims that this client may not have made.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tenure_core::engine::{Adopts, ClaimAnswer, RenewAnswer, RenewRequest, adopts_elsewhere};
use tenure_core::model::claim::{Claim, ClaimId, Terms};
use tenure_core::{Error, ErrorKind, Result};

use crate::locks::ordered::{Shared, now};
use crate::locks::own::Own;
use crate::store::{Adopted, Mine, Store};

impl<S: Store> Shared<S> {
    /// Takes over what this client does not know, and then renews everything.
    pub(crate) async fn adopt_all(&self, requests: &[RenewRequest]) -> Vec<Result<RenewAnswer>> {
        let _changing = self.changing();
        let unknown = requests.iter().filter(|request| !self.is_known(request.claim));
        let mut failed = self.take_over(unknown).await;
        let mut answers: BTreeMap<ClaimId, Result<RenewAnswer>> =
            self.renew_known(requests.iter().filter(|request| !failed.contains_key(&request.claim))).await;
        // A claim that this client knew as its own may be another's by now: it is taken over once more. So is what was not there at the first
        // time, which costs one more trip.
        let is_lost =
            |request: &&RenewRequest| matches!(answers.get(&request.claim), Some(Ok(RenewAnswer::Lost)));
        if self.store.capability().adopts == Adopts::AnyClient {
            let lost: Vec<&RenewRequest> = requests.iter().filter(is_lost).collect();
            failed.extend(self.take_over(lost.iter().copied()).await);
            answers.extend(self.renew_known(lost.into_iter()).await);
        }
        answers.extend(failed.into_iter().map(|(claim, error)| (claim, Err(error))));
        let left_out = || Err(Error::new(ErrorKind::Internal, "renew", "one was left out"));
        requests.iter().map(|request| answers.get(&request.claim).cloned().unwrap_or_else(left_out)).collect()
    }

    async fn renew_known<'a>(
        &self,
        requests: impl Iterator<Item = &'a RenewRequest>,
    ) -> BTreeMap<ClaimId, Result<RenewAnswer>> {
        let requests: Vec<RenewRequest> = requests.cloned().collect();
        let answers = if requests.is_empty() { Vec::new() } else { self.renew_all(&requests).await };
        requests.iter().map(|request| request.claim).zip(answers).collect()
    }

    fn is_known(&self, claim: ClaimId) -> bool {
        let owned = self.owned();
        owned.get(claim).is_some() || owned.has_ended(claim)
    }

    /// Takes claims over that other clients have entered. Returns the errors of those that could not be taken over; what is gone has none.
    async fn take_over(&self, requests: impl Iterator<Item = &RenewRequest>) -> BTreeMap<ClaimId, Error> {
        let start = now();
        let moving = |mine: &Mine, terms: &Arc<Terms>, holds: bool| {
            self.owned().begin_moving(Own::adopted(mine.clone(), terms.clone(), start), holds, start);
        };
        let adopting =
            requests.map(async |one| (one.claim, self.store.adopt(&one.resource, one.claim, moving).await));
        let mut failed = BTreeMap::new();
        for (claim, answer) in join_all(adopting).await {
            match answer {
                Ok(Adopted::Mine(mine, terms)) => self.owned().put(Own::adopted(mine, terms, start)),
                Ok(Adopted::Gone) => {}
                Ok(Adopted::Elsewhere) => drop(failed.insert(claim, self.error_elsewhere())),
                Err(error) => drop(failed.insert(claim, error)),
            }
        }
        failed
    }

    /// Says that another client has entered a claim.
    pub(crate) fn error_elsewhere(&self) -> Error {
        let capability = self.store.capability();
        match capability.adopts {
            Adopts::AnyClient => {
                Error::new(ErrorKind::Unavailable, "claim", "another client has entered it just now")
            }
            Adopts::SameClient => adopts_elsewhere("adopt", capability.adopts_reason),
        }
    }

    /// Takes over claims whose ids were given, where other clients have entered them. Answers those that it cannot.
    pub(crate) async fn take_over_given(&self, claims: &[&Claim]) -> BTreeMap<ClaimId, Result<ClaimAnswer>> {
        let is_asked = |claim: &&&Claim| {
            claim.may_be_known && !self.is_known(claim.id) && !self.owned().may_be_in(claim.id)
        };
        let request = |claim: &&Claim| RenewRequest {
            resource: claim.resource.clone(),
            claim: claim.id,
            is_waiter: true,
        };
        let asked: Vec<RenewRequest> = claims.iter().filter(is_asked).map(request).collect();
        let failed = self.take_over(asked.iter()).await;
        // This call has entered no claim. An entry may have moved here all the same, unheard of: `Owned::begin_moving` has it leave.
        failed.into_iter().map(|(claim, error)| (claim, Err(error.with_no_effect()))).collect()
    }
}
