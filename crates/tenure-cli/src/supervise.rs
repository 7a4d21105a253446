//! Work under a lease: one way for `run`, `queue work` and `cache`.
//!
//! A keeper (`keeper.rs`) has the work and ends it in time whatever happens to `tenure`. `supervised.rs` follows the lease, tells the
//! keeper each new deadline, and asks the work to end when the lease is lost; it runs on the main thread, which writes nothing
//! itself: lines for stderr are written by a thread of their own (`output/lines.rs`), so that a reader that stalls, or a terminal
//! that is stopped, ends no work. `foreground.rs` is one piece of work with a terminal and signals.

pub(crate) mod events;
pub(crate) mod foreground;
pub(crate) mod job;
pub(crate) mod keeper;
pub(crate) mod start;
pub(crate) mod supervised;
pub(crate) mod work;

mod countdown;
mod processes;
mod terminal;
