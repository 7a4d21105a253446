//! `tenure run`, when something dies, stops or is taken away.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::world::{
    WHO_LIVES, World, append, code, finish, is_alive, keeper, now, signal, state, stderr, wait_for,
};

/// Holds the lock with a child, and a grandchild that ignores SIGTERM.
const FAMILY: &str = "sh -c \"trap '' TERM; echo \\$\\$ > grandchild; while :; do sleep 1; done\" &
    echo $$ > child; wait";

/// Says whether the family still lives when the next one runs, and when that is.
fn next() -> String {
    format!("date +%s%N > started\n{WHO_LIVES}")
}

#[allow(clippy::disallowed_methods, reason = "a time of day to compare with that of another process")]
fn nanos_of_day() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_nanos()
}

/// How long after a moment the next one ran. Prints it too.
fn handed_over(world: &World, what: &str, since: u128) -> Duration {
    let started: u128 = world.line("started").parse().expect("nanoseconds");
    let took = Duration::from_nanos(u64::try_from(started.saturating_sub(since)).expect("a short time"));
    println!("{what}: the next one ran after {took:?}");
    took
}

#[test]
fn killed_tenure_takes_its_work_along_before_the_next_runs() {
    let world = World::new();
    let run = world.start_run(&["x"], FAMILY);
    let (child, grandchild) = (world.pid("child"), world.pid("grandchild"));
    let keeper = keeper(run.id());
    let next = world.start_run(&["x"], &next());
    world.wait_for_waiters(1);
    let killed_at = nanos_of_day();
    signal(run.id(), Signal::KILL);
    let output = finish(next);
    assert_eq!((code(&output), crate::world::stdout(&output).as_str()), (0, ""));
    assert!(handed_over(&world, "kill -9", killed_at) < Duration::from_millis(500));
    assert!(!is_alive(child) && !is_alive(grandchild) && !is_alive(keeper));
    drop(run);
}

#[test]
fn a_killed_waiter_is_skipped() {
    let world = World::new();
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let waiter = world.start_run(&["x"], "echo ran > ran");
    world.wait_for_waiters(1);
    let waiters_keeper = keeper(waiter.id());
    let next = world.start_run(&["x"], "true");
    world.wait_for_waiters(2);
    signal(waiter.id(), Signal::KILL);
    wait_for("end of its keeper", || (!is_alive(waiters_keeper)).then_some(()));
    fs::write(world.path("go"), "").expect("a file");
    let output = finish(next);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(code(&finish(holder)), 0);
    assert!(!world.path("ran").exists());
    drop(waiter);
}

#[test]
fn stopped_tenure_loses_its_work_at_the_deadline_and_says_so_on_waking() {
    let world = World::new();
    let run = world.start_run(&["x", "--ttl", "1s"], FAMILY);
    let (child, grandchild) = (world.pid("child"), world.pid("grandchild"));
    let next = world.start_run(&["x", "--ttl", "1s"], &next());
    world.wait_for_waiters(1);
    let stopped_at = nanos_of_day();
    signal(run.id(), Signal::STOP);
    let output = finish(next);
    assert_eq!((code(&output), crate::world::stdout(&output).as_str()), (0, ""));
    assert!(handed_over(&world, "SIGSTOP with a ttl of 1s", stopped_at) < Duration::from_secs(2));
    assert!(!is_alive(child) && !is_alive(grandchild));
    assert_eq!(state(run.id()), Some('T'));
    signal(run.id(), Signal::CONT);
    let output = finish(run);
    assert_eq!(code(&output), 76);
    assert!(stderr(&output).contains("error: lost the lease of \"x\""), "{output:?}");
    assert!(stderr(&output).contains("`tenure` stood still"), "{output:?}");
    assert!(stderr(&output).contains("hint: a longer --ttl survives a longer pause"), "{output:?}");
}

#[test]
fn a_program_that_ended_within_the_lease_counts_although_tenure_was_stopped() {
    let world = World::new();
    let run = world.start_run(&["x", "--ttl", "600ms"], "echo $$ > pid; sleep 0.2; exit 4");
    world.pid("pid");
    signal(run.id(), Signal::STOP);
    let output = world.run(&["x"], "true");
    assert_eq!(code(&output), 0);
    signal(run.id(), Signal::CONT);
    assert_eq!(code(&finish(run)), 4);
}

#[test]
fn a_broken_lease_ends_the_work() {
    let world = World::new();
    let script = "trap 'echo term > got; exit 0' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let run = world.start_run(&["x", "--ttl", "2s"], script);
    let pid = world.pid("pid");
    let token = world.token();
    let asked = world.output(&["release", "x", "--token", &token]);
    assert_eq!(code(&asked), 64, "without a terminal it wants --force: {asked:?}");
    let wrong = world.output(&["release", "x", "--token", "1", "--force"]);
    assert_eq!(code(&wrong), 64);
    assert!(stderr(&wrong).contains(&format!("held under token {token}")), "{wrong:?}");
    let released = world.output(&["release", "x", "--token", &token, "--force"]);
    assert_eq!(code(&released), 0, "{released:?}");
    let again = world.output(&["release", "x", "--token", &token, "--force"]);
    assert_eq!(code(&again), 64, "it is broken already: {again:?}");
    assert!(stderr(&again).contains("nobody holds"), "{again:?}");
    let output = finish(run);
    assert_eq!(code(&output), 76);
    assert!(stderr(&output).contains("somebody broke it"), "{output:?}");
    assert_eq!(world.line("got"), "term");
    assert!(!is_alive(pid));
}

#[test]
fn work_that_does_not_end_when_asked_is_killed_after_the_grace() {
    let world = World::new();
    let run = world.start_run(&["x", "--ttl", "3s", "--grace", "100ms"], FAMILY);
    let (child, grandchild) = (world.pid("child"), world.pid("grandchild"));
    let next = world.start_run(&["x"], &next());
    world.wait_for_waiters(1);
    let released = world.output(&["release", "x", "--token", &world.token(), "--force"]);
    assert_eq!(code(&released), 0, "{released:?}");
    assert_eq!(code(&finish(run)), 76);
    assert!(!is_alive(child) && !is_alive(grandchild));
    let output = finish(next);
    assert_eq!((code(&output), crate::world::stdout(&output).as_str()), (0, ""));
}

#[test]
fn max_hold_ends_the_work() {
    let world = World::new();
    let began = now();
    let output = world.run(&["x", "--ttl", "1s", "--max-hold", "1500ms"], "sleep 60");
    let took = began.elapsed();
    assert_eq!(code(&output), 76);
    assert!(stderr(&output).contains("--max-hold"), "{output:?}");
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_lost_lease_may_be_ignored() {
    let world = World::new();
    let run = world.start_run(
        &["x", "--ttl", "300ms", "--on-loss", "ignore"],
        "echo $$ > pid; while ! test -e go; do sleep 0.1; done; exit 6",
    );
    world.pid("pid");
    let released = world.output(&["release", "x", "--token", &world.token(), "--force", "--now"]);
    assert_eq!(code(&released), 0, "{released:?}");
    assert_eq!(code(&world.run(&["x"], "true")), 0);
    // Longer than the ttl: the keeper must not have killed it either.
    signal(run.id(), Signal::STOP);
    assert_eq!(code(&world.run(&["y", "--ttl", "1s"], "sleep 0.5")), 0);
    signal(run.id(), Signal::CONT);
    fs::write(world.path("go"), "").expect("a file");
    let output = finish(run);
    assert_eq!(code(&output), 6);
    let text = stderr(&output);
    assert_eq!(text.matches("warning: the lease of \"x\" is lost, and CMD goes on").count(), 1, "{text}");
}

#[test]
fn a_killed_keeper_ends_the_work() {
    let world = World::new();
    let run = world.start_run(&["x"], FAMILY);
    let (child, grandchild) = (world.pid("child"), world.pid("grandchild"));
    let next = world.start_run(&["x"], &next());
    world.wait_for_waiters(1);
    signal(keeper(run.id()), Signal::KILL);
    let output = finish(run);
    assert_eq!(code(&output), 69);
    assert!(stderr(&output).contains("the keeper process"), "{output:?}");
    assert!(!is_alive(child) && !is_alive(grandchild));
    let output = finish(next);
    assert_eq!((code(&output), crate::world::stdout(&output).as_str()), (0, ""));
}

#[test]
fn the_keeper_is_not_ended_by_mistake() {
    let world = World::new();
    let run = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done; exit 8");
    world.pid("pid");
    let keeper = keeper(run.id());
    for number in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::ALARM] {
        signal(keeper, number);
    }
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(run)), 8);
}

#[test]
fn jobs_in_groups_of_their_own_die_too() {
    let world = World::new();
    // A shell with job control puts the job into another group.
    let run =
        world.start_run(&["x"], "set -m; sh -c 'echo $$ > child; sleep 60' & echo $$ > grandchild; wait");
    let (job, shell) = (world.pid("child"), world.pid("grandchild"));
    let next = world.start_run(&["x"], &next());
    world.wait_for_waiters(1);
    signal(run.id(), Signal::KILL);
    let output = finish(next);
    assert_eq!((code(&output), crate::world::stdout(&output).as_str()), (0, ""));
    assert!(!is_alive(job) && !is_alive(shell));
    drop(run);
}

#[test]
fn an_engine_that_cannot_be_used_is_told_with_a_hint() {
    let world = World::new();
    // A file where the directory should be: that stops root too.
    drop(append(&world.path("engine")));
    let output = world.run(&["x"], "echo ran > ran");
    assert_eq!(code(&output), 69);
    assert!(stderr(&output).contains("error: ") && stderr(&output).contains("\n\nhint: "), "{output:?}");
    assert!(!world.path("ran").exists());
    let doctor = world.output(&["doctor"]);
    assert_eq!(code(&doctor), 69);
    assert!(crate::world::stdout(&doctor).contains("bad      connect: "), "{doctor:?}");
}

/// Kills a run of a period and its work, and looks that another one runs in the same period, but no third.
pub(crate) fn a_run_that_was_killed_is_made_up_for(world: &World) {
    let flags = ["x", "--every", "1h", "--ttl", "1s"];
    let run = world.start_run(&flags, "echo $$ > pid; sleep 60");
    let child = world.pid("pid");
    assert_eq!(code(&world.run(&flags, "true")), 75, "it runs");
    signal(run.id(), Signal::KILL);
    wait_for("the end of its work", || (!is_alive(child)).then_some(()));
    let output = world.run(&[&flags[..], &["--wait", "30s"]].concat(), "echo ran >> ran");
    assert_eq!(code(&output), 0, "a run that was killed is made up for: {output:?}");
    assert_eq!(code(&world.run(&flags, "echo ran >> ran")), 75, "one that has finished is not repeated");
    assert_eq!(fs::read_to_string(world.path("ran")).expect("it ran"), "ran\n");
    drop(run);
}

#[test]
fn a_run_that_was_killed_is_made_up_for_within_its_period() {
    a_run_that_was_killed_is_made_up_for(&World::new());
}

#[test]
fn the_only_holder_is_released_without_its_token_and_of_several_one_is_named() {
    let world = World::new();
    let nobody = world.output(&["release", "x", "--force"]);
    assert_eq!(code(&nobody), 64, "{nobody:?}");
    assert!(stderr(&nobody).contains("nobody holds \"x\""), "{nobody:?}");
    let script = "echo $$ >> pids; while ! test -e go; do sleep 0.1; done";
    let only = world.start_run(&["x", "--ttl", "2s"], script);
    wait_for("its start", || world.path("pids").exists().then_some(()));
    let released = world.output(&["release", "x", "--force"]);
    assert_eq!(code(&released), 0, "{released:?}");
    assert_eq!(code(&finish(only)), 76);
    let two: Vec<_> = (0..2).map(|_| world.start_run(&["y", "--slots", "2"], script)).collect();
    wait_for("both", || {
        (world.status().as_array()?.iter().find(|one| one["resource"] == "y")?["used"] == 2).then_some(())
    });
    let which = world.output(&["release", "y", "--force"]);
    assert_eq!(code(&which), 64, "{which:?}");
    assert!(stderr(&which).contains("has 2 holds\n\nhint: say which with `--token`: "), "{which:?}");
    fs::write(world.path("go"), "").expect("a file");
    assert!(two.into_iter().all(|run| code(&finish(run)) == 0), "neither was broken");
}

#[test]
fn releasing_what_only_rests_changes_nothing_and_says_so() {
    let world = World::new();
    assert_eq!(code(&world.run(&["x", "--every", "1h"], "true")), 0);
    let token = world.token();
    let released = world.output(&["release", "x", "--token", &token, "--force"]);
    assert_eq!(code(&released), 64, "{released:?}");
    assert!(stderr(&released).contains("nobody holds \"x\"; it rests for 59m"), "{released:?}");
    assert!(stderr(&released).contains("free it with `--now`"), "{released:?}");
    assert_eq!(code(&world.run(&["x", "--wait", "0s"], "true")), 75, "it rests as before");
    let freed = world.output(&["release", "x", "--token", &token, "--force", "--now"]);
    assert_eq!(code(&freed), 0, "{freed:?}");
    assert_eq!(code(&world.run(&["x", "--wait", "0s"], "true")), 0);
}

#[test]
fn a_keeper_that_was_stopped_starts_nothing_when_the_lease_is_over() {
    let world = World::new();
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let run = world.start_run(&["x", "--ttl", "600ms", "--json"], "echo ran > ran");
    world.wait_for_waiters(1);
    let keeper = keeper(run.id());
    signal(keeper, Signal::STOP);
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(holder)), 0);
    wait_for("its grant", || (world.status()[0]["holds"][0]["holder"]["pid"] == run.id()).then_some(()));
    signal(run.id(), Signal::STOP);
    // As a virtual machine that is paused: another has the lock when both go on.
    let next = world.run(&["x"], "true");
    assert_eq!(code(&next), 0, "{next:?}");
    signal(keeper, Signal::CONT);
    wait_for("an idle keeper", || (state(keeper) == Some('S')).then_some(()));
    signal(run.id(), Signal::CONT);
    let output = finish(run);
    assert_eq!(code(&output), 76, "{output:?}");
    let text = stderr(&output);
    assert!(!text.contains("\"started\"") && text.contains("CMD was not started"), "{text}");
    assert!(!world.path("ran").exists());
}

#[test]
fn a_keeper_that_is_stopped_ends_the_work_when_tenure_dies() {
    let world = World::new();
    crate::queue::push(&world, "q", &["a"]);
    for words in [["run", "x"].as_slice(), &["queue", "work", "q"]] {
        let command = world.start(&[words, &["--", "sh", "-c", FAMILY]].concat());
        let (child, grandchild) = (world.pid("child"), world.pid("grandchild"));
        signal(keeper(command.id()), Signal::STOP);
        signal(command.id(), Signal::KILL);
        wait_for("the end of the work", || (!is_alive(child) && !is_alive(grandchild)).then_some(()));
        for name in ["child", "grandchild"] {
            fs::remove_file(world.path(name)).expect("a file");
        }
        drop(command);
    }
}

#[test]
fn cmd_dies_with_both_of_its_guards() {
    let world = World::new();
    let run = world.start_run(&["x"], "echo $$ > child; exec sleep 60");
    let child = world.pid("child");
    let keeper = keeper(run.id());
    // So that it cannot take the keeper's place.
    signal(run.id(), Signal::STOP);
    signal(keeper, Signal::KILL);
    signal(run.id(), Signal::KILL);
    wait_for("the end of CMD", || (!is_alive(child)).then_some(()));
    drop(run);
}

/// Kills its parent, the keeper, as soon as it runs.
const PARRICIDE: &str = "#include <signal.h>\n#include <unistd.h>\n
int main(void) { kill(getppid(), SIGKILL); for (;;) pause(); }";

#[test]
fn what_a_keeper_left_before_it_could_say_so_is_ended() {
    let world = World::new();
    fs::write(world.path("parricide.c"), PARRICIDE).expect("a file");
    let program = world.path("parricide");
    let mut cc = std::process::Command::new("cc");
    let output = cc.args(["-static", "-O1", "-o"]).arg(&program).arg(world.path("parricide.c")).output();
    assert!(output.as_ref().is_ok_and(|output| output.status.success()), "{output:?}");
    for _ in 0..25 {
        let output = world.output(&["run", "x", "--", "./parricide"]);
        assert_eq!(code(&output), 69, "{output:?}");
        let running = fs::read_dir("/proc").expect("/proc").flatten().filter(|entry| {
            fs::read_link(entry.path().join("exe")).is_ok_and(|executed| executed == program)
        });
        let pids: Vec<u32> = running.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.iter().for_each(|pid| world.watch(*pid));
        assert_eq!(pids, [0; 0], "it works without a lease");
    }
}

#[test]
fn a_worker_within_a_run_has_ended_its_work_before_the_next_runs() {
    let world = World::new();
    crate::queue::push(&world, "q", &["a"]);
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let script = format!(
        "exec {tenure} queue work q -- sh -c \"trap '' TERM; echo \\$\\$ > child; while :; do sleep 0.1; done\""
    );
    let run = world.start_run(&["x"], &script);
    let child = world.pid("child");
    let next = world.start_run(&["x"], &format!("! kill -0 {child}"));
    world.wait_for_waiters(1);
    signal(run.id(), Signal::KILL);
    let output = finish(next);
    assert_eq!(code(&output), 0, "it lives: {output:?}");
    drop(run);
}
