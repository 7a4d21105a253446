//! The resource side of fencing: whatever a lease protects refuses a holder that comes too late.
//!
//! See `docs/guides/fencing.md` for each kind of resource, and [`Fence`] for the rule.
//!
//! # Examples
//! ```
#![doc = include_str!("../examples/fence_memory.rs")]
//! ```

pub use tenure_fence::*;
#[cfg(feature = "tower")]
pub use tenure_tower as tower;
