//! `tenure run` under other kinds than a mutex, and `tenure resize`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;

use crate::world::{World, code, finish, stderr, stdout, wait_for};

/// What a script waits for until the file `go` is there.
const UNTIL_GO: &str = "while ! test -e go; do sleep 0.1; done";

/// Starts runs that hold until the file `go` is there, and waits until so many of them work.
fn hold(world: &World, flags: &[&str], count: usize) -> Vec<Child> {
    let script = format!("echo $$ >> working; {UNTIL_GO}");
    let runs = (0..count).map(|_| world.start_run(flags, &script)).collect();
    wait_for(&format!("{count} that work"), || {
        let working = fs::read_to_string(world.path("working")).unwrap_or_default();
        (working.lines().count() == count).then_some(())
    });
    runs
}

/// Lets them end.
fn go(world: &World, runs: Vec<Child>) {
    fs::write(world.path("go"), "").expect("a file");
    for run in runs {
        assert_eq!(code(&finish(run)), 0);
    }
    assert_eq!(world.status().as_array().map(Vec::len), Some(0), "everything was released");
}

#[test]
fn who_shares_runs_together_and_who_excludes_runs_alone() {
    let world = World::new();
    let readers = hold(&world, &["x", "--shared"], 3);
    let writer = world.run(&["x", "--exclusive", "--wait", "0s"], "true");
    assert_eq!(code(&writer), 75, "{writer:?}");
    let mutex = world.run(&["x", "--wait", "0s"], "true");
    assert_eq!(code(&mutex), 64, "a mutex is another kind: {mutex:?}");
    go(&world, readers);
    fs::remove_file(world.path("go")).expect("it is there");
    fs::remove_file(world.path("working")).expect("it is there");
    let writer = hold(&world, &["x", "--exclusive"], 1);
    assert_eq!(code(&world.run(&["x", "--shared", "--wait", "0s"], "true")), 75);
    go(&world, writer);
}

#[test]
fn no_more_run_than_there_are_permits() {
    let world = World::new();
    let mut runs = hold(&world, &["x", "--permits", "3"], 2);
    let heavy = world.run(&["x", "--permits", "3", "--weight", "2", "--wait", "0s"], "true");
    assert_eq!(code(&heavy), 75);
    assert!(
        stderr(&heavy).contains("has too few free permits; the longest is held by sh (pid "),
        "{heavy:?}"
    );
    assert_eq!(code(&world.run(&["x", "--permits", "3", "--wait", "0s"], "true")), 0, "one is left");
    let other = world.run(&["x", "--permits", "4", "--wait", "0s"], "true");
    assert_eq!(code(&other), 64);
    let text = stderr(&other);
    assert!(text.contains('3') && text.contains('4') && text.contains("tenure resize"), "{text}");
    let grown = world.output(&["resize", "x", "4", "--force"]);
    assert_eq!(stdout(&grown), "\"x\" has 4 units now, in place of 3\n");
    fs::remove_file(world.path("working")).expect("it is there");
    runs.extend(hold(&world, &["x", "--permits", "4", "--weight", "2"], 1));
    go(&world, runs);
}

#[test]
fn each_program_finds_a_slot_of_its_own() {
    let world = World::new();
    let flags = ["run", "x", "--slots", "3", "--json", "--", "sh", "-c"];
    let script = format!("echo $TENURE_SLOT >> slots; {UNTIL_GO}");
    let runs: Vec<Child> = (0..3).map(|_| world.start(&[&flags[..], &[&script]].concat())).collect();
    let slots = wait_for("three slots", || {
        let slots = fs::read_to_string(world.path("slots")).unwrap_or_default();
        (slots.lines().count() == 3).then_some(slots)
    });
    let slots: BTreeSet<&str> = slots.lines().collect();
    assert_eq!(slots, BTreeSet::from(["0", "1", "2"]));
    let mut watch = world.start(&["watch", "x", "--json"]);
    let mut line = String::new();
    let mut output = BufReader::new(watch.stdout.take().expect("it is piped"));
    output.read_line(&mut line).expect("a line");
    let held: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert!(held["event"] == "held" && held["slot"].as_u64().is_some_and(|slot| slot < 3), "{held}");
    let busy = world.run(&["x", "--slots", "3", "--wait", "0s"], "true");
    assert_eq!(code(&busy), 75);
    assert!(stderr(&busy).contains("has no free slot; the longest is held by sh (pid "), "{busy:?}");
    fs::write(world.path("go"), "").expect("a file");
    for run in runs {
        let output = finish(run);
        assert_eq!(code(&output), 0);
        let granted = stderr(&output).lines().next().unwrap_or_default().to_owned();
        let granted: serde_json::Value = serde_json::from_str(&granted).expect("an event");
        assert!(granted["slot"].as_u64().is_some_and(|slot| slot < 3), "{granted}");
    }
}

#[test]
fn a_mutex_is_not_resized() {
    let world = World::new();
    let runs = hold(&world, &["x"], 1);
    let refused = world.output(&["resize", "x", "4", "--force"]);
    assert_eq!(code(&refused), 64);
    assert!(stderr(&refused).contains("\"x\" is a mutex"), "{refused:?}");
    go(&world, runs);
}
