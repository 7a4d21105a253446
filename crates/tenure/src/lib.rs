//! Locks, leases, worker slots, leader election and FIFO queues on the store you already run, or on this
//! machine alone without a server.
//!
//! ```no_run
#![doc = include_str!("../examples/hello.rs")]
//! ```
//!
//! A lease can always be lost: the store may be unreachable for longer than the ttl, an operator may break it,
//! the machine may sleep. Its user learns of it by a local deadline ([`Lease::lost`], [`Lease::is_lost`]), work
//! under [`Mutex::run`] is dropped, and [`Lease::token`] lets the protected resource refuse what comes too
//! late. No lock can promise more than that; see `docs/concepts/what-can-go-wrong.md`.

pub mod blocking;
#[cfg(feature = "fence")]
pub mod fence;
pub mod queue;
#[cfg(feature = "testing")]
pub mod testing;
mod url;

pub use tenure_core::clock::Instant;
pub use tenure_core::engine::{Adopts, BreakAnswer, Capability, Finding, Severity};
pub use tenure_core::error::plain;
pub use tenure_core::model::claim::{Kind, Printable};
pub use tenure_core::model::inspect::{HoldView, View, WaiterView};
pub use tenure_core::{
    Acquire, AllOf, AnyOf, Busy, ClaimId, Delivery, Detached, DetachedClaims, DetachedDeliveries,
    DetachedDelivery, Election, Error, ErrorKind, Fetched, FetchedFrom, Kept, Label, Leader, Leaders, Lease,
    Leases, LoadTurn, LockRequest, LossReason, Mutex, Name, Observer, Pages, Push, Queue, QueuePosition,
    ReadLock, ReleaseAnswer, Result, RwLock, Semaphore, Settings, SingleFlight, Slot, SlotPool, Tenure, Term,
    Token, WithdrawAnswer, WriteLock,
};
#[cfg(feature = "etcd")]
pub use tenure_etcd as etcd;
#[cfg(feature = "local")]
pub use tenure_local as local;
#[cfg(feature = "mysql")]
pub use tenure_mysql as mysql;
#[cfg(feature = "postgres")]
pub use tenure_postgres as postgres;
#[cfg(feature = "redis")]
pub use tenure_redis as redis;
#[cfg(feature = "redlock")]
pub use tenure_redlock as redlock;
#[cfg(feature = "zookeeper")]
pub use tenure_zookeeper as zookeeper;
pub use url::{connector, redact};

/// Connects with the engine that a URL names.
///
/// `local:` this machine, no server; `local:/dir` the same in a directory of your own; `memory:` and
/// `memory:name` within this process, for tests; with the feature `redis` also `redis://host`, `rediss://host`,
/// `redis+unix:///path`, `redis+sentinel://h1,h2,h3/master-name` and `redis+cluster://h1,h2`; with the feature
/// `redlock`, which comes with `redis`, also `redlock://h1,h2,h3` and `redlocks://`; with the feature `postgres` also `postgres://host/database`; with the feature `mysql` also `mysql://user@host/database` (MySQL and
/// MariaDB); with the feature `etcd` also `etcd://h1,h2,h3` and `etcds://`; with the feature `zookeeper` also
/// `zookeeper://h1,h2,h3/path` and `zookeepers://`.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a URL that names no engine; [`ErrorKind::Unsupported`] for an engine that this
/// build or this environment has not; [`ErrorKind::Unavailable`] if the store does not answer in time.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// let tenure = tenure::connect("memory:").await?;
/// let lease = tenure.mutex("billing/4711").acquire().await?;
/// println!("token {}", lease.token());
/// lease.release().await?;
/// # Ok(()) }) }
/// ```
pub async fn connect(url: &str) -> Result<Tenure> {
    connect_with(url, Settings::new()).await
}

/// Connects with the engine that a URL names, with settings.
///
/// # Errors
/// As [`connect`]; [`ErrorKind::Invalid`] for a setting out of range.
///
/// # Examples
/// ```
/// # fn main() -> tenure::Result<()> { pollster::block_on(async {
/// let settings = tenure::Settings::new().label("night shift");
/// let tenure = tenure::connect_with("memory:", settings).await?;
/// # assert_eq!(tenure.label().text(), "night shift");
/// # Ok(()) }) }
/// ```
pub async fn connect_with(url: &str, settings: Settings) -> Result<Tenure> {
    Tenure::connect_with(connector(url)?, settings).await
}
