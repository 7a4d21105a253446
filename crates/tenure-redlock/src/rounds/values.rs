//! Values: written where the hold is, read from a majority, and written back to those that lack the newest.
//!
//! A value that only a few servers have, since its loader is still at it, or has died, is brought to a majority before it is served, as readers
//! of such a register must (Attiya and others 1995): or the next one, who hears other servers, would be served an older one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tenure_core::clock::Instant;
use tenure_core::model::claim::{ClaimId, Keep, Name, Published};
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result, mutant};
use tenure_redis::server::{Unexpected, in_millis, number};

use super::Quorum;
use super::node::Request;
use crate::library::LIBRARY;
use crate::quorum::majority;

/// How long one server is waited for.
const WITHIN: Duration = Duration::from_millis(500);

/// What a server answers that has a newer value than the one it is brought, or had one that is gone.
const NEWER: u64 = 2;

/// A value as one server has it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) bytes: Vec<u8>,
    pub(crate) token: u64,
    /// The hold with which it ends. `None`: it outlives holds.
    pub(crate) claim: Option<ClaimId>,
    /// For how many ms it is fresh, and kept. A value that is gone leaves a token that is kept for none.
    pub(crate) fresh: u64,
    pub(crate) keep: u64,
    /// When these were counted, by this client's clock.
    pub(crate) at: Instant,
}

impl Stored {
    /// Reads one of whose server's clock is nothing known.
    pub(crate) fn new(bytes: &[u8], token: u64, claim: Option<ClaimId>, fresh: u64, keep: u64) -> Stored {
        Stored { bytes: bytes.to_vec(), token, claim, fresh, keep, at: Instant::from_nanos(0) }
    }

    /// The value as whoever asks for it gets it.
    pub(crate) fn published(&self) -> Published {
        let fresh_for = Duration::from_millis(self.fresh);
        Published { bytes: self.bytes[..].into(), token: Token::new(self.token), fresh_for }
    }
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
            .arg(bytes)
            .since(self.clock.now());
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
                // It came when the value had ended, if it was answered.
                None => {}
            }
        }
        if set < most && refused < most {
            let message = format!("{set} of {} servers have answered, {most} are needed", self.nodes.len());
            return Err(Error::new(ErrorKind::Unavailable, "publish", message));
        }
        Ok(set >= most)
    }

    /// Returns the newest of the values that servers show, once a majority has it: then nobody who asks later is shown an older one. `None`:
    /// there is none, or it cannot be brought to a majority. To servers beyond the majority it is brought in the background.
    pub(crate) async fn write_back_newest(
        self: &Arc<Self>,
        resource: &Name,
        known: &[Option<Stored>],
    ) -> Option<Stored> {
        let newest = known.iter().flatten().max_by_key(|value| value.token)?.clone();
        let has_it = |value: &&Stored| value.token == newest.token;
        let having = known.iter().flatten().filter(has_it).count();
        let is_of_most = mutant!("redlock-serves-what-few-have") || having >= majority(self.nodes.len());
        // One that ends with its hold is for whoever knows the hold; and what is gone is not brought to anybody.
        if newest.claim.is_some() || newest.keep == 0 || is_of_most && having == known.len() {
            return Some(newest);
        }
        let written = self.write_back(resource, &newest);
        (is_of_most || written.await).then_some(newest)
    }

    /// Begins to bring a value to all servers. The future says whether a majority has it, and nobody a newer one: that one may have been served
    /// already, and those that answered for this one may not show what has replaced it, where it is being loaded or forgotten.
    pub(crate) fn write_back(
        self: &Arc<Self>,
        resource: &Name,
        value: &Stored,
    ) -> impl Future<Output = bool> + use<> {
        let request = Request::new(&LIBRARY.mend)
            .key(self.key_text(resource))
            .arg(value.token.to_string())
            .arg(value.fresh.to_string())
            .arg(value.keep.to_string())
            .arg(&value.bytes)
            .since(value.at);
        let most = majority(self.nodes.len());
        let mut heard = self.ask_all(WITHIN, request);
        async move {
            let mut having = 0;
            while having < most
                && let Some((_, answer)) = heard.recv().await
            {
                let said = answer.ok().filter(|said| said.counts);
                match said.and_then(|said| number(said.items.first()?).ok()) {
                    Some(NEWER) => return false,
                    Some(_) => having += 1,
                    None => {}
                }
            }
            having >= most
        }
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
    Ok(Some(Stored::new(bytes, token, claim, fresh, keep.unwrap_or(0))))
}
