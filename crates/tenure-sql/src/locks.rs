//! The rules of locks: lock, load, `step`, write, commit, notify; and the short ways where nothing special is asked.

pub(crate) mod load;
pub(crate) mod observe;
pub(crate) mod plain;
pub(crate) mod purge;
pub(crate) mod renew;
pub(crate) mod transaction;
pub(crate) mod waiters;
pub(crate) mod write;
