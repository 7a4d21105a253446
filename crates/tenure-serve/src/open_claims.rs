//! The claims that a request of this server is about, or was until its client went away.
//!
//! It is all that is in memory: which requests are open. A claim's place, its grant and its end are in the store alone. Two requests about
//! one claim come from a client that repeats what was not answered: the later one has the claim, and the earlier one, whose connection may be
//! dead without anybody having noticed, lets go of it first.
//!
//! A client that goes away while it waits may come back with the same id. Its place stays for a while (`linger`), in the store: nobody sends
//! heartbeats meanwhile, so that a grant is not confirmed, and passes on after the confirm window even if this process dies. Then
//! the claim is withdrawn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{ClaimId, Name, Tenure};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::pause::pause;
use crate::withdrawal::{Left, Withdrawals};

#[derive(Debug)]
pub(crate) struct OpenClaims {
    runtime: Handle,
    state: Mutex<State>,
    withdrawals: Withdrawals,
}

#[derive(Debug, Default)]
struct State {
    claims: HashMap<ClaimId, Claim>,
    /// How many turns there have been.
    turns: u64,
}

#[derive(Debug)]
struct Claim {
    turn: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// A request is about it: how to have it let go, and what closes when it has.
    Open { leave: oneshot::Sender<()>, left: oneshot::Receiver<()> },
    /// Its client has gone. Dropping this keeps it from being withdrawn.
    Lingering { _kept: oneshot::Sender<()> },
    /// It is being withdrawn, and no request can stop that.
    Withdrawing,
}

/// The turn of one request with a claim.
#[derive(Debug)]
pub(crate) struct OpenClaim {
    claims: Arc<OpenClaims>,
    id: ClaimId,
    turn: u64,
    leave: oneshot::Receiver<()>,
    /// Closes when this is dropped.
    _left: oneshot::Sender<()>,
}

/// The claim is being withdrawn: its id is used up.
#[derive(Debug)]
pub(crate) struct Withdrawn;

impl OpenClaims {
    pub(crate) fn new(runtime: Handle) -> OpenClaims {
        OpenClaims { runtime, state: Mutex::default(), withdrawals: Withdrawals::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave it half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a turn, as soon as the request before has let go.
    pub(crate) async fn enter(self: &Arc<OpenClaims>, id: ClaimId) -> Result<OpenClaim, Withdrawn> {
        let (open, before) = self.begin(id)?;
        if let Some(left) = before {
            // It closes; nothing is ever sent.
            left.await.ok();
        }
        Ok(open)
    }

    fn begin(
        self: &Arc<OpenClaims>,
        id: ClaimId,
    ) -> Result<(OpenClaim, Option<oneshot::Receiver<()>>), Withdrawn> {
        let (leave, leaves) = oneshot::channel();
        let (leaving, left) = oneshot::channel();
        let mut state = self.state();
        if let Some(Claim { stage: Stage::Withdrawing, .. }) = state.claims.get(&id) {
            return Err(Withdrawn);
        }
        state.turns += 1;
        let turn = state.turns;
        let before = state.claims.insert(id, Claim { turn, stage: Stage::Open { leave, left } });
        let before = match before.map(|claim| claim.stage) {
            Some(Stage::Open { leave, left }) => {
                // It may have gone by itself.
                leave.send(()).ok();
                Some(left)
            }
            _ => None,
        };
        Ok((OpenClaim { claims: self.clone(), id, turn, leave: leaves, _left: leaving }, before))
    }

    /// A client that went away while it waited has asked for its claim by another request, which is answered by the store: the claim is not
    /// withdrawn any more.
    ///
    /// # Errors
    /// It is being withdrawn.
    pub(crate) fn comes_back(&self, id: ClaimId) -> Result<(), Withdrawn> {
        let mut state = self.state();
        match state.claims.get(&id).map(|claim| &claim.stage) {
            Some(Stage::Withdrawing) => Err(Withdrawn),
            Some(Stage::Lingering { .. }) => {
                state.claims.remove(&id);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Removes a claim if it is still this turn's.
    fn end(&self, id: ClaimId, turn: u64) {
        let mut state = self.state();
        if state.claims.get(&id).is_some_and(|claim| claim.turn == turn) {
            state.claims.remove(&id);
        }
    }

    /// How many claims a request or a client that went away is about.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.state().claims.len()
    }
}

impl OpenClaim {
    /// Waits until another request wants the claim.
    pub(crate) async fn superseded(&mut self) {
        // Closed means the same: somebody else has the claim.
        (&mut self.leave).await.ok();
    }

    /// Its client has gone away. The claim is withdrawn after a while, unless it is repeated before.
    pub(crate) fn linger(self, tenure: &Tenure, name: Name, period: Duration) {
        let (claims, id, turn) = (self.claims.clone(), self.id, self.turn);
        let (kept, mut comes_back) = oneshot::channel();
        {
            let mut state = claims.state();
            match state.claims.get_mut(&id).filter(|claim| claim.turn == turn) {
                Some(claim) => claim.stage = Stage::Lingering { _kept: kept },
                None => return,
            }
        }
        let tenure = tenure.clone();
        // `self` ends here: whoever comes now sees that it lingers.
        let runtime = claims.runtime.clone();
        runtime.spawn(async move {
            tokio::select! {
                biased;
                _ = &mut comes_back => return,
                () = pause(period) => {}
            }
            {
                let mut state = claims.state();
                match state.claims.get_mut(&id).filter(|claim| claim.turn == turn) {
                    Some(claim) => claim.stage = Stage::Withdrawing,
                    None => return,
                }
            }
            let ended = |left: &Left| claims.end(left.id, left.turn);
            claims.withdrawals.withdraw(&tenure, Left { name, id, turn, asked: 0 }, ended).await;
        });
    }
}

impl Drop for OpenClaim {
    fn drop(&mut self) {
        let mut state = self.claims.state();
        let is_open = |claim: &&Claim| claim.turn == self.turn && matches!(claim.stage, Stage::Open { .. });
        if state.claims.get(&self.id).filter(is_open).is_some() {
            state.claims.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(test: impl AsyncFnOnce(Arc<OpenClaims>) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { test(Arc::new(OpenClaims::new(Handle::current()))).await })
    }

    const ID: ClaimId = ClaimId::new(7);

    #[test]
    fn a_later_turn_begins_when_the_earlier_one_has_ended() {
        run(async |claims| {
            let mut first = claims.enter(ID).await.expect("a turn");
            let (second, ()) = tokio::join!(claims.enter(ID), async {
                first.superseded().await;
                drop(first);
            });
            let second = second.expect("a turn");
            assert_eq!(claims.len(), 1, "the end of the first one takes nothing from the second one");
            drop(second);
            assert_eq!(claims.len(), 0);
        });
    }

    #[test]
    fn nothing_is_left_of_a_claim_that_has_lingered() {
        run(async |claims| {
            let tenure = tenure_core::memory::connect("open-claims").await.expect("a store");
            let name = Name::new("a").expect("a name");
            let open = claims.enter(ID).await.expect("a turn");
            open.linger(&tenure, name.clone(), Duration::from_secs(3600));
            assert_eq!(claims.len(), 1);
            let back = claims.enter(ID).await.expect("it is not withdrawn yet");
            back.linger(&tenure, name, Duration::ZERO);
            while claims.len() > 0 {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_claim_that_is_renewed_while_it_lingers_is_not_withdrawn() {
        run(async |claims| {
            let tenure = tenure_core::memory::connect("open-claims-back").await.expect("a store");
            let name = Name::new("a").expect("a name");
            claims.enter(ID).await.expect("a turn").linger(&tenure, name, Duration::from_secs(3600));
            assert_eq!(claims.len(), 1);
            claims.comes_back(ID).expect("it is not withdrawn yet");
            assert_eq!(claims.len(), 0);
            let open = claims.enter(ID).await.expect("a turn");
            claims.comes_back(ID).expect("a request that is open is none that has gone");
            assert_eq!(claims.len(), 1);
            drop(open);
        });
    }

    #[test]
    fn a_claim_that_is_being_withdrawn_is_used_up() {
        run(async |claims| {
            let open = claims.enter(ID).await.expect("a turn");
            claims.state().claims.get_mut(&ID).expect("it is open").stage = Stage::Withdrawing;
            drop(open);
            assert!(claims.enter(ID).await.is_err() && claims.comes_back(ID).is_err());
        });
    }
}
