//! Lines of claims as nodes.

pub(crate) mod enter;
pub(crate) mod follow;
pub(crate) mod leave;
pub(crate) mod look;
pub(crate) mod node;
pub(crate) mod operate;
pub(crate) mod wake;
