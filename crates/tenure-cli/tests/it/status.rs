//! `tenure status` of many names: in order, filtered, cut, again and again, and as a monitor.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use rustix::process::Signal;
use tenure::Tenure;
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::world::{World, code, finish, signal, stderr, stdout};

fn connect(world: &World) -> Tenure {
    pollster::block_on(tenure::connect(&world.engine())).expect("an engine")
}

/// Holds so many locks for as long as it is kept.
fn hold(tenure: &Tenure, names: impl Iterator<Item = String>) -> Vec<tenure::Lease> {
    names.map(|name| pollster::block_on(tenure.mutex(&name).acquire()).expect("it is free")).collect()
}

/// The names of a table, in its order.
fn names(table: &str) -> Vec<&str> {
    let rows = table.lines().filter(|line| line.contains(" mutex ") || line.contains(" semaphore "));
    rows.filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
fn a_list_is_sorted_and_filtered_and_says_how_much_there_is() {
    let world = World::new();
    let first = world.start_run(&["c", "--label", "Nightly"], "echo $$ > first; sleep 60");
    world.pid("first");
    let _second = world.start_run(&["a", "--permits", "3"], "echo $$ > second; sleep 60");
    world.pid("second");
    let _waiter = world.start_run(&["c"], "true");
    tenure_testkit::wait_for("a waiter", || (world.status()[1]["waiting"] == 1).then_some(()));
    let list = |flags: &[&str]| {
        let output = world.output(&[&["status"], flags].concat());
        assert_eq!((code(&output), stderr(&output)), (0, String::new()));
        stdout(&output)
    };
    assert_eq!(names(&list(&[])), ["a", "c"]);
    assert!(list(&[]).ends_with("\n2 names: 2 held, 0 resting, 1 waiting\n"), "{}", list(&[]));
    for order in ["held", "waiting"] {
        assert_eq!(names(&list(&["--sort", order])), ["c", "a"], "{order}");
    }
    assert_eq!(names(&list(&["--sort", "name"])), ["a", "c"]);
    // By renewals, both may end first.
    assert_eq!(names(&list(&["--sort", "ends"])).len(), 2);
    let cut = list(&["--sort", "held", "--limit", "1"]);
    assert!(names(&cut) == ["c"] && cut.ends_with("; 1 of them shown\n"), "{cut}");
    let cut = list(&["--limit", "1"]);
    assert!(
        names(&cut) == ["a"]
            && cut.ends_with("1 name: 1 held, 0 resting, 0 waiting; there may be more, beyond the limit\n"),
        "{cut}"
    );
    assert_eq!(names(&list(&["--holder", "nightly"])), ["c"]);
    assert_eq!(names(&list(&["--holder", &first.id().to_string()])), ["c"]);
    assert_eq!(names(&list(&["--kind", "semaphore"])), ["a"]);
    assert_eq!(names(&list(&["--held-longer", "1ms"])), ["a", "c"]);
    assert_eq!(list(&["--held-longer", "1h"]), "nothing is held\n");
    let json = world.output(&["status", "--json", "--sort", "waiting", "--limit", "1"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!((json.as_array().map(Vec::len), &json[0]["resource"]), (Some(1), &"c".into()));
}

#[test]
fn a_list_is_written_while_it_is_read_on_redis() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    let tenure = connect(&world);
    let held = hold(&tenure, (0..2500).map(|number| format!("n{number:04}")));
    let table = stdout(&world.output(&["status"]));
    assert_eq!(table.matches("RESOURCE").count(), 1, "the headings come once");
    let all = names(&table);
    assert_eq!(all.len(), 2500, "each of them once");
    assert!(table.ends_with("\n2500 names: 2500 held, 0 resting, 0 waiting\n"));
    // Redis lists them in no order: each thousand is sorted, and nothing waits for the last name.
    assert!(!all.is_sorted() && all[..1000].is_sorted(), "{all:?}");
    let sorted = stdout(&world.output(&["status", "--sort", "name"]));
    assert!(names(&sorted).is_sorted() && names(&sorted).len() == 2500);
    let scans = server.calls("scan");
    let few = stdout(&world.output(&["status", "--limit", "7"]));
    assert_eq!(names(&few).len(), 7);
    let of_few = server.calls("scan") - scans;
    world.output(&["status"]);
    let of_all = server.calls("scan") - scans - of_few;
    assert!(of_few < of_all, "{of_few} of {of_all} looks for seven names");
    drop(held);
}

#[test]
fn it_looks_again_and_goes_on_while_the_store_is_away_on_redis() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    let mut watch = world.start(&["status", "--watch", "20ms", "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = move || -> serde_json::Value {
        let line = lines.next().expect("a line").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!(next(), serde_json::json!([]));
    let tenure = connect(&world);
    let held = hold(&tenure, ["x".to_owned()].into_iter());
    while next().as_array().is_some_and(Vec::is_empty) {}
    assert_eq!(next()[0]["resource"], "x");
    drop((held, tenure));
    server.kill();
    let mut warnings = BufReader::new(watch.stderr.take().expect("a pipe")).lines();
    let warning = warnings.next().expect("a warning").expect("a warning");
    assert!(warning.starts_with("warning: ") && warning.ends_with("; looking again"), "{warning}");
    server.restart();
    let back_at = crate::world::now();
    while !next().as_array().is_some_and(Vec::is_empty) {}
    // Not twenty times as long as it had waited for an answer.
    assert_in_time(back_at.elapsed(), Duration::from_secs(6));
    signal(watch.id(), Signal::TERM);
    finish(watch);
}

#[test]
fn who_looks_again_rests_for_twenty_times_as_long() {
    let world = World::new();
    let tenure = connect(&world);
    let held = hold(&tenure, (0..300).map(|number| format!("n{number:03}")));
    let mut watch = world.start(&["status", "--watch", "1ms", "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let cpu = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let fields: Vec<u64> = stat
            .rsplit(')')
            .next()
            .expect("fields")
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        Duration::from_millis(10 * (fields[11] + fields[12]))
    };
    let (began, spent) = (crate::world::now(), cpu(watch.id()));
    for _ in 0..20 {
        lines.next().expect("a line").expect("a line");
    }
    let (took, spent) = (began.elapsed(), cpu(watch.id()) - spent);
    // A look takes some milliseconds of this process; what a look does not take is writing.
    assert!(spent * 4 < took, "{spent:?} of {took:?}");
    signal(watch.id(), Signal::TERM);
    finish(watch);
    drop(held);
}

#[test]
fn an_alert_is_an_exit_code_and_a_line_and_silence_is_good() {
    let world = World::new();
    let alert = |alerts: &[&str]| {
        let flags: Vec<&str> = alerts.iter().flat_map(|alert| ["--alert", alert]).collect();
        let output = world.output(&[&["status"], &flags[..]].concat());
        (code(&output), stdout(&output), stderr(&output))
    };
    let nothing = (0, String::new(), String::new());
    assert_eq!(alert(&["held>0s", "waiting>0", "dead>0"]), nothing, "an empty store is well");
    let holder = world.start_run(&["x", "--label", "nightly"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let _waiter = world.start_run(&["x"], "true");
    world.wait_for_waiters(1);
    crate::queue::push(&world, "mails", &["one"]);
    assert_eq!(alert(&["held>1h", "waiting>1", "dead>0"]), nothing, "what waits in a queue is not dead");
    let failed = world.output(&["queue", "work", "mails", "--drain", "--max-attempts", "1", "--", "false"]);
    assert_eq!(code(&failed), 0, "{failed:?}");
    let (code_of, text, error) = alert(&["held>1ms", "waiting>0", "dead>0", "dead>1"]);
    assert_eq!((code_of, error), (1, String::new()));
    let lines: Vec<&str> = text.lines().collect();
    let held = format!("held>1ms: \"x\" is held by nightly (pid {} on ", holder.id());
    assert!(lines[0].starts_with(&held), "{text}");
    assert!(lines[1].starts_with("waiting>0: \"x\" has 1 waiting; held by nightly"), "{text}");
    assert_eq!(lines[2..], ["dead>0: \"mails\" has 1 dead letter"], "{text}");
    // Of one name, of a prefix, of a kind, and for programs.
    assert_eq!(code(&world.output(&["status", "y", "--alert", "held>1ms"])), 0);
    assert_eq!(code(&world.output(&["status", "x", "--alert", "held>1ms"])), 1);
    assert_eq!(code(&world.output(&["status", "mails", "--alert", "dead>0"])), 1);
    assert_eq!(
        code(&world.output(&["status", "--prefix", "y", "--alert", "held>1ms", "--alert", "dead>0"])),
        0
    );
    assert_eq!(code(&world.output(&["status", "--kind", "semaphore", "--alert", "held>1ms"])), 0);
    let json = world.output(&["status", "--alert", "waiting>0", "--json"]);
    let expected = serde_json::json!([{ "alert": "waiting>0", "name": "x", "value": 1 }]);
    assert_eq!((code(&json), serde_json::from_slice(&json.stdout).ok()), (1, Some(expected)));
}

#[test]
fn an_alert_about_what_nobody_knows_is_no_silence_on_redis() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(format!("{}?prefix=tenure", server.url()));
    server.command(&["SET", "tenure.1.v:tenure:bad", "theirs"]);
    let unreadable = world.output(&["status", "--alert", "held>1h"]);
    assert_eq!((code(&unreadable), stdout(&unreadable)), (69, String::new()));
    assert!(stderr(&unreadable).contains("1 of the names cannot be read"), "{unreadable:?}");
    server.kill();
    let away = world.output(&["status", "--alert", "held>1h", "--alert", "dead>0"]);
    assert_eq!((code(&away), stdout(&away)), (69, String::new()), "{away:?}");
    assert!(stderr(&away).contains("hint: "), "{away:?}");
}

#[test]
fn an_alert_that_is_none_is_told_with_a_hint() {
    let world = World::new();
    for alert in ["held", "held>", "held>5", "waiting>1h", "old>1h", "held<1h"] {
        let output = world.output(&["status", "--alert", alert]);
        let text = stderr(&output);
        assert_eq!(code(&output), 64, "{alert}: {text}");
        assert!(text.contains(alert) && text.contains("\nhint: write 'held>1h', "), "{alert}: {text}");
    }
    let both = world.output(&["status", "--alert", "held>1h", "--watch", "2s"]);
    assert_eq!(code(&both), 64, "{both:?}");
}
