//! The client's leases in etcd: one for each ttl, with all its entries of that ttl.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_ordered::Life;

use crate::error::Fault;
use crate::lease::{Granted, Leases};
use crate::store::deadline;

/// A lease is not kept alive again within this part of its ttl: all its entries share one answer.
const FRESH_PART: u32 = 10;
/// For how long an id is remembered as finished, and how long the lease of such ids lives: it is replaced halfway.
const DONE_FOR: Duration = Duration::from_secs(60);

/// What is known of one lease.
struct Known {
    ttl: Duration,
    /// When the heartbeat was sent that was answered last.
    sent: Instant,
    has_ended: bool,
    /// Leases that must not end before it.
    companions: BTreeSet<Life>,
}

/// The leases of one client.
pub(crate) struct Lives {
    leases: Leases,
    /// How long a server may lead that does not know yet that it does not any more: what it answers is worth less by that.
    margin: Duration,
    by_seconds: tokio::sync::Mutex<HashMap<u64, Life>>,
    done: tokio::sync::Mutex<Option<(Life, Instant)>>,
    lives: Mutex<HashMap<Life, Arc<tokio::sync::Mutex<Known>>>>,
}

fn now() -> Instant {
    SystemClock.now()
}

fn seconds(period: Duration) -> u64 {
    period.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX).max(1)
}

impl Lives {
    pub(crate) fn new(leases: Leases, margin: Duration) -> Lives {
        let (by_seconds, done, lives) = Default::default();
        Lives { leases, margin, by_seconds, done, lives }
    }

    fn lives(&self) -> MutexGuard<'_, HashMap<Life, Arc<tokio::sync::Mutex<Known>>>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a lease whose entries live for `ttl` after each heartbeat, all margins taken off.
    pub(crate) async fn of(&self, ttl: Duration) -> Result<Life, Fault> {
        let seconds = seconds(ttl + self.margin);
        let mut by_seconds = self.by_seconds.lock().await;
        if let Some(life) = by_seconds.get(&seconds).copied()
            && self.is_young(life).await?
        {
            return Ok(life);
        }
        let life = self.begin(seconds).await?;
        by_seconds.insert(seconds, life);
        Ok(life)
    }

    /// Whether enough is left of a lease for a new entry. One that nobody used for a while is asked.
    async fn is_young(&self, life: Life) -> Result<bool, Fault> {
        let known = self.lives().get(&life).cloned();
        let Some(known) = known else { return Ok(false) };
        let (ttl, age, has_ended) = {
            let known = known.lock().await;
            (known.ttl, now().since(known.sent), known.has_ended)
        };
        if has_ended {
            return Ok(false);
        }
        Ok(age < ttl / 2 || self.heartbeat(life).await?.is_some())
    }

    async fn begin(&self, seconds: u64) -> Result<Life, Fault> {
        let sent = now();
        let granted = self.leases.grant(Duration::from_secs(seconds), deadline()).await?;
        let life = life_of(granted.id);
        let known = Known { ttl: granted.ttl, sent, has_ended: false, companions: BTreeSet::new() };
        self.lives().insert(life, Arc::new(tokio::sync::Mutex::new(known)));
        Ok(life)
    }

    /// Keeps a lease alive, and its companions. Returns until when its entries live at least. None: it has ended.
    pub(crate) async fn heartbeat(&self, life: Life) -> Result<Option<Instant>, Fault> {
        let known = self.lives().get(&life).cloned();
        let Some(known) = known else { return Ok(None) };
        // Held while it is asked: all others want the same answer.
        let mut known = known.lock().await;
        if known.has_ended {
            return Ok(None);
        }
        if now().since(known.sent) >= known.ttl / FRESH_PART {
            let sent = now();
            let all = std::iter::once(life).chain(known.companions.iter().copied());
            let answers = join_all(all.map(|life| self.leases.keep_alive(lease_of(life), deadline()))).await;
            for answer in answers {
                match answer {
                    Ok(_) => {}
                    Err(Fault::NoLease { .. }) => {
                        known.has_ended = true;
                        self.lives().remove(&life);
                        return Ok(None);
                    }
                    Err(fault) => return Err(fault),
                }
            }
            known.sent = sent;
        }
        let lives = known.ttl.saturating_sub(self.margin);
        Ok(Some(known.sent + lives))
    }

    /// Another call was told that a lease is not there any more: finds out whether it is this one.
    pub(crate) async fn look_after(&self, life: Life) {
        let known = self.lives().get(&life).cloned();
        let Some(known) = known else { return };
        if let Err(Fault::NoLease { .. }) = self.leases.keep_alive(lease_of(life), deadline()).await {
            known.lock().await.has_ended = true;
            self.lives().remove(&life);
        }
    }

    /// Has one lease kept alive with each heartbeat of another.
    pub(crate) async fn accompany(&self, life: Life, companion: Life) {
        let known = self.lives().get(&life).cloned();
        if let Some(known) = known {
            known.lock().await.companions.insert(companion);
        }
    }

    /// Begins a lease that nobody keeps alive.
    pub(crate) async fn once(&self, period: Duration) -> Result<i64, Fault> {
        Ok(self.leases.grant(period, deadline()).await?.id)
    }

    /// Begins the shortest lease that the cluster grants, which nobody keeps alive.
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

    /// Returns a lease that lives as long as an id must be remembered as finished.
    pub(crate) async fn done(&self) -> Result<i64, Fault> {
        let mut done = self.done.lock().await;
        if let Some((life, until)) = *done
            && now() < until
        {
            return Ok(lease_of(life));
        }
        let until = now() + DONE_FOR;
        let lease = self.once(2 * DONE_FOR).await?;
        *done = Some((life_of(lease), until));
        Ok(lease)
    }
}

/// The lease of a life.
pub(crate) fn lease_of(life: Life) -> i64 {
    i64::from_ne_bytes(life.0.to_ne_bytes())
}

fn life_of(lease: i64) -> Life {
    Life(u64::from_ne_bytes(lease.to_ne_bytes()))
}

#[cfg(test)]
mod tests;
