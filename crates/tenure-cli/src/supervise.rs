//! Work under a lease: one way for `run`, `queue work` and `cache`.
//!
//! `setup.rs` is the frame: keepers, then the client, and at the end both in that order. A keeper (`keeper.rs`) has the work and
//! ends it in time whatever happens to `tenure`. `supervised.rs` follows the lease, sends the keeper each new deadline, and asks
//! the work to end when the lease is lost. It runs on the main thread, which never writes to stderr: a thread of its own does
//! (`output/lines.rs`), so that a reader that stalls, or a terminal that is stopped, ends no work. `foreground.rs` is one piece
//! of work with a terminal and signals.

pub(crate) mod events;
pub(crate) mod foreground;
pub(crate) mod job;
pub(crate) mod keeper;
pub(crate) mod retry;
pub(crate) mod setup;
pub(crate) mod signals;
pub(crate) mod supervised;
pub(crate) mod supervisor;
pub(crate) mod work;

mod countdown;
mod proc;
mod terminal;
