//! One resource as records and rows.

pub(crate) mod observe;
pub(crate) mod resource;
pub(crate) mod rows;
pub(crate) mod sweep;
