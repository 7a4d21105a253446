//! `tenure fence check`: what shell scripts rely on.

use std::process::Output;

use crate::world::{World, code, stdout};

/// The claim of a test's holder.
fn claim(holder: u32) -> String {
    format!("{holder:032x}")
}

fn check(world: &World, token: &str, holder: u32, more: &[&str]) -> Output {
    let claim = claim(holder);
    let flags = ["fence", "check", "--file", "fence", "--name", "x", "--token", token, "--claim", &claim];
    world.output(&[&flags[..], more].concat())
}

#[test]
fn a_later_lease_refuses_an_earlier_one() {
    let world = World::new();
    assert_eq!(code(&check(&world, "5", 1, &[])), 0);
    assert_eq!(code(&check(&world, "7", 2, &[])), 0);
    assert_eq!(code(&check(&world, "7", 2, &[])), 0, "a holder writes more than once");
    let refused = check(&world, "5", 1, &[]);
    assert_eq!(code(&refused), 76);
    assert_eq!(stdout(&refused), "");
    assert_eq!(
        String::from_utf8_lossy(&refused.stderr),
        "error: token 5 is refused for \"x\": the lease is over: token 7 has been seen\n\n\
         hint: stop: somebody with a later lease has been here\n"
    );
    assert_eq!(code(&check(&world, "7", 3, &[])), 76, "a token that was given twice");
}

#[test]
fn readers_do_not_refuse_readers() {
    let world = World::new();
    for (token, holder, flags, expected) in [
        ("7", 7, &["--read"][..], 0),
        ("6", 6, &["--read"], 0),
        ("6", 6, &[], 76),
        ("8", 8, &[], 0),
        ("7", 7, &["--read"], 76),
    ] {
        assert_eq!(code(&check(&world, token, holder, flags)), expected, "{token} {flags:?}");
    }
}

#[test]
fn json_says_the_largest_token() {
    let world = World::new();
    let answer = |token, holder| {
        let output = check(&world, token, holder, &["--json"]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (code(&output), json)
    };
    let json = |token, accepted, max| serde_json::json!({"name": "x", "token": token, "accepted": accepted, "max": max});
    assert_eq!(answer("7", 7), (0, json(7, true, 7)));
    assert_eq!(answer("5", 5), (76, json(5, false, 7)));
}

#[test]
fn what_is_no_token_is_wrong_usage_and_what_cannot_be_kept_is_not_accepted() {
    let world = World::new();
    for token in ["0", "-1", "x", ""] {
        assert_eq!(code(&check(&world, token, 1, &[])), 64, "{token:?}");
    }
    std::fs::write(world.path("fence"), "no fence").unwrap();
    assert_eq!(code(&check(&world, "9", 9, &[])), 69);
}

#[test]
fn under_a_lock_the_environment_says_whose_lease_it_is() {
    let world = World::new();
    let script = "tenure=$0; \"$tenure\" fence check --file fence && echo written";
    let run = || world.output(&["run", "x", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_tenure")]);
    for _ in 0..2 {
        let output = run();
        assert_eq!((code(&output), stdout(&output).as_str()), (0, "written\n"), "{output:?}");
    }
    // The first holder of all, who was paused until now.
    assert_eq!(code(&check(&world, "1", 1, &[])), 76);
}

#[test]
fn root_can_check_a_file_in_a_directory_of_another_user() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    let world = World::new();
    assert_eq!(code(&check(&world, "5", 1, &[])), 0);
    let victim = world.path("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).unwrap();
    // What the owner of the directory may do.
    symlink(&victim, world.path("fence.new")).unwrap();
    std::fs::set_permissions(world.path("fence"), PermissionsExt::from_mode(0o666)).unwrap();
    for path in [world.path("fence"), world.directory.path().to_owned()] {
        chown(path, Some(65534), None).expect("the tests run as root");
    }
    assert_eq!(code(&check(&world, "7", 2, &[])), 0);
    assert_eq!(code(&check(&world, "5", 1, &[])), 76);
    let left = std::fs::metadata(&victim).unwrap();
    assert_eq!((left.uid(), left.mode() & 0o777), (0, 0o600));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    // In its place a link is refused.
    std::fs::remove_file(world.path("fence")).unwrap();
    symlink(&victim, world.path("fence")).unwrap();
    let refused = check(&world, "9", 3, &[]);
    assert_eq!(code(&refused), 69);
    assert!(crate::world::stderr(&refused).contains("symbolic link"), "{refused:?}");
}
