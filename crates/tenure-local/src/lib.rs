//! The `local` engine: many processes, one machine, no server, nothing to install.
//!
//! The state of locks is one LMDB environment in a directory that only its user may enter: one in `/run` if the user has
//! one, else `/tmp/tenure-<uid>`, or the directory of the URL. Every process runs
//! [`step`](tenure_core::model::step::step) itself, inside a write transaction. Two things that a machine knows and a
//! network never does make the engine better than a lease: *which client is dead* (a lock on a file per client, and a
//! pidfd that says when to check it), so that what a killed process held is free at once; and *how to wake one
//! process* (a datagram socket per client).
//!
//! # What is promised
//!
//! * Exclusion, FIFO order, slots in longest-free order, rests, values: all of `step`, for every process of one
//!   user, one boot and one PID namespace.
//! * A holder or waiter that dies by any signal is noticed at once by waiters and tries, not after its ttl.
//! * Time is `CLOCK_BOOTTIME`: a step of the wall clock neither ends nor prolongs anything.
//! * Killing a process between any two instructions damages nothing.
//!
//! * Queues are in a second environment, in a place that survives a reboot, and every commit of it is synced.
//!
//! # What is not
//!
//! * No lock survives a reboot, on purpose: its holder is dead.
//! * A process that is stopped (`SIGSTOP`) *inside* a transaction, which lasts microseconds, blocks the others.
//!   After two seconds they get [`Unavailable`](tenure_core::error::ErrorKind::Unavailable) with its pid.
//! * A client that is *closed* while it still holds something, in a process that lives on, ends its holds, but a
//!   waiter finds out only by its next heartbeat (within 1.7 s): no process has died.
//! * A forked child cannot use its parent's client. It may `exec`, or connect if its parent never did.
//!
//! # Examples
//! `tenure::connect(url)` does this for programs:
//! ```no_run
//! # async fn f() -> tenure_core::Result<()> {
//! let config = tenure_local::Config::parse("local:")?;
//! let tenure = tenure_core::Tenure::new(config).await?;
//! let lease = tenure.mutex("billing/4711").acquire().await?;
//! # Ok(()) }
//! ```
#[cfg(not(target_os = "linux"))]
compile_error!("the local engine needs Linux: pidfds, CLOCK_BOOTTIME and mutexes that survive their holder");

mod client;
mod config;
mod connect;
mod doctor;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod locks;
mod place;
mod queues;
mod store;

pub use config::Config;
pub use engine::Local;
