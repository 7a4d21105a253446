//! Whether the server can be trusted: what `tenure doctor` prints.

use tenure_core::engine::Finding;

use crate::engine::Store;

pub(crate) async fn check(_store: &Store) -> Vec<Finding> {
    Vec::new()
}
