//! Two ways to work under a lock.

use std::time::Duration;

use tenure::Token;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = tenure::connect("local:").await?;

    // Run a section under the lock. If the lease is lost, the section is cancelled.
    let billing = tenure.mutex("billing/4711").ttl(Duration::from_secs(30));
    billing.run(async |lease| charge(lease.token()).await).await?;

    // Or hold the lease yourself.
    let lease = billing.acquire_within(Duration::from_secs(5)).await?;
    tokio::select! {
        paid = charge(lease.token()) => println!("paid {paid}"),
        lost = lease.lost() => return Err(lost.into()),
    }
    lease.release().await?;
    Ok(())
}

/// What the lock protects. A ledger that keeps the largest token refuses a holder that came too late.
async fn charge(token: Token) -> String {
    format!("under token {token}")
}
