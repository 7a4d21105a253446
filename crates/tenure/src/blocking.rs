//! The same verbs for programs without an async runtime. They block the calling thread.
//!
//! ```
//! # fn main() -> tenure::Result<()> {
//! let tenure = tenure::blocking::connect("memory:")?;
//! let receipt = tenure.mutex("billing/4711").run(|lease| format!("paid under {}", lease.token()))?;
//! # assert!(receipt.starts_with("paid under 1"));
//! # Ok(()) }
//! ```

use crate::{Result, Settings};

pub use tenure_core::face::blocking::{
    AllOf, AnyOf, Blocking, Delivery, Election, Leaders, Lease, Leases, Mutex, Push, Queue, ReadLock, RwLock,
    Semaphore, SingleFlight, Slot, SlotPool, Tenure, Term, WriteLock,
};

/// Connects with the engine that a URL names.
///
/// # Errors
/// As [`crate::connect`].
pub fn connect(url: &str) -> Result<Tenure> {
    connect_with(url, Settings::new())
}

/// Connects with the engine that a URL names, with settings.
///
/// # Errors
/// As [`crate::connect`].
pub fn connect_with(url: &str, settings: Settings) -> Result<Tenure> {
    pollster::block_on(crate::connect_with(url, settings)).map(Tenure::from)
}
