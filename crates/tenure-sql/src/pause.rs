//! Waiting for something that makes no event, and trying again.

use std::future::Future;
use std::time::Duration;

use crate::fault::Fault;

/// How often a transaction that the database gave up is tried again before its user gets the error.
const ATTEMPTS: u32 = 8;

/// Lets time pass: before what a database gave up is tried again, and between two reads. No test can move it: what is
/// waited for is another machine.
#[allow(clippy::disallowed_methods, reason = "what is waited for is a database, whose time no test can move")]
pub async fn pause(period: Duration) {
    tokio::time::sleep(period).await;
}

/// Does what is wholly done or not at all, again if the database gives it up.
pub(crate) async fn retried<A, F: Future<Output = Result<A, Fault>>>(
    engine: &'static str,
    transaction: impl Fn() -> F,
) -> Result<A, Fault> {
    let mut attempt = 0;
    loop {
        match transaction().await {
            Err(Fault::GivenUp(why)) if attempt < ATTEMPTS => {
                tracing::debug!(engine, why, attempt, "a transaction was given up, and is tried again");
                attempt += 1;
                // The winner needs a moment.
                pause(Duration::from_micros(fastrand::u64(0..500 << attempt))).await;
            }
            outcome => return outcome,
        }
    }
}
