//! The primitives on the `memory:` engine: what each adds to claims, and what it refuses before it sends any.

use std::time::Duration;

use tenure_core::engine::ReleaseAnswer;
use tenure_core::model::claim::CAPACITY_MAX;
use tenure_core::{Acquire, Error, ErrorKind, Lease, Result, Tenure, blocking, memory};

fn connect(store: &str) -> Tenure {
    pollster::block_on(memory::connect(store)).expect("connects")
}

fn refused<T>(acquired: Result<T>) -> Error {
    match acquired {
        Ok(_) => panic!("it was granted"),
        Err(error) => error,
    }
}

/// Asserts that an acquisition is refused without a claim being made, and that the error names the limit.
fn assert_invalid(acquire: impl Into<Acquire>, limit: &str) {
    let error = refused(pollster::block_on(acquire.into()));
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let text = format!("{error}; {}", error.hint().unwrap_or_default());
    assert!(text.contains(limit), "{text:?} names {limit:?}");
}

#[test]
fn what_breaks_a_limit_is_invalid_before_it_is_sent() {
    let tenure = connect("kinds-invalid");
    assert_invalid(tenure.semaphore("x", 0).acquire(), "1 to 1048576");
    assert_invalid(tenure.semaphore("x", CAPACITY_MAX + 1).acquire(), "1 to 1048576");
    assert_invalid(tenure.semaphore("x", 4).weight(0).acquire(), "1 to the capacity, 4");
    assert_invalid(tenure.semaphore("x", 4).weight(5).acquire(), "1 to the capacity, 4");
    assert_invalid(tenure.slot_pool("x", 0).acquire(), "1 to 1048576");
    assert_invalid(tenure.slot_pool("x", CAPACITY_MAX + 1).acquire(), "1 to 1048576");
    assert_invalid(tenure.rw_lock("").read().acquire(), "1 to 255 bytes");
    assert_invalid(tenure.rw_lock("x").ttl(Duration::from_millis(1)).write().acquire(), "100ms to 24h");
    assert_eq!(refused(pollster::block_on(tenure.resize("x", 0))).kind(), ErrorKind::Invalid);
    let views = pollster::block_on(tenure.inspect("")).expect("answers");
    assert!(views.is_empty(), "something was sent: {views:?}");
}

#[test]
fn another_capacity_is_a_conflict_that_says_both_and_how_to_change_it() {
    let tenure = connect("kinds-conflict");
    pollster::block_on(async {
        let slot = tenure.slot_pool("x", 16).acquire().await.expect("free");
        let error = refused(tenure.slot_pool("x", 32).try_acquire().await);
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        assert!(text.contains("16") && text.contains("32"), "{text}");
        assert!(error.hint().is_some_and(|hint| hint.contains("tenure resize")), "{error:?}");
        tenure.resize("x", 32).await.expect("grows");
        let second = tenure.slot_pool("x", 32).try_acquire().await.expect("answers").expect("free");
        assert_ne!(second.number(), slot.number());
        let error = refused(tenure.mutex("x").try_acquire().await);
        assert!(
            !error.hint().unwrap_or_default().contains("resize"),
            "another kind is not resized: {error:?}"
        );
    });
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let (a, b) = (connect("kinds-sides"), connect("kinds-sides"));
    pollster::block_on(async {
        let first = a.rw_lock("x").read().acquire().await.expect("free");
        let second = b.rw_lock("x").read().try_acquire().await.expect("answers").expect("readers share");
        assert!(b.rw_lock("x").write().try_acquire().await.expect("answers").is_none());
        drop((first, second));
        let writer = b.rw_lock("x").write().acquire().await.expect("readers are gone");
        assert!(a.rw_lock("x").read().try_acquire().await.expect("answers").is_none());
        let within = a.rw_lock("x").write().acquire_within(Duration::from_millis(200)).await;
        assert_eq!(refused(within).kind(), ErrorKind::Timeout);
        assert_eq!(writer.release().await.expect("answers"), ReleaseAnswer::Released);
    });
}

#[test]
fn a_weight_leaves_the_rest_to_others() {
    let (a, b) = (connect("kinds-weights"), connect("kinds-weights"));
    pollster::block_on(async {
        let heavy = a.semaphore("x", 5).weight(3).acquire().await.expect("free");
        assert!(b.semaphore("x", 5).weight(3).try_acquire().await.expect("answers").is_none());
        let light =
            b.semaphore("x", 5).weight(2).try_acquire().await.expect("answers").expect("two are left");
        assert_eq!((heavy.slot(), light.slot()), (None, None), "units have no numbers");
    });
}

#[test]
fn a_slot_is_a_lease_with_a_number() {
    let tenure = connect("kinds-slot");
    pollster::block_on(async {
        let slot = tenure.slot_pool("x", 2).acquire().await.expect("free");
        assert!(slot.number() < 2 && !slot.is_lost());
        let number = slot.number();
        let lease = Lease::from(slot);
        assert_eq!(lease.slot(), Some(number));
        let other = tenure.slot_pool("x", 2).acquire().await.expect("one is left");
        assert_ne!(other.number(), number);
        assert!(tenure.slot_pool("x", 2).try_acquire().await.expect("answers").is_none());
        assert_eq!(other.release().await.expect("answers"), ReleaseAnswer::Released);
    });
}

/// Work under a slot pool is started anew with another slot, until it returns.
#[test]
fn run_of_a_slot_pool_restarts_its_work_when_the_slot_is_lost() {
    let (tenure, operator) = (connect("kinds-restart"), connect("kinds-restart"));
    let pool = tenure.slot_pool("x", 3).ttl(Duration::from_millis(300));
    let mut slots = Vec::new();
    let done = pollster::block_on(pool.run(async |slot| {
        slots.push(slot.number());
        if slots.len() < 3 {
            operator.break_hold("x", slot.token(), false).await.expect("answers");
            std::future::pending::<()>().await;
        }
        "done"
    }));
    assert_eq!(done.expect("it ends by returning"), "done");
    assert_eq!(slots.len(), 3, "it was started anew after each loss");
    assert!(
        slots[0] != slots[1] && slots[1] != slots[2],
        "a slot that was lost is not given at once: {slots:?}"
    );
}

#[test]
fn the_blocking_face_has_the_same_primitives() {
    let tenure = blocking::Tenure::from(connect("kinds-blocking"));
    let read = tenure.rw_lock("rw").label("reads").read();
    let lease = read.acquire().expect("free");
    assert!(read.try_acquire().expect("answers").is_some(), "readers share");
    assert!(tenure.rw_lock("rw").write().try_acquire().expect("answers").is_none());
    lease.release().expect("answers");
    let units = tenure.semaphore("units", 2).weight(2).ttl(Duration::from_secs(9));
    let inside = units.run(|_| units.acquire_within(Duration::ZERO).err().map(|error| error.kind()));
    assert_eq!(inside.expect("runs"), Some(ErrorKind::Timeout));
    let pool = tenure.slot_pool("slots", 2);
    let slot = pool.acquire().expect("free");
    assert_ne!(pool.run(|other| other.number()).expect("runs"), slot.number());
    let lease = blocking::Lease::from(slot);
    assert_eq!(lease.release().expect("answers"), ReleaseAnswer::Released);
}
