//! `tenure run --leader`: one leads at a time, and who loses a term campaigns again. On both kinds of engine: one
//! that notices deaths, and one where a ttl has to end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;

use rustix::process::Signal;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::redis::world as redis_world;
use crate::world::{World, code, finish, is_alive, signal, stderr, stdout, wait_for};

/// Writes the token and the process of each term, and says so if an earlier one still works. It ends with code 7
/// when the file `go` is there.
const LEAD: &str = "while read token pid; do kill -0 $pid 2>/dev/null && echo $pid >> overlap; done < terms
    echo $TENURE_TOKEN $$ >> terms
    while ! test -e go; do sleep 0.1; done; exit 7";

/// A term that was begun.
#[derive(Debug)]
struct Begun {
    token: u64,
    pid: u32,
}

fn candidate(world: &World) -> Child {
    fs::OpenOptions::new().create(true).append(true).open(world.path("terms")).expect("a file");
    world.start_run(&["x", "--leader", "--ttl", "1s", "--grace", "200ms"], LEAD)
}

/// Waits until so many terms have begun, and returns the last one.
fn term(world: &World, count: usize) -> Begun {
    let text = wait_for(&format!("term {count}"), || {
        let text = fs::read_to_string(world.path("terms")).unwrap_or_default();
        (text.ends_with('\n') && text.lines().count() >= count).then_some(text)
    });
    assert_eq!(text.lines().count(), count, "no more terms than expected: {text}");
    let tokens = text.lines().filter_map(|line| line.split(' ').next());
    let terms: Vec<u64> = tokens.map(|token| token.parse().expect("a token")).collect();
    assert!(terms.is_sorted_by(|a, b| a < b), "every term has a larger token: {terms:?}");
    assert!(!world.path("overlap").exists(), "two led at once");
    let pid = text.lines().last().and_then(|line| line.split(' ').nth(1)).expect("a process");
    let pid = pid.parse().expect("a process id");
    world.watch(pid);
    Begun { token: terms[count - 1], pid }
}

/// Lets CMD end by itself, and looks how the last leader ends.
fn end(world: &World, leader: Child) {
    fs::write(world.path("go"), "").expect("a file");
    let output = finish(leader);
    assert_eq!(code(&output), 7, "CMD's own code: {output:?}");
    assert_eq!(world.status().as_array().map(Vec::len), Some(0), "it has resigned");
}

fn a_killed_leader_is_followed(world: &World) {
    let first = candidate(world);
    let begun = term(world, 1);
    let second = candidate(world);
    world.wait_for_waiters(1);
    let leader = world.output(&["elect", "x"]);
    let shown = format!("sh (pid {} on ", first.id());
    assert!(stdout(&leader).starts_with(&shown), "{leader:?}");
    term(world, 1);
    signal(first.id(), Signal::KILL);
    let next = term(world, 2);
    assert!(!is_alive(begun.pid) && next.token > begun.token);
    end(world, second);
}

fn a_broken_term_is_campaigned_for_again(world: &World) {
    let leader = candidate(world);
    for count in 1..3 {
        let begun = term(world, count);
        let token = begun.token.to_string();
        let broken = world.output(&["release", "x", "--token", &token, "--force", "--now"]);
        assert_eq!(code(&broken), 0, "{broken:?}");
        wait_for("the end of the work", || (!is_alive(begun.pid)).then_some(()));
    }
    term(world, 3);
    fs::write(world.path("go"), "").expect("a file");
    let output = finish(leader);
    assert_eq!(code(&output), 7, "CMD's own code: {output:?}");
    let text = stderr(&output);
    assert_eq!(text.matches("tenure: leading \"x\" under token ").count(), 3, "{text}");
    assert_eq!(text.matches("; campaigning again").count(), 2, "{text}");
    assert_eq!(world.status().as_array().map(Vec::len), Some(0), "it has resigned");
}

fn a_stopped_leader_becomes_a_follower(world: &World) {
    let first = candidate(world);
    let begun = term(world, 1);
    let second = candidate(world);
    world.wait_for_waiters(1);
    signal(first.id(), Signal::STOP);
    let next = term(world, 2);
    assert!(!is_alive(begun.pid), "its work was killed at its deadline");
    signal(first.id(), Signal::CONT);
    world.wait_for_waiters(1);
    signal(second.id(), Signal::KILL);
    term(world, 3);
    assert!(!is_alive(next.pid));
    end(world, first);
}

#[test]
fn a_killed_leader_is_followed_on_local() {
    a_killed_leader_is_followed(&World::new());
}

#[test]
fn a_killed_leader_is_followed_on_redis() {
    a_killed_leader_is_followed(&redis_world());
}

#[test]
fn a_broken_term_is_campaigned_for_again_on_local() {
    a_broken_term_is_campaigned_for_again(&World::new());
}

#[test]
fn a_broken_term_is_campaigned_for_again_on_redis() {
    a_broken_term_is_campaigned_for_again(&redis_world());
}

#[test]
fn a_stopped_leader_becomes_a_follower_on_local() {
    a_stopped_leader_becomes_a_follower(&World::new());
}

#[test]
fn a_stopped_leader_becomes_a_follower_on_redis() {
    a_stopped_leader_becomes_a_follower(&redis_world());
}

#[test]
fn a_leader_whose_redis_is_gone_leads_again_when_it_is_back() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    let mut leader = candidate(&world);
    let mut messages = BufReader::new(leader.stderr.take().expect("it is piped"));
    let begun = term(&world, 1);
    server.stop();
    wait_for("the end of the work", || (!is_alive(begun.pid)).then_some(()));
    let mut line = String::new();
    while !line.contains("; campaigning until it is back") {
        line.clear();
        assert_ne!(messages.read_line(&mut line).expect("a line"), 0, "it says that it campaigns");
    }
    server.cont();
    term(&world, 2);
    end(&world, leader);
}

#[test]
fn a_signal_ends_a_leader_and_a_candidate() {
    let world = World::new();
    let first = candidate(&world);
    term(&world, 1);
    let second = candidate(&world);
    world.wait_for_waiters(1);
    signal(second.id(), Signal::TERM);
    assert_eq!(code(&finish(second)), 128 + 15, "a candidate withdraws");
    world.wait_for_waiters(0);
    signal(first.id(), Signal::TERM);
    assert_eq!(code(&finish(first)), 128 + 15, "CMD was ended by the signal");
    assert_eq!(world.status().as_array().map(Vec::len), Some(0), "nobody leads");
}

#[test]
fn a_program_that_cannot_be_started_is_no_leader() {
    let world = World::new();
    let output = world.output(&["run", "x", "--leader", "--", "./there-is-no-such-program"]);
    assert_eq!(code(&output), 127, "{output:?}");
    for flags in [&["--every", "1h"][..], &["--wait", "0s"], &["--slots", "2"], &["--on-loss", "ignore"]] {
        let output = world.run(&[&["x", "--leader"], flags].concat(), "true");
        assert_eq!(code(&output), 64, "{flags:?}: {output:?}");
    }
}
