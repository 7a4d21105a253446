//! The test kit keeps its own promises.

mod redis;
