//! tenure-testkit
