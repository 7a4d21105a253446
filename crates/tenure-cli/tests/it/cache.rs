//! `tenure cache` and `tenure elect`.

use std::fs;

use crate::world::{WHO_LIVES, World, code, finish, stderr, stdout};
use tenure_core::testing::busy::assert_in_time;

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
    let output = world.output(&["elect", "x"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (1, "nobody leads \"x\"\n"), "{output:?}");
    let output =
        world.output(&["run", "pool", "--slots", "2", "--", env!("CARGO_BIN_EXE_tenure"), "elect", "pool"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (64, ""), "{output:?}");
    assert!(stderr(&output).contains("in use as a slot pool"), "{output:?}");
    let run = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let output = world.output(&["elect", "x"]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains(&format!("leads under token {}", world.token())), "{output:?}");
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(run)), 0);
}

#[test]
fn a_loader_that_ends_takes_all_of_cmd_along_before_another_loads() {
    for how in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let world = World::new();
        let script = "sh -c 'echo $$ > grandchild; exec sleep 60 2> /dev/null' & echo $$ > child; wait";
        let loader = world.start(&cache(&[], script));
        let (child, grandchild) = (world.pid("child"), world.pid("grandchild"));
        let next = world.start(&cache(&[], WHO_LIVES));
        world.wait_for_waiters(1);
        crate::world::signal(loader.id(), how);
        let output = finish(next);
        assert_eq!((code(&output), stdout(&output).as_str()), (0, ""), "{how:?}");
        assert!(!crate::world::is_alive(child) && !crate::world::is_alive(grandchild), "{how:?}");
        let ended = finish(loader).status.code();
        assert!(how == rustix::process::Signal::KILL || ended == Some(143), "{ended:?}");
    }
}

#[test]
fn a_stopped_loader_loses_cmd_before_another_loads() {
    let world = World::new();
    let script = "sh -c 'echo $$ > grandchild; exec sleep 60 2> /dev/null' & echo $$ > child; wait";
    let loader = world.start(&cache(&["--lease", "1s"], script));
    let (child, grandchild) = (world.pid("child"), world.pid("grandchild"));
    let next = world.start(&cache(&[], WHO_LIVES));
    world.wait_for_waiters(1);
    let stopped_at = crate::world::now();
    crate::world::signal(loader.id(), rustix::process::Signal::STOP);
    let output = finish(next);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, ""), "{output:?}");
    let took = stopped_at.elapsed();
    assert_in_time(took, std::time::Duration::from_secs(10));
    assert!(!crate::world::is_alive(child) && !crate::world::is_alive(grandchild));
    crate::world::signal(loader.id(), rustix::process::Signal::CONT);
    let output = finish(loader);
    assert_eq!(code(&output), 76, "{output:?}");
    assert!(stderr(&output).contains("error: lost the lease of \"k\""), "{output:?}");
}

#[test]
fn a_lost_lease_ends_cmd_though_it_has_closed_its_output() {
    let world = World::new();
    let script = "exec > /dev/null; sh -c 'echo $$ > grandchild; while :; do sleep 0.05; done' & echo $$ > child; wait";
    let loader = world.start(&cache(&["--lease", "2s"], script));
    let (child, grandchild) = (world.pid("child"), world.pid("grandchild"));
    let released = world.output(&["release", "k", "--token", &world.token(), "--force"]);
    assert_eq!(code(&released), 0, "{released:?}");
    let output = finish(loader);
    assert_eq!(code(&output), 76, "{output:?}");
    assert!(stderr(&output).contains("error: lost the lease of \"k\""), "{output:?}");
    assert!(!crate::world::is_alive(child) && !crate::world::is_alive(grandchild));
}

#[test]
fn what_is_too_large_is_passed_on_and_not_stored() {
    let world = World::new();
    // It goes on only when what it wrote has come out on the other side.
    let script =
        "head -c 400000 /dev/zero; while ! test -e go; do sleep 0.1; done; head -c 80000000 /dev/zero";
    let mut loader = world.start(&cache(&[], script));
    let mut output = loader.stdout.take().expect("a pipe");
    let mut first = vec![0; 400_000];
    std::io::Read::read_exact(&mut output, &mut first).expect("it is passed on while CMD runs");
    fs::write(world.path("go"), "").expect("a file");
    let rest = std::io::copy(&mut output, &mut std::io::sink()).expect("the rest");
    assert_eq!(rest, 80_000_000);
    let status = fs::read_to_string(format!("/proc/{}/status", loader.id())).unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    let peak: u64 = peak.unwrap_or_default();
    assert!(peak < 60_000, "{peak} kB of memory");
    assert_eq!(code(&finish(loader)), 0);
}

#[test]
fn a_signal_ends_the_waiting_for_another_loader() {
    let world = World::new();
    let loader =
        world.start(&cache(&[], "echo ran >> runs; while ! test -e go; do sleep 0.1; done; echo value"));
    world.line("runs");
    let waiter = world.start(&cache(&[], SLOW));
    world.wait_for_waiters(1);
    crate::world::signal(waiter.id(), rustix::process::Signal::INT);
    assert_eq!(code(&finish(waiter)), 130);
    assert_eq!(world.status()[0]["waiting"], 0);
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(stdout(&finish(loader)), "value\n");
    assert_eq!(runs(&world), 1);
}

#[test]
fn a_daemon_that_keeps_the_output_open_is_not_waited_for() {
    let world = World::new();
    let script = "setsid sh -c 'echo $$ > daemon; exec sleep 30 2> /dev/null' 2> /dev/null &
        while ! test -s daemon; do sleep 0.1; done; echo value";
    let output = world.output(&cache(&[], script));
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "value\n"), "{output:?}");
    let daemon = world.pid("daemon");
    assert!(crate::world::is_alive(daemon), "it has left the work");
}
