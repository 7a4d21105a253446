//! SQL, here SQLite: the check is a statement in the transaction of the write.

use rusqlite::{Connection, TransactionBehavior};
use tenure::Token;
use tenure::fence::sql::SQLITE;
use tenure::fence::{Mark, Stale};

/// Sets a balance, unless a later lease has been here.
fn set(db: &mut Connection, mark: Mark, balance: i64) -> rusqlite::Result<Result<(), Stale>> {
    let (token, claim) = (mark.token().get(), mark.claim().to_string());
    // What is not committed is rolled back.
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if transaction.execute(SQLITE.write, ("account/7", token, claim))? == 0 {
        let max = transaction.query_row(SQLITE.max, ["account/7"], |row| row.get(0))?;
        return Ok(Err(Stale::new(Token::new(max))));
    }
    transaction.execute("UPDATE account SET balance = ?1 WHERE id = 7", [balance])?;
    transaction.commit()?;
    Ok(Ok(()))
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut db = Connection::open_in_memory()?;
    db.execute_batch(SQLITE.table)?;
    db.execute_batch(
        "CREATE TABLE account (id INTEGER, balance INTEGER); INSERT INTO account VALUES (7, 0)",
    )?;

    // A holder is paused. An operator breaks its hold, and somebody else gets the lock.
    let tenure = tenure::connect("memory:").await?;
    let paused = tenure.mutex("billing").acquire().await?;
    tenure.break_hold("billing", paused.token(), true).await?;
    let next = tenure.mutex("billing").acquire().await?;
    set(&mut db, Mark::from(&next), 20)??;

    // The paused one wakes up and writes.
    let stale = set(&mut db, Mark::from(&paused), 10)?.expect_err("it is late");
    assert_eq!(stale.max, next.token());
    assert_eq!(db.query_row("SELECT balance FROM account", [], |row| row.get::<_, i64>(0))?, 20);

    tenure.raise_floor("billing", stale.max)?;
    Ok(())
}
