//! Waiting for something that makes no event.

use std::time::Duration;

/// Lets time pass: before what a database gave up is tried again, and between two looks. No test can move it: what is
/// waited for is another machine.
#[allow(clippy::disallowed_methods, reason = "what is waited for is a database, whose time no test can move")]
pub async fn pause(period: Duration) {
    tokio::time::sleep(period).await;
}
