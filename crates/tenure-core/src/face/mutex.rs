//! One holder at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::client::connection::Connection;
use crate::counts::Primitive;
use crate::error::Result;
use crate::face::claimant::{Claimant, claim_id, debug, labelled, run, settings, verbs};
use crate::face::lease::{Acquire, Lease};

/// A lock with one holder at a time, by name.
///
/// # Guarantees
/// Claims are granted in the order in which the engine received them. Each grant's token is larger than every
/// earlier one. A lease is kept alive in the background; if that fails for a ttl, it is lost by a local
/// deadline before the engine grants the mutex to another client. What an engine cannot promise (a failover, a
/// stepped clock) is on its page; the token is the answer to it.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("mutex-example").await?;
/// let billing = tenure.mutex("billing/4711").ttl(std::time::Duration::from_secs(30));
/// let paid = billing.run(async |lease| format!("paid under {}", lease.token())).await?;
/// # assert!(paid.starts_with("paid under 1"));
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(lock: tenure_core::Mutex, work: impl Fn(tenure_core::Token)) -> tenure_core::Result<()> {
/// let lock = lock.ttl(Duration::from_secs(30));
/// let lock = lock.max_hold(Duration::from_secs(3600));
/// let lock = lock.min_hold(Duration::from_secs(60));
/// let lock = lock.lock_delay(Duration::from_secs(10));
/// let lock = lock.label("night run");
/// # let again = lock.clone();
/// # let id = tenure_core::ClaimId::new(u128::MAX);
/// # let (label, token) = (tenure_core::Label::new("a", 7, "billing", ""), tenure_core::Token::ZERO);
/// let lock = lock.labelled(label);
/// let lock = lock.floor(token);
/// let lock = lock.left_in_store();
/// let lease = lock.claim_id(id).acquire_within(Duration::from_secs(5)).await?;
/// # let lock = again;
/// let lease = lock.try_acquire().await?;
/// let lease = lock.acquire().await?;
/// let lease = lock.acquire_within(Duration::from_secs(5)).await?;
/// let done = lock.run(async |lease| work(lease.token())).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    pub(crate) claimant: Claimant,
}

debug!(Mutex);

impl Mutex {
    pub(crate) fn new(connection: Arc<Connection>, name: &str) -> Mutex {
        Mutex::of(connection, name, Primitive::Mutex)
    }

    /// Names the mutex that another primitive is.
    pub(crate) fn of(connection: Arc<Connection>, name: &str, primitive: Primitive) -> Mutex {
        Mutex { claimant: Claimant::new(connection, name, primitive) }
    }

    settings!("the mutex");
    labelled!();
    claim_id!();
    verbs!("the lock", Lease, Ok);
    run!("the lock");
}
