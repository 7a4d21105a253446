//! The engine on Redis: a single server, Sentinel and Cluster.
//!
//! # Examples
//! `tenure::connect(url)` does this for programs:
//! ```no_run
//! # async fn f() -> tenure_core::Result<()> {
//! let config = tenure_redis::Config::parse("redis://127.0.0.1")?;
//! let tenure = tenure_core::Tenure::new(config).await?;
//! let lease = tenure.mutex("billing/4711").acquire().await?;
//! # Ok(()) }
//! ```

mod config;
mod connect;
mod doctor;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod locks;
mod lua;
mod net;
mod queues;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod raw;
mod store;
mod wake;

pub use config::Config;
pub use engine::Redis;

/// What engines of Redis servers share: a link that is made anew, how keys are named, scripts are called and answers are read.
///
/// It is for tenure's own engines, and changes with them.
#[doc(hidden)]
pub mod server {
    pub use crate::config::{read_prefix, read_servers};
    pub use crate::doctor::of_quorum;
    pub use crate::error::Fault;
    pub use crate::keys::{CHANGES, INBOX, Key, Keys};
    pub use crate::lua::answer::{Message, Unexpected, in_millis, message, number, text};
    pub use crate::lua::{Form, Script, hash, hex, load};
    pub use crate::net::address::Address;
    pub use crate::net::dial::Dialer;
    pub use crate::net::link::Link;
    pub use crate::net::topology::CALL_TIMEOUT;
    pub use crate::net::wire::{Listeners, News};
    pub use crate::wake::Observers;

    /// Waiting between two attempts.
    pub mod pause {
        pub use crate::net::pause::{briefly, sleep};
    }
}
