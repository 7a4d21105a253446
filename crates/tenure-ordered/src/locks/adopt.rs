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
    pub(crate) async fn adopt_all(&self, requests: &[RenewRequest]) -> Vec<Result<RenewAnswer>> {
        let _changing = self.changing();
        let unknown = requests.iter().filter(|request| !self.is_known(request.claim));
        let mut refused = self.take_over(unknown).await;
        let mut answers: BTreeMap<ClaimId, Result<RenewAnswer>> =
            self.renew_known(requests.iter().filter(|request| !refused.contains_key(&request.claim))).await;
        // Another client may have had what this one had before.
        let is_lost =
            |request: &&RenewRequest| matches!(answers.get(&request.claim), Some(Ok(RenewAnswer::Lost)));
        if self.store.capability().adopts == Adopts::AnyClient {
            let lost: Vec<&RenewRequest> = requests.iter().filter(is_lost).collect();
            refused.extend(self.take_over(lost.iter().copied()).await);
            answers.extend(self.renew_known(lost.into_iter()).await);
        }
        answers.extend(refused.into_iter().map(|(claim, error)| (claim, Err(error))));
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

    /// Takes claims over that other clients have entered. Those that are there now are known as this client's. Returns why not, for
    /// those that cannot be.
    async fn take_over(&self, requests: impl Iterator<Item = &RenewRequest>) -> BTreeMap<ClaimId, Error> {
        let start = now();
        let moving = |mine: &Mine, terms: &Arc<Terms>, holds: bool| {
            self.owned().is_moving(Own::adopted(mine.clone(), terms.clone(), start), holds, start);
        };
        let adopting =
            requests.map(async |one| (one.claim, self.store.adopt(&one.resource, one.claim, moving).await));
        let mut refused = BTreeMap::new();
        for (claim, answer) in join_all(adopting).await {
            match answer {
                Ok(Adopted::Mine(mine, terms)) => self.owned().put(Own::adopted(mine, terms, start)),
                Ok(Adopted::Gone) => {}
                Ok(Adopted::Elsewhere) => drop(refused.insert(claim, self.is_elsewhere())),
                Err(error) => drop(refused.insert(claim, error)),
            }
        }
        refused
    }

    /// Says that another client has entered a claim.
    pub(crate) fn is_elsewhere(&self) -> Error {
        let capability = self.store.capability();
        match capability.adopts {
            Adopts::AnyClient => {
                Error::new(ErrorKind::Unavailable, "claim", "another client has entered it just now")
            }
            Adopts::SameClient => adopts_elsewhere("adopt", capability.adopts_reason),
        }
    }

    /// Takes over claims whose ids were given, where other clients have entered them. Answers those that it cannot.
    pub(crate) async fn claims_elsewhere(&self, claims: &[&Claim]) -> BTreeMap<ClaimId, Result<ClaimAnswer>> {
        let is_asked = |claim: &&&Claim| {
            claim.may_be_known && !self.is_known(claim.id) && !self.owned().may_be_in(claim.id)
        };
        let request = |claim: &&Claim| RenewRequest {
            resource: claim.resource.clone(),
            claim: claim.id,
            is_waiter: true,
        };
        let asked: Vec<RenewRequest> = claims.iter().filter(is_asked).map(request).collect();
        let refused = self.take_over(asked.iter()).await;
        refused.into_iter().map(|(claim, error)| (claim, Err(error.with_no_effect()))).collect()
    }
}
