//! Readers that stall, and terminals that are stopped: nothing that works under a lease minds.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

use crate::queue::push;
use crate::world::{World, code, finish, signal, wait_for};

/// Works for longer than two ttls.
const SLOW: &str = "echo began >> log; sleep 4.5; echo ended >> log";

/// A pipe that is full and that nobody reads.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("a flag");
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).expect("a flag");
    (reader, writer)
}

fn start_stalled(world: &World, arguments: &[&str]) -> (OwnedFd, std::process::Child) {
    let (reader, writer) = full_pipe();
    let mut command: Command = world.tenure(arguments);
    let child = command.stdout(Stdio::null()).stderr(writer).spawn().expect("the command starts");
    world.watch(child.id());
    (reader, child)
}

fn log(world: &World) -> String {
    fs::read_to_string(world.path("log")).unwrap_or_default()
}

#[test]
fn a_worker_whose_log_nobody_reads_loses_no_item() {
    let world = World::new();
    push(&world, "x", &["a"]);
    let words = ["queue", "work", "x", "--json", "--ttl", "2s", "--", "sh", "-c", SLOW];
    let (_reader, mut worker) = start_stalled(&world, &words);
    wait_for("the end of the work", || log(&world).contains("ended").then_some(()));
    assert_eq!(log(&world), "began\nended\n", "once");
    wait_for("that it is done", || {
        let peeked = world.output(&["queue", "peek", "x", "--json"]);
        (peeked.stdout == b"[]\n").then_some(())
    });
    // It hears signals, too.
    signal(worker.id(), Signal::TERM);
    assert_eq!(worker.wait().expect("an end").code(), Some(0));
}

#[test]
fn a_run_whose_events_nobody_reads_keeps_its_lease() {
    let world = World::new();
    let words = ["run", "x", "--json", "--ttl", "2s", "--", "sh", "-c", SLOW];
    let (_reader, mut run) = start_stalled(&world, &words);
    assert_eq!(run.wait().expect("an end").code(), Some(0));
    assert_eq!(log(&world), "began\nended\n");
}

#[test]
fn the_log_of_the_library_does_not_stall_the_renewals() {
    let world = World::new();
    let (_reader, writer) = full_pipe();
    let mut command = world.tenure(&["run", "x", "--ttl", "2s", "--", "sh", "-c", SLOW]);
    let child = command.env("TENURE_LOG", "trace").stdout(Stdio::null()).stderr(writer).spawn();
    let mut child = child.expect("the command starts");
    world.watch(child.id());
    assert_eq!(child.wait().expect("an end").code(), Some(0));
    assert_eq!(log(&world), "began\nended\n");
}

#[test]
fn a_server_whose_log_nobody_reads_answers_and_says_what_it_dropped() {
    const REQUESTS: usize = 3_000;
    let world = World::new();
    let listen = format!("unix:{}", world.path("socket").display());
    let (reader, mut server) = start_stalled(&world, &["serve", "--listen", &listen, "--drain", "1s"]);
    let mut stream = wait_for("a server", || UnixStream::connect(world.path("socket")).ok());
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    // A line of the log each, and more than waits to be read.
    for number in 0..REQUESTS {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("a request");
        let mut said = Vec::new();
        let mut buffer = [0; 4096];
        while !said.ends_with(b"}\n") {
            let count = stream.read(&mut buffer).unwrap_or_else(|error| panic!("answer {number}: {error}"));
            assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&said));
            said.extend(&buffer[..count]);
        }
        assert!(said.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&said));
    }
    signal(server.id(), Signal::TERM);
    let drain = std::thread::spawn(move || {
        let mut said = Vec::new();
        fs::File::from(reader).read_to_end(&mut said).expect("its log");
        String::from_utf8_lossy(&said).into_owned()
    });
    assert_eq!(server.wait().expect("an end").code(), Some(0));
    let said = drain.join().expect("a reader");
    assert!(said.contains("serving at unix:") && said.contains("stderr was not read in time: "), "{said}");
}

#[test]
fn a_reader_of_the_output_that_stalls_does_not_cost_a_loader_its_lease() {
    let world = World::new();
    let (reader, writer) = full_pipe();
    let script = "head -c 400000 /dev/zero; echo ended >> log";
    let mut command = world.tenure(&["cache", "k", "--lease", "2s", "--", "sh", "-c", script]);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("the command starts");
    world.watch(child.id());
    wait_for("a token", || world.status()[0]["holds"][0]["token"].as_u64());
    let token = world.token();
    // Longer than the lease.
    assert_eq!(code(&world.run(&["y"], "sleep 3")), 0);
    assert_eq!(world.token(), token, "it is held still");
    let drain = std::thread::spawn(move || {
        std::io::copy(&mut fs::File::from(reader), &mut std::io::sink()).expect("its output")
    });
    drop(command);
    assert_eq!(code(&finish(child)), 0);
    assert!(drain.join().expect("a reader") > 400_000);
    assert_eq!(log(&world), "ended\n");
}
