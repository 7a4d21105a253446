//! How claims end whose clients have gone away while they waited.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::{ClaimId, Name, Tenure};

/// A claim that nobody asks for any more, and whose turn it was.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) name: Name,
    pub(crate) id: ClaimId,
    pub(crate) turn: u64,
}

/// What is to be withdrawn. Crowds vanish at once: whatever has come together while one call is under way goes with the next one.
#[derive(Debug, Default)]
pub(crate) struct Withdrawals {
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    left: Vec<Left>,
    is_under_way: bool,
}

impl Withdrawals {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        // A panic elsewhere cannot leave it half-changed.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Withdraws a claim, and those that come meanwhile, and tells `ended` of each. Where a call is under way, whoever made it goes on with this one.
    pub(crate) async fn withdraw(&self, tenure: &Tenure, left: Left, ended: impl Fn(&Left)) {
        {
            let mut pending = self.pending();
            pending.left.push(left);
            if std::mem::replace(&mut pending.is_under_way, true) {
                return;
            }
        }
        while let Some(left) = self.next() {
            withdraw_all(tenure, &left).await;
            left.iter().for_each(&ended);
        }
    }

    fn next(&self) -> Option<Vec<Left>> {
        let mut pending = self.pending();
        pending.is_under_way = !pending.left.is_empty();
        pending.is_under_way.then(|| std::mem::take(&mut pending.left))
    }
}

/// The clients may have repeated their claims at another instance by now, and may hold: the store decides, and ends nothing of which anybody
/// has heard.
async fn withdraw_all(tenure: &Tenure, left: &[Left]) {
    let claims = left.iter().map(|left| (left.name.clone(), left.id)).collect();
    for (answer, left) in tenure.detached().withdraw(claims).await.into_iter().zip(left) {
        if let Err(error) = answer {
            tracing::debug!(%error, claim = %left.id, "a claim that nobody asks for lapses by itself");
        }
    }
}
