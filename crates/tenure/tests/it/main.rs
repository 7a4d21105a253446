//! The examples, which assert what they show; and the way from a refusal to the next lease.

mod fence;
mod fleet;
#[cfg(feature = "postgres")]
mod pool;
mod refunds;
