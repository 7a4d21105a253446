//! `tenure queue`, on this machine.

use std::fs;
use std::io::Write;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::world::{World, code, finish, is_alive, keeper, now, signal, stderr, stdout, wait_for};
use tenure_core::testing::busy::assert_in_time;

/// Says what it works on, and goes on until it is ended.
const HANG: &str = "echo $$ >> pids; echo $TENURE_ATTEMPT >> attempts; while :; do sleep 0.1; done";

pub(crate) fn push(world: &World, name: &str, flags: &[&str]) -> u64 {
    let output = world.output(&[&["queue", "push", name], flags].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    stdout(&output).trim().parse().expect("a number")
}

fn push_stdin(world: &World, arguments: &[&str], bytes: &[u8]) -> Output {
    let mut command = world.tenure(&[&["queue", "push"], arguments].concat());
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the command starts");
    child.stdin.take().expect("it is piped").write_all(bytes).expect("it reads");
    child.wait_with_output().expect("it ends")
}

pub(crate) fn start_work(world: &World, flags: &[&str], script: &str) -> Child {
    world.start(&[&["queue", "work"], flags, &["--", "sh", "-c", script]].concat())
}

fn work(world: &World, flags: &[&str], script: &str) -> Output {
    finish(start_work(world, flags, script))
}

fn json(world: &World, arguments: &[&str]) -> serde_json::Value {
    let output = world.output(&[&["queue"], arguments, &["--json"]].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn lines(world: &World, name: &str) -> Vec<String> {
    let text = fs::read_to_string(world.path(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits for so many lines of a file that a script writes.
fn wait_for_lines(world: &World, name: &str, count: usize) -> Vec<String> {
    wait_for(&format!("{count} lines of {name}"), || {
        let lines = lines(world, name);
        (lines.len() >= count).then_some(lines)
    })
}

#[test]
fn a_payload_is_what_was_pushed_byte_for_byte() {
    let world = World::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    assert_eq!(code(&push_stdin(&world, &["x"], &bytes)), 0);
    push(&world, "x", &["an argument"]);
    assert_eq!(code(&push_stdin(&world, &["x", "-"], b"typed\n")), 0);
    let output = work(&world, &["x", "--drain"], "cat");
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(output.stdout, [&bytes[..], b"an argument", b"typed\n"].concat());
    let most = vec![0; 256 * 1024 + 1];
    assert_eq!(code(&push_stdin(&world, &["x"], &most)), 64);
    assert_eq!(code(&push_stdin(&world, &["x"], &most[1..])), 0);
}

#[test]
fn each_line_is_an_item_in_order() {
    let world = World::new();
    let text: String = (0..300).map(|number| format!("line {number}\n")).collect();
    let pushed = push_stdin(&world, &["x", "--lines", "--group", "g"], text.as_bytes());
    assert_eq!(stdout(&pushed).lines().count(), 300);
    let peeked = json(&world, &["peek", "x", "-n", "1000"]);
    let payloads: Vec<&str> =
        peeked.as_array().unwrap().iter().map(|item| item["payload"].as_str().unwrap()).collect();
    assert_eq!(payloads, text.lines().collect::<Vec<_>>());
    assert_eq!((&peeked[0]["state"], &peeked[1]["state"]), (&"waiting".into(), &"behind".into()));
}

#[test]
fn a_line_that_is_too_long_is_no_item_and_nothing_behind_it_is_pushed() {
    let world = World::new();
    let long = "X".repeat(256 * 1024);
    let text = format!("first\nsecond\n{long}DELETE-EVERYTHING tail of line 3\nfourth\nfifth\n");
    let output = push_stdin(&world, &["x", "--lines"], text.as_bytes());
    assert_eq!(code(&output), 64, "{output:?}");
    assert_eq!(stdout(&output).lines().count(), 2, "the number of each item that is in line");
    let told = stderr(&output);
    assert!(
        told.contains("line 3") && told.contains("262144 bytes") && told.contains("2 lines before it"),
        "{told}"
    );
    let peeked = json(&world, &["peek", "x", "-n", "1000"]);
    let payloads: Vec<&str> =
        peeked.as_array().unwrap().iter().map(|item| item["payload"].as_str().unwrap()).collect();
    assert_eq!(payloads, ["first", "second"]);
    // The largest line is an item, with a line end and without.
    let output = push_stdin(&world, &["y", "--lines"], format!("{long}\n{long}").as_bytes());
    assert_eq!((code(&output), stdout(&output).lines().count()), (0, 2), "{output:?}");
}

#[test]
fn lines_that_fail_are_named_and_the_others_have_their_numbers() {
    // A group of too many bytes is refused line by line, as a store refuses some of many.
    let world = World::new();
    let output = push_stdin(&world, &["x", "--lines", "--json", "--group", &"g".repeat(300)], b"a\nb\nc\n");
    assert_eq!((code(&output), stdout(&output).as_str()), (64, ""), "{output:?}");
    assert!(stderr(&output).contains("lines 1 to 3"), "{output:?}");
    let output = push_stdin(&world, &["x", "--lines", "--json"], b"a\nb\n");
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["line"], &lines[1]["line"]), (&1.into(), &2.into()), "{lines:?}");
}

#[test]
fn cmd_finds_what_it_works_on_in_its_environment() {
    let world = World::new();
    let item = push(&world, "x", &["a", "--group", "g"]);
    let script =
        "echo $TENURE_NAME,$TENURE_GROUP,$TENURE_ATTEMPT,$TENURE_ITEM,$TENURE_TOKEN,${#TENURE_CLAIM}";
    let output = stdout(&work(&world, &["x", "--drain"], script));
    let fields: Vec<&str> = output.trim().split(',').collect();
    let item = item.to_string();
    assert_eq!((&fields[..4], fields[5]), (&["x", "g", "1", item.as_str()][..], "32"));
    assert!(fields[4].parse::<u64>().is_ok_and(|token| token > 0));
}

#[test]
fn what_travels_with_an_item_is_in_cmds_environment() {
    const OF_CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067ab0cd902e7-01";
    const OF_WORKER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let world = World::new();
    let push = |flags: &[&str]| {
        let mut command = world.tenure(&[&["queue", "push", "q", "x"], flags].concat());
        // Whoever runs the tests may have a collector.
        command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT").env("TRACEPARENT", OF_CALLER);
        command.output().expect("it starts")
    };
    for flags in [&["--context", "request 7"][..], &["--context", ""], &[]] {
        assert_eq!(code(&push(flags)), 0);
    }
    let listed = json(&world, &["peek", "q"]);
    let contexts: Vec<_> =
        listed.as_array().expect("a list").iter().map(|item| item.get("context")).collect();
    assert_eq!(contexts, [Some(&"request 7".into()), None, Some(&OF_CALLER.into())]);
    let script = "echo \"$TENURE_CONTEXT,$TRACEPARENT,$TRACESTATE\"";
    let mut work = world.tenure(&["queue", "work", "q", "--drain", "--json", "--", "sh", "-c", script]);
    work.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
        .env("TRACEPARENT", OF_WORKER)
        .env("TRACESTATE", "of=worker");
    let output = work.output().expect("it starts");
    let expected =
        format!("request 7,{OF_WORKER},of=worker\n,{OF_WORKER},of=worker\n{OF_CALLER},{OF_CALLER},\n");
    assert_eq!(stdout(&output), expected);
    assert!(stderr(&output).contains("\"context\":\"request 7\""), "{output:?}");
    let output = push(&["--context", &"x".repeat(129)]);
    assert_eq!(code(&output), 64, "{output:?}");
    assert!(stderr(&output).contains("129 bytes"), "{output:?}");
}

#[test]
fn a_duplicate_is_answered_with_the_first_item() {
    let world = World::new();
    let first = push(&world, "x", &["a", "--dedup", "d"]);
    let second = world.output(&["queue", "push", "x", "b", "--dedup", "d", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&second.stdout).unwrap();
    assert_eq!(told, serde_json::json!({ "queue": "x", "item": first, "is_duplicate": true }));
    assert!(stderr(&second).contains("nothing was pushed"), "{second:?}");
    assert_eq!(json(&world, &["peek", "x"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn a_killed_worker_takes_cmd_along_and_another_has_its_item_at_once() {
    let world = World::new();
    push(&world, "x", &["a", "--group", "g"]);
    let first = start_work(&world, &["x"], HANG);
    let cmd = world.pid("pids");
    let keeper = keeper(first.id());
    let script = "kill -0 $(head -n 1 pids) 2>/dev/null && echo it lives; echo $TENURE_ATTEMPT";
    let second = start_work(&world, &["x", "--drain"], script);
    let killed_at = now();
    signal(first.id(), Signal::KILL);
    let output = finish(second);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "2\n"), "{output:?}");
    // The ttl is 30 s.
    assert_in_time(killed_at.elapsed(), Duration::from_secs(3));
    assert!(!is_alive(cmd) && !is_alive(keeper));
    drop(first);
}

#[test]
fn a_worker_of_several_lanes_that_is_killed_takes_them_all_along() {
    let world = World::new();
    for _ in 0..3 {
        push(&world, "x", &["a"]);
    }
    let first = start_work(&world, &["x", "--parallel", "3"], HANG);
    let pids: Vec<u32> = wait_for_lines(&world, "pids", 3).iter().map(|pid| pid.parse().unwrap()).collect();
    pids.iter().for_each(|pid| world.watch(*pid));
    signal(first.id(), Signal::KILL);
    let output = work(&world, &["x", "--drain"], "echo $TENURE_ATTEMPT");
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "2\n2\n2\n"), "{output:?}");
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    drop(first);
}

#[test]
fn a_stopped_worker_loses_cmd_before_another_has_its_item() {
    let world = World::new();
    push(&world, "x", &["a"]);
    let first = start_work(&world, &["x", "--ttl", "1s"], HANG);
    let cmd = world.pid("pids");
    signal(first.id(), Signal::STOP);
    let script = "kill -0 $(head -n 1 pids) 2>/dev/null && echo it lives; echo $TENURE_ATTEMPT";
    let output = work(&world, &["x", "--drain"], script);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "2\n"), "{output:?}");
    assert!(!is_alive(cmd));
    signal(first.id(), Signal::CONT);
    signal(first.id(), Signal::TERM);
    assert_eq!(code(&finish(first)), 0, "it goes on with other items");
}

#[test]
fn a_killed_keeper_ends_the_worker_and_its_item_goes_back() {
    let world = World::new();
    push(&world, "x", &["a"]);
    let worker = start_work(&world, &["x"], HANG);
    let cmd = world.pid("pids");
    signal(keeper(worker.id()), Signal::KILL);
    let output = finish(worker);
    assert_eq!(code(&output), 69, "{output:?}");
    assert!(stderr(&output).contains("keeper"), "{output:?}");
    assert!(!is_alive(cmd));
    let item = &json(&world, &["peek", "x"])[0];
    assert_eq!((&item["state"], &item["attempts"]), (&"waiting".into(), &1.into()), "{item}");
}

#[test]
fn an_item_that_kills_its_keeper_each_time_is_a_dead_letter_at_last() {
    let world = World::new();
    let item = push(&world, "x", &["a"]);
    for _ in 0..2 {
        let output = work(&world, &["x", "--max-attempts", "2"], "kill -9 $PPID; sleep 60");
        assert_eq!(code(&output), 69, "{output:?}");
    }
    let dead = &json(&world, &["dead", "x"])[0];
    assert_eq!((&dead["item"], &dead["reason"]), (&item.into(), &"its keeper process was killed".into()));
}

#[test]
fn work_that_is_stopped_is_told() {
    let world = World::new();
    push(&world, "x", &["a"]);
    let mut worker = start_work(&world, &["x", "--drain"], "echo $$ > pid; kill -STOP $$; exit 0");
    let cmd = world.pid("pid");
    let mut reader = std::io::BufReader::new(worker.stderr.take().expect("a pipe"));
    let mut told = String::new();
    std::io::BufRead::read_line(&mut reader, &mut told).expect("a line");
    let text = format!("was stopped by signal 19; the item stays with it until `kill -CONT {cmd}`");
    assert!(told.contains(&text), "{told}");
    signal(cmd, Signal::CONT);
    assert_eq!(code(&finish(worker)), 0);
}

#[test]
fn the_exit_code_says_what_becomes_of_an_item() {
    let world = World::new();
    push(&world, "x", &["a"]);
    // Later, then a failure that kills itself, then success.
    let script = "case $TENURE_ATTEMPT in 1) exit 75;; 2) kill -9 $$;; *) echo $TENURE_ATTEMPT;; esac";
    let output = work(&world, &["x", "--drain", "--retry-after", "50ms", "--json"], script);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "3\n"), "{output:?}");
    let events: Vec<serde_json::Value> =
        stderr(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(told, ["started", "retried", "started", "retried", "started", "done"]);
    assert_eq!((&events[1]["code"], &events[1]["retry_in_ms"]), (&75.into(), &50.into()));
    assert_eq!((&events[3]["signal"], &events[3]["retry_in_ms"]), (&9.into(), &2000.into()));
    assert_eq!(json(&world, &["ls"])[0]["waiting"].as_u64().unwrap_or_default(), 0);
}

#[test]
fn a_dead_letter_says_by_which_signal_its_work_ended() {
    let world = World::new();
    let item = push(&world, "x", &["a"]);
    let output = work(&world, &["x", "--drain", "--max-attempts", "1"], "kill -9 $$");
    assert_eq!(stderr(&output), format!("tenure: item {item} is a dead letter now: signal 9\n"));
    assert_eq!(json(&world, &["dead", "x"])[0]["reason"], "signal 9");
}

#[test]
fn what_fails_too_often_is_a_dead_letter_that_can_be_replayed_or_removed() {
    let world = World::new();
    let item = push(&world, "x", &["a", "--group", "g"]);
    push(&world, "x", &["b", "--group", "g"]);
    let output = work(&world, &["x", "--drain", "--max-attempts", "1"], "test $(cat) = b || exit 3");
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(stderr(&output), format!("tenure: item {item} of \"g\" is a dead letter now: exit code 3\n"));
    let dead = &json(&world, &["dead", "x"])[0];
    assert_eq!(
        (&dead["item"], &dead["reason"], &dead["payload"]),
        (&item.into(), &"exit code 3".into(), &"a".into())
    );
    assert_eq!(code(&world.output(&["queue", "replay", "x", "7"])), 64);
    assert_eq!(json(&world, &["replay", "x", &item.to_string()])["replayed"], 1);
    let again = world.output(&["queue", "peek", "x"]);
    assert!(
        stdout(&again).lines().nth(1).is_some_and(|line| line.contains("ready") && line.ends_with("a")),
        "{again:?}"
    );
    let refused = world.output(&["queue", "purge", "x", "--waiting"]);
    assert_eq!(code(&refused), 64, "without a terminal it wants --force: {refused:?}");
    assert_eq!(code(&world.output(&["queue", "purge", "x", "--force"])), 64, "it is not said what");
    assert_eq!(json(&world, &["purge", "x", "--waiting", "--dead", "--force"])["removed"], 1);
    assert_eq!(stdout(&world.output(&["queue", "peek", "x"])), "nothing waits, and nothing is in flight\n");
}

#[test]
fn lanes_work_at_the_same_time_and_drain_ends_them() {
    let world = World::new();
    for _ in 0..8 {
        push(&world, "x", &["a"]);
    }
    // Only if four run at once does any of them end.
    let script = "touch run.$TENURE_ITEM; while [ $(ls | grep -c '^run') -lt 4 ]; do sleep 0.1; done";
    let output = work(&world, &["x", "--drain", "--parallel", "4"], script);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(
        fs::read_dir(world.directory.path())
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("run."))
            .count(),
        8
    );
}

#[test]
fn drain_waits_for_what_is_held_back_and_for_what_others_have() {
    let world = World::new();
    push(&world, "x", &["late", "--delay", "700ms"]);
    push(&world, "y", &["a"]);
    assert_eq!(stdout(&work(&world, &["x", "--drain"], "cat")), "late");
    let other = start_work(&world, &["y"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let mut drain = start_work(&world, &["y", "--drain"], "true");
    wait_for_stats(&world, "y", "in_flight", 1);
    assert!(drain.try_wait().unwrap().is_none(), "another has it");
    fs::write(world.path("go"), "").unwrap();
    assert_eq!(code(&finish(drain)), 0);
    signal(other.id(), Signal::TERM);
    assert_eq!(code(&finish(other)), 0);
}

fn wait_for_stats(world: &World, name: &str, field: &str, count: u64) {
    wait_for(field, || (json(world, &["ls", name])[0][field].as_u64() == Some(count)).then_some(()));
}

#[test]
fn an_interval_is_kept_over_all_lanes_and_workers() {
    let world = World::new();
    for number in 0..6 {
        push(&world, "x", &["a", "--group", if number % 2 == 0 { "even" } else { "odd" }]);
    }
    let flags = ["x", "--interval", "150ms", "--parallel", "2", "--drain"];
    let script = "echo $TENURE_TOKEN >> tokens";
    let workers = [start_work(&world, &flags, script), start_work(&world, &flags, script)];
    for worker in workers {
        assert_eq!(code(&finish(worker)), 0);
    }
    // A token is the store's time of a dispatch, in microseconds.
    let mut tokens: Vec<u64> = lines(&world, "tokens").iter().map(|token| token.parse().unwrap()).collect();
    tokens.sort_unstable();
    assert_eq!(tokens.len(), 6);
    assert!(tokens.windows(2).all(|pair| pair[1] - pair[0] >= 150_000), "{tokens:?}");
}

#[test]
fn two_workers_serve_each_group_in_order_one_at_a_time() {
    let world = World::new();
    for number in 0..8 {
        for group in ["a", "b", "c"] {
            push(&world, "x", &[&format!("{number}"), "--group", group]);
        }
    }
    let script =
        "mkdir busy.$TENURE_GROUP || exit 9; sleep 0.01; cat >> $TENURE_GROUP; rmdir busy.$TENURE_GROUP";
    let flags = ["x", "--parallel", "2", "--drain", "--max-attempts", "1"];
    let workers = [start_work(&world, &flags, script), start_work(&world, &flags, script)];
    for worker in workers {
        let output = finish(worker);
        assert_eq!((code(&output), stderr(&output).as_str()), (0, ""), "{output:?}");
    }
    for group in ["a", "b", "c"] {
        assert_eq!(fs::read_to_string(world.path(group)).unwrap(), "01234567");
    }
}

#[test]
fn a_worker_that_is_told_to_stop_finishes_what_runs_and_takes_nothing_new() {
    let world = World::new();
    push(&world, "x", &["a"]);
    push(&world, "x", &["b"]);
    let worker = start_work(&world, &["x"], "echo $$ >> pids; while ! test -e go; do sleep 0.1; done; cat");
    world.pid("pids");
    signal(worker.id(), Signal::TERM);
    wait_for("that it was heard", || has_heard(worker.id()).then_some(()));
    let text = "tenure: finishing the item that runs; once more puts back what runs\n";
    fs::write(world.path("go"), "").unwrap();
    let output = finish(worker);
    assert_eq!((code(&output), stdout(&output).as_str(), stderr(&output).as_str()), (0, "a", text));
    let left = json(&world, &["peek", "x"]);
    assert_eq!((left.as_array().map(Vec::len), &left[0]["payload"]), (Some(1), &"b".into()));
}

#[test]
fn a_worker_that_is_told_twice_ends_what_runs_and_puts_it_back() {
    let world = World::new();
    push(&world, "x", &["a"]);
    let script = "trap 'echo term > got; exit 0' TERM; echo $$ >> pids; while :; do sleep 0.1; done";
    let worker = start_work(&world, &["x"], script);
    let cmd = world.pid("pids");
    signal(worker.id(), Signal::INT);
    wait_for("that it was heard", || has_heard(worker.id()).then_some(()));
    signal(worker.id(), Signal::TERM);
    let output = finish(worker);
    assert_eq!(code(&output), 128 + 15, "{output:?}");
    assert!(stderr(&output).contains("was put back"), "{output:?}");
    assert!(!is_alive(cmd) && world.path("got").exists());
    let item = &json(&world, &["peek", "x"])[0];
    assert_eq!((&item["state"], &item["attempts"]), (&"waiting".into(), &0.into()), "{item}");
}

/// Whether no signal waits to be read by a process.
fn has_heard(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"));
    pending.clone().count() == 2 && pending.into_iter().all(|line| line.ends_with("0000000000000000"))
}

#[test]
fn a_program_that_cannot_be_started_leaves_the_item() {
    let world = World::new();
    push(&world, "x", &["a"]);
    let output = world.output(&["queue", "work", "x", "--drain", "--", "/etc/passwd"]);
    assert_eq!(code(&output), 126, "{output:?}");
    let item = &json(&world, &["peek", "x"])[0];
    assert_eq!((&item["state"], &item["attempts"]), (&"waiting".into(), &0.into()), "{item}");
}

#[test]
fn peek_says_who_has_an_item() {
    let world = World::new();
    push(&world, "x", &["a\u{1b}[2J", "--group", "g"]);
    push(&world, "x", &["b", "--group", "g"]);
    let worker = start_work(&world, &["x", "--label", "till 7"], HANG);
    world.pid("pids");
    let peeked = json(&world, &["peek", "x"]);
    assert_eq!((&peeked[0]["state"], &peeked[0]["holder"]["text"]), (&"in_flight".into(), &"till 7".into()));
    assert_eq!((&peeked[1]["state"], &peeked[1]["attempts"]), (&"behind".into(), &0.into()));
    let text = stdout(&world.output(&["queue", "peek", "x"]));
    assert!(text.contains("with ") && text.contains("a\\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
    let removed = world.output(&["queue", "purge", "x", &peeked[0]["item"].to_string(), "--force"]);
    assert_eq!(code(&removed), 64, "a consumer has it: {removed:?}");
    signal(worker.id(), Signal::QUIT);
    assert_eq!(code(&finish(worker)), 128 + 3);
}
