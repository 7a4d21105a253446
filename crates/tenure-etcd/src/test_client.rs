//! What the tests of several modules share: a client of a real server.

use std::time::Duration;

use tenure_testkit::etcd::EtcdOptions;
use tokio::time::Instant;

use crate::client::endpoints::Endpoints;
use crate::client::proto::{Compare, Operation, PutRequest, RangeRequest, RequestOp, TxnRequest};
use crate::config::Config;

/// Runs a test on a runtime like a client's.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.unwrap().block_on(test);
}

pub(crate) fn connect(url: &str) -> Endpoints {
    Endpoints::new(&Config::parse(url).unwrap()).unwrap()
}

/// When a call that should be answered must be, on a machine that may be busy.
pub(crate) fn soon() -> Instant {
    within(Duration::from_secs(10))
}

pub(crate) fn within(period: Duration) -> Instant {
    Instant::now() + period
}

/// Elections that are over soon.
pub(crate) fn hasty() -> EtcdOptions {
    EtcdOptions::default().election(Duration::from_millis(50), Duration::from_millis(500))
}

pub(crate) fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() }
}

pub(crate) fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.into(), ..RangeRequest::default() }
}

pub(crate) fn txn(
    compare: impl IntoIterator<Item = Compare>,
    success: impl IntoIterator<Item = Operation>,
    failure: impl IntoIterator<Item = Operation>,
) -> TxnRequest {
    TxnRequest {
        compare: compare.into_iter().collect(),
        success: success.into_iter().map(RequestOp::from).collect(),
        failure: failure.into_iter().map(RequestOp::from).collect(),
    }
}

/// A key that no other test has.
pub(crate) fn unique(name: &str) -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{name}-{random:x}/")
}
