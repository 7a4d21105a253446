//! How claims end whose clients have gone away while they waited.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{ClaimId, ErrorKind, Name, Tenure};

use crate::pause::pause;

/// How often a store that does not answer is asked, and how long it is left alone between: together as long as a claim of which nobody hears
/// keeps its place. A crowd whose claims are not withdrawn is granted one after the other, and each grant keeps the next one waiting.
const ASKED_MAX: u32 = 16;
const PAUSE: Duration = Duration::from_secs(1);

/// A claim that nobody asks for any more, and whose turn it was.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) name: Name,
    pub(crate) id: ClaimId,
    pub(crate) turn: u64,
    /// How often the store was asked and did not answer.
    pub(crate) asked: u32,
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
            let unheard = withdraw_all(tenure, left, &ended).await;
            if !unheard.is_empty() {
                pause(PAUSE).await;
                self.pending().left.extend(unheard);
            }
        }
    }

    fn next(&self) -> Option<Vec<Left>> {
        let mut pending = self.pending();
        pending.is_under_way = !pending.left.is_empty();
        pending.is_under_way.then(|| std::mem::take(&mut pending.left))
    }
}

/// The clients may have repeated their claims at another instance by now, and may hold: the store decides, and ends nothing of which anybody
/// has heard. Returns the claims about which it is to be asked again.
async fn withdraw_all(tenure: &Tenure, left: Vec<Left>, ended: impl Fn(&Left)) -> Vec<Left> {
    let claims = left.iter().map(|left| (left.name.clone(), left.id)).collect();
    let mut unheard = Vec::new();
    for (answer, left) in tenure.detached().withdraw(claims).await.into_iter().zip(left) {
        match answer {
            Err(error) if error.kind() == ErrorKind::Unavailable && left.asked < ASKED_MAX => {
                unheard.push(Left { asked: left.asked + 1, ..left });
                continue;
            }
            Err(error) => {
                tracing::debug!(%error, claim = %left.id, "a claim that nobody asks for lapses by itself");
            }
            Ok(_) => {}
        }
        ended(&left);
    }
    unheard
}
