//! Whether the ensemble can be trusted: what `tenure doctor` prints.

use tenure_core::engine::Finding;

use crate::engine::Inner;

pub(crate) async fn check(inner: &Inner) -> Vec<Finding> {
    let _ = inner;
    Vec::new()
}
