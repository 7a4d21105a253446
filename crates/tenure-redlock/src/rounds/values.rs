//! Values: written where the hold is, read from a majority, and written back to those that lack the newest.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tenure_core::model::claim::{ClaimId, Keep, Name};
use tenure_core::{Error, ErrorKind, Result};
use tenure_redis::server::{Unexpected, in_millis, number};

use super::Quorum;
use super::node::Request;
use crate::library::LIBRARY;
use crate::quorum::majority;

/// How long one server is waited for.
const WITHIN: Duration = Duration::from_millis(500);

/// A value as one server has it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) bytes: Vec<u8>,
    pub(crate) token: u64,
    /// The hold with which it ends. `None`: it outlives holds.
    pub(crate) claim: Option<ClaimId>,
    /// For how many ms it is fresh, and kept. A value that is gone leaves a token that is kept for none.
    fresh: u64,
    pub(crate) keep: u64,
}

impl Quorum {
    /// Sets a value under a hold, on a majority. `false`: a majority does not know the hold.
    pub(crate) async fn publish(
        self: &Arc<Self>,
        resource: &Name,
        claim: ClaimId,
        bytes: &[u8],
        keep: Keep,
    ) -> Result<bool> {
        let Some(held) = self.owned().get(claim).and_then(|own| own.held) else { return Ok(false) };
        let (fresh, keep) = match keep {
            Keep::WhileHeld => (String::new(), String::new()),
            Keep::For { fresh, stale } => {
                (in_millis(fresh).to_string(), in_millis(fresh + stale).to_string())
            }
        };
        let request = Request::new(&LIBRARY.publish)
            .key(self.key_text(resource))
            .arg(claim.to_string())
            .arg(held.token.to_string())
            .arg(fresh)
            .arg(&keep)
            .arg(bytes);
        let (mut set, mut refused) = (0, 0);
        // What is to be gone must be gone from each server: a copy that is left would be found by a majority, and written back.
        let most = if keep == "0" { self.nodes.len() } else { majority(self.nodes.len()) };
        let mut heard = self.ask_all(WITHIN, request);
        while set < most
            && refused < most
            && let Some((_, answer)) = heard.recv().await
        {
            match answer.ok().filter(|said| said.counts).and_then(|said| number(said.items.first()?).ok()) {
                Some(1) => set += 1,
                Some(_) => refused += 1,
                None => {}
            }
        }
        if set < most && refused < most {
            let message = format!("{set} of {} servers have answered, {most} are needed", self.nodes.len());
            return Err(Error::new(ErrorKind::Unavailable, "publish", message));
        }
        Ok(set >= most)
    }

    /// Writes the newest value back to the servers that lack it, in the background.
    pub(crate) fn mend(self: &Arc<Self>, resource: &Name, known: &[Option<Stored>]) -> Option<Stored> {
        let newest = known.iter().flatten().max_by_key(|value| value.token)?.clone();
        let is_behind =
            |value: &Option<Stored>| value.as_ref().is_none_or(|value| value.token < newest.token);
        if newest.claim.is_none() && newest.keep > 0 && known.iter().any(is_behind) {
            let request = Request::new(&LIBRARY.mend)
                .key(self.key_text(resource))
                .arg(newest.token.to_string())
                .arg(newest.fresh.to_string())
                .arg(newest.keep.to_string())
                .arg(&newest.bytes);
            drop(self.ask_all(WITHIN, request));
        }
        Some(newest)
    }
}

/// Reads a value as the servers show it.
pub(crate) fn stored(value: &Value) -> std::result::Result<Option<Stored>, Unexpected> {
    let Value::Array(items) = value else { return Err(Unexpected(format!("{value:?}"))) };
    let [Value::BulkString(bytes), token, claim, fresh, keep] = &items[..] else { return Ok(None) };
    let (token, fresh) = (number(token)?, number(fresh)?);
    // A dash: as long as its hold.
    let keep = number(keep).ok();
    let claim = super::text::lossy(claim).parse().ok().filter(|_| keep.is_none());
    Ok(Some(Stored { bytes: bytes.clone(), token, claim, fresh, keep: keep.unwrap_or(0) }))
}
