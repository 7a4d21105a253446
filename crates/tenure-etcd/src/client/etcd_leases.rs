//! The client's leases in etcd: one for each ttl, with all its entries of that ttl.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_ordered::SessionId;

use crate::client::endpoints::deadline;
use crate::client::lease::{Granted, Leases};
use crate::error::Fault;

/// A lease is not kept alive again within this part of its ttl: all its entries share one answer.
const FRESH_PART: u32 = 10;
/// For how long an id is remembered as finished, and how long the lease of such ids lasts: it is replaced halfway.
const DONE_FOR: Duration = Duration::from_secs(60);

/// What is known of one lease.
struct Known {
    ttl: Duration,
    /// When the heartbeat was sent that was answered last.
    sent: Instant,
    has_ended: bool,
    /// Leases that must not end before it.
    companions: BTreeSet<SessionId>,
}

/// The leases of one client.
pub(crate) struct EtcdLeases {
    leases: Leases,
    /// How long a server may lead that does not know yet that it does not any more: what it answers is worth less by that.
    margin: Duration,
    by_seconds: tokio::sync::Mutex<HashMap<u64, SessionId>>,
    done: tokio::sync::Mutex<Option<(SessionId, Instant)>>,
    etcd_leases: Mutex<HashMap<SessionId, Arc<tokio::sync::Mutex<Known>>>>,
}

fn now() -> Instant {
    SystemClock.now()
}

fn seconds(period: Duration) -> u64 {
    period.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX).max(1)
}

impl EtcdLeases {
    pub(crate) fn new(leases: Leases, margin: Duration) -> EtcdLeases {
        let (by_seconds, done, etcd_leases) = Default::default();
        EtcdLeases { leases, margin, by_seconds, done, etcd_leases }
    }

    fn etcd_leases(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<tokio::sync::Mutex<Known>>>> {
        self.etcd_leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a lease whose entries live for `ttl` after each heartbeat, all margins taken off.
    pub(crate) async fn of(&self, ttl: Duration) -> Result<SessionId, Fault> {
        let seconds = seconds(ttl + self.margin);
        let mut by_seconds = self.by_seconds.lock().await;
        if let Some(session_id) = by_seconds.get(&seconds).copied()
            && self.is_young(session_id).await?
        {
            return Ok(session_id);
        }
        let session_id = self.begin(seconds).await?;
        by_seconds.insert(seconds, session_id);
        Ok(session_id)
    }

    /// Whether enough is left of a lease for a new entry. The server is asked about one that was not used for a
    /// while.
    async fn is_young(&self, session_id: SessionId) -> Result<bool, Fault> {
        let known = self.etcd_leases().get(&session_id).cloned();
        let Some(known) = known else { return Ok(false) };
        let (ttl, age, has_ended) = {
            let known = known.lock().await;
            (known.ttl, now().since(known.sent), known.has_ended)
        };
        if has_ended {
            return Ok(false);
        }
        Ok(age < ttl / 2 || self.heartbeat(session_id).await?.is_some())
    }

    async fn begin(&self, seconds: u64) -> Result<SessionId, Fault> {
        let sent = now();
        let granted = self.leases.grant(Duration::from_secs(seconds), deadline()).await?;
        let session_id = life_of(granted.id);
        let known = Known { ttl: granted.ttl, sent, has_ended: false, companions: BTreeSet::new() };
        self.etcd_leases().insert(session_id, Arc::new(tokio::sync::Mutex::new(known)));
        Ok(session_id)
    }

    /// Keeps a lease alive, and its companions. Returns until when its entries live at least, or `None` if it has
    /// ended.
    pub(crate) async fn heartbeat(&self, session_id: SessionId) -> Result<Option<Instant>, Fault> {
        let known = self.etcd_leases().get(&session_id).cloned();
        let Some(known) = known else { return Ok(None) };
        // Held while it is asked: all others want the same answer.
        let mut known = known.lock().await;
        if known.has_ended {
            return Ok(None);
        }
        if now().since(known.sent) >= known.ttl / FRESH_PART {
            let sent = now();
            let all = std::iter::once(session_id).chain(known.companions.iter().copied());
            let answers =
                join_all(all.map(|session_id| self.leases.keep_alive(lease_of(session_id), deadline())))
                    .await;
            for answer in answers {
                match answer {
                    Ok(_) => {}
                    Err(Fault::NoLease { .. }) => {
                        known.has_ended = true;
                        self.etcd_leases().remove(&session_id);
                        return Ok(None);
                    }
                    Err(fault) => return Err(fault),
                }
            }
            known.sent = sent;
        }
        let etcd_leases = known.ttl.saturating_sub(self.margin);
        Ok(Some(known.sent + etcd_leases))
    }

    /// Another call failed since a lease is not there any more: finds out whether it is this one.
    pub(crate) async fn check_ended(&self, session_id: SessionId) {
        let known = self.etcd_leases().get(&session_id).cloned();
        let Some(known) = known else { return };
        if let Err(Fault::NoLease { .. }) = self.leases.keep_alive(lease_of(session_id), deadline()).await {
            known.lock().await.has_ended = true;
            self.etcd_leases().remove(&session_id);
        }
    }

    /// Has one lease kept alive with each heartbeat of another.
    pub(crate) async fn accompany(&self, session_id: SessionId, companion: SessionId) {
        let known = self.etcd_leases().get(&session_id).cloned();
        if let Some(known) = known {
            known.lock().await.companions.insert(companion);
        }
    }

    /// Begins a lease that is not kept alive.
    pub(crate) async fn once(&self, period: Duration) -> Result<i64, Fault> {
        Ok(self.leases.grant(period, deadline()).await?.id)
    }

    /// Begins the shortest lease that the cluster grants, which is not kept alive.
    pub(crate) async fn shortest(&self) -> Result<Granted, Fault> {
        self.leases.grant(Duration::ZERO, deadline()).await
    }

    /// Returns what is taken off of each promise.
    pub(crate) fn margin(&self) -> Duration {
        self.margin
    }

    /// Ends a lease that has no keys any more.
    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), Fault> {
        match self.leases.revoke(lease, deadline()).await {
            Ok(()) | Err(Fault::NoLease { .. }) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Returns a lease that lasts as long as an id must be remembered as finished.
    pub(crate) async fn done(&self) -> Result<i64, Fault> {
        let mut done = self.done.lock().await;
        if let Some((session_id, until)) = *done
            && now() < until
        {
            return Ok(lease_of(session_id));
        }
        let until = now() + DONE_FOR;
        let lease = self.once(2 * DONE_FOR).await?;
        *done = Some((life_of(lease), until));
        Ok(lease)
    }
}

/// The number of a lease.
pub(crate) fn lease_of(session_id: SessionId) -> i64 {
    i64::from_ne_bytes(session_id.0.to_ne_bytes())
}

fn life_of(lease: i64) -> SessionId {
    SessionId(u64::from_ne_bytes(lease.to_ne_bytes()))
}

#[cfg(test)]
mod tests;
