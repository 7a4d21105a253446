//! `File` between users: what another user of the machine may put beside it, in its place, or do to it.
//!
//! The tests run as root, and the other user is [`OTHER`].
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_core::ErrorKind;
use tenure_fence::File;
use tenure_testkit::TestDirectory;

use crate::writes::mark;

const OTHER: u32 = 65534;

/// A command as the other user.
fn as_other(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={OTHER}"), format!("--regid={OTHER}"), "--clear-groups".to_owned()]);
    command.args(["--", program]);
    command
}

fn give(path: &Path, mode: u32) {
    chown(path, Some(OTHER), Some(OTHER)).expect("the tests run as root");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// A directory that all may enter, with a fence in it that has seen the token 1.
fn fence() -> (TestDirectory, PathBuf) {
    let directory = TestDirectory::new();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = directory.path().join("data.fence");
    File::new(&path).check("x", mark(1)).unwrap().unwrap();
    (directory, path)
}

#[test]
fn what_another_user_puts_beside_the_file_is_not_written_to() {
    type Plant = fn(&Path, &Path);
    let symbolic: Plant = |victim, new| symlink(victim, new).unwrap();
    let hard: Plant = |victim, new| fs::hard_link(victim, new).unwrap();
    for plant in [symbolic, hard] {
        let (directory, path) = fence();
        give(directory.path(), 0o755);
        give(&path, 0o666);
        let victim = directory.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        plant(&victim, &directory.path().join("data.fence.new"));
        File::new(&path).check("x", mark(2)).unwrap().unwrap();
        let left = fs::metadata(&victim).unwrap();
        assert_eq!((left.uid(), left.mode() & 0o7777), (0, 0o600));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert!(File::new(&path).check("x", mark(1)).unwrap().is_err());
    }
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    let (directory, path) = fence();
    let at = |name: &str| directory.path().join(name);
    symlink(&path, at("link")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    symlink("/dev/null", at("null")).unwrap();
    for name in ["link", "pipe", "null"] {
        let error = File::new(at(name)).check("x", mark(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        assert!(error.hint().is_some(), "{name}");
    }
    assert_eq!(File::new("/dev/null").check("x", mark(2)).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(fs::read_to_string(&path).unwrap().starts_with("1 1/"), "the link was not followed");
}

#[test]
fn a_file_keeps_its_owner_and_its_writers() {
    let (_directory, path) = fence();
    for (before, after) in [(0o600, 0o600), (0o644, 0o600), (0o660, 0o660), (0o664, 0o660), (0o6777, 0o666)] {
        give(&path, before);
        File::new(&path).check("x", mark(u64::from(before) + 2)).unwrap().unwrap();
        assert_eq!(mode(&path), after, "{before:o}");
        let left = fs::metadata(&path).unwrap();
        assert_eq!((left.uid(), left.gid()), (OTHER, OTHER), "{before:o}");
    }
}

#[test]
fn who_may_not_write_to_the_file_cannot_lock_it() {
    let (_directory, path) = fence();
    assert_eq!(mode(&path) & 0o044, 0);
    let locked = as_other("flock").args(["-s", "-n"]).arg(&path).arg("true").stderr(Stdio::null()).status();
    assert_eq!(locked.unwrap().code(), Some(66), "flock cannot open it");
}

#[test]
fn a_file_that_another_user_keeps_locked_is_told_of() {
    let (_directory, path) = fence();
    give(&path, 0o666);
    let mut holder = as_other("flock")
        .args(["-F", "-s"])
        .arg(&path)
        .args(["sh", "-c", "echo locked; exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(holder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let file = File::new(&path).with_wait_max(Duration::from_millis(50));
    let error = file.check("x", mark(2)).unwrap_err();
    let pid = holder.id();
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{pid}: {error}");
    assert!(error.to_string().contains("locked"), "{error}");
    assert!(error.hint().unwrap().contains("fuser"), "{error}");
}

#[test]
fn another_users_file_where_all_may_make_files_is_refused() {
    let (directory, path) = fence();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    File::new(&path).check("x", mark(2)).unwrap().unwrap();
    give(&path, 0o666);
    let error = File::new(&path).check("x", mark(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("user 65534"), "{error}");
    // Below a directory that belongs to that user it is that user's to say.
    give(directory.path(), 0o1777);
    File::new(&path).check("x", mark(3)).unwrap().unwrap();
}
