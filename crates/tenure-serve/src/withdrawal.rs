//! How a claim ends whose client has gone away while it waited.

use tenure_core::engine::Adopts;
use tenure_core::{ClaimId, Name, Tenure};

/// Withdraws a claim that nobody asks for any more.
///
/// Where any client can have a claim, its client may have repeated it at another instance by now, and may hold: what this one
/// knows is too old to end that. There the place lapses by itself, as nobody keeps it.
pub(crate) async fn withdraw(tenure: &Tenure, name: Name, id: ClaimId) {
    if tenure.capability().adopts == Adopts::AnyClient {
        return;
    }
    for answer in tenure.detached().release(vec![(name, id)]).await {
        if let Err(error) = answer {
            tracing::debug!(%error, claim = %id, "a claim that nobody asks for lapses by itself");
        }
    }
}
