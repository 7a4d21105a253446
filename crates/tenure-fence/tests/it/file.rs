//! `File`: as the rule, over crashes, and shared by many at once.

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use tenure_core::testing::failpoint;
use tenure_core::{ErrorKind, Token};
use tenure_fence::{File, Stale, slot_key};
use tenure_testkit::TestDirectory;

use crate::writes::{accesses, expected, mark};

proptest! {
    // Each access that is accepted syncs the disk twice.
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn answers_as_the_rule(list in accesses()) {
        let directory = TestDirectory::new();
        let path = directory.path().join("fence");
        let answers: Vec<Result<(), Stale>> = list
            .iter()
            .map(|access| {
                // A new one each time: nothing is kept but what is in the file.
                let file = File::new(&path);
                let answer = match access.is_read {
                    true => file.check_read(access.key, access.mark),
                    false => file.check(access.key, access.mark),
                };
                answer.expect("the file is there")
            })
            .collect();
        prop_assert_eq!(answers, expected(&list));
    }
}

#[test]
fn the_text_of_format_1() {
    let directory = TestDirectory::new();
    let path = directory.path().join("fence");
    let file = File::new(&path);
    file.check("billing", mark(17)).unwrap().unwrap();
    file.check_read(&slot_key("pool", 3), mark(10)).unwrap().unwrap();
    let none = "0".repeat(32);
    let text = format!("1 17/{:032x} 0/{none} billing\n1 0/{none} 10/{:032x} pool#3\n", 17, 10);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    fs::write(&path, text).unwrap();
    assert_eq!(file.check("billing", mark(16)).unwrap(), Err(Stale::new(Token::new(17))));
}

thread_local! {
    /// Where this thread dies.
    static DEATH: Cell<&'static str> = const { Cell::new("") };
}

/// A panic leaves what a kill leaves: the files as they are, and no lock.
fn die(place: &'static str) {
    assert_ne!(place, DEATH.get(), "of the test");
}

#[test]
fn whoever_dies_at_any_place_leaves_the_old_text_or_the_new_one() {
    failpoint::set(die);
    let places = ["fence.before_write", "fence.before_sync", "fence.before_rename", "fence.after_rename"];
    for place in places {
        let directory = TestDirectory::new();
        let path = directory.path().join("fence");
        let file = File::new(&path);
        file.check("x", mark(5)).unwrap().unwrap();
        DEATH.set(place);
        let mut has_worked = false;
        let dying = AssertUnwindSafe(|| file.run("x", mark(8), || has_worked = true));
        catch_unwind(dying).expect_err(place);
        DEATH.set("");
        assert!(!has_worked, "{place}");
        assert!(file.check("x", mark(4)).unwrap().is_err(), "{place}: what was accepted is not forgotten");
        let is_kept = place == "fence.after_rename";
        assert_eq!(file.check("x", mark(7)).unwrap().is_err(), is_kept, "{place}");
        file.check("x", mark(8)).unwrap().unwrap();
        assert!(file.check("x", mark(7)).unwrap().is_err(), "{place}");
    }
}

#[test]
fn what_a_crash_left_behind_does_no_harm() {
    let directory = TestDirectory::new();
    let path = directory.path().join("fence");
    let file = File::new(&path);
    file.check("x", mark(5)).unwrap().unwrap();
    // Killed while it wrote the next text.
    fs::write(directory.path().join("fence.new"), "1 7/0000").unwrap();
    assert!(file.check("x", mark(4)).unwrap().is_err());
    file.check("x", mark(6)).unwrap().unwrap();
    assert!(!directory.path().join("fence.new").exists());
}

#[test]
fn a_damaged_file_accepts_nothing_and_is_left_alone() {
    let directory = TestDirectory::new();
    let path = directory.path().join("fence");
    let file = File::new(&path);
    file.check("x", mark(5)).unwrap().unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    let twice = format!("{whole}{whole}");
    for text in [&whole[..whole.len() - 1], "1 5/a\n", "2 a b x\n", "\n", &twice, &whole.replace('x', "")] {
        fs::write(&path, text).unwrap();
        assert_eq!(file.check("x", mark(9)).unwrap_err().kind(), ErrorKind::Internal, "{text:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn many_at_once_keep_the_order() {
    let directory = TestDirectory::new();
    let path = directory.path().join("fence");
    let next = AtomicU64::new(1);
    let written = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let token = next.fetch_add(1, Ordering::SeqCst);
                    let file = File::new(&path);
                    let work = || written.try_lock().expect("nobody else works").push(token);
                    // Refused or not: in both cases it is an answer.
                    let answer = file.run("x", mark(token), work).expect("the file is there");
                    assert!(answer.is_ok() || answer.is_err_and(|stale| stale.max.get() > token));
                }
            });
        }
    });
    let written = written.into_inner().unwrap();
    assert!(written.is_sorted() && written.last() == Some(&100), "{written:?}");
}

#[test]
fn an_emptied_file_accepts_nothing() {
    let directory = TestDirectory::new();
    let path = directory.path().join("fence");
    let file = File::new(&path);
    file.check("x", mark(6)).unwrap().unwrap();
    fs::write(&path, "").unwrap();
    let error = file.check("x", mark(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.to_string().contains("empty"), "{error}");
    fs::remove_file(&path).unwrap();
    file.check("x", mark(7)).unwrap().unwrap();
}

#[test]
fn who_dies_while_it_makes_the_file_leaves_none_or_a_whole_one() {
    failpoint::set(die);
    for place in ["fence.before_write", "fence.before_sync", "fence.before_rename", "fence.after_rename"] {
        let directory = TestDirectory::new();
        let path = directory.path().join("fence");
        let file = File::new(&path);
        DEATH.set(place);
        catch_unwind(AssertUnwindSafe(|| file.check("x", mark(8)))).expect_err(place);
        DEATH.set("");
        assert_eq!(path.exists(), place == "fence.after_rename", "{place}");
        assert_eq!(
            file.check("x", mark(7)).unwrap().is_err(),
            path.exists() && place == "fence.after_rename"
        );
        file.check("x", mark(8)).unwrap().unwrap();
    }
}

#[test]
fn what_cannot_be_kept_is_not_accepted() {
    let directory = TestDirectory::new();
    let file = File::new(directory.path().join("none/fence"));
    assert_eq!(file.check("x", mark(1)).unwrap_err().kind(), ErrorKind::Unavailable);
    let file = File::new(directory.path().join("fence"));
    for key in ["", "a\nb", &"k".repeat(301)] {
        assert_eq!(file.check(key, mark(1)).unwrap_err().kind(), ErrorKind::Invalid, "{key:?}");
    }
    file.check("x", mark(1)).unwrap().unwrap();
    fs::create_dir(directory.path().join("fence.new")).unwrap();
    let mut has_worked = false;
    assert!(file.run("x", mark(2), || has_worked = true).is_err());
    assert!(!has_worked);
}
