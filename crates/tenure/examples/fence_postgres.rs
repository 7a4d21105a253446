//! PostgreSQL: locks and data in one database. The check is a statement in the transaction of the write, and the
//! database decides it: whatever happens to the lease, nothing late is committed.
//!
//! `TENURE_ENGINE=postgres://me:secret@host/app cargo run -p tenure --features postgres --example fence_postgres`

use tenure::Token;
use tenure::fence::sql::POSTGRESQL;
use tenure::fence::{Mark, Stale};
use tokio_postgres::{Client, NoTls};

/// What an example may fail with.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Sets a balance, unless a later lease has been here.
async fn set(db: &mut Client, mark: Mark, balance: i64) -> Outcome<Result<(), Stale>> {
    let (token, claim) = (i64::try_from(mark.token().get())?, mark.claim().to_string());
    // What is not committed is rolled back.
    let transaction = db.transaction().await?;
    if transaction.execute(POSTGRESQL.write, &[&"account/7", &token, &claim]).await? == 0 {
        let max: i64 = transaction.query_one(POSTGRESQL.max, &[&"account/7"]).await?.get(0);
        return Ok(Err(Stale::new(Token::new(u64::try_from(max)?))));
    }
    transaction.execute("UPDATE account SET balance = $1 WHERE id = 7", &[&balance]).await?;
    transaction.commit().await?;
    Ok(Ok(()))
}

/// Locks by one engine, data in a database; they may be the same one.
pub(crate) async fn late_write(engine: &str, database: &str) -> Outcome {
    let (mut db, connection) = tokio_postgres::connect(database, NoTls).await?;
    tokio::spawn(connection);
    db.batch_execute(POSTGRESQL.table).await?;
    db.batch_execute(
        "CREATE TEMP TABLE account (id bigint, balance bigint); INSERT INTO account VALUES (7, 0)",
    )
    .await?;

    // A holder is paused. An operator breaks its hold, and somebody else gets the lock.
    let tenure = tenure::connect(engine).await?;
    let paused = tenure.mutex("billing").acquire().await?;
    tenure.break_hold("billing", paused.token(), true).await?;
    let next = tenure.mutex("billing").acquire().await?;
    set(&mut db, Mark::from(&next), 20).await??;

    // The paused one wakes up and writes.
    let stale = set(&mut db, Mark::from(&paused), 10).await?.expect_err("it is late");
    assert_eq!(stale.max, next.token());
    let balance: i64 = db.query_one("SELECT balance FROM account", &[]).await?.get(0);
    assert_eq!(balance, 20);

    tenure.raise_floor("billing", stale.max)?;
    next.release().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let url = std::env::var("TENURE_ENGINE")?;
    late_write(&url, &url).await
}
