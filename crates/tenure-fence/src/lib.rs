//! The resource side of fencing: whatever a lease protects refuses a holder that comes too late.
//!
//! A lock cannot stop a process that is paused just after it looked whether it still holds: it wakes up and
//! writes, while another holds the lock. What it writes to can stop it, with the token of its lease. The rule,
//! [`Fence`], keeps the [`Mark`]s of the largest accepted write and read, and refuses what a later grant has
//! overtaken. Check and write must be one atomic step, so the rule comes in the form of each store:
//!
//! * [`Fence`] in a value of your own, under your own lock; [`Memory`]: the same by name;
//! * [`File`](struct@File): a file, which shell scripts use by `tenure fence check`;
//! * [`redis`]: a Lua function for your own script;
//! * [`sql`]: a table, and statements for your own transaction.
//!
//! A refusal, [`Stale`], carries the largest token that was seen. `Tenure::raise_floor` with it makes the next
//! grant's token larger.
//!
//! What is fenced is named by a *key*: the name of the lock, or for a slot of a slot pool [`slot_key`], since
//! each slot has a holder of its own. The permits of a semaphore cannot be fenced: nothing says which of several
//! rightful holders a write should be compared with. Use a slot pool.
//!
//! # Examples
//! ```
//! use tenure_fence::{Mark, Memory};
//!
//! let fences = Memory::new();
//! # let mark = |number| Mark::new(tenure_core::Token::new(number), tenure_core::ClaimId::new(number.into()));
//! // Of leases: `Mark::from(&lease)`.
//! let (earlier, later) = (mark(1), mark(2));
//! assert!(fences.check("billing", later).is_ok());
//! assert_eq!(fences.check("billing", earlier).unwrap_err().max, later.token());
//! ```

mod file;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod memory;
pub mod redis;
mod rule;
pub mod sql;

pub use file::{FILE_KEYS_MAX, File};
pub use memory::Memory;
pub use rule::{Fence, KEY_BYTES_MAX, Mark, Stale, slot_key};
