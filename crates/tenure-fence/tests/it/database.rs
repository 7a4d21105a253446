//! What the statements promise on a database with a server, whichever it is.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use proptest::prelude::prop_assert_eq;
use proptest::test_runner::{Config, TestRunner};
use tenure_core::{ClaimId, Token};
use tenure_fence::sql::Statements;
use tenure_fence::{Mark, Stale};
use tenure_testkit::{SqlConnection, SqlError, SqlValue, wait_for};

use crate::writes::{accesses, expected, mark};

/// What a database says if it will not decide: repeat the transaction.
const REPEAT: &str = "40001";

/// A database under test.
pub(crate) trait Database: Sync {
    /// Its statements.
    const STATEMENTS: Statements;
    /// The positions of key, token and claim among the parameters: `row`, `write`, `read`, `max`.
    const PARAMETERS: [&[Part]; 4];
    /// The isolation levels of transactions.
    const LEVELS: [&str; 3];
    /// How many connections wait for a lock.
    const BLOCKED: &str;

    fn connect(&self) -> SqlConnection;
    /// Begins a transaction of an isolation level.
    fn begin(&self, connection: &mut SqlConnection, level: &str);
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Key,
    Token,
    Claim,
}

fn values(parts: &[Part], key: &str, mark: Mark) -> Vec<SqlValue> {
    let value = |part: &Part| match part {
        Part::Key => key.into(),
        Part::Token => i64::try_from(mark.token().get()).expect("tokens of these tests fit").into(),
        Part::Claim => mark.claim().to_string().as_str().into(),
    };
    parts.iter().map(value).collect()
}

/// Asks within the transaction that has been begun.
fn check<D: Database>(
    connection: &mut SqlConnection,
    is_read: bool,
    key: &str,
    mark: Mark,
) -> Result<Result<(), Stale>, SqlError> {
    let [row, write, read, max] = D::PARAMETERS;
    if let Some(statement) = D::STATEMENTS.row {
        connection.ask(statement, &values(row, key, mark))?;
    }
    let (statement, parts) = if is_read { (D::STATEMENTS.read, read) } else { (D::STATEMENTS.write, write) };
    match connection.ask(statement, &values(parts, key, mark))?.affected {
        1 => Ok(Ok(())),
        0 => {
            let max = connection.ask(D::STATEMENTS.max, &values(max, key, mark))?;
            let max = max.first().unwrap_or("0").parse().expect("a token");
            Ok(Err(Stale::new(Token::new(max))))
        }
        more => panic!("{more} rows of one fence"),
    }
}

/// A write in a transaction of its own.
fn write<D: Database>(database: &D, connection: &mut SqlConnection, mark: Mark) -> Result<(), Stale> {
    database.begin(connection, D::LEVELS[0]);
    let answer = check::<D>(connection, false, "x", mark).unwrap_or_else(|error| panic!("{error}"));
    connection.run(if answer.is_ok() { "COMMIT" } else { "ROLLBACK" });
    answer
}

pub(crate) fn answers_as_the_rule<D: Database>(database: &D) {
    let mut connection = database.connect();
    connection.run(D::STATEMENTS.table);
    connection.run(D::STATEMENTS.table);
    let connection = std::cell::RefCell::new(connection);
    let outcome = TestRunner::new(Config::with_cases(100)).run(&accesses(), |list| {
        let mut connection = connection.borrow_mut();
        connection.run("DELETE FROM tenure_fence");
        let mut answers = Vec::new();
        for access in &list {
            database.begin(&mut connection, D::LEVELS[0]);
            let answer = check::<D>(&mut connection, access.is_read, access.key, access.mark);
            answers.push(answer.unwrap_or_else(|error| panic!("{error}")));
            connection.run("COMMIT");
        }
        prop_assert_eq!(answers, expected(&list));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn a_stale_write_is_refused_and_says_the_largest_token<D: Database>(database: &D) {
    let (mut one, mut two) = (database.connect(), database.connect());
    one.run(D::STATEMENTS.table);
    let twin = Mark::new(Token::new(9), ClaimId::new(77));
    assert_eq!(write(database, &mut one, mark(5)), Ok(()));
    assert_eq!(write(database, &mut two, mark(9)), Ok(()));
    assert_eq!(write(database, &mut one, mark(5)), Err(Stale::new(Token::new(9))));
    assert_eq!(write(database, &mut two, mark(9)), Ok(()), "the same lease writes more than once");
    assert_eq!(write(database, &mut one, twin), Err(Stale::new(Token::new(9))), "a token given twice");
    let largest = Mark::new(Token::new(i64::MAX as u64), ClaimId::new(u128::MAX));
    assert_eq!(write(database, &mut one, largest), Ok(()));
    assert_eq!(write(database, &mut two, mark(9)).unwrap_err().max, largest.token());
}

pub(crate) fn a_rollback_takes_back_the_mark_and_the_write<D: Database>(database: &D) {
    let (mut one, mut two) = (database.connect(), database.connect());
    one.run(D::STATEMENTS.table);
    one.run("CREATE TABLE account (balance INT)");
    one.run("INSERT INTO account VALUES (0)");
    database.begin(&mut one, D::LEVELS[0]);
    check::<D>(&mut one, false, "x", mark(9)).unwrap().unwrap();
    one.run("UPDATE account SET balance = 9");
    one.run("ROLLBACK");
    assert_eq!(two.run("SELECT balance FROM account").first(), Some("0"));
    assert_eq!(write(database, &mut two, mark(8)), Ok(()));
    assert_eq!(write(database, &mut one, mark(7)), Err(Stale::new(Token::new(8))));
}

/// Two transactions of one key: the second one waits for the end of the first one, and is judged by it.
pub(crate) fn a_check_waits_for_the_transaction_before_it<D: Database>(database: &D) {
    database.connect().run(D::STATEMENTS.table);
    let mut number = 0;
    for level in D::LEVELS {
        for (has_row, end) in [(false, "COMMIT"), (false, "ROLLBACK"), (true, "COMMIT"), (true, "ROLLBACK")] {
            for (of_first, of_second) in [(5, 9), (9, 5)] {
                number += 1;
                let key = format!("key-{number}");
                if has_row {
                    let mut connection = database.connect();
                    database.begin(&mut connection, level);
                    check::<D>(&mut connection, false, &key, mark(1)).unwrap().unwrap();
                    connection.run("COMMIT");
                }
                let answer = one_after_the_other(database, level, &key, [of_first, of_second], end);
                let case = format!("{level}, {has_row}, {of_first} then {of_second}, {end}: {answer:?}");
                match answer {
                    Err(error) => assert!(error.code == REPEAT && level != D::LEVELS[0], "{case}"),
                    Ok(answer) => {
                        assert_eq!(answer.is_err(), end == "COMMIT" && of_first > of_second, "{case}")
                    }
                }
            }
        }
    }
}

/// Begins two transactions with these tokens, ends the first one while the second one waits for it, and returns
/// what the second one is told.
fn one_after_the_other<D: Database>(
    database: &D,
    level: &str,
    key: &str,
    tokens: [u64; 2],
    end: &str,
) -> Result<Result<(), Stale>, SqlError> {
    let (mut first, mut second) = (database.connect(), database.connect());
    database.begin(&mut first, level);
    database.begin(&mut second, level);
    check::<D>(&mut first, false, key, mark(tokens[0]))?.expect("it is the first one");
    thread::scope(|scope| {
        let asking = scope.spawn(|| check::<D>(&mut second, false, key, mark(tokens[1])));
        let blocked = || database.connect().run(D::BLOCKED).first() == Some("1");
        wait_for("blocked connection", || blocked().then_some(()));
        first.run(end);
        asking.join().expect("it does not panic")
    })
}

/// Holders whose writes arrive late and in any order never make what they write go back.
pub(crate) fn what_is_written_never_goes_back<D: Database>(database: &D) {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 60;
    let mut connection = database.connect();
    connection.run(D::STATEMENTS.table);
    connection.run("CREATE TABLE account (token BIGINT, went_back INT)");
    connection.run("INSERT INTO account VALUES (0, 0)");
    let latest = AtomicU64::new(0);
    let answers: Vec<bool> = thread::scope(|scope| {
        let start = |number| {
            let latest = &latest;
            scope.spawn(move || {
                let mut connection = database.connect();
                // Every other write comes with a token that was given a while ago.
                let token = |count| match count % 2 {
                    0 => latest.fetch_add(1, Ordering::Relaxed) + 1,
                    _ => latest.load(Ordering::Relaxed).saturating_sub(number).max(1),
                };
                (0..WRITES)
                    .map(|count| late_write(database, &mut connection, token(count)))
                    .collect::<Vec<_>>()
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(start).collect();
        writers.into_iter().flat_map(|writer| writer.join().expect("it does not panic")).collect()
    });
    let row = connection.run("SELECT token, went_back FROM account").rows.remove(0);
    let largest = latest.load(Ordering::Relaxed).to_string();
    assert_eq!(row, [Some(largest), Some("0".to_owned())], "the largest token came last, or nobody after it");
    assert!(answers.contains(&true) && answers.contains(&false));
}

/// Writes the token where a fence protects it; tells whether it was accepted.
fn late_write<D: Database>(database: &D, connection: &mut SqlConnection, token: u64) -> bool {
    loop {
        database.begin(connection, D::LEVELS[0]);
        let answer = match check::<D>(connection, false, "account", mark(token)) {
            Ok(answer) => answer,
            Err(error) => {
                assert_eq!(error.code, REPEAT, "{error}");
                connection.run("ROLLBACK");
                continue;
            }
        };
        if answer.is_err() {
            connection.run("ROLLBACK");
            return false;
        }
        // The first assignment sees the old token in both dialects: it comes before the change.
        connection.run(&format!(
            "UPDATE account SET went_back = went_back + CASE WHEN token > {token} THEN 1 ELSE 0 END, token = {token}"
        ));
        connection.run("COMMIT");
        return true;
    }
}
