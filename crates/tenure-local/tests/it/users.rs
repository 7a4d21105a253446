//! Several users of one machine, and the default place: where processes meet, and what another user can do about it.
//!
//! The tests run as root. Each has a machine with an empty `/run` and `/tmp`, [`USER`] on it, and [`OTHER`].

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::child::Process;

const USER: u32 = 1234;
const OTHER: u32 = 65534;

/// A mount namespace. It ends with its first process.
struct Machine(Child);

impl Machine {
    fn new() -> Machine {
        let script = "mount -t tmpfs -o mode=755 tmpfs /run && mount -t tmpfs -o mode=1777 tmpfs /tmp && echo ready && exec cat";
        let mut first = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the tests run as root");
        Machine(first)
    }

    fn command(&self, uid: u32) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.0.id())).args([
            "setpriv",
            &format!("--reuid={uid}"),
            &format!("--regid={uid}"),
            "--clear-groups",
            "--",
        ]);
        command
    }

    /// Runs a script to its end, and returns what it says.
    fn run(&self, uid: u32, script: &str) -> String {
        let output = self.command(uid).args(["sh", "-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a client of a place; the default one if it is empty.
    fn try_start(&self, uid: u32, place: &str) -> Process {
        let mut command = self.command(uid);
        command.arg(std::env::current_exe().unwrap());
        Process::start_by(command, Path::new(place))
    }

    fn start(&self, uid: u32) -> Process {
        let mut process = self.try_start(uid, "");
        assert_eq!(process.read(), "connected");
        process
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

const MAKE_RUN: &str = "mkdir -m 700 /run/tenure; chown 1234 /run/tenure";

#[test]
fn a_place_that_appears_parts_nobody() {
    let machine = Machine::new();
    let mut first = machine.start(USER);
    assert!(first.ask("try m").starts_with("granted"));
    machine.run(0, MAKE_RUN);
    assert!(machine.start(USER).ask("try m").contains("Busy"));
    first.kill();
    // What rests in it is kept for all of the boot.
    machine.start(USER);
    assert_eq!(machine.run(0, "ls /run/tenure"), "");
}

#[test]
fn an_older_version_is_followed() {
    // It does not say that it is there.
    for (here, make) in [("/tmp/tenure-1234", "true"), ("/run/tenure", MAKE_RUN)] {
        let machine = Machine::new();
        machine.run(0, make);
        let mut older = machine.try_start(USER, here);
        assert_eq!(older.read(), "connected");
        assert!(older.ask("try m").starts_with("granted"));
        machine.run(0, "[ -e /run/tenure ] || { mkdir -m 700 /run/tenure; chown 1234 /run/tenure; }");
        assert!(machine.start(USER).ask("try m").contains("Busy"), "{here}");
    }
}

#[test]
fn a_place_that_goes_is_not_replaced_while_somebody_is_in_it() {
    let machine = Machine::new();
    machine.run(0, MAKE_RUN);
    let mut first = machine.start(USER);
    assert!(first.ask("try m").starts_with("granted"));
    // What `RuntimeDirectory=tenure` does when the unit stops, and starts again.
    for script in ["rm -rf /run/tenure", MAKE_RUN] {
        machine.run(0, script);
        let refused = machine.try_start(USER, "").read();
        let words = ["unavailable", "removed", &first.pid().to_string(), "RuntimeDirectory"];
        assert!(words.iter().all(|word| refused.to_lowercase().contains(&word.to_lowercase())), "{refused}");
    }
    first.kill();
    assert!(machine.start(USER).ask("try m").starts_with("granted"));
}

#[test]
fn the_place_does_not_depend_on_the_environment() {
    let machine = Machine::new();
    let mut first = machine.start(USER);
    assert!(first.ask("try m").starts_with("granted"));
    machine.run(0, "mkdir -m 700 -p /run/user/1234 /tmp/other; chown 1234 /run/user/1234 /tmp/other");
    let mut command = machine.command(USER);
    command
        .envs([("XDG_RUNTIME_DIR", "/run/user/1234"), ("TMPDIR", "/tmp/other"), ("HOME", "/tmp/other")])
        .arg(std::env::current_exe().unwrap());
    let mut second = Process::start_by(command, Path::new(""));
    assert_eq!(second.read(), "connected");
    assert!(second.ask("try m").contains("Busy"));
}

#[test]
fn who_takes_the_place_first_is_told_of_and_root_can_help() {
    let machine = Machine::new();
    machine.run(OTHER, "mkdir /tmp/tenure-1234");
    let refused = machine.try_start(USER, "").read();
    let words = ["/tmp/tenure-1234 belongs to user 65534", "d /run/tenure-1234 0700 1234 -", "tmpfiles.d"];
    assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    machine.run(0, "mkdir -m 700 /run/tenure-1234; chown 1234 /run/tenure-1234");
    let mut first = machine.start(USER);
    assert!(first.ask("try m").starts_with("granted"));
    machine.run(OTHER, "rmdir /tmp/tenure-1234");
    assert!(machine.start(USER).ask("try m").contains("Busy"));
}

#[test]
fn a_unit_that_may_write_to_run_only_meets_the_others() {
    let machine = Machine::new();
    machine.run(0, MAKE_RUN);
    let mut first = machine.start(USER);
    assert!(first.ask("try m").starts_with("granted"));
    // What `ProtectSystem=strict` and `ReadWritePaths=/run/tenure` do.
    let mut command = machine.command(0);
    command
        .args(["unshare", "--mount", "sh", "-c", "mount -o remount,bind,ro /tmp && exec \"$0\" \"$@\""])
        .args(["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"])
        .arg(std::env::current_exe().unwrap());
    let mut strict = Process::start_by(command, Path::new(""));
    assert_eq!(strict.read(), "connected");
    assert!(strict.ask("try m").contains("Busy"));
}

#[test]
fn root_has_a_place_that_nobody_takes() {
    let machine = Machine::new();
    machine.run(OTHER, "mkdir /tmp/tenure-0");
    let mut first = machine.start(0);
    assert!(first.ask("try m").starts_with("granted"));
    assert_eq!(machine.run(0, "stat -c %a /run/tenure-0"), "700\n");
    machine.run(OTHER, "rmdir /tmp/tenure-0");
    assert!(machine.start(0).ask("try m").contains("Busy"));
}

#[test]
fn what_is_queued_stays_where_it_is() {
    let machine = Machine::new();
    // Root's home, and the place that hides what is queued there when it appears.
    machine.run(0, "mount -t tmpfs -o mode=700 tmpfs /root && mount -t tmpfs -o mode=755 tmpfs /var/lib");
    let mut first = machine.start(0);
    assert!(first.ask("push q g item").starts_with("pushed"));
    machine.run(0, "mkdir -m 700 /var/lib/tenure /run/tenure");
    first.kill();
    assert!(machine.start(0).ask("get q").starts_with("got item"));
    // Who begins there goes there.
    machine.run(0, "rm -r ~root/.local");
    assert!(machine.start(0).ask("push q g item").starts_with("pushed"));
    assert_eq!(machine.run(0, "ls /root; ls /var/lib/tenure | grep -c data.mdb"), "1\n");
}

#[test]
fn root_and_a_user_do_not_exclude_each_other_and_doctor_says_so() {
    let machine = Machine::new();
    let mut user = machine.start(USER);
    assert!(user.ask("try m").starts_with("granted"));
    assert!(machine.start(0).ask("try m").starts_with("granted"));
    let found = user.ask("check");
    assert!(found.contains("user 1234") && found.contains("root and other users"), "{found}");
    assert!(found.contains("/run/tenure-1234"), "how to get a place that nobody can take: {found}");
}

#[test]
fn doctor_sees_a_private_tmp_and_a_directory_of_a_unit() {
    let machine = Machine::new();
    machine.run(0, "mkdir -p -m 1777 /run/x/systemd-private-0-app.service/tmp");
    machine.run(0, "mount --bind /run/x/systemd-private-0-app.service/tmp /tmp");
    let found = machine.start(USER).ask("check");
    assert!(found.contains("Warning") && found.contains("PrivateTmp="), "{found}");

    let machine = Machine::new();
    machine.run(0, MAKE_RUN);
    let mut command = machine.command(USER);
    command.env("RUNTIME_DIRECTORY", "/run/app:/run/tenure").arg(std::env::current_exe().unwrap());
    let mut process = Process::start_by(command, Path::new(""));
    assert_eq!(process.read(), "connected");
    let found = process.ask("check");
    assert!(found.contains("Warning") && found.contains("RuntimeDirectory="), "{found}");
}

#[test]
fn a_user_cannot_enter_what_another_user_has() {
    let machine = Machine::new();
    let mut user = machine.start(USER);
    assert!(user.ask("try m").starts_with("granted"));
    let script = "! ls /tmp/tenure-1234 2>/dev/null && ! flock -n -s /tmp/tenure-1234 true 2>/dev/null && ! mv /tmp/tenure-1234 /tmp/x 2>/dev/null";
    machine.run(OTHER, script);
    let refused = machine.try_start(OTHER, "/tmp/tenure-1234").read();
    assert!(refused.contains("permission denied"), "{refused}");
    // A place that others may look into shows them names, but gives them nothing to open.
    machine.run(USER, "mkdir -m 755 /tmp/named");
    let mut named = machine.try_start(USER, "/tmp/named");
    assert_eq!(named.read(), "connected");
    machine.run(
        OTHER,
        "ls /tmp/named >/dev/null; ! cat /tmp/named/setup 2>/dev/null && ! ls /tmp/named/*-*-* 2>/dev/null",
    );
}
