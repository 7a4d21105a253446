//! Lines of claims as ranges of keys.

mod adopt;
pub(crate) mod alone;
mod enter;
mod leave;
pub(crate) mod look;
pub(crate) mod store;
pub(crate) mod wake;
