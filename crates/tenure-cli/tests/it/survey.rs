//! `tenure metrics`: what the store holds, of all processes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::metrics::parse;
use crate::world::{World, code, finish, stderr, stdout, wait_for};

/// What `tenure metrics` writes, by series without the engine.
fn survey(world: &World, flags: &[&str]) -> BTreeMap<String, f64> {
    let output = world.output(&[&["metrics"], flags].concat());
    assert_eq!((code(&output), stderr(&output)), (0, String::new()), "{output:?}");
    numbers(&stdout(&output))
}

fn numbers(page: &str) -> BTreeMap<String, f64> {
    let numbers = parse(page).unwrap_or_else(|error| panic!("{error} in\n{page}"));
    let plain = |(series, number): (String, f64)| {
        let (name, labels) = series.split_once("{engine=\"").expect("an engine");
        let labels = labels.split_once('"').expect("a label").1.trim_start_matches(',').trim_end_matches('}');
        (format!("{} {labels}", name.trim_start_matches("tenure_")), number)
    };
    numbers.into_iter().map(plain).collect()
}

/// The numbers that are no times, of one or more names.
fn counts<'a>(page: &'a BTreeMap<String, f64>, of: &str) -> Vec<(&'a str, f64)> {
    let is_wanted = |series: &&String| series.contains(of) && !series.contains("seconds");
    page.keys().filter(is_wanted).map(|series| (series.as_str(), page[series])).collect()
}

pub(crate) fn a_survey_shows_what_is_in_the_store(world: &World) {
    let empty = survey(world, &[]);
    assert_eq!(empty["store_names "], 0.0, "{empty:?}");
    let wait = |pid: &str| format!("echo $$ > {pid}; while ! test -e go; do sleep 0.1; done");
    let mut runs =
        vec![world.start_run(&["billing/1"], &wait("one")), world.start_run(&["billing/2"], &wait("two"))];
    runs.push(world.start_run(&["api", "--permits", "3", "--weight", "2"], &wait("units")));
    ["one", "two", "units"].iter().for_each(|pid| drop(world.line(pid)));
    for waiting in 1..=2 {
        runs.push(world.start_run(&["billing/1"], "true"));
        wait_for("a waiter", || {
            let status = world.status();
            let views = status.as_array()?;
            let billing = views.iter().find(|view| view["resource"] == "billing/1")?;
            (billing["waiting"] == waiting).then_some(())
        });
    }
    for payload in ["dead", "flies", "waits", "waits too"] {
        assert_eq!(code(&world.output(&["queue", "push", "mails", payload])), 0);
    }
    let script =
        "case $(cat) in dead) exit 1;; flies) echo $$ > flies; while ! test -e go; do sleep 0.1; done;; esac";
    runs.push(world.start(&[
        "queue",
        "work",
        "mails",
        "--drain",
        "--max-attempts",
        "1",
        "--quiet",
        "--",
        "sh",
        "-c",
        script,
    ]));
    world.pid("flies");

    // A name that is not read in time is left out of a survey, and each reads etcd's clock but by the second.
    let page = wait_for("a survey of all names", || {
        let page = survey(world, &["--long-held", "api"]);
        let has = |scope: &str| page.keys().any(|series| series.contains(scope));
        let is_old =
            |(series, age): (&String, &f64)| !series.starts_with("store_queue_oldest_seconds") || *age > 0.0;
        let all = ["billing/*", "api", "mails"].into_iter().all(has) && page.iter().all(is_old);
        if !all {
            eprintln!("not all is there: {page:?}");
        }
        all.then_some(page)
    });
    let of = |kind: &str, scope: &str| {
        let labels = format!("kind=\"{kind}\",scope=\"{scope}\"");
        ["holds", "resting", "waiting"].map(|what| page[&format!("store_{what} {labels}")])
    };
    assert_eq!(of("mutex", "billing/*"), [2.0, 0.0, 2.0], "{page:?}");
    assert_eq!(of("semaphore", "api"), [1.0, 0.0, 0.0], "{page:?}");
    let oldest =
        |page: &BTreeMap<String, f64>, labels: &str| page[&format!("store_oldest_hold_seconds {labels}")];
    let age = oldest(&page, "kind=\"mutex\",scope=\"billing/*\"");
    assert!(age > 0.0 && age < 60.0, "{age}");
    let api = "kind=\"semaphore\",scope=\"api\"";
    assert_eq!(oldest(&page, api), 0.0, "it is said to be long");
    assert!(oldest(&survey(world, &[]), api) > 0.0);
    for (state, items) in [("waiting", 2.0), ("in_flight", 1.0), ("dead", 1.0)] {
        let labels = format!("queue=\"mails\",state=\"{state}\"");
        assert_eq!(page[&format!("store_queue_items {labels}")], items, "{page:?}");
        let age = page[&format!("store_queue_oldest_seconds {labels}")];
        assert!(age > 0.0 && age < 60.0, "{state}: {age}");
    }
    assert_eq!((page["store_names "], page["survey_age_seconds "] < 60.0), (4.0, true), "{page:?}");
    assert!(page["survey_seconds "] > 0.0);
    let findings: Vec<_> = counts(&page, "store_findings");
    assert!(findings.iter().any(|(series, _)| series.contains("severity=\"good\"")), "{page:?}");
    let bad = findings.iter().filter(|(series, _)| series.contains("severity=\"bad\"")).count();
    assert_eq!(bad, 0, "{page:?}");
    fs::write(world.path("go"), "").expect("a file");
    for run in runs {
        let output = finish(run);
        assert_eq!(code(&output), 0, "{output:?}");
    }
    let left = survey(world, &[]);
    assert_eq!(counts(&left, "mutex"), [], "{left:?}");
    assert_eq!(left["store_queue_items queue=\"mails\",state=\"dead\""], 1.0);
}

pub(crate) fn a_survey_shows_what_rests(world: &World) {
    assert_eq!(code(&world.run(&["report", "--every", "1h"], "true")), 0);
    let page = survey(world, &["--scope", "rep*"]);
    let of = |what: &str| page[&format!("store_{what} kind=\"mutex\",scope=\"rep*\"")];
    assert_eq!((of("holds"), of("resting"), of("oldest_hold_seconds")), (0.0, 1.0, 0.0), "{page:?}");
}

#[test]
fn a_survey_of_this_machine() {
    let world = World::new();
    a_survey_shows_what_rests(&world);
    let world = World::new();
    a_survey_shows_what_is_in_the_store(&world);
    let memory = world.output(&["metrics", "--engine", "memory:"]);
    let names = numbers(&stdout(&memory))["store_names "];
    assert_eq!((code(&memory), names), (0, 0.0), "{memory:?}");
}

#[test]
fn a_survey_is_left_in_a_file() {
    let world = World::new();
    fs::create_dir(world.path("textfiles")).expect("a directory");
    let _holder = world.start_run(&["x"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let output = world.output(&["metrics", "--file", "textfiles"]);
    assert_eq!((code(&output), stdout(&output), stderr(&output)), (0, String::new(), String::new()));
    let page = fs::read_to_string(world.path("textfiles/tenure_store.prom")).expect("it is there");
    assert_eq!(numbers(&page)["store_holds kind=\"mutex\",scope=\"x\""], 1.0);
    let output = world.output(&["metrics", "--file", "nowhere"]);
    assert_eq!(code(&output), 69, "{output:?}");
    assert!(
        stderr(&output).starts_with("error: cannot write nowhere/tenure_store.prom: no such file"),
        "{output:?}"
    );
    let output = world.output(&["metrics", "--file", "textfiles", "--listen", "127.0.0.1:0"]);
    assert_eq!(code(&output), 64, "{output:?}");
}

/// Reads the page of a socket: its status and its numbers.
fn read(world: &World) -> (String, BTreeMap<String, f64>) {
    let mut stream = wait_for("a page", || UnixStream::connect(world.path("sock")).ok());
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, page) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split_whitespace().nth(1).expect("a status").to_owned();
    let numbers = if status == "200" { numbers(page) } else { BTreeMap::new() };
    (status, numbers)
}

#[test]
fn a_survey_is_taken_when_the_page_is_read_and_a_redis_that_is_away_is_no_page() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    let socket = format!("unix:{}", world.path("sock").display());
    let serving = world.start(&["metrics", "--listen", &socket]);
    assert_eq!(read(&world).1["store_names "], 0.0);
    let _holder = world.start_run(&["x"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    // The next survey may be taken 2 s after the last one, and is not before it is asked for.
    let holds = "store_holds kind=\"mutex\",scope=\"x\"";
    wait_for("the hold", || (read(&world).1.get(holds) == Some(&1.0)).then_some(()));
    server.kill();
    wait_for("no page", || (read(&world).0 == "503").then_some(()));
    server.restart();
    wait_for("a page", || (read(&world).0 == "200").then_some(()));
    assert!(crate::world::is_alive(serving.id()));
}
