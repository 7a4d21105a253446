//! A store that is full, silent, or not there yet.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::world::{World, code, finish, now, signal, stderr, stdout, wait_for};

#[test]
fn a_signal_ends_the_command_while_it_connects() {
    // It lets clients in and says nothing, as a resolver that hangs.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let world = World::on(format!("redis://{}", silent.local_addr().expect("an address")));
    for arguments in [
        &["run", "x", "--", "true"][..],
        &["cache", "x", "--", "true"],
        &["queue", "work", "x", "--", "true"],
    ] {
        let command = world.start(arguments);
        // It has caught signals when it is there.
        drop(silent.accept().expect("a client"));
        let client = silent.accept().expect("a client that tries again");
        let began = now();
        signal(command.id(), Signal::TERM);
        let output = finish(command);
        assert_eq!(code(&output), 143, "{arguments:?}: {output:?}");
        assert_in_time(began.elapsed(), Duration::from_millis(700));
        drop(client);
    }
}

#[test]
fn a_redis_that_comes_back_in_the_time_that_was_given_is_waited_for() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    server.kill();
    let at_once = now();
    let refused = world.run(&["x", "--wait", "0s"], "true");
    assert_eq!(code(&refused), 69, "{refused:?}");
    assert!(at_once.elapsed() < Duration::from_secs(4) && !stderr(&refused).contains("asking again"));
    let given_up = world.run(&["x", "--wait", "500ms"], "true");
    assert_eq!(code(&given_up), 69, "{given_up:?}");
    let began = now();
    let run = world.start_run(&["x", "--wait", "30s"], "echo ran");
    wait_for("that it has tried", || (began.elapsed() > Duration::from_millis(2500)).then_some(()));
    server.restart();
    let output = finish(run);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "ran\n"), "{output:?}");
    assert_eq!(stderr(&output).matches("; asking again for ").count(), 1, "{output:?}");
}

#[test]
fn a_full_redis_is_waited_for() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    server.command(&["CONFIG", "SET", "maxclients", "8"]);
    let crowd: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(("127.0.0.1", server.port())).expect("a connection")).collect();
    let waiting = [world.start_run(&["x"], "echo ran"), world.start(&["cache", "k", "--", "echo", "ran"])];
    let began = now();
    wait_for("that they have tried", || (began.elapsed() > Duration::from_millis(2500)).then_some(()));
    drop(crowd);
    for one in waiting {
        let output = finish(one);
        assert_eq!((code(&output), stdout(&output).as_str()), (0, "ran\n"), "{output:?}");
        assert!(stderr(&output).contains("max number of clients"), "{output:?}");
        assert!(stderr(&output).contains("; asking again until it does"), "{output:?}");
    }
}

#[test]
fn a_redis_that_is_silent_for_a_while_is_asked_again() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    // It lets clients in, but answers no claim for longer than they take to begin and wait for an answer.
    server.command(&["CLIENT", "PAUSE", "8000", "WRITE"]);
    let refused = world.start_run(&["z", "--wait", "0s"], "true");
    let waiting = [world.start_run(&["x"], "echo ran"), world.start(&["cache", "k", "--", "echo", "ran"])];
    for one in waiting {
        let output = finish(one);
        assert_eq!((code(&output), stdout(&output).as_str()), (0, "ran\n"), "{output:?}");
        assert_eq!(stderr(&output).matches("; asking again until it does").count(), 1, "{output:?}");
    }
    assert_eq!(code(&finish(refused)), 69);
}
