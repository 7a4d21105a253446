//! Time that moves when a test says so, so that what takes half a minute is tested in none. For `[dev-dependencies]`.
//!
//! # Examples
//! A lease is lost when its client has not renewed it for its ttl, here 30 s. This test takes no time:
//! ```
//! use std::time::Duration;
//! use tenure::{ErrorKind, LossReason, testing::VirtualStore};
//!
//! # fn main() -> tenure::Result<()> { pollster::block_on(async {
//! let store = VirtualStore::new();
//! let tenure = store.connect().await?;
//! let lease = tenure.mutex("billing/4711").acquire().await?;
//!
//! store.advance(Duration::from_secs(30));
//!
//! assert!(lease.is_lost());
//! let lost = lease.lost().await;
//! assert_eq!((lost.kind(), lost.loss_reason()), (ErrorKind::Lost, Some(LossReason::NotRenewed)));
//!
//! // Others can take it, each from a client of its own.
//! let other = store.connect().await?;
//! assert!(other.mutex("billing/4711").try_acquire().await?.is_some());
//! # Ok(()) }) }
//! ```

use std::sync::Arc;
use std::time::Duration;

use tenure_core::memory::Store;
pub use tenure_core::testing::virtual_clock::VirtualClock;

use crate::{Result, Settings, Tenure};

/// The seed of the clock's randomness. It decides ids and the spread of repetitions, which no test should depend on.
const SEED: u64 = 1;

/// A store in memory whose clock, and that of all its clients, stands until a test moves it.
///
/// Cloning it names the same store. Two of them have nothing to do with each other, as two stores.
#[derive(Clone, Debug)]
pub struct VirtualStore {
    clock: VirtualClock,
    store: Arc<Store>,
}

impl Default for VirtualStore {
    fn default() -> VirtualStore {
        VirtualStore::new()
    }
}

impl VirtualStore {
    /// Makes an empty store.
    pub fn new() -> VirtualStore {
        let clock = VirtualClock::new(SEED);
        VirtualStore { store: Store::new(Arc::new(clock.clone())), clock }
    }

    /// Connects one more client with it, as another process would.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this process can have no more threads or files.
    pub async fn connect(&self) -> Result<Tenure> {
        self.connect_with(Settings::new()).await
    }

    /// Connects one more client with it, with settings.
    ///
    /// # Errors
    /// As [`VirtualStore::connect`]; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a setting out of range.
    pub async fn connect_with(&self, settings: Settings) -> Result<Tenure> {
        Tenure::start(self.store.clone().connector(), Arc::new(self.clock.clone()), settings).await
    }

    /// Moves time forward at once, as when the machine sleeps for so long.
    ///
    /// What was not renewed meanwhile is over when this returns, by the same rule as when a real client is stopped for
    /// that long. What is due in the background begins then, on the clients' own threads: renewals of what is not over yet, the ends of
    /// waits, the delivery of items whose delay is over. So a lease is kept by steps of less than its ttl, each followed by something that is
    /// awaited, and a test awaits what it expects, such as [`Lease::lost`](crate::Lease::lost) or
    /// [`Queue::next`](crate::Queue::next), and does not look at once.
    pub fn advance(&self, period: Duration) {
        self.clock.advance(period);
    }

    /// Returns the clock, for code of your own that takes one.
    pub fn clock(&self) -> &VirtualClock {
        &self.clock
    }
}
