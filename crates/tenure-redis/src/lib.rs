//! The engine on Redis: a single server, Sentinel and Cluster.

mod address;
mod answer;
mod check;
mod cluster;
mod config;
mod connect;
mod dial;
mod drift;
mod engine;
mod error;
mod inspect;
mod keys;
mod link;
mod observe;
mod pause;
mod queue;
#[doc(hidden)]
pub mod raw;
mod replicated;
mod script;
mod sentinel;
mod topology;
mod wake;
mod wire;

pub use config::Config;
pub use engine::Redis;

/// What engines of Redis servers share: a link that is made anew, how keys are named, scripts are called and answers are read.
///
/// It is for tenure's own engines, and changes with them.
#[doc(hidden)]
pub mod server {
    pub use crate::address::Address;
    pub use crate::answer::{Message, Unexpected, in_millis, message, number, text};
    pub use crate::check::judge::merged;
    pub use crate::check::of_quorum;
    pub use crate::config::{read_prefix, read_servers};
    pub use crate::dial::Dialer;
    pub use crate::error::Fault;
    pub use crate::keys::{CHANGES, INBOX, Key, Keys};
    pub use crate::link::Link;
    pub use crate::script::{Form, Script, hash, hex, load};
    pub use crate::topology::CALL_TIMEOUT;
    pub use crate::wake::Observers;
    pub use crate::wire::{Ears, News};

    /// Waiting between two attempts.
    pub mod pause {
        pub use crate::pause::{briefly, sleep};
    }
}
