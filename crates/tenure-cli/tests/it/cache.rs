//! `tenure cache` and `tenure elect`.

use std::fs;

use crate::world::{World, code, finish, stderr, stdout};

/// A program that notes each of its runs.
const SLOW: &str = "echo ran >> runs; sleep 0.3; echo value";

fn cache<'a>(flags: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&["cache", "k"], flags, &["--", "sh", "-c", script]].concat()
}

fn runs(world: &World) -> usize {
    fs::read_to_string(world.path("runs")).unwrap_or_default().lines().count()
}

#[test]
fn one_runs_it_and_all_print_its_output() {
    let world = World::new();
    let all: Vec<_> = (0..8).map(|_| world.start(&cache(&[], SLOW))).collect();
    for one in all {
        let output = finish(one);
        assert_eq!((code(&output), stdout(&output).as_str()), (0, "value\n"), "{output:?}");
    }
    let later = world.output(&cache(&["--json"], "echo another"));
    assert_eq!(stdout(&later), "value\n", "it is fresh");
    assert!(stderr(&later).contains("\"source\":\"fresh\""), "{later:?}");
    assert_eq!(runs(&world), 1);
}

#[test]
fn a_failure_is_passed_on_and_not_kept() {
    let world = World::new();
    let failed = world.output(&cache(&[], "echo partly; exit 9"));
    assert_eq!((code(&failed), stdout(&failed).as_str()), (9, "partly\n"));
    let missing = world.output(&["cache", "k", "--", "no-such-program"]);
    assert_eq!(code(&missing), 127, "{missing:?}");
    let output = world.output(&cache(&["--json"], "echo $TENURE_NAME"));
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "k\n"));
    assert!(stderr(&output).contains("\"source\":\"loaded\""), "{output:?}");
}

#[test]
fn an_old_output_is_printed_while_another_runs_it() {
    let world = World::new();
    assert_eq!(stdout(&world.output(&cache(&["--ttl", "0s", "--stale", "1h"], "echo old"))), "old\n");
    let running = world.start(&cache(&["--ttl", "1h", "--stale", "1h"], SLOW));
    world.line("runs");
    let output = world.output(&cache(&["--stale", "1h", "--json"], "echo never"));
    assert_eq!(stdout(&output), "old\n");
    assert!(stderr(&output).contains("\"source\":\"stale\""), "{output:?}");
    assert_eq!(stdout(&finish(running)), "value\n");
    assert_eq!(stdout(&world.output(&cache(&[], "echo never"))), "value\n");
}

#[test]
fn an_output_that_is_too_large_is_printed_and_not_kept() {
    let world = World::new();
    let large = "head -c 300000 /dev/zero | tr '\\0' x";
    let output = world.output(&cache(&[], large));
    assert_eq!((code(&output), output.stdout.len()), (0, 300_000));
    assert!(stderr(&output).contains("not shared"), "{}", stderr(&output));
    assert_eq!(stdout(&world.output(&cache(&[], "echo small"))), "small\n");
}

#[test]
fn a_killed_loader_is_replaced() {
    let world = World::new();
    let loader = world.start(&cache(&[], "echo ran >> runs; exec sleep 60 2> /dev/null"));
    world.line("runs");
    let next = world.start(&cache(&[], SLOW));
    world.wait_for_waiters(1);
    crate::world::signal(loader.id(), rustix::process::Signal::KILL);
    assert_eq!(stdout(&finish(next)), "value\n");
    drop(finish(loader));
}

#[test]
fn nobody_leads_is_an_answer() {
    let world = World::new();
    let output = world.output(&["elect", "x", "--json"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (1, "null\n"), "{output:?}");
    let run = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.01; done");
    world.pid("pid");
    let output = world.output(&["elect", "x"]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains(&format!("leads under token {}", world.token())), "{output:?}");
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(run)), 0);
}
