//! The wire: which server is in charge, connections to it, and what becomes of a command.

pub(crate) mod address;
pub(crate) mod cluster;
pub(crate) mod dial;
pub(crate) mod drift;
pub(crate) mod link;
pub(crate) mod pause;
pub(crate) mod replicated;
pub(crate) mod sentinel;
pub(crate) mod topology;
pub(crate) mod wire;
