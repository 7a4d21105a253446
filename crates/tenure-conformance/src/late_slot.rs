//! For engines whose clients take the slot of a grant by themselves: one that is late to take it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::engine::Connect;
use tenure_core::testing::busy::stretched;
use tenure_core::testing::failpoint;
use tenure_core::{Settings, Slot, Tenure};

use crate::crew::{connect, now};

/// How many slots there are.
const SLOTS: u32 = 2;
/// How long the first one stands still, once each slot was had.
const STANDS_STILL: Duration = Duration::from_secs(1);

static IS_STOPPED: AtomicBool = AtomicBool::new(false);
static MAY_GO_ON: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Stops the first that comes before a slot.
fn stop(place: &'static str) {
    if place != "ordered.before_slot" || IS_STOPPED.swap(true, Ordering::SeqCst) {
        return;
    }
    let (may_go_on, told) = &MAY_GO_ON;
    let may_go_on = may_go_on.lock().unwrap_or_else(PoisonError::into_inner);
    drop(told.wait_while(may_go_on, |may| !*may).unwrap_or_else(PoisonError::into_inner));
}

fn go_on() {
    let (may_go_on, told) = &MAY_GO_ON;
    *may_go_on.lock().unwrap_or_else(PoisonError::into_inner) = true;
    told.notify_all();
}

fn take(client: &Tenure) -> Slot {
    pollster::block_on(client.slot_pool("late", SLOTS).acquire()).expect("a slot is free")
}

/// A client is granted a slot, and stopped before it takes one. Another comes later, takes each slot and gives it back. Then
/// the first goes on, and must have a larger token than whoever had that slot before.
///
/// The whole process is used for it: no other test may run beside.
///
/// # Panics
/// If the token is not larger.
pub fn who_takes_a_slot_late_has_a_larger_token(connector: impl Fn() -> Connect) {
    failpoint::set(stop);
    // However long the other takes for its turns.
    let settings = Settings::new().answer_timeout(stretched(Duration::from_secs(30)));
    let connected = Tenure::connect_with(connector(), settings);
    let (late, other) = (pollster::block_on(connected).expect("a client connects"), connect(connector()));
    let late = std::thread::spawn(move || {
        let slot = take(&late);
        (slot.number(), slot.token())
    });
    while !IS_STOPPED.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let mut before = BTreeMap::new();
    // Some engines give any free one.
    let began = now();
    for _ in 0..40 {
        if before.len() == SLOTS as usize && now().since(began) > STANDS_STILL {
            break;
        }
        let slot = take(&other);
        before.insert(slot.number(), slot.token());
        pollster::block_on(slot.release()).expect("it is held");
    }
    go_on();
    let (number, token) = late.join().expect("the late one does not panic");
    let last = before.get(&number).expect("the other had it before");
    assert!(token > *last, "slot {number} was had under {last}, and later under {token}");
}
