//! tenure
