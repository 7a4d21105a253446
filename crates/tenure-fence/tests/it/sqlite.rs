//! The statements for SQLite.

use proptest::prelude::{prop_assert_eq, proptest};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use tenure_core::Token;
use tenure_fence::sql::SQLITE;
use tenure_fence::{Mark, Stale};
use tenure_testkit::TestDirectory;

use crate::writes::{accesses, expected, mark};

fn check(
    connection: &Connection,
    statement: &str,
    key: &str,
    mark: Mark,
) -> rusqlite::Result<Result<(), Stale>> {
    let token = i64::try_from(mark.token().get()).expect("tokens of these tests fit");
    let rows = connection.execute(statement, (key, token, mark.claim().to_string()))?;
    if rows == 1 {
        return Ok(Ok(()));
    }
    let max = connection.query_row(SQLITE.max, [key], |row| row.get::<_, i64>(0)).optional()?;
    Ok(Err(Stale::new(Token::new(max.unwrap_or_default().try_into().expect("tokens are positive")))))
}

proptest! {
    #[test]
    fn answers_as_the_rule(list in accesses()) {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(SQLITE.table).unwrap();
        let answers: Vec<Result<(), Stale>> = list
            .iter()
            .map(|access| {
                let statement = if access.is_read { SQLITE.read } else { SQLITE.write };
                check(&connection, statement, access.key, access.mark).unwrap()
            })
            .collect();
        prop_assert_eq!(answers, expected(&list));
    }
}

#[test]
fn a_rollback_takes_back_the_mark_and_the_write() {
    let directory = TestDirectory::new();
    let path = directory.path().join("db");
    let (mut one, two) = (Connection::open(&path).unwrap(), Connection::open(&path).unwrap());
    one.execute_batch(SQLITE.table).unwrap();
    let transaction = one.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    check(&transaction, SQLITE.write, "x", mark(9)).unwrap().unwrap();
    transaction.rollback().unwrap();
    assert_eq!(check(&two, SQLITE.write, "x", mark(8)).unwrap(), Ok(()));
    assert_eq!(check(&one, SQLITE.write, "x", mark(7)).unwrap(), Err(Stale::new(Token::new(8))));
}

#[test]
fn the_token_zero_and_negative_ones_are_not_accepted() {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(SQLITE.table).unwrap();
    // Whether the row is there or not, it is an error and not a refusal: the program is wrong.
    for has_row in [false, true] {
        if has_row {
            check(&connection, SQLITE.write, "x", mark(1)).unwrap().unwrap();
        }
        for (statement, token) in [(SQLITE.write, 0), (SQLITE.read, 0), (SQLITE.write, -1), (SQLITE.read, -1)]
        {
            connection.execute(statement, ("x", token, "a")).unwrap_err();
        }
    }
}
