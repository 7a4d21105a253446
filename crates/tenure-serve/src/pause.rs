//! Time that passes here: what clients of this server wait for is real time, on the runtime that serves them.

use std::time::Duration;

/// Lets time pass.
pub(crate) async fn pause(period: Duration) {
    tokio::time::timeout(period, std::future::pending::<()>()).await.ok();
}
