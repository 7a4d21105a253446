//! On a terminal: the line that is shown while waiting, Ctrl-C, Ctrl-Z, and questions.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::world::{World, code, finish, state, wait_for};

/// A program that has a terminal of its own.
struct Session {
    keyboard: RefCell<File>,
    screen: Arc<Mutex<String>>,
    child: Child,
}

impl Session {
    /// Starts a program on a new terminal, as the leader of a new session.
    fn start(world: &World, program: &[&str]) -> Session {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pty");
        grantpt(&master).expect("a pty");
        unlockpt(&master).expect("a pty");
        let name = ptsname(&master, Vec::new()).expect("a pty");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave: OwnedFd = rustix::fs::open(&name, flags, Mode::empty()).expect("a pty");
        let size = Winsize { ws_row: 24, ws_col: 150, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("a size");
        let copy = || slave.try_clone().expect("a descriptor");
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--wait"])
            .args(program)
            .current_dir(world.directory.path())
            .env("TENURE_ENGINE", world.engine())
            .env("PS1", "> ")
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .stdin(copy())
            .stdout(copy())
            .stderr(copy());
        let child = command.spawn().expect("setsid");
        world.watch(child.id());
        let screen = Arc::new(Mutex::new(String::new()));
        let mut reader = File::from(master.try_clone().expect("a descriptor"));
        let shown = screen.clone();
        // It ends with the terminal's last user.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                shown.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Session { keyboard: RefCell::new(File::from(master)), screen, child }
    }

    fn type_in(&self, text: &str) {
        self.keyboard.borrow_mut().write_all(text.as_bytes()).expect("a terminal");
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a text has been shown so often.
    fn wait_for(&self, text: &str, times: usize) {
        wait_for(&format!("{text:?} on the screen"), || {
            (self.screen().matches(text).count() >= times).then_some(())
        });
    }

    fn end(self) -> i32 {
        code(&finish(self.child))
    }
}

fn tenure() -> &'static str {
    env!("CARGO_BIN_EXE_tenure")
}

#[test]
fn a_line_shows_the_wait_and_is_cleared_afterwards() {
    let world = World::new();
    let script = "echo $$ > pid; while ! test -e go; do sleep 0.1; done";
    let holder = world.start_run(&["x", "--label", "nightly"], script);
    world.pid("pid");
    let session = Session::start(&world, &[tenure(), "run", "x", "--", "echo", "it ran"]);
    session.wait_for("waiting for \"x\" (0s): held by nightly (pid ", 1);
    session.wait_for("place 1 in the queue", 1);
    session.wait_for("waiting for \"x\" (1s): held by", 1);
    let lines = session.screen().matches("waiting for").count();
    assert!(lines <= 8, "at most four times a second: {}", session.screen());
    assert!(!session.screen().contains('\n'), "it stays one line");
    fs::write(world.path("go"), "").expect("a file");
    session.wait_for("it ran", 1);
    assert!(session.screen().contains("\r\x1b[2Kit ran"), "{:?}", session.screen());
    assert_eq!(session.end(), 0);
    assert_eq!(code(&finish(holder)), 0);
}

#[test]
fn the_program_has_the_terminal_and_a_shell_can_stop_and_continue_it() {
    let world = World::new();
    let shell = Session::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
    shell.type_in(&format!("{} run x -- sh -c 'echo $$ > pid; exec cat'\n", tenure()));
    let cat = world.pid("pid");
    shell.type_in("hello\n");
    // Once by the terminal, once by `cat`.
    shell.wait_for("hello", 2);
    for round in 1..=2 {
        shell.type_in("\x1a");
        shell.wait_for("Stopped", round);
        wait_for("a stopped program", || (state(cat) == Some('T')).then_some(()));
        let held = world.status();
        assert_eq!(held[0]["resource"], "x", "a stopped lease is still held");
        shell.type_in("fg\n");
        wait_for("a continued program", || (state(cat) != Some('T')).then_some(()));
        let line = format!("again{round}");
        shell.type_in(&format!("{line}\n"));
        shell.wait_for(&line, 2);
    }
    shell.type_in("\x03");
    // The terminal forgets what was typed before the signal took effect.
    wait_for("released lock", || (world.status().as_array()?.is_empty()).then_some(()));
    shell.type_in("echo code=$?\n");
    shell.wait_for("code=130", 1);
    shell.type_in("exit\n");
    assert_eq!(shell.end(), 0);
}

#[test]
fn in_a_pipeline_the_program_gets_the_terminal_when_it_asks() {
    let world = World::new();
    let shell = Session::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
    shell.type_in(&format!("{} run x -- sh -c 'echo $$ > pid; exec cat' | cat\n", tenure()));
    world.pid("pid");
    shell.type_in("lazy\n");
    shell.wait_for("lazy", 2);
    shell.type_in("\x04");
    shell.type_in("echo code=${PIPESTATUS[0]}\n");
    shell.wait_for("code=0", 1);
    shell.type_in("exit\n");
    assert_eq!(shell.end(), 0);
}

#[test]
fn where_nobody_could_continue_it_the_program_is_not_left_stopped() {
    let world = World::new();
    let session =
        Session::start(&world, &[tenure(), "run", "x", "--", "sh", "-c", "echo $$ > pid; exec cat"]);
    let cat = world.pid("pid");
    session.type_in("one\n");
    session.wait_for("one", 2);
    session.type_in("\x1a");
    session.wait_for("^Z", 1);
    session.type_in("two\n");
    session.wait_for("two", 2);
    assert_ne!(state(cat), Some('T'));
    session.type_in("\x04");
    assert_eq!(session.end(), 0);
}

#[test]
fn ctrl_c_ends_the_waiting() {
    let world = World::new();
    let _holder = world.start_run(&["x"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let session = Session::start(&world, &[tenure(), "run", "x", "--", "true"]);
    session.wait_for("place 1 in the queue", 1);
    session.type_in("\x03");
    assert_eq!(session.end(), 130);
    assert_eq!(world.status()[0]["waiting"], 0);
}

#[test]
fn breaking_a_hold_asks_first() {
    let world = World::new();
    let _holder = world.start_run(&["x", "--label", "nightly"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let token = world.token();
    for (answer, expected) in [("n\n", 1), ("\n", 1), ("y\n", 0)] {
        let session = Session::start(&world, &[tenure(), "release", "x", "--token", &token, "--now"]);
        session.wait_for("two may work at the same time", 1);
        session.wait_for("Break it? [y/N] ", 1);
        assert!(session.screen().contains("held by nightly (pid "), "{}", session.screen());
        session.type_in(answer);
        assert_eq!(session.end(), expected);
    }
}

#[test]
fn changing_a_capacity_asks_first() {
    let world = World::new();
    let _holder = world.start_run(&["x", "--permits", "3", "--weight", "2"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    for (answer, expected, capacity) in [("n\n", 1, 3), ("y\n", 0, 1)] {
        let session = Session::start(&world, &[tenure(), "resize", "x", "1"]);
        session.wait_for("Change it to 1? [y/N] ", 1);
        let screen = session.screen();
        assert!(screen.contains("is a semaphore of 3 units, 2 of them held"), "{screen}");
        assert!(screen.contains("nobody is ended"), "{screen}");
        session.type_in(answer);
        assert_eq!(session.end(), expected);
        assert_eq!(world.status()[0]["capacity"], capacity);
    }
}

#[test]
fn a_wait_can_be_stopped_and_continued_by_a_shell() {
    let world = World::new();
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let shell = Session::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
    shell.type_in(&format!("{} run x -- echo it ran\n", tenure()));
    shell.wait_for("place 1 in the queue", 1);
    shell.type_in("\x1a");
    shell.wait_for("Stopped", 1);
    shell.type_in("fg\n");
    shell.wait_for("place 1 in the queue", 2);
    fs::write(world.path("go"), "").expect("a file");
    shell.wait_for("\r\x1b[2Kit ran", 1);
    shell.type_in("exit\n");
    assert_eq!(shell.end(), 0);
    assert_eq!(code(&finish(holder)), 0);
}

#[test]
fn a_line_shows_how_far_a_worker_is_and_ctrl_c_lets_it_finish() {
    let world = World::new();
    for payload in ["a", "b"] {
        crate::queue::push(&world, "x", &[payload]);
    }
    let script = "while ! test -e go; do sleep 0.1; done";
    let session = Session::start(&world, &[tenure(), "queue", "work", "x", "--", "sh", "-c", script]);
    session.wait_for("x: 0 done, 0 failed; 1 wait, 1 in flight", 1);
    session.type_in("\x03");
    session.wait_for("finishing the item that runs; once more puts back what runs", 1);
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(session.end(), 0);
    let purge = [tenure(), "queue", "purge", "x", "--waiting"];
    let session = Session::start(&world, &purge);
    session.wait_for("Remove 1 item that waits from \"x\"? It cannot be undone. [y/N]", 1);
    session.type_in("n\n");
    assert_eq!(session.end(), 1);
    let session = Session::start(&world, &purge);
    session.wait_for("[y/N]", 1);
    session.type_in("y\n");
    session.wait_for("1 item was removed from \"x\"", 1);
    assert_eq!(session.end(), 0);
}

#[test]
fn a_terminal_that_is_stopped_ends_no_work() {
    let world = World::new();
    crate::queue::push(&world, "x", &["a"]);
    // Work is ended where a renewal is late by a third of the ttl.
    let script = "echo began >> log; sleep 9; echo ended >> log";
    let worker = [tenure(), "queue", "work", "x", "--ttl", "6s", "--", "sh", "-c", script];
    let session = Session::start(&world, &worker);
    session.wait_for("1 in flight", 1);
    session.type_in("\x13");
    // The line has something to say.
    crate::queue::push(&world, "x", &["b", "--delay", "1h"]);
    wait_for("the end of the work", || {
        fs::read_to_string(world.path("log")).ok()?.contains("ended").then_some(())
    });
    assert_eq!(fs::read_to_string(world.path("log")).expect("a log"), "began\nended\n", "once");
    session.type_in("\x11");
    session.wait_for("1 done, 0 failed", 1);
    session.type_in("\x03");
    assert_eq!(session.end(), 0);
}

#[test]
fn an_item_that_asks_on_the_terminal_is_refused_and_not_stopped_for_ever() {
    let world = World::new();
    crate::queue::push(&world, "x", &["a"]);
    let script = "cat < /dev/tty > typed || echo refused > refused";
    let session =
        Session::start(&world, &[tenure(), "queue", "work", "x", "--drain", "--", "sh", "-c", script]);
    assert_eq!(world.line("refused"), "refused");
    assert_eq!(session.end(), 0);
}

#[test]
fn a_loader_may_ask_on_the_terminal() {
    let world = World::new();
    let script = "read answer < /dev/tty; echo \"got $answer\"";
    let session = Session::start(&world, &[tenure(), "cache", "k", "--", "sh", "-c", script]);
    session.type_in("tea\n");
    session.wait_for("got tea", 1);
    assert_eq!(session.end(), 0);
}
