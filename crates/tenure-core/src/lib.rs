//! tenure-core
