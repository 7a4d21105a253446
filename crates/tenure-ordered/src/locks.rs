//! The rules of locks: lines of claims, of which the first ones hold.

pub(crate) mod adopt;
pub(crate) mod claim;
pub(crate) mod observe;
pub(crate) mod operate;
pub(crate) mod ordered;
pub(crate) mod own;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod sweep;
pub(crate) mod withdraw;
