//! What `etcdctl lock` sends, sent by the bare client: what the benchmarks measure the engine against.

use std::time::Duration;

use tenure_core::error::Result;
use tokio::time::Instant;

use crate::client::endpoints::Endpoints;
use crate::client::lease::Leases;
use crate::client::proto::{
    Answered, Compare, DeleteRangeRequest, Operation, PutRequest, RangeRequest, RangeResponse, RequestOp,
    SortOrder, SortTarget, TxnRequest, TxnResponse, end_of_prefix,
};
use crate::client::watch::{Notice, Wanted, Watches};
use crate::config::Config;
use crate::error::Fault;
use crate::locks::wake::goes;

/// How long a call may take.
const CALL_MAX: Duration = Duration::from_secs(2);
/// How long the lease lasts on which all keys are. Nothing here lasts as long.
const TTL: Duration = Duration::from_secs(600);

/// A client with one lease. Cheap to clone.
#[derive(Clone)]
pub struct Bare {
    endpoints: Endpoints,
    watches: Watches,
    lease: i64,
}

impl std::fmt::Debug for Bare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bare").finish_non_exhaustive()
    }
}

impl Bare {
    /// Connects and takes a lease. It must be called on a tokio runtime.
    ///
    /// # Errors
    /// As the engine's.
    pub async fn connect(url: &str) -> Result<Bare> {
        let endpoints = Endpoints::new(&Config::parse(url)?)?;
        let granted = Leases::start(&endpoints).grant(TTL, deadline()).await;
        let lease = granted.map_err(|fault| fault.to_error("connect"))?.id;
        Ok(Bare { watches: Watches::start(&endpoints), endpoints, lease })
    }

    /// Takes a lock that is free, and lets it go: a transaction that puts the key of this client unless it is there and
    /// reads the oldest key of the lock, and a deletion. Returns whether it was free.
    ///
    /// # Errors
    /// As the engine's.
    pub async fn pair(&self, lock: &str) -> Result<bool> {
        let key = self.key(lock);
        let (_, oldest) = self.enter(lock).await.map_err(|fault| fault.to_error("claim"))?;
        self.unlock(lock).await?;
        Ok(oldest == key)
    }

    /// Waits for a lock as the recipe does: for the deletion of the key before its own, again and again until there is none,
    /// and then asks whether its own is still there.
    ///
    /// # Errors
    /// As the engine's.
    pub async fn lock(&self, lock: &str) -> Result<()> {
        self.wait(lock).await.map_err(|fault| fault.to_error("claim"))
    }

    /// Lets a lock go.
    ///
    /// # Errors
    /// As the engine's.
    pub async fn unlock(&self, lock: &str) -> Result<()> {
        let delete = DeleteRangeRequest { key: self.key(lock), ..DeleteRangeRequest::default() };
        self.endpoints.call(delete, deadline()).await.map(drop).map_err(|fault| fault.to_error("release"))
    }

    fn key(&self, lock: &str) -> Vec<u8> {
        format!("{lock}/{:x}", self.lease).into_bytes()
    }

    async fn wait(&self, lock: &str) -> std::result::Result<(), Fault> {
        let (mine, oldest) = self.enter(lock).await?;
        if oldest == self.key(lock) {
            return Ok(());
        }
        let prefix = format!("{lock}/").into_bytes();
        loop {
            let before = RangeRequest {
                key: prefix.clone(),
                range_end: end_of_prefix(&prefix),
                sort_order: SortOrder::Descend.into(),
                sort_target: SortTarget::Create.into(),
                max_create_revision: mine - 1,
                limit: 1,
                ..RangeRequest::default()
            };
            let answer = self.endpoints.call(before, deadline()).await?;
            let Some(before) = answer.kvs.into_iter().next() else { break };
            let start_revision = answer.header.map_or(0, |header| header.revision) + 1;
            let mut watch = self.watches.watch(Wanted { start_revision, ..goes(before.key, false) });
            while let Ok(Notice::Began { .. }) = watch.next().await {}
        }
        let own = RangeRequest { key: self.key(lock), ..RangeRequest::default() };
        self.endpoints.call(own, deadline()).await.map(drop)
    }

    /// Revokes the lease, which deletes whatever was left behind on it.
    ///
    /// # Errors
    /// As the engine's.
    pub async fn close(&self) -> Result<()> {
        let revoked = Leases::start(&self.endpoints).revoke(self.lease, deadline()).await;
        revoked.map_err(|fault| fault.to_error("close"))
    }

    /// Puts the key unless it is there. Returns its create revision, and the oldest key of the lock.
    async fn enter(&self, lock: &str) -> std::result::Result<(i64, Vec<u8>), Fault> {
        let (prefix, key) = (format!("{lock}/").into_bytes(), self.key(lock));
        let put = PutRequest { key: key.clone(), lease: self.lease, ..PutRequest::default() };
        let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let oldest = RangeRequest {
            range_end: end_of_prefix(&prefix),
            key: prefix,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            limit: 1,
            ..RangeRequest::default()
        };
        let branch = |first| [first, Operation::Range(oldest.clone())].map(RequestOp::from).to_vec();
        let request = TxnRequest {
            compare: vec![Compare::is_absent(key.clone())],
            success: branch(Operation::Put(put)),
            failure: branch(Operation::Range(get)),
        };
        let answer = self.endpoints.call(request, deadline()).await?;
        let written = answer.header.map_or(0, |header| header.revision);
        let found = |range: Option<&RangeResponse>| range.and_then(|range| range.kvs.first().cloned());
        let mut ranges = ranges(&answer);
        let mine = if answer.succeeded {
            written
        } else {
            found(ranges.next()).map_or(0, |key| key.create_revision)
        };
        Ok((mine, found(ranges.next()).map_or_else(Vec::new, |oldest| oldest.key)))
    }
}

fn ranges(answer: &TxnResponse) -> impl Iterator<Item = &RangeResponse> {
    answer.responses.iter().filter_map(|response| match &response.response {
        Some(Answered::Range(range)) => Some(range),
        _ => None,
    })
}

fn deadline() -> Instant {
    Instant::now() + CALL_MAX
}
