//! tenure-local
