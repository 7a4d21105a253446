//! `Memory`: as the rule, and check and work are one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use proptest::prelude::{prop_assert_eq, proptest};
use tenure_fence::{Memory, Stale};

use crate::writes::{accesses, expected, mark};

proptest! {
    #[test]
    fn answers_as_the_rule(list in accesses()) {
        let memory = Memory::new();
        let answers: Vec<Result<(), Stale>> = list
            .iter()
            .map(|access| match access.is_read {
                true => memory.check_read(access.key, access.mark),
                false => memory.check(access.key, access.mark),
            })
            .collect();
        prop_assert_eq!(answers, expected(&list));
    }
}

#[test]
fn no_check_of_the_key_comes_between_a_check_and_its_work() {
    let memory = Arc::new(Memory::new());
    let written = Arc::new(AtomicU64::new(0));
    let (entered, has_entered) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let earlier = std::thread::spawn({
        let (memory, written) = (memory.clone(), written.clone());
        move || {
            memory.run("x", mark(1), || {
                entered.send(()).unwrap();
                may_go.recv().unwrap();
                written.store(1, Ordering::SeqCst);
            })
        }
    });
    has_entered.recv().unwrap();
    let later = std::thread::spawn({
        let (memory, written) = (memory.clone(), written.clone());
        move || memory.run("x", mark(2), || written.store(2, Ordering::SeqCst))
    });
    memory.check("another", mark(2)).expect("another key does not wait");
    assert_eq!(written.load(Ordering::SeqCst), 0);
    go.send(()).unwrap();
    earlier.join().unwrap().unwrap();
    later.join().unwrap().unwrap();
    assert_eq!(written.load(Ordering::SeqCst), 2);
    assert!(memory.run("x", mark(1), || panic!("it is refused")).is_err());
}

#[test]
fn a_panic_in_the_work_leaves_the_fence_as_it_is() {
    let memory = Memory::new();
    let work = std::panic::AssertUnwindSafe(|| memory.run("x", mark(2), || panic!("of the test")));
    std::panic::catch_unwind(work).unwrap_err();
    assert!(memory.check("x", mark(1)).is_err());
    assert_eq!(memory.check("x", mark(2)), Ok(()));
}
