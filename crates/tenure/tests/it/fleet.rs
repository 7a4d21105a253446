//! A fleet of consumers of which one is killed or stopped again and again: each item has its effect once at a fenced
//! ledger, and each group in its order.
//!
//! The number of items is `TENURE_FLEET_ITEMS` (default 1,500, and 6,000 under `--everything`; a hundredth of it are groups). A consumer is a process: this
//! test binary, which executes itself.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tenure::fence::Mark;
use tenure::fence::sql::SQLITE;
use tenure::{Delivery, ErrorKind, Queue, Tenure};
use tenure_core::testing::random::more;
use tenure_testkit::TestDirectory;
#[cfg(feature = "redis")]
use tenure_testkit::redis::Topology;

/// Makes the test `consumer` one: the address of the store, the queue and the ledger, in lines.
const ROLE: &str = "TENURE_FLEET_CONSUMER";
const CONSUMERS: usize = 8;
/// How many items a consumer works on at the same time.
const TASKS: usize = 16;
const TTL: Duration = Duration::from_secs(2);

fn items() -> usize {
    std::env::var("TENURE_FLEET_ITEMS")
        .map_or_else(|_| more(1_500, 6_000), |items| items.parse().expect("a number"))
}

/// One that is called with a part of a second in it, so that a small run has its faults too.
fn between_faults() -> Duration {
    if items() > 50_000 { Duration::from_secs(1) } else { Duration::from_millis(400) }
}

fn open(ledger: &str) -> Connection {
    let db = Connection::open(ledger).expect("the ledger opens");
    db.busy_timeout(Duration::from_secs(20)).expect("a setting");
    // What is lost with the machine is not what is tried here.
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").expect("a setting");
    db
}

/// The effect of an item: a line in the ledger, in one transaction with the check of its token. False: a later delivery has been
/// here.
fn enter(db: &mut Connection, delivery: &Delivery) -> rusqlite::Result<bool> {
    let group = delivery.group().expect("every item has a group");
    let item: i64 = String::from_utf8_lossy(delivery.payload()).parse().expect("a number");
    let mark = Mark::from(delivery.lease());
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if transaction.execute(SQLITE.write, (group, mark.token().get(), mark.claim().to_string()))? == 0 {
        return Ok(false);
    }
    // Handed out again after it was entered, and before that was acknowledged: it is done.
    let last = "SELECT coalesce(max(item), -1) FROM ledger WHERE grp = ?1";
    let last: i64 = transaction.query_row(last, [group], |row| row.get(0))?;
    if item > last {
        transaction.execute("INSERT INTO ledger (grp, item) VALUES (?1, ?2)", (group, item))?;
    }
    transaction.commit()?;
    Ok(true)
}

async fn consume(queue: &Queue, ledger: &str) {
    let mut db = open(ledger);
    loop {
        let delivery = match queue.next().await {
            Ok(delivery) => delivery,
            Err(error) if error.kind() == ErrorKind::Unavailable => continue,
            Err(error) => panic!("a consumer takes: {error:?}"),
        };
        if enter(&mut db, &delivery).expect("the ledger is written") {
            match delivery.ack().await {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable) => {}
                Err(error) => panic!("a consumer acknowledges: {error:?}"),
            }
        }
    }
}

/// A consumer, when the fleet starts one; otherwise nothing.
#[test]
fn consumer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let role: Vec<&str> = role.lines().collect();
    std::thread::spawn(|| {
        // It ends with who started it.
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let tenure = tenure::connect(role[0]).await.expect("a consumer connects");
        let queue = tenure.queue(role[1]).ttl(TTL).max_attempts(0);
        futures_util::future::join_all((0..TASKS).map(|_| consume(&queue, role[2]))).await;
    });
}

struct Consumer(Child);

impl Consumer {
    fn start(role: &str) -> Consumer {
        let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
        command.args(["fleet::consumer", "--exact", "--test-threads=1"]).env(ROLE, role);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Consumer(command.spawn().expect("a consumer starts"))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("a child that was not waited for takes a signal");
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().ok();
        self.0.wait().expect("a killed child ends");
    }
}

/// Kills consumers and stops others for longer than their ttl, until it is over. Returns how many of each.
fn disturb(role: &str, is_over: &AtomicBool) -> (u32, u32) {
    let mut consumers: Vec<Consumer> = (0..CONSUMERS).map(|_| Consumer::start(role)).collect();
    let (mut killed, mut stopped) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        pause(between_faults());
        let which = fastrand::usize(0..CONSUMERS);
        if (killed + stopped) % 5 == 4 {
            consumers[which].signal(rustix::process::Signal::STOP);
            pause(TTL + TTL / 2);
            consumers[which].signal(rustix::process::Signal::CONT);
            stopped += 1;
        } else {
            consumers[which] = Consumer::start(role);
            killed += 1;
        }
    }
    (killed, stopped)
}

fn pause(period: Duration) {
    #[allow(clippy::disallowed_methods, reason = "a thread of a test lets time pass on a real store")]
    std::thread::sleep(period);
}

/// Pushes items of many groups; an item's number is larger than that of its group's earlier ones.
async fn produce(tenure: &Tenure, queue: &str) {
    let (items, groups) = (items(), items() / 100);
    let queue = tenure.queue(queue);
    for round in 0..items / groups {
        let push = async |group: usize| {
            let item = (round * groups + group).to_string();
            let mut is_repeated = false;
            // A consumer that is stopped in the middle of its call may block a store of this machine for longer than an answer may take.
            loop {
                match queue.push(&item).group(&format!("merchant {group}")).dedup(&item).await {
                    Ok(pushed) => {
                        assert!(is_repeated || !pushed.is_duplicate, "each item is pushed once");
                        return;
                    }
                    Err(error) if error.kind() == ErrorKind::Unavailable => is_repeated = true,
                    Err(error) => panic!("a push is answered: {error}"),
                }
            }
        };
        futures_util::future::join_all((0..groups).map(push)).await;
    }
}

/// Runs the fleet on a store, and looks at the ledger.
fn run(address: &str) {
    let directory = TestDirectory::new();
    let ledger = directory.path().join("ledger").display().to_string();
    let db = open(&ledger);
    db.execute_batch(SQLITE.table).expect("a table");
    db.execute_batch("CREATE TABLE ledger (line INTEGER PRIMARY KEY, grp TEXT, item INTEGER); CREATE INDEX by_group ON ledger (grp, item)")
        .expect("a table");
    let queue = format!("fleet-{:016x}", fastrand::u64(..));
    let role = format!("{address}\n{queue}\n{ledger}");
    let is_over = AtomicBool::new(false);
    let (killed, stopped) = std::thread::scope(|scope| {
        let disturbing = scope.spawn(|| disturb(&role, &is_over));
        let done = std::panic::catch_unwind(|| pollster::block_on(push_and_wait(address, &queue)));
        is_over.store(true, Ordering::Relaxed);
        let faults = disturbing.join().expect("the fleet runs");
        done.expect("all is pushed and acknowledged");
        faults
    });
    assert!(killed + stopped > 0, "consumers were killed or stopped");
    eprintln!("{} items, {killed} consumers killed, {stopped} stopped", items());
    let count: i64 = db.query_row("SELECT count(*) FROM ledger", [], |row| row.get(0)).expect("a count");
    assert_eq!(count as usize, items(), "each item has its effect once");
    let distinct = "SELECT count(DISTINCT item) FROM ledger";
    let distinct: i64 = db.query_row(distinct, [], |row| row.get(0)).expect("a count");
    assert_eq!(distinct, count, "an item had its effect twice");
    let unordered = "SELECT count(*) FROM (SELECT item, lag(item) OVER (PARTITION BY grp ORDER BY line) AS before FROM ledger) WHERE before >= item";
    let unordered: i64 = db.query_row(unordered, [], |row| row.get(0)).expect("a count");
    assert_eq!(unordered, 0, "a group is out of order");
}

async fn push_and_wait(address: &str, queue: &str) {
    let tenure = tenure::connect(address).await.expect("the producer connects");
    produce(&tenure, queue).await;
    let queue = tenure.queue(queue);
    let mut last = (u64::MAX, 0);
    loop {
        match queue.depth().await {
            Ok(0) => return,
            Ok(depth) if depth == last.0 => last.1 += 1,
            Ok(depth) => last = (depth, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
        }
        assert!(last.1 < 600, "nothing has been acknowledged for a minute: {} are left", last.0);
        pause(Duration::from_millis(100));
    }
}

#[test]
fn each_item_has_its_effect_once_on_local() {
    let directory = TestDirectory::new();
    run(&format!("local:{}", directory.path().join("store").display()));
}

#[cfg(feature = "redis")]
#[test]
fn each_item_has_its_effect_once_on_redis() {
    run(&tenure_testkit::redis::shared(Topology::Single));
}

#[cfg(feature = "postgres")]
#[test]
fn each_item_has_its_effect_once_on_postgres() {
    run(&tenure_testkit::postgres::shared());
}
