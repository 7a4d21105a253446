//! Releasing holds and withdrawing waiters.

use std::collections::HashSet;

use tenure_core::engine::{ReleaseAnswer, ReleaseRequest};
use tenure_core::model::claim::ClaimId;
use tenure_core::{Error, ErrorKind, Result};

use crate::locks::ordered::{Shared, Unfinished, now};
use crate::store::{Leaving, Left, Store};

impl<S: Store> Shared<S> {
    pub(crate) async fn release_all(&self, requests: &[ReleaseRequest]) -> Vec<Result<ReleaseAnswer>> {
        let _changing = self.changing();
        let now = now();
        let mut leaving = Vec::new();
        let mut leaves = Vec::new();
        for request in requests {
            let release = request.release;
            let mut owned = self.owned();
            let own = owned.get(release.claim).cloned();
            let is_ended = owned.has_ended(release.claim) && !release.maybe_in_flight;
            let goes = match own {
                Some(own) if own.is_broken || own.ends_at <= now => None,
                Some(own) => {
                    let rest = own.rest(now, release.is_unused);
                    let may_come_later = own.may_come_later || release.maybe_in_flight;
                    Some(Leaving { may_come_later, ..own.leaving(rest) })
                }
                None if is_ended => None,
                // What is known of it was never answered, or is forgotten; the line says.
                None => Some(Leaving {
                    resource: request.resource.clone(),
                    claim: release.claim,
                    mine: None,
                    may_have_slot: true,
                    may_come_later: release.maybe_in_flight,
                    is_over: false,
                    rest: None,
                    has_value: true,
                    has_rest: false,
                }),
            };
            if release.maybe_in_flight && goes.is_some() && owned.get(release.claim).is_none() {
                owned.end(release.claim, now);
            }
            drop(owned);
            leaves.push(goes.is_some());
            leaving.extend(goes);
        }
        let claims: Vec<ClaimId> = leaving.iter().map(|leaving| leaving.claim).collect();
        // Of these nothing is known that would end by itself, and the caller gives up some time. Their session goes
        // on, and with it what they may have left in the line.
        let unknown = leaving.iter().filter(|leaving| leaving.mine.is_none()).cloned().collect();
        let mut unfinished = Unfinished { shared: self, leaving: unknown };
        let left = if leaving.is_empty() { Vec::new() } else { self.store.leave(leaving).await };
        let answered: HashSet<ClaimId> =
            claims.iter().zip(&left).filter(|(_, left)| left.is_ok()).map(|(claim, _)| *claim).collect();
        unfinished.leaving.retain(|leaving| !answered.contains(&leaving.claim));
        let mut answers = claims.into_iter().zip(left).map(|(claim, left)| {
            let left = left?;
            if left != Left::IsBroken {
                self.end(claim, now);
            } else if let Some(own) = self.owned().get_mut(claim) {
                own.is_broken = true;
                self.store.unwatch(claim);
            }
            Ok(if left == Left::Gone { ReleaseAnswer::Released } else { ReleaseAnswer::AlreadyLost })
        });
        leaves
            .into_iter()
            .map(|leaves| if leaves { answers.next() } else { Some(Ok(ReleaseAnswer::AlreadyLost)) })
            .map(|answer| {
                answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "release", "one was left out")))
            })
            .collect()
    }
}
