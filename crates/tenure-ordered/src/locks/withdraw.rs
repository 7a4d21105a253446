//! Withdrawing waiters that their users have left.

use tenure_core::engine::{Adopts, WithdrawAnswer, WithdrawRequest};
use tenure_core::{Error, ErrorKind, Result};

use crate::locks::ordered::{Shared, now};
use crate::store::{Leaving, Left, Store};

impl<S: Store> Shared<S> {
    /// Has entries leave of which nobody has heard that they hold. Another client that has taken one over has written it, so the store
    /// finds it changed. Whatever fails ends by itself.
    pub(crate) async fn withdraw_all(&self, requests: &[WithdrawRequest]) -> Vec<Result<WithdrawAnswer>> {
        let _changing = self.changing();
        let can_move = self.store.capability().adopts == Adopts::AnyClient;
        let leaving = |request: &WithdrawRequest| {
            let (owned, claim) = (self.owned(), request.withdraw.claim);
            match owned.get(claim) {
                Some(own) if own.granted_at.is_none() && !own.is_broken => {
                    let own = own.clone().leaving(None);
                    // A note that its id is finished would end what is another client's now, and so would a look for its slot.
                    let may_come_later = own.may_come_later && !can_move;
                    Ok(Leaving { may_come_later, may_have_slot: false, ..own })
                }
                None if owned.has_ended(claim) => Err(WithdrawAnswer::AlreadyLost),
                _ => Err(WithdrawAnswer::InUse),
            }
        };
        let known: Vec<std::result::Result<Leaving, WithdrawAnswer>> = requests.iter().map(leaving).collect();
        let all: Vec<Leaving> = known.iter().filter_map(|known| known.as_ref().ok().cloned()).collect();
        let left = if all.is_empty() { Vec::new() } else { self.store.leave(all).await };
        let mut left = left.into_iter();
        let missing = || Err(Error::new(ErrorKind::Internal, "withdraw", "one was left out"));
        let answer = |known: std::result::Result<Leaving, WithdrawAnswer>| {
            let claim = match known {
                Ok(Leaving { claim, .. }) => claim,
                Err(answer) => return Ok(answer),
            };
            let answer = match left.next().unwrap_or_else(missing)? {
                Left::Gone => WithdrawAnswer::Withdrawn,
                Left::WasNot => WithdrawAnswer::AlreadyLost,
                Left::IsBroken => return Ok(WithdrawAnswer::InUse),
            };
            self.end(claim, now());
            Ok(answer)
        };
        known.into_iter().map(answer).collect()
    }
}
