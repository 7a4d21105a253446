//! `tenure run`, when nothing goes wrong.

use std::fs;

use crate::world::{World, code, finish, keeper, signal, stderr, stdout, wait_for};
use rustix::process::Signal;

#[test]
fn the_exit_code_is_that_of_the_program() {
    let world = World::new();
    for (script, expected) in [("true", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        assert_eq!(code(&world.run(&["x"], script)), expected, "{script}");
    }
    let missing = world.output(&["run", "x", "--", "no-such-program"]);
    assert_eq!(code(&missing), 127);
    assert!(stderr(&missing).contains("hint: "), "{missing:?}");
    assert_eq!(code(&world.output(&["run", "x", "--", "/etc/passwd"])), 126);
    assert_eq!(world.status().as_array().map(Vec::len), Some(0), "everything was released");
}

#[test]
fn the_program_finds_its_lease_in_its_environment_and_its_streams_untouched() {
    let world = World::new();
    let output = world.run(&["my lock"], "echo \"$TENURE_NAME/$TENURE_TOKEN/$TENURE_CLAIM\"; echo err >&2");
    let line = stdout(&output);
    let parts: Vec<&str> = line.trim().split('/').collect();
    assert_eq!(parts[0], "my lock");
    assert!(parts[1].parse::<u64>().is_ok_and(|token| token > 0), "{line}");
    assert_eq!(parts[2].len(), 32, "{line}");
    assert_eq!(stderr(&output), "err\n");
}

#[test]
fn tokens_grow() {
    let world = World::new();
    let token = || stdout(&world.run(&["x"], "echo $TENURE_TOKEN")).trim().parse::<u64>().expect("a token");
    let first = token();
    assert!(token() > first);
}

#[test]
fn no_descriptor_and_no_signal_mask_reaches_the_program() {
    let world = World::new();
    let script = "ls /proc/self/fd | tr '\\n' ' '; grep SigBlk /proc/self/status";
    // What the caller of `tenure` left open is the caller's business, so it is taken away here.
    let plain = std::process::Command::new("sh").args(["-c", script]).output().expect("sh");
    assert_eq!(stdout(&world.run(&["x"], script)), stdout(&plain));
}

#[test]
fn two_programs_never_run_at_once() {
    let world = World::new();
    let script = "mkdir busy || exit 9; sleep 0.02; rmdir busy";
    let runs: Vec<_> = (0..12).map(|_| world.start_run(&["x"], script)).collect();
    for run in runs {
        assert_eq!(code(&finish(run)), 0);
    }
}

#[test]
fn fifty_processes_count_to_fifty_in_the_order_in_which_they_queued() {
    let world = World::new();
    fs::write(world.path("f"), "0\n").expect("a file");
    let first = world.start_run(&["counter"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let mut runs = Vec::new();
    for number in 0..50_u64 {
        let script = format!("n=$(cat f); echo $((n+1)) > f; echo {number} >> order");
        runs.push(world.start_run(&["counter"], &script));
        world.wait_for_waiters(number + 1);
    }
    fs::write(world.path("go"), "").expect("a file");
    for run in runs {
        assert_eq!(code(&finish(run)), 0);
    }
    assert_eq!(code(&finish(first)), 0);
    assert_eq!(world.line("f"), "50");
    let order = fs::read_to_string(world.path("order")).expect("an order");
    let expected: String = (0..50).map(|number| format!("{number}\n")).collect();
    assert_eq!(order, expected);
}

#[test]
fn without_waiting_it_says_who_is_in_the_way() {
    let world = World::new();
    let holder = world.start_run(&["x", "--label", "the nightly one"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let output = world.run(&["x", "--wait", "0s"], "echo ran > ran");
    assert_eq!(code(&output), 75);
    assert!(!world.path("ran").exists());
    let text = stderr(&output);
    let held = format!("error: \"x\" is held by the nightly one (pid {} on ", holder.id());
    assert!(text.starts_with(&held), "{text}");
    assert!(text.contains("s; nobody waits\n\nhint: "), "{text}");
    let later = world.run(&["x", "--wait", "300ms"], "true");
    assert_eq!(code(&later), 75);
    assert!(stderr(&later).contains("was not acquired within 300ms: "), "{later:?}");
}

#[test]
fn every_runs_once_in_its_period() {
    let world = World::new();
    assert_eq!(code(&world.run(&["x", "--every", "1h"], "echo ran >> ran")), 0);
    let again = world.run(&["x", "--every", "1h"], "echo ran >> ran");
    assert_eq!(code(&again), 75);
    let text = stderr(&again);
    assert!(text.contains("ran within the last 1h 0m: sh (pid "), "{text}");
    assert!(text.contains("hint: it may run again in 59m"), "{text}");
    assert_eq!(fs::read_to_string(world.path("ran")).expect("it ran"), "ran\n");
    assert_eq!(code(&world.run(&["y", "--every", "200ms"], "true")), 0);
    assert_eq!(code(&world.run(&["y", "--every", "200ms", "--wait", "5s"], "true")), 0);
}

#[test]
fn signals_are_passed_on() {
    let world = World::new();
    let script =
        "trap 'echo usr1 >> got' USR1; trap 'echo hup >> got' HUP; trap 'echo term >> got; exit 5' TERM
        echo $$ > pid; while :; do sleep 0.1; done";
    let run = world.start_run(&["x"], script);
    world.pid("pid");
    let got = |expected: &str| {
        wait_for(expected, || (fs::read_to_string(world.path("got")).ok()? == expected).then_some(()));
    };
    signal(run.id(), Signal::USR1);
    got("usr1\n");
    signal(run.id(), Signal::HUP);
    got("usr1\nhup\n");
    signal(run.id(), Signal::TERM);
    assert_eq!(code(&finish(run)), 5);
    got("usr1\nhup\nterm\n");
}

#[test]
fn a_signal_ends_the_waiting_and_leaves_no_waiter() {
    let world = World::new();
    let _holder = world.start_run(&["x"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    for (number, expected) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let waiter = world.start_run(&["x"], "echo ran > ran");
        world.wait_for_waiters(1);
        let keeper = keeper(waiter.id());
        signal(waiter.id(), number);
        let output = finish(waiter);
        assert_eq!(code(&output), expected);
        assert_eq!(world.status()[0]["waiting"], 0);
        assert!(!crate::world::is_alive(keeper));
    }
    assert!(!world.path("ran").exists());
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let world = World::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let script = format!("trap '' HUP; exec {tenure} run x -- sh -c 'kill -HUP $$ $PPID; echo lived'");
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("TENURE_ENGINE", world.engine())
        .output()
        .expect("sh");
    assert_eq!((stdout(&output).as_str(), code(&output)), ("lived\n", 0), "{output:?}");
}

#[test]
fn exit_codes_are_seen_where_the_caller_ignores_its_children() {
    let world = World::new();
    let script = format!("trap '' CHLD; exec {} run x -- sh -c 'exit 3'", env!("CARGO_BIN_EXE_tenure"));
    let mut command = std::process::Command::new("sh");
    let output = command.args(["-c", &script]).env("TENURE_ENGINE", world.engine()).output().expect("sh");
    assert_eq!(code(&output), 3, "{output:?}");
}

#[test]
fn it_runs_on_an_engine_that_does_not_notice_deaths() {
    let world = World::new();
    let output = world.run(&["x", "--engine", "memory:"], "echo $TENURE_NAME; exit 2");
    assert_eq!((stdout(&output).as_str(), code(&output)), ("x\n", 2));
}

#[test]
fn what_the_program_left_behind_is_ended_before_the_release() {
    let world = World::new();
    // One that ends when asked, one that does not, and one that has a session of its own.
    let script = "sh -c 'echo $$ > polite; sleep 60' & sh -c \"trap '' TERM; echo \\$\\$ > stubborn; sleep 61\" &
        setsid sh -c 'echo $$ > daemon; sleep 62' & while ! test -s daemon || ! test -s stubborn || ! test -s polite; do sleep 0.1; done";
    let output = world.start_run(&["x", "--grace", "300ms", "--json"], &script.replace(" &\n", " &"));
    let (polite, stubborn, daemon) = (world.pid("polite"), world.pid("stubborn"), world.pid("daemon"));
    let next =
        world.run(&["x"], "for f in polite stubborn; do kill -0 $(cat $f) && echo $f lives; done; true");
    assert_eq!(stdout(&next), "");
    let mut run = output;
    let status = run.wait().expect("an end");
    assert_eq!(status.code(), Some(0));
    assert!(!crate::world::is_alive(polite) && !crate::world::is_alive(stubborn));
    assert!(crate::world::is_alive(daemon), "a session of its own outlives the lock");
}

#[test]
fn a_session_from_outside_the_container_is_a_session_too() {
    let world = World::new();
    let mut command = std::process::Command::new("unshare");
    // In there the session's number is 0, and so is the group's.
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", env!("CARGO_BIN_EXE_tenure")]);
    let output = command
        .args(["run", "x", "--grace", "100ms", "--", "sh", "-c", "sleep 60 & exit 5"])
        .env("TENURE_ENGINE", world.engine())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("unshare starts");
    assert_eq!(output.status.code(), Some(5), "{output:?}");
}

#[test]
fn events_are_json_lines_on_stderr() {
    let world = World::new();
    let output = world.output(&["run", "x", "--json", "--", "sh", "-c", "echo data; exit 3"]);
    assert_eq!(stdout(&output), "data\n");
    let events: Vec<serde_json::Value> =
        stderr(&output).lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().expect("a name")).collect();
    assert_eq!(names, ["granted", "started", "ended", "released"]);
    assert_eq!(events[0]["name"], "x");
    assert!(events[0]["token"].as_u64().is_some() && events[0]["waited_ms"].as_u64().is_some());
    assert_eq!(events[2]["code"], 3);
    let _holder = world.start_run(&["x"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let busy = world.run(&["x", "--json", "--wait", "0s"], "true");
    let error: serde_json::Value = serde_json::from_str(&stderr(&busy)).expect("one event");
    assert_eq!((error["event"].as_str(), error["exit"].as_u64()), (Some("error"), Some(75)));
}

#[test]
fn quiet_silences_messages_but_not_errors() {
    let world = World::new();
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let loud = world.start_run(&["x"], "true");
    let quiet = world.start_run(&["x", "--quiet"], "true");
    world.wait_for_waiters(2);
    fs::write(world.path("go"), "").expect("a file");
    assert!(stderr(&finish(loud)).starts_with("tenure: waiting for \"x\": held by sh (pid "));
    assert_eq!(stderr(&finish(quiet)), "");
    assert_eq!(code(&finish(holder)), 0);
    assert!(stderr(&world.run(&["x", "--quiet", "--ttl", "10ms"], "true")).contains("error: "));
}
