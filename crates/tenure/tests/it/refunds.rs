//! The example of a refund service, with workers that are killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure::blocking;
use tenure_testkit::{TestDirectory, wait_for};

#[path = "../../examples/refund_service.rs"]
#[allow(dead_code, reason = "its workers and its addresses come from the test")]
mod refund_service;

use refund_service::{Ledger, Refund};

/// Where a worker finds the engine and the ledger.
const PLACE: &str = "REFUND_TEST_PLACE";
const MERCHANTS: [&str; 3] = ["bakery", "florist", "tailor"];
const REFUNDS: i64 = 12;
/// The interval, in the store's microseconds. A token is the time of a dispatch, or a few more where several are handed out at once.
const SPACING_MICROS: u64 = 200_000 - 100;

fn engine(place: &Path) -> String {
    format!("local:{}", place.join("engine").display())
}

/// A worker of the other tests, if it is told where; else nothing.
#[test]
fn plays_a_worker() {
    if let Some(place) = std::env::var_os(PLACE) {
        let place = Path::new(&place);
        refund_service::work(&engine(place), &place.join("ledger")).unwrap();
    }
}

fn start_worker(place: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "refunds::plays_a_worker", "--nocapture"]);
    command.env(PLACE, place).stdout(Stdio::null()).spawn().expect("this program starts")
}

/// Workers that end with the test, however it ends.
struct Workers(Vec<Child>);

impl Workers {
    fn kill(&mut self, number: usize) {
        self.0[number].kill().expect("a worker can be killed");
        self.0[number].wait().expect("it ends");
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            // It may be dead already.
            worker.kill().ok();
            worker.wait().ok();
        }
    }
}

#[test]
fn refunds_take_effect_once_in_order_and_apart_though_workers_are_killed() {
    let directory = TestDirectory::new();
    let place = directory.path();
    let ledger = Ledger::open(&place.join("ledger")).unwrap();
    let tenure = blocking::connect(&engine(place)).unwrap();
    let queue = refund_service::queue(&tenure);
    for number in 0..REFUNDS {
        for merchant in MERCHANTS {
            let id = format!("{merchant}-{number:02}");
            let refund = Refund { id, merchant: merchant.to_owned(), cents: 100 + number };
            refund_service::submit(&queue, &refund).unwrap();
            // Whoever did not hear the answer asks again.
            refund_service::submit(&queue, &refund).unwrap();
        }
    }
    assert_eq!(queue.depth().unwrap(), REFUNDS as u64 * MERCHANTS.len() as u64);

    let mut workers = Workers((0..4).map(|_| start_worker(place)).collect());
    // One after the other is killed, at moments that nobody chose, and replaced.
    for round in 0..6 {
        let booked = 5 * (round + 1);
        wait_for("some refunds", || (ledger.refunds().unwrap().len() >= booked).then_some(()));
        let number = round % workers.0.len();
        workers.kill(number);
        workers.0[number] = start_worker(place);
    }
    wait_for("the end of the queue", || (queue.depth().unwrap() == 0).then_some(()));

    let mut by_merchant: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    for (refund, token) in ledger.refunds().unwrap() {
        by_merchant.entry(refund.merchant).or_default().push((refund.id, token));
    }
    for merchant in MERCHANTS {
        let refunds = &by_merchant[merchant];
        let ids: Vec<&str> = refunds.iter().map(|(id, _)| id.as_str()).collect();
        let all: Vec<String> = (0..REFUNDS).map(|number| format!("{merchant}-{number:02}")).collect();
        assert_eq!(ids, all, "each once, and in order");
        for pair in refunds.windows(2) {
            let micros = pair[1].1 - pair[0].1;
            assert!(micros >= SPACING_MICROS, "{micros} µs between {} and {}", pair[0].0, pair[1].0);
        }
        let cents: i64 = (0..REFUNDS).map(|number| 100 + number).sum();
        assert_eq!(ledger.balance(merchant).unwrap(), -cents);
    }
    assert!(queue.dead_letters(None, 1).unwrap().is_empty());
    // What is left of a dedup id: nothing is booked twice by asking once more.
    let again = Refund { id: "bakery-00".to_owned(), merchant: "bakery".to_owned(), cents: 100 };
    refund_service::submit(&queue, &again).unwrap();
    assert_eq!(queue.depth().unwrap(), 0);
    let waited = queue.next_within(Duration::from_millis(1)).unwrap();
    assert!(waited.is_none());
}
