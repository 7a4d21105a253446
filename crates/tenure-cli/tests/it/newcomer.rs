//! What a newcomer types first, with the habits of other tools: each mistake is answered with what is meant here.

use crate::world::{World, code, stderr, stdout};

/// What is wrong with a command line, and what the answer says.
#[track_caller]
fn refused(world: &World, line: &[&str], says: &str) {
    let output = world.output(line);
    assert_eq!(code(&output), 64, "{line:?}: {output:?}");
    assert!(stderr(&output).contains(says), "{line:?}: {}", stderr(&output));
}

#[test]
fn flags_of_flock_are_answered_with_those_of_here() {
    let world = World::new();
    for (flag, says) in [
        ("-n", "hint: without waiting is `--wait 0s`"),
        ("-w", "hint: how long to wait is `--wait 5s`"),
        ("-w5", "hint: how long to wait is `--wait 5s`"),
        ("-E", "exit code 75"),
        ("-c", "sh -c 'LINE'"),
        ("-s", "`--shared`"),
        ("-x", "exclusive unless"),
        ("-o", "never inherits"),
        ("-v", "TENURE_LOG=debug"),
    ] {
        refused(&world, &["run", flag, "x", "--", "true"], says);
    }
    assert_eq!(
        code(&world.output(&["run", "x", "--", "sh", "-c", "true", "-n"])),
        0,
        "CMD has flags of its own"
    );
}

#[test]
fn commands_of_others_and_those_with_a_slip_are_answered_with_what_was_meant() {
    let world = World::new();
    for (wrong, meant) in [
        ("list", "status"),
        ("ps", "status"),
        ("lock", "run"),
        ("exec", "run"),
        ("unlock", "release"),
        ("leader", "elect"),
        ("enqueue", "queue push"),
        ("worker", "queue work"),
        ("ping", "doctor"),
        ("statsu", "status"),
        ("docter", "doctor"),
    ] {
        refused(&world, &[wrong], &format!("hint: did you mean `tenure {meant}`?"));
    }
    refused(&world, &["xyzzy"], "hint: see `tenure --help`");
    refused(&world, &["queue", "replay", "jobs"], "say which item");
}

#[test]
fn a_period_that_is_out_of_range_is_repeated_as_it_is_meant() {
    let world = World::new();
    refused(&world, &["run", "x", "--ttl", "25h", "--", "true"], "a ttl of 25h is out of range");
    refused(&world, &["run", "x", "--ttl", "0s", "--", "true"], "a ttl of 0s is out of range");
    refused(&world, &["cache", "k", "--ttl", "0s", "--", "true"], "`--forget` drops what is kept");
}

#[test]
fn an_item_from_an_empty_stdin_is_refused() {
    let world = World::new();
    refused(&world, &["queue", "push", "jobs"], "stdin is empty");
    assert_eq!(code(&world.output(&["queue", "push", "jobs", ""])), 0, "an empty item can be meant");
}

#[test]
fn a_worker_whose_program_is_not_there_says_so_before_there_is_an_item() {
    let world = World::new();
    let work = |program: &str| world.output(&["queue", "work", "jobs", "--drain", "--", program]);
    for program in ["no-such-program", "./no-such-program"] {
        let output = work(program);
        assert_eq!(code(&output), 127, "{output:?}");
        assert!(stderr(&output).contains(&format!("cannot find \"{program}\"")), "{output:?}");
    }
    assert_eq!(code(&work("true")), 0);
}

#[test]
fn a_run_that_would_wait_for_itself_says_so() {
    let world = World::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let inner = format!("'{tenure}' run x --wait 0s -- true");
    let output = world.run(&["x"], &inner);
    assert_eq!(code(&output), 75, "{output:?}");
    assert!(stderr(&output).contains("hint: this command runs under that lock itself"), "{output:?}");
    let output = world.run(&["x"], &format!("'{tenure}' run x --wait 200ms -- true"));
    assert!(stderr(&output).contains("waits for its own end"), "{output:?}");
    assert_eq!(code(&world.run(&["x"], &inner.replace("run x", "run y"))), 0, "another lock is no matter");
}

#[test]
fn a_rest_that_is_longer_than_asked_for_is_not_told_as_a_run_within_that_time() {
    let world = World::new();
    assert_eq!(code(&world.run(&["x", "--every", "1h"], "true")), 0);
    let later = world.run(&["x", "--every", "1ms"], "true");
    assert_eq!(code(&later), 75, "{later:?}");
    assert!(stderr(&later).contains("still rests: sh (pid "), "{later:?}");
    assert!(stderr(&later).contains("with a longer `--every`"), "{later:?}");
    // Also where it ran within that time: it may not run again when that is over.
    let shorter = world.run(&["x", "--every", "10m"], "true");
    assert!(stderr(&shorter).contains("with a longer `--every`"), "{shorter:?}");
    let plain = world.run(&["x", "--wait", "0s"], "true");
    assert!(stderr(&plain).contains("\"x\" rests for 59m"), "{plain:?}");
}

#[test]
fn a_value_is_refreshed_and_forgotten() {
    let world = World::new();
    let cache = |flags: &[&str], word: &str| {
        let output = world.output(&[&["cache", "k"], flags, &["--", "echo", word]].concat());
        assert_eq!(code(&output), 0, "{output:?}");
        stdout(&output)
    };
    assert_eq!(cache(&[], "a"), "a\n");
    assert_eq!(cache(&[], "b"), "a\n");
    assert_eq!(cache(&["--refresh"], "c"), "c\n");
    assert_eq!(cache(&[], "d"), "c\n");
    assert!(stdout(&world.output(&["status"])).contains("nobody; a value is kept"));
    assert_eq!(code(&world.output(&["cache", "k", "--forget"])), 0);
    assert_eq!(stdout(&world.output(&["status"])), "nothing is held\n");
    assert_eq!(cache(&[], "e"), "e\n");
}
