//! Renewing claims that this client may not have made.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join;
use tenure_core::engine::{ClaimAnswer, RenewAnswer, RenewRequest, adopts_elsewhere};
use tenure_core::model::claim::{Claim, ClaimId, Name};
use tenure_core::{Error, Result};

use crate::locks::ordered::Shared;
use crate::store::{Look, Store};

impl<S: Store> Shared<S> {
    pub(crate) async fn adopt_all(&self, requests: &[RenewRequest]) -> Vec<Result<RenewAnswer>> {
        let is_known = |request: &&RenewRequest| {
            let owned = self.owned();
            owned.get(request.claim).is_some() || owned.has_ended(request.claim)
        };
        let (known, others): (Vec<&RenewRequest>, Vec<&RenewRequest>) = requests.iter().partition(is_known);
        let known: Vec<RenewRequest> = known.into_iter().cloned().collect();
        let (renewed, found) = join(self.renew_all(&known), self.find_elsewhere(&others)).await;
        let mut answers: BTreeMap<ClaimId, Result<RenewAnswer>> =
            known.iter().map(|request| request.claim).zip(renewed).chain(found).collect();
        let gone = || Ok(RenewAnswer::Lost);
        requests.iter().map(|request| answers.remove(&request.claim).unwrap_or_else(gone)).collect()
    }

    pub(crate) fn is_elsewhere(&self) -> Error {
        adopts_elsewhere("adopt", self.store.capability().adopts_reason)
    }

    /// Answers claims whose ids were given, if other clients have entered them.
    pub(crate) async fn claims_elsewhere(&self, claims: &[&Claim]) -> BTreeMap<ClaimId, Result<ClaimAnswer>> {
        let may_be = |claim: &&&Claim| claim.may_be_known && !self.owned().may_be_in(claim.id);
        let request = |claim: &&Claim| RenewRequest {
            resource: claim.resource.clone(),
            claim: claim.id,
            is_waiter: true,
        };
        let asked: Vec<RenewRequest> = claims.iter().filter(may_be).map(request).collect();
        let found = self.find_elsewhere(&asked.iter().collect::<Vec<_>>()).await;
        let is_there = |(claim, answer): (ClaimId, Result<RenewAnswer>)| {
            Some((claim, Err(answer.err()?.with_no_effect())))
        };
        found.into_iter().filter_map(is_there).collect()
    }

    /// Looks for claims of other clients, whose entries end with those.
    async fn find_elsewhere(&self, requests: &[&RenewRequest]) -> Vec<(ClaimId, Result<RenewAnswer>)> {
        if requests.is_empty() {
            return Vec::new();
        }
        let names: BTreeSet<&Name> = requests.iter().map(|request| &request.resource).collect();
        let looks = self.store.look(names.iter().copied().collect(), false).await;
        let looks: BTreeMap<&Name, Result<Look>> = names.into_iter().zip(looks).collect();
        let answer = |request: &&RenewRequest| {
            let answer = match &looks[&request.resource] {
                Ok(look) if look.line.place(request.claim).is_some() => Err(self.is_elsewhere()),
                Ok(_) => Ok(RenewAnswer::Lost),
                Err(error) => Err(error.clone()),
            };
            (request.claim, answer)
        };
        requests.iter().map(answer).collect()
    }
}
