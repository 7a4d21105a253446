//! In process: the fence is a part of what it protects, under the same lock.

use tenure::fence::{Fence, Mark, Stale};

/// An account that refuses a holder that comes too late.
#[derive(Default)]
struct Account {
    balance: i64,
    fence: Fence,
}

impl Account {
    fn set(&mut self, mark: Mark, balance: i64) -> Result<(), Stale> {
        self.fence.check(mark)?;
        self.balance = balance;
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = tenure::connect("memory:").await?;
    let mut account = Account::default();

    // A holder is paused. An operator breaks its hold, and somebody else gets the lock.
    let paused = tenure.mutex("billing").acquire().await?;
    tenure.break_hold("billing", paused.token(), true).await?;
    let next = tenure.mutex("billing").acquire().await?;
    account.set(Mark::from(&next), 20)?;

    // The paused one wakes up and writes.
    let stale = account.set(Mark::from(&paused), 10).expect_err("it is late");
    assert_eq!((stale.max, account.balance), (next.token(), 20));

    // It knows a larger token now. The next grant's is larger still.
    tenure.raise_floor("billing", stale.max)?;
    Ok(())
}
