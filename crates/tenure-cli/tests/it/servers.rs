//! What the command does on the server of any engine.
//!
//! Each engine whose servers the tests start calls [`on_a_server`] with a world of its own. What only one engine does is
//! in that engine's file.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Output;
use std::time::Duration;

use rustix::process::Signal;

use crate::queue::{push, start_work};
use crate::world::{World, code, finish, is_alive, now, signal, stderr, stdout, wait_for};
use tenure_core::testing::busy::assert_in_time;
use tenure_core::testing::random::more;

/// Makes a test of each function of this file, in the world that `$world` makes. `nothing stays`: but of those that need
/// something to outlive its client.
macro_rules! on_a_server {
    ($world:path) => {
        $crate::servers::on_a_server! { $world, nothing stays }
        $crate::servers::on_a_server! {
            $world:
            a_survey_shows_what_rests,
            cache_runs_a_program_once,
            a_load_that_failed_keeps_nobody_waiting,
        }

        #[test]
        fn a_run_that_was_killed_is_made_up_for_within_its_period() {
            $crate::death::a_run_that_was_killed_is_made_up_for(&$world());
        }
    };
    ($world:path, nothing stays) => {
        $crate::servers::on_a_server! {
            $world:
            programs_exclude_each_other_and_tokens_grow,
            without_waiting_it_says_who_is_in_the_way,
            status_lists_who_holds_and_who_waits,
            watch_shows_each_change_as_it_happens,
            a_broken_lease_ends_the_work,
            killed_tenure_takes_its_work_along_and_the_lock_is_free_after_the_ttl,
            slots_permits_and_readers_share_as_they_may,
            one_leads_and_elect_shows_who,
            a_queue_is_served_in_order_though_a_worker_is_killed,
            a_survey_shows_what_is_in_the_store,
        }
    };
    ($world:path: $($check:ident,)*) => {
        $(
            #[test]
            fn $check() {
                $crate::servers::$check(&$world());
            }
        )*
    };
}
pub(crate) use crate::survey::{a_survey_shows_what_is_in_the_store, a_survey_shows_what_rests};
pub(crate) use on_a_server;

pub(crate) fn programs_exclude_each_other_and_tokens_grow(world: &World) {
    let script = "mkdir busy || exit 9; echo $TENURE_TOKEN >> tokens; sleep 0.02; rmdir busy; exit 3";
    let runs: Vec<_> = (0..8).map(|_| world.start_run(&["x"], script)).collect();
    for run in runs {
        let output = finish(run);
        assert_eq!(code(&output), 3, "{output:?}");
    }
    let tokens = fs::read_to_string(world.path("tokens")).expect("tokens");
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().expect("a token")).collect();
    assert_eq!(tokens.len(), 8);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(world.status().as_array().map(Vec::len), Some(0), "everything was released");
}

pub(crate) fn without_waiting_it_says_who_is_in_the_way(world: &World) {
    let holder = world.start_run(&["x", "--label", "the nightly one"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let output = world.run(&["x", "--wait", "0s"], "echo ran > ran");
    assert_eq!(code(&output), 75);
    let text = stderr(&output);
    let held = format!("error: \"x\" is held by the nightly one (pid {} on ", holder.id());
    assert!(text.starts_with(&held), "{text}");
    assert!(!world.path("ran").exists());
}

pub(crate) fn status_lists_who_holds_and_who_waits(world: &World) {
    assert_eq!(stdout(&world.output(&["status"])), "nothing is held\n");
    let holder = world.start_run(&["jobs/a"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let waiter = world.start_run(&["jobs/a"], "true");
    world.wait_for_waiters(1);
    let status = world.status();
    assert_eq!((&status[0]["resource"], &status[0]["kind"]), (&"jobs/a".into(), &"mutex".into()));
    assert_eq!(status[0]["holds"][0]["holder"]["pid"], holder.id());
    assert_eq!(status[0]["waiters"][0]["holder"]["pid"], waiter.id());
    let table = stdout(&world.output(&["status", "--prefix", "jobs/"]));
    assert!(table.lines().any(|line| line.starts_with("jobs/a ")), "{table}");
    assert_eq!(stdout(&world.output(&["status", "--prefix", "other/"])), "nothing is held\n");
}

pub(crate) fn watch_shows_each_change_as_it_happens(world: &World) {
    let mut watch = world.start(&["watch", "x", "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = || -> serde_json::Value {
        let line = lines.next().expect("a line").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!(next()["event"], "idle");
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let granted = next();
    assert_eq!((&granted["event"], &granted["holder"]["pid"]), (&"granted".into(), &holder.id().into()));
    let waiter = world.start_run(&["x"], "true");
    assert_eq!(next()["waiting"], 1);
    signal(waiter.id(), Signal::TERM);
    assert_eq!(next()["waiting"], 0);
    fs::write(world.path("go"), "").expect("a file");
    let ended = next();
    assert_eq!((&ended["event"], &ended["token"]), (&"ended".into(), &granted["token"]));
    assert_eq!(next()["event"], "idle");
    assert_eq!(code(&finish(holder)), 0);
    signal(watch.id(), Signal::TERM);
    drop((finish(waiter), watch));
}

pub(crate) fn a_broken_lease_ends_the_work(world: &World) {
    let script = "trap 'echo term > got; exit 0' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let run = world.start_run(&["x", "--ttl", "6s"], script);
    let pid = world.pid("pid");
    let token = world.token();
    let wrong = world.output(&["release", "x", "--token", "1", "--force"]);
    assert_eq!(code(&wrong), 64, "{wrong:?}");
    let released = world.output(&["release", "x", "--token", &token, "--force"]);
    assert_eq!(code(&released), 0, "{released:?}");
    let output = finish(run);
    assert_eq!(code(&output), 76, "{output:?}");
    assert!(stderr(&output).contains("somebody broke it"), "{output:?}");
    assert_eq!(world.line("got"), "term");
    assert!(!is_alive(pid));
}

pub(crate) fn killed_tenure_takes_its_work_along_and_the_lock_is_free_after_the_ttl(world: &World) {
    let ttl = Duration::from_secs(1);
    let run = world.start_run(&["x", "--ttl", "1s"], "echo $$ > pid; sleep 60");
    let pid = world.pid("pid");
    let next = world.start_run(&["x", "--ttl", "1s"], &format!("! kill -0 {pid}"));
    world.wait_for_waiters(1);
    let killed_at = now();
    signal(run.id(), Signal::KILL);
    let output = finish(next);
    let took = killed_at.elapsed();
    assert_eq!(code(&output), 0, "the work of the killed one still ran: {output:?}");
    println!("the next one ran after {took:?}");
    // Some of it was over when the holder was killed, and two processes had to start and end.
    assert_in_time(took, ttl + world.lingers);
    drop(run);
}

pub(crate) fn slots_permits_and_readers_share_as_they_may(world: &World) {
    let script = "echo $TENURE_SLOT >> slots; echo $$ > pid$TENURE_SLOT; sleep 60";
    let runs: Vec<_> = (0..2).map(|_| world.start_run(&["pool", "--slots", "2"], script)).collect();
    world.pid("pid0");
    world.pid("pid1");
    let third = world.run(&["pool", "--slots", "2", "--wait", "0s"], "true");
    assert_eq!(code(&third), 75, "{third:?}");
    let conflict = world.run(&["pool", "--wait", "0s"], "true");
    assert_eq!(code(&conflict), 64, "a mutex of the same name: {conflict:?}");
    let reader = world.start_run(&["book", "--shared"], "echo $$ > reader; sleep 60");
    world.pid("reader");
    let second = world.run(&["book", "--shared", "--wait", "0s"], "true");
    assert_eq!(code(&second), 0, "{second:?}");
    let writer = world.run(&["book", "--exclusive", "--wait", "0s"], "true");
    assert_eq!(code(&writer), 75, "{writer:?}");
    drop((runs, reader));
}

pub(crate) fn one_leads_and_elect_shows_who(world: &World) {
    let leader = world.start_run(&["boss"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let shown = world.output(&["elect", "boss", "--json"]);
    assert_eq!(code(&shown), 0, "{shown:?}");
    assert!(stdout(&shown).contains(&leader.id().to_string()), "{shown:?}");
}

pub(crate) fn cache_runs_a_program_once(world: &World) {
    let script = "echo ran >> ran; echo 42";
    for _ in 0..3 {
        let output = world.output(&["cache", "answer", "--ttl", "60s", "--", "sh", "-c", script]);
        assert_eq!((code(&output), stdout(&output).trim()), (0, "42"), "{output:?}");
    }
    assert_eq!(fs::read_to_string(world.path("ran")).expect("a file"), "ran\n");
}

/// The next one loads at once, not when the lease of the one that failed is over.
pub(crate) fn a_load_that_failed_keeps_nobody_waiting(world: &World) {
    let failures = [(&["false"][..], 1), (&["./no-such-program"], 127), (&["/etc/passwd"], 126)];
    for (failure, expected) in failures {
        let failed = world.output(&[&["cache", "k", "--lease", "6s", "--"], failure].concat());
        assert_eq!(code(&failed), expected, "{failed:?}");
        let began = now();
        let next = world.output(&["cache", "k", "--", "echo", "x"]);
        let took = began.elapsed();
        assert_eq!((code(&next), stdout(&next).as_str()), (0, "x\n"), "{next:?}");
        assert_in_time(took, Duration::from_secs(2));
        let forgotten = world.output(&["cache", "k", "--forget"]);
        assert_eq!(code(&forgotten), 0, "{forgotten:?}");
    }
}

/// A server that is down is told with a hint, and nothing runs.
pub(crate) fn assert_told_that_it_is_down(world: &World, port: u16) {
    let began = now();
    let output = world.run(&["x"], "echo ran > ran");
    let took = began.elapsed();
    assert_eq!(code(&output), 69, "{output:?}");
    let text = stderr(&output);
    assert!(text.contains(&format!("127.0.0.1:{port}")) && text.contains("\n\nhint: "), "{text}");
    assert_in_time(took, Duration::from_secs(5));
    assert!(!world.path("ran").exists());
    let doctor = world.output(&["doctor"]);
    assert_eq!(code(&doctor), 69, "{doctor:?}");
    assert!(stdout(&doctor).contains("bad      connect: "), "{doctor:?}");
}

/// The work ends by the deadline of its lease when the server dies, which `kill` does. Returns what the command said.
pub(crate) fn work_ends_with_the_lease_when_the_server_dies(world: &World, kill: impl FnOnce()) -> Output {
    let run = world.start_run(&["x", "--ttl", "3s"], "echo $$ > pid; while :; do sleep 0.1; done");
    let pid = world.pid("pid");
    let killed_at = now();
    kill();
    wait_for("end of the work", || (!is_alive(pid)).then_some(()));
    let took = killed_at.elapsed();
    assert_in_time(took, Duration::from_millis(3200));
    // The command itself goes on trying to release for a while.
    let output = finish(run);
    assert_eq!(code(&output), 76, "{output:?}");
    assert!(stderr(&output).contains("error: lost the lease of \"x\""), "{output:?}");
    output
}

/// A holder keeps its lock, and others wait, while `replace` has the server restarted or another one take over.
pub(crate) fn a_hold_outlives_a_server(world: &World, ttl: &str, replace: impl FnOnce()) {
    let script = "echo $$ > pid; while ! test -e go; do sleep 0.1; done";
    let mut run = world.tenure(&["run", "x", "--ttl", ttl, "--", "sh", "-c", script]);
    // Shown if it fails.
    let run = world.spawn(run.env("TENURE_LOG", "debug"));
    world.pid("pid");
    let token = world.token();
    replace();
    let kept = world.token();
    let busy = world.run(&["x", "--wait", "0s"], "true");
    fs::write(world.path("go"), "").expect("a file");
    let output = finish(run);
    assert_eq!((kept, code(&busy), code(&output)), (token, 75, 0), "{busy:?}, and the holder {output:?}");
}

/// Each wrong URL is refused, and its password `hunter2` is not shown. The right one is taken, and its `swordfish` is not shown
/// either.
pub(crate) fn a_wrong_login_is_told_and_not_shown(wrong: &[String], right: String) {
    for url in wrong {
        let world = World::on(url.clone());
        for arguments in [&["status"][..], &["doctor"], &["run", "x", "--", "true"]] {
            // A server that has no time to check a password answers nothing.
            wait_for("a refusal", || {
                let output = world.output(arguments);
                let text = format!("{}{}", stdout(&output), stderr(&output));
                assert!(!output.status.success() && !text.contains("hunter2"), "{arguments:?}: {text}");
                let is_told = text.contains("check the user and the password of the URL");
                assert!(is_told || text.contains("no answer"), "{arguments:?}: {text}");
                is_told.then_some(())
            });
        }
    }
    let world = World::on(right);
    wait_for("an answer", || {
        let output = world.output(&["doctor"]);
        let text = format!("{}{}", stdout(&output), stderr(&output));
        assert!(!text.contains("swordfish"), "{text}");
        assert!(output.status.success() || text.contains("no answer"), "{text}");
        output.status.success().then_some(())
    });
}

pub(crate) fn a_queue_is_served_in_order_though_a_worker_is_killed(world: &World) {
    for number in 0..6 {
        for group in ["a", "b"] {
            push(world, "x", &[&number.to_string(), "--group", group]);
        }
    }
    // It dies with the first item of a group, whose others wait for the end of its delivery.
    let script = "echo $$ > pid; while :; do sleep 0.1; done";
    let killed = start_work(world, &["x", "--ttl", "1s"], script);
    let cmd = world.pid("pid");
    signal(killed.id(), Signal::KILL);
    let script = "mkdir busy.$TENURE_GROUP || exit 9; cat >> $TENURE_GROUP; echo $TENURE_ATTEMPT >> attempts; rmdir busy.$TENURE_GROUP";
    let flags = ["x", "--parallel", "2", "--drain", "--max-attempts", "2"];
    let workers = [start_work(world, &flags, script), start_work(world, &flags, script)];
    for worker in workers {
        let output = finish(worker);
        assert_eq!((code(&output), stderr(&output).as_str()), (0, ""), "{output:?}");
    }
    assert!(!is_alive(cmd));
    for group in ["a", "b"] {
        assert_eq!(fs::read_to_string(world.path(group)).expect("it was served"), "012345");
    }
    let attempts = fs::read_to_string(world.path("attempts")).expect("attempts");
    assert_eq!(attempts.lines().filter(|attempt| *attempt == "2").count(), 1, "{attempts}");
}

/// How many processes come at once to a server that takes half as many connections.
pub(crate) fn crowd() -> usize {
    more(60, 100)
}

/// Many processes at once, each with its lock, where the server has no room for all: each waits for its turn.
pub(crate) fn a_crowd_of_runs_waits_for_room(world: &World) {
    let crowd = crowd();
    let runs: Vec<_> = (0..crowd)
        .map(|number| {
            world.start_run(&[&format!("m{number}"), "--wait", "60s"], "echo ran >> ran; sleep 0.3")
        })
        .collect();
    let outputs: Vec<_> = runs.into_iter().map(finish).collect();
    let failed: Vec<_> = outputs.iter().filter(|output| code(output) != 0).collect();
    assert!(failed.is_empty(), "{} of {crowd} failed: {:?}", failed.len(), failed[0]);
    let ran = fs::read_to_string(world.path("ran")).expect("a file");
    assert_eq!(ran.lines().count(), crowd);
}

/// As many want one value that nobody has: it is loaded once, and all have it.
pub(crate) fn a_crowd_gets_one_value_that_is_loaded_once(world: &World) {
    let load = "echo loaded >> loads; sleep 1; echo value";
    let arguments = ["cache", "key", "--ttl", "1m", "--", "sh", "-c", load];
    let crowd = crowd();
    let readers: Vec<_> = (0..crowd).map(|_| world.start(&arguments)).collect();
    let outputs: Vec<_> = readers.into_iter().map(finish).collect();
    let failed: Vec<_> =
        outputs.iter().filter(|output| code(output) != 0 || stdout(output) != "value\n").collect();
    assert!(failed.is_empty(), "{} of {crowd} have no value: {:?}", failed.len(), failed[0]);
    let loads = fs::read_to_string(world.path("loads")).expect("a file");
    assert_eq!(loads, "loaded\n");
}

/// A server whose connections are all taken: it is told as it is, with the code of a store that is not available.
pub(crate) fn assert_told_that_it_is_full(world: &World) {
    let output = world.run(&["x", "--wait", "1s"], "true");
    assert_eq!(code(&output), 69, "{output:?}");
    let text = stderr(&output).to_lowercase();
    assert!(text.contains("too many") && text.contains("raise `max_connections`"), "{output:?}");
}
