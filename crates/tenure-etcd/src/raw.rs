//! What `etcdctl lock` sends, sent by the bare client: what the benchmarks measure the engine against.

use std::time::Duration;

use tenure_core::error::Result;
use tokio::time::Instant;

use crate::config::Config;
use crate::endpoints::Endpoints;
use crate::error::Fault;
use crate::lease::Leases;
use crate::proto::{
    Compare, DeleteRangeRequest, Operation, PutRequest, RangeRequest, RequestOp, SortOrder, SortTarget,
    TxnRequest, end_of_prefix,
};

/// How long a call may take.
const CALL_MAX: Duration = Duration::from_secs(2);
/// How long the lease lasts on which all keys are. Nothing here lasts as long.
const TTL: Duration = Duration::from_secs(600);

/// A client with one lease. Cheap to clone.
#[derive(Clone)]
pub struct Bare {
    endpoints: Endpoints,
    lease: i64,
}

impl Bare {
    /// Connects and takes a lease. It must be called on a tokio runtime.
    ///
    /// # Errors
    /// As the engine's.
    pub async fn connect(url: &str) -> Result<Bare> {
        let endpoints = Endpoints::new(&Config::parse(url)?)?;
        let granted = Leases::start(&endpoints).grant(0, TTL, deadline()).await;
        let lease = granted.map_err(|fault| fault.to_error("connect"))?.id;
        Ok(Bare { endpoints, lease })
    }

    /// Takes a lock that is free, and lets it go: a transaction that puts the key of this client unless it is there and
    /// reads the oldest key of the lock, and a deletion. Returns whether it was free.
    ///
    /// # Errors
    /// As the engine's.
    pub async fn pair(&self, lock: &str) -> Result<bool> {
        let prefix = format!("{lock}/").into_bytes();
        let key = format!("{lock}/{:x}", self.lease).into_bytes();
        let is_first = self.lock(&prefix, &key).await.map_err(|fault| fault.to_error("claim"))?;
        let delete = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        self.endpoints.call(delete, deadline()).await.map_err(|fault| fault.to_error("release"))?;
        Ok(is_first)
    }

    /// Revokes the lease, which deletes whatever was left behind on it.
    ///
    /// # Errors
    /// As the engine's.
    pub async fn close(&self) -> Result<()> {
        let revoked = Leases::start(&self.endpoints).revoke(self.lease, deadline()).await;
        revoked.map(|_| ()).map_err(|fault| fault.to_error("close"))
    }

    async fn lock(&self, prefix: &[u8], key: &[u8]) -> std::result::Result<bool, Fault> {
        let put = PutRequest { key: key.to_vec(), lease: self.lease, ..PutRequest::default() };
        let get = RangeRequest { key: key.to_vec(), ..RangeRequest::default() };
        let oldest = RangeRequest {
            key: prefix.to_vec(),
            range_end: end_of_prefix(prefix),
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            limit: 1,
            ..RangeRequest::default()
        };
        let branch = |first| [first, Operation::Range(oldest.clone())].map(RequestOp::from).to_vec();
        let request = TxnRequest {
            compare: vec![Compare::is_absent(key)],
            success: branch(Operation::Put(put)),
            failure: branch(Operation::Range(get)),
        };
        let answer = self.endpoints.call(request, deadline()).await?;
        Ok(answer.succeeded && answer.oldest().is_some_and(|oldest| oldest == key))
    }
}

impl crate::proto::TxnResponse {
    /// The key that the last operation of a transaction found.
    fn oldest(&self) -> Option<&[u8]> {
        match self.responses.last()?.response.as_ref()? {
            crate::proto::Answered::Range(range) => Some(range.kvs.first()?.key.as_slice()),
            _ => None,
        }
    }
}

fn deadline() -> Instant {
    Instant::now() + CALL_MAX
}
