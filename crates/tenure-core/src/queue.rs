//! Work in line: first in, first out within each group, with a lease on each item that is handed out.

pub mod contract;
pub mod record;
pub mod step;
