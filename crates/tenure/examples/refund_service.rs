//! Refunds, one at a time and at least 200 ms apart for each merchant, by any number of worker processes, any of which may be
//! killed at any moment. Each refund takes effect once.
//!
//! The queue keeps the order and the distance: a merchant is a group. It hands an item out again if its worker dies, so a
//! refund may be *begun* twice. The ledger makes that harmless, in one transaction: the fence refuses a worker that was paused and
//! comes late, and the refund's id refuses a refund that was booked just before its worker was killed.
//!
//! `cargo run -p tenure --example refund_service` shows it, with three workers of which one is killed.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tenure::fence::Mark;
use tenure::fence::sql::SQLITE;
use tenure::{ErrorKind, blocking};

/// What the example may fail with.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The least time between two refunds of a merchant.
const SPACING: Duration = Duration::from_millis(200);

/// A refund that somebody asked for.
pub(crate) struct Refund {
    pub(crate) id: String,
    pub(crate) merchant: String,
    pub(crate) cents: i64,
}

/// Puts a refund in line. Its id makes it safe to ask again, also when the answer was lost.
pub(crate) fn submit(queue: &blocking::Queue, refund: &Refund) -> Outcome {
    let payload = format!("{} {}", refund.id, refund.cents);
    queue.push(payload).group(&refund.merchant).dedup(&refund.id).send()?;
    Ok(())
}

/// The data: what was refunded, and a balance for each merchant.
pub(crate) struct Ledger(Connection);

impl Ledger {
    /// Opens the ledger, or makes it.
    pub(crate) fn open(path: &Path) -> Outcome<Ledger> {
        let mut db = Connection::open(path)?;
        db.busy_timeout(Duration::from_secs(10))?;
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(SQLITE.table)?;
        transaction.execute_batch(
            "CREATE TABLE IF NOT EXISTS refund
               (place INTEGER PRIMARY KEY, id TEXT UNIQUE, merchant TEXT, cents INTEGER, token INTEGER);
             CREATE TABLE IF NOT EXISTS balance (merchant TEXT PRIMARY KEY, cents INTEGER)",
        )?;
        transaction.commit()?;
        Ok(Ledger(db))
    }

    /// Books a refund unless it is booked, and says whether the worker may speak for the merchant at all.
    fn book(&mut self, refund: &Refund, mark: Mark) -> rusqlite::Result<bool> {
        let Refund { id, merchant, cents } = refund;
        let (token, claim) = (mark.token().get(), mark.claim().to_string());
        // What is not committed is rolled back.
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if transaction.execute(SQLITE.write, (merchant, token, claim))? == 0 {
            return Ok(false);
        }
        let insert =
            "INSERT INTO refund (id, merchant, cents, token) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
        if transaction.execute(insert, (id, merchant, cents, token))? == 1 {
            let update = "INSERT INTO balance VALUES (?1, -?2)
                ON CONFLICT DO UPDATE SET cents = cents + excluded.cents";
            transaction.execute(update, (merchant, cents))?;
        }
        transaction.commit()?;
        Ok(true)
    }

    /// Returns what was booked, in that order, each with the token under which it was.
    pub(crate) fn refunds(&self) -> Outcome<Vec<(Refund, u64)>> {
        let mut rows = self.0.prepare("SELECT id, merchant, cents, token FROM refund ORDER BY place")?;
        let refunds = rows.query_map([], |row| {
            let refund = Refund { id: row.get(0)?, merchant: row.get(1)?, cents: row.get(2)? };
            Ok((refund, row.get(3)?))
        })?;
        Ok(refunds.collect::<Result<_, _>>()?)
    }

    /// Returns a merchant's balance.
    pub(crate) fn balance(&self, merchant: &str) -> Outcome<i64> {
        Ok(self.0.query_row("SELECT cents FROM balance WHERE merchant = ?1", [merchant], |row| row.get(0))?)
    }
}

/// Names the queue with the rules that all its workers keep.
pub(crate) fn queue(tenure: &blocking::Tenure) -> blocking::Queue {
    tenure.queue("refunds").group_interval(SPACING)
}

/// Works until it is killed.
pub(crate) fn work(engine: &str, ledger: &Path) -> Outcome {
    let tenure = blocking::connect(engine)?;
    let queue = queue(&tenure);
    let mut ledger = Ledger::open(ledger)?;
    loop {
        let delivery = queue.next()?;
        let Some(refund) = parse(&delivery) else {
            // Nobody will understand it later either: the merchant's other refunds must not wait for it.
            delivery.fail("it is not `ID CENTS`, of a merchant")?;
            continue;
        };
        if !ledger.book(&refund, Mark::from(delivery.lease()))? {
            // This process was paused, and another has the refund. Dropping the delivery changes nothing for it.
            continue;
        }
        match delivery.ack() {
            // If it was not acknowledged it is handed out again, and the ledger has it already.
            Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable) => {}
            answer => answer?,
        }
    }
}

fn parse(delivery: &blocking::Delivery) -> Option<Refund> {
    let (id, cents) = std::str::from_utf8(delivery.payload()).ok()?.split_once(' ')?;
    Some(Refund { id: id.to_owned(), merchant: delivery.group()?.to_owned(), cents: cents.parse().ok()? })
}

fn start_worker(engine: &str, ledger: &Path) -> Outcome<Child> {
    Ok(Command::new(std::env::current_exe()?).arg("work").arg(engine).arg(ledger).spawn()?)
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, engine, ledger] = &arguments[..]
        && role == "work"
    {
        return work(engine, Path::new(ledger));
    }
    let directory = std::env::temp_dir().join(format!("refunds-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let (engine, path) = (format!("local:{}", directory.join("engine").display()), directory.join("ledger"));
    let ledger = Ledger::open(&path)?;
    let tenure = blocking::connect(&engine)?;
    let queue = queue(&tenure);
    for number in 0..5 {
        for merchant in ["bakery", "florist"] {
            let id = format!("{merchant}-{number}");
            submit(&queue, &Refund { id, merchant: merchant.to_owned(), cents: 100 + number })?;
        }
    }

    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(start_worker(&engine, &path)?);
    }
    while ledger.refunds()?.len() < 4 {
        std::thread::yield_now();
    }
    // Whatever it is doing.
    workers[0].kill()?;
    while queue.depth()? > 0 {
        std::thread::yield_now();
    }
    for worker in &mut workers {
        worker.kill()?;
        worker.wait()?;
    }

    // A token is at least the store's time at which the item was handed out, in microseconds.
    for (refund, token) in ledger.refunds()? {
        println!("{token} {}: {} cents", refund.id, refund.cents);
    }
    for merchant in ["bakery", "florist"] {
        assert_eq!(ledger.balance(merchant)?, -510);
    }
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
