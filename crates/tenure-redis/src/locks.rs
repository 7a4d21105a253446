//! What is read of locks, once and again.

pub(crate) mod inspect;
pub(crate) mod observe;
