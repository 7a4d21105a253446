//! Work that `tenure` may not signal: processes of another user, seen and hidden.
//!
//! A plain user runs `tenure`, and CMD becomes root by a set-user-id program, as `sudo` does. Who runs the tests as root has both
//! users; else only the own one can be tried, with a `/proc` that hides others.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::world::{World, code, finish, is_alive, now, signal, stderr, wait_for};
use tenure_core::testing::busy::assert_in_time;

/// The user who runs `tenure` where the tests are run by root.
const USER: u32 = 1234;

/// Becomes root, says who it is, and goes on for so many seconds.
const HELPER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    if (setreuid(0, 0)) return 9;
    FILE *file = fopen(words[2], "w");
    fprintf(file, "%d\n", getpid());
    fclose(file);
    for (int i = atoi(words[1]) * 100; i > 0; i--) usleep(10000);
    return 0;
}
"#;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A world whose files and engine belong to [`USER`], with the helper in it.
fn world() -> World {
    let world = World::new();
    fs::write(world.path("helper.c"), HELPER).expect("a file");
    let helper = world.path("helper");
    let mut cc = Command::new("cc");
    let output = cc.arg("-o").arg(&helper).arg(world.path("helper.c")).output().expect("cc");
    assert!(output.status.success(), "{output:?}");
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o4755)).expect("rights");
    fs::create_dir(world.path("engine")).expect("a directory");
    fs::set_permissions(world.path("engine"), fs::Permissions::from_mode(0o700)).expect("rights");
    chown(world.path("engine"), Some(USER), Some(USER)).expect("an owner");
    let mut directory = Some(world.directory.path());
    chown(world.directory.path(), Some(USER), Some(USER)).expect("an owner");
    // The tests' own directory may be closed to others: they may pass.
    while let Some(path) = directory.filter(|path| path.starts_with(std::env::temp_dir())) {
        let mode = fs::metadata(path).expect("a directory").permissions().mode();
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o011)).expect("rights");
        directory = path.parent().filter(|parent| *parent != std::env::temp_dir());
    }
    world
}

/// Where [`USER`] may execute the command.
fn command(world: &World) -> PathBuf {
    let path = world.path("tenure");
    if !path.exists() {
        fs::copy(env!("CARGO_BIN_EXE_tenure"), &path).expect("a copy");
    }
    path
}

/// Starts the command as [`USER`], behind `before`.
fn start(world: &World, before: &[&str], arguments: &[&str]) -> Child {
    let user = USER.to_string();
    let as_user = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
    let words: Vec<&str> = before.iter().chain(&as_user).copied().collect();
    let mut start = Command::new(words[0]);
    start.args(&words[1..]).arg(command(world)).args(arguments).current_dir(world.directory.path());
    start.env("TENURE_ENGINE", world.engine()).env_remove("TENURE_LOG").stdin(Stdio::null());
    let child = start.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    world.watch(child.id());
    child
}

#[test]
fn work_of_another_user_that_cannot_be_ended_is_told_and_waited_for() {
    if !is_root() {
        return the_own_work_is_ended_where_others_are_hidden();
    }
    let world = world();
    let flags = ["run", "x", "--ttl", "1s", "--max-hold", "1500ms", "--", "./helper", "4", "pid"];
    let began = now();
    let run = start(&world, &[], &flags);
    let pid = world.pid("pid");
    let output = finish(run);
    assert!(began.elapsed() > Duration::from_secs(3), "it waits for what it cannot end");
    assert_eq!(code(&output), 76, "{output:?}");
    let text = stderr(&output);
    let told =
        format!("warning: CMD runs a process of another user (pid {pid}), which `tenure` may not signal");
    assert!(text.contains(&told), "at the start: {text}");
    let over = format!("CMD could not be ended: pid {pid} belongs to another user; waiting for it");
    assert!(text.contains(&over), "at the loss: {text}");
    assert!(text.contains("error: lost the lease") && !text.contains("CMD was ended"), "{text}");
}

#[test]
fn work_of_another_user_is_waited_for_where_it_is_hidden() {
    if !is_root() {
        return the_own_work_is_ended_where_others_are_hidden();
    }
    let world = world();
    let hidden =
        ["unshare", "--mount", "sh", "-c", "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"", "sh"];
    // CMD ends, and leaves behind what can be neither seen nor ended.
    let script = "./helper 2 pid & while ! test -s pid; do sleep 0.1; done; exit 0";
    let run = start(&world, &hidden, &["run", "x", "--grace", "100ms", "--", "sh", "-c", script]);
    let pid = world.pid("pid");
    let next = format!("! kill -0 {pid} 2> /dev/null && ! test -e /proc/{pid}");
    let next = finish(start(&world, &[], &["run", "x", "--wait", "20s", "--", "sh", "-c", &next]));
    assert_eq!(code(&next), 0, "the helper lives: {next:?}");
    let output = finish(run);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(stderr(&output).contains(&format!("pid {pid}")), "{output:?}");
}

#[test]
fn the_own_work_is_ended_where_others_are_hidden() {
    let world = World::new();
    let user: &[&str] = if is_root() { &[] } else { &["--map-root-user", "--pid", "--fork"] };
    let script = "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"";
    let work = "sh -c \"trap '' TERM; while :; do sleep 0.1; done\" & exit 5";
    let mut command = Command::new("unshare");
    command.args(user).args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_tenure")]);
    command.args(["run", "x", "--grace", "100ms", "--", "sh", "-c", work]);
    let output = command.env("TENURE_ENGINE", world.engine()).stdin(Stdio::null()).output().expect("unshare");
    assert_eq!(output.status.code(), Some(5), "{output:?}");
}

/// A control group that is given to [`USER`], as systemd's `Delegate=` does.
struct Delegated(PathBuf);

impl Delegated {
    fn make() -> Option<Delegated> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
        let path = PathBuf::from(mount).join(format!("tenure-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        for name in [".", "cgroup.procs"] {
            chown(path.join(name), Some(USER), Some(USER)).ok()?;
        }
        Some(Delegated(path))
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        drop(fs::write(self.0.join("cgroup.kill"), "1"));
        wait_for("an empty control group", || fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn work_of_another_user_is_ended_where_a_control_group_is_delegated() {
    let Some(delegated) = is_root().then(Delegated::make).flatten() else {
        return work_of_another_user_that_cannot_be_ended_is_told_and_waited_for();
    };
    let world = world();
    let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", delegated.0.display());
    let within = ["sh", "-c", &script, "sh"];
    let flags = ["run", "x", "--ttl", "1s", "--max-hold", "1500ms", "--", "sh", "-c"];
    let work = "./helper 20 pid & setsid sleep 30 > /dev/null 2>&1 & echo $! > daemon; wait";
    let began = now();
    let run = start(&world, &within, &[&flags[..], &[work]].concat());
    let (pid, daemon) = (world.pid("pid"), world.pid("daemon"));
    let output = finish(run);
    assert_in_time(began.elapsed(), Duration::from_secs(4));
    assert!(!is_alive(pid), "{output:?}");
    let text = stderr(&output);
    assert!(text.contains("CMD was ended") && !text.contains("another user"), "{text}");
    assert!(is_alive(daemon), "who has left the work is not in that group");
    signal(daemon, Signal::KILL);
    let left = fs::read_dir(&delegated.0).expect("a directory").flatten();
    assert!(!left.into_iter().any(|entry| entry.path().is_dir()), "the group of the run is removed");
}
