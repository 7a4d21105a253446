//! Lines of claims as ranges of keys.

pub(crate) mod look;
pub(crate) mod store;
pub(crate) mod wake;
