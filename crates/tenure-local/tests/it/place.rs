//! Directories that cannot be trusted, cannot be used, are damaged, or belong to somebody else.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{ClaimAnswer, Engine, ReleaseAnswer};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::model::claim::{Keep, Kind, Name};
use tenure_local::Config;

use crate::child::Process;
use crate::world::{Client, PATIENCE, TestPlace, claim_of, run};

/// Connecting must fail; says how.
fn refusal(config: Config) -> Error {
    match run(Client::try_connect(config)) {
        Ok(_) => panic!("it connected"),
        Err(error) => error,
    }
}

pub(crate) fn refusal_of(place: &Path) -> Error {
    refusal(Config::in_directory(place))
}

#[track_caller]
pub(crate) fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    let text = format!("{error} / {}", error.hint().expect("it gives a hint"));
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn urls_name_the_default_place_or_a_directory() {
    assert_eq!(Config::parse("local:").unwrap(), Config::default());
    assert_eq!(Config::parse("local:/a/b c").unwrap(), Config::in_directory("/a/b c"));
    for wrong in ["redis://h", "local", "local:dir", "local://host/dir", "local:/dir?x=1", "local:/a\0b", ""]
    {
        let error = Config::parse(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong:?}");
        assert!(error.hint().unwrap().contains("local:/"), "{wrong:?}");
    }
}

#[test]
fn a_place_is_made_for_its_user_alone() {
    let directory = TestPlace::new();
    run(async {
        drop(Client::connect(&directory.place()).await);
        for path in [directory.place(), directory.boot()] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
    });
}

#[test]
fn a_symbolic_link_is_not_a_place() {
    let directory = TestPlace::new();
    std::fs::create_dir(directory.path().join("real")).unwrap();
    symlink(directory.path().join("real"), directory.place()).unwrap();
    assert_says(
        &refusal_of(&directory.place()),
        ErrorKind::Unsupported,
        &["symbolic link", "real directory", "/real"],
    );
}

#[test]
fn a_file_is_not_a_place() {
    let directory = TestPlace::new();
    std::fs::write(directory.place(), "").unwrap();
    assert_says(&refusal_of(&directory.place()), ErrorKind::Unsupported, &["is a file, not a directory"]);
}

#[test]
fn a_place_of_another_user_is_refused() {
    let directory = TestPlace::new();
    std::fs::create_dir(directory.place()).unwrap();
    chown(directory.place(), Some(65534), None).expect("this test runs as root");
    assert_says(&refusal_of(&directory.place()), ErrorKind::Unsupported, &["user 65534", "user 0"]);
}

#[test]
fn a_place_that_others_may_write_is_refused() {
    let directory = TestPlace::new();
    std::fs::create_dir(directory.place()).unwrap();
    std::fs::set_permissions(directory.place(), PermissionsExt::from_mode(0o770)).unwrap();
    assert_says(&refusal_of(&directory.place()), ErrorKind::Unsupported, &["write to", "770", "chmod 700"]);
    std::fs::set_permissions(directory.place(), PermissionsExt::from_mode(0o755)).unwrap();
    run(async { drop(Client::connect(&directory.place()).await) });
}

#[test]
fn a_place_without_a_parent_is_refused() {
    let directory = TestPlace::new();
    let error = refusal_of(&directory.path().join("a/b"));
    assert_says(&error, ErrorKind::Unavailable, &["no such file", "create the directory above"]);
}

#[test]
fn a_read_only_file_system_is_refused() {
    // Root may write anywhere but where nobody may.
    let error = refusal_of(Path::new("/proc/tenure"));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.hint().is_some());
}

#[test]
fn a_directory_that_this_user_cannot_write_is_refused() {
    let directory = TestPlace::new();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // As a user that is not root, since root may write everywhere.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(std::env::current_exe().unwrap());
    let mut process = Process::start_by(command, &directory.place());
    let answer = process.read();
    assert!(answer.contains("unavailable") && answer.contains("permission denied"), "{answer}");
    assert!(answer.contains("hint"), "{answer}");
}

#[test]
fn a_long_path_is_no_obstacle_to_bells() {
    let directory = TestPlace::new();
    let long = directory.path().join("x".repeat(200));
    std::fs::create_dir(&long).unwrap();
    let place = long.join("y".repeat(200));
    run(async {
        let a = Client::connect(&place).await;
        let mut b = Client::connect(&place).await;
        let (held, _) = a.take("m").await;
        let waiting = b.queue("m").await;
        a.release("m", held).await;
        b.granted("m", waiting).await;
    });
}

#[test]
fn garbage_in_place_of_the_store_is_refused() {
    let directory = TestPlace::new();
    run(async { drop(Client::connect(&directory.place()).await) });
    let length = directory.data().metadata().unwrap().len();
    std::fs::write(directory.data(), vec![0xA5; 1 << 16]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(directory.data()).unwrap();
    file.set_len(length).unwrap();
    let boot = directory.boot().display().to_string();
    assert_says(&refusal_of(&directory.place()), ErrorKind::Internal, &["damaged", "remove", &boot]);
}

#[test]
fn a_truncated_store_is_refused_and_not_touched() {
    let directory = TestPlace::new();
    for length in [0, 100, 4096, 8192, 1 << 20] {
        drop(std::fs::remove_dir_all(directory.boot()));
        run(async { Client::connect(&directory.place()).await.take("m").await });
        let file = std::fs::OpenOptions::new().write(true).open(directory.data()).unwrap();
        file.set_len(length).unwrap();
        let error = refusal_of(&directory.place());
        assert_says(&error, ErrorKind::Internal, &["damaged", "remove"]);
        assert_eq!(file.metadata().unwrap().len(), length);
    }
}

#[test]
fn a_truncated_gate_is_refused() {
    let directory = TestPlace::new();
    run(async { drop(Client::connect(&directory.place()).await) });
    std::fs::write(directory.boot().join("gate"), "").unwrap();
    assert_says(&refusal_of(&directory.place()), ErrorKind::Internal, &["damaged", "gate", "remove"]);
}

#[test]
fn another_format_or_c_library_is_refused() {
    let directory = TestPlace::new();
    run(async {
        let _client = Client::connect(&directory.place()).await;
        let path = directory.boot().join("format");
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to, word) in
            [("tenure-local 1", "tenure-local 9", "format 9"), ("-gnu-", "-musl-", "-musl-")]
        {
            std::fs::write(&path, text.replace(from, to)).unwrap();
            let error = Client::try_connect(Config::in_directory(directory.place())).await.err().unwrap();
            assert_says(&error, ErrorKind::Unsupported, &[word, "directory"]);
        }
        std::fs::write(&path, "nonsense").unwrap();
        let error = Client::try_connect(Config::in_directory(directory.place())).await.err().unwrap();
        assert_says(&error, ErrorKind::Internal, &["damaged", "remove"]);
    });
}

/// Starts a client in a PID namespace of its own.
fn start_elsewhere(place: &Path) -> Process {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(std::env::current_exe().unwrap());
    Process::start_by(command, place)
}

#[test]
fn another_container_is_refused_while_this_one_is_in_use() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        client.take("m").await;
        let answer = start_elsewhere(&directory.place()).read();
        assert!(answer.contains("unsupported") && answer.contains("another container"), "{answer}");
        assert!(answer.contains("a directory of its own"), "{answer}");
    });
}

#[test]
fn another_container_may_take_over_what_nobody_uses() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        client.take("m").await;
    });
    let mut process = start_elsewhere(&directory.place());
    assert_eq!(
        process.read(),
        "connected",
        "a container that is started anew finds the directory of its last life"
    );
    assert!(process.ask("try m").starts_with("granted"));
    let error = refusal_of(&directory.place());
    assert_says(&error, ErrorKind::Unsupported, &["another container"]);
    drop(process);
}

#[test]
fn another_time_namespace_may_take_over_what_nobody_uses() {
    let directory = TestPlace::new();
    let token = run(async {
        let client = Client::connect(&directory.place()).await;
        client.take("m").await.1
    });
    let mut command = Command::new("unshare");
    command
        .args(["--time", "--boottime", "100000", "--fork", "--kill-child"])
        .arg(std::env::current_exe().unwrap());
    let mut process = Process::start_by(command, &directory.place());
    assert_eq!(process.read(), "connected");
    let granted = process.ask("try m");
    let later: u64 = granted.strip_prefix("granted ").expect(&granted).parse().unwrap();
    assert!(later > token.get(), "tokens grow although the boot's clock is another");
    assert!(later < token.get() + 60_000_000, "and the time goes on where it was");
}

#[test]
fn a_removed_liveness_file_is_noticed() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        client.take("m").await;
        std::fs::remove_file(directory.boot().join("alive").join(client.id.to_string())).unwrap();
        crate::world::pause(std::time::Duration::from_millis(150)).await;
        let error = client.claim(client.request("n", false)).await.unwrap_err();
        assert_says(&error, ErrorKind::Unavailable, &["removed", "cleans up"]);
    });
}

#[test]
fn a_missing_format_file_parts_nobody() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        client.take("m").await;
        std::fs::remove_file(directory.boot().join("format")).unwrap();
        let error = Client::try_connect(Config::in_directory(directory.place())).await.err().unwrap();
        assert_says(&error, ErrorKind::Unavailable, &["removed", "restart"]);
    });
    // Once nobody uses it, it is made anew.
    let until = SystemClock.now() + PATIENCE;
    while run(Client::try_connect(Config::in_directory(directory.place()))).is_err() {
        assert!(SystemClock.now() < until);
    }
}

#[test]
fn a_limit_of_file_sizes_is_told_of() {
    let directory = TestPlace::new();
    let mut command = Command::new("prlimit");
    command.arg("--fsize=1000000").arg(std::env::current_exe().unwrap());
    let answer = Process::start_by(command, &directory.place()).read();
    assert!(answer.contains("unavailable") && answer.contains("ulimit -f"), "{answer}");
}

#[test]
fn a_limit_of_address_space_is_told_of() {
    let directory = TestPlace::new();
    let mut command = Command::new("prlimit");
    command.arg("--as=900000000").arg(std::env::current_exe().unwrap());
    let answer = Process::start_by(command, &directory.place()).read();
    assert!(answer.contains("unavailable") && answer.contains("ulimit -v"), "{answer}");
}

#[test]
fn what_an_earlier_boot_left_is_removed() {
    let directory = TestPlace::new();
    let earlier = directory.place().join("01234567-89ab-cdef-0123-456789abcdef");
    std::fs::DirBuilder::new().mode(0o700).create(directory.place()).unwrap();
    std::fs::create_dir_all(earlier.join("alive/deep")).unwrap();
    std::fs::write(earlier.join("alive/deep/file"), "").unwrap();
    std::fs::write(earlier.join("data.mdb"), "").unwrap();
    let precious = directory.place().join("something of the user");
    std::fs::write(&precious, "").unwrap();
    run(async { drop(Client::connect(&directory.place()).await) });
    assert!(!earlier.exists());
    assert!(precious.exists());
}

#[test]
fn a_process_stopped_while_connecting_is_told_of() {
    let directory = TestPlace::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("TENURE_TEST_FAIL", "stop local.in_setup");
    let mut stopped = Process::start_by(command, &directory.place());
    stopped.stopped();
    let error = refusal_of(&directory.place());
    assert_says(&error, ErrorKind::Unavailable, &["connecting", "stopped", &stopped.pid().to_string()]);
    stopped.signal(rustix::process::Signal::CONT);
    assert_eq!(stopped.read(), "connected");
}

#[test]
fn clients_come_and_go_in_any_order() {
    let directory = TestPlace::new();
    // The environment of a process is closed by a thread that ends, while the next client opens it.
    for _ in 0..100 {
        run(async {
            let client = Client::connect(&directory.place()).await;
            let (claim, _) = client.take("m").await;
            client.release("m", claim).await;
        });
    }
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let place = directory.place();
            std::thread::spawn(move || {
                for _ in 0..10 {
                    run(async { drop(Client::connect(&place).await) });
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn value_name(number: usize) -> Name {
    Name::new(&format!("value {number}")).unwrap()
}

#[test]
fn a_full_store_refuses_and_loses_nothing() {
    let directory = TestPlace::new();
    run(async {
        let config = Config::in_directory(directory.place()).with_map_bytes(1 << 20);
        let client = Client::try_connect(config).await.unwrap();
        let (held, _) = client.take("m").await;
        let value: std::sync::Arc<[u8]> = vec![7; 200 * 1024].into();
        let mut published = Vec::new();
        let full = loop {
            let name = value_name(published.len());
            let (claim, _) = client.take(name.as_str()).await;
            match client.engine.publish(name.clone(), claim, value.clone(), Keep::WhileHeld).await {
                Ok(is_set) => assert!(is_set),
                Err(error) => break error,
            }
            published.push((name, claim));
        };
        assert_says(&full, ErrorKind::Unavailable, &["largest size", "release"]);
        assert!((2..6).contains(&published.len()));
        assert!(matches!(client.try_mutex("m").await.1, ClaimAnswer::Busy(_)));
        // What cannot be stored takes nothing down that is stored in the same transaction.
        let (claim, _) = client.take("last").await;
        let large = client.engine.publish(Name::new("last").unwrap(), claim, value.clone(), Keep::WhileHeld);
        let small = (0..20).map(|number| client.claim(client.request(&format!("small {number}"), false)));
        let (large, small) = futures_util::future::join(large, futures_util::future::join_all(small)).await;
        assert!(large.is_err());
        assert!(small.iter().all(|answer| matches!(answer, Ok(ClaimAnswer::Granted(_)))), "{small:?}");
        for (name, claim) in published {
            assert_eq!(client.release(name.as_str(), claim).await, ReleaseAnswer::Released);
        }
        let (claim, _) = client.take("again").await;
        let again = Name::new("again").unwrap();
        assert!(client.engine.publish(again, claim, value, Keep::WhileHeld).await.unwrap());
        assert_eq!(client.release("m", held).await, ReleaseAnswer::Released);
    });
}

#[test]
fn a_full_file_system_refuses_and_loses_nothing() {
    let directory = TestPlace::new();
    // In a mount namespace of its own: a file system of one megabyte.
    let script = "mount -t tmpfs -o size=1m,mode=700 tmpfs \"$TENURE_TEST_PLACE\" && exec \"$0\" \"$@\"";
    std::fs::create_dir(directory.place()).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
    let mut process = Process::start_by(command, &directory.place());
    assert_eq!(process.read(), "connected");
    assert!(process.ask("try m").starts_with("granted"));
    assert_eq!(process.ask("fill"), "filled");
    let refused = loop {
        let answer = process.ask("publish m 200000");
        if answer != "published" {
            break answer;
        }
    };
    assert!(refused.contains("unavailable") && refused.contains("free some space"), "{refused}");
    assert!(process.ask("try m").contains("Busy"));
    assert_eq!(process.ask("empty"), "emptied");
    assert_eq!(process.ask("publish m 200000"), "published");
    assert_eq!(process.ask("release m"), "Released");
}

/// Starts a client on a file system of one megabyte, after a script.
fn start_on_a_megabyte(directory: &TestPlace, script: &str) -> Process {
    let script = format!(
        "mount -t tmpfs -o size=1m,mode=700 tmpfs \"$TENURE_TEST_PLACE\" && {{ {script}; }} && exec \"$0\" \"$@\""
    );
    std::fs::create_dir(directory.place()).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(std::env::current_exe().unwrap());
    Process::start_by(command, &directory.place())
}

#[test]
fn a_full_file_system_is_told_of_and_kills_nobody() {
    // There is room for so many pages.
    for pages in 0..12 {
        let fill = format!(
            "cat /dev/zero 2>/dev/null >\"$TENURE_TEST_PLACE\"/filler; truncate -s -$(({pages}*4096)) \"$TENURE_TEST_PLACE\"/filler"
        );
        let directory = TestPlace::new();
        let answer = start_on_a_megabyte(&directory, &fill).read();
        assert!(answer.contains("unavailable") && answer.contains("free some space"), "{pages}: {answer}");
    }
}

#[test]
fn a_full_file_system_ends_nothing_in_a_young_store() {
    let directory = TestPlace::new();
    let mut process = start_on_a_megabyte(&directory, "true");
    assert_eq!(process.read(), "connected");
    assert!(process.ask("try m").starts_with("granted"));
    assert_eq!(process.ask("fill"), "filled");
    for _ in 0..20 {
        assert_eq!(process.ask("renew m"), "renewed");
    }
    // Claims that are granted as long as there is room take nothing from it.
    let mut granted = 0;
    while process.ask(&format!("try {granted}")).starts_with("granted") {
        granted += 1;
        assert!(granted < 100_000);
    }
    for _ in 0..20 {
        assert_eq!(process.ask("renew m"), "renewed", "after {granted}");
        assert_eq!(process.ask("renew 0"), "renewed");
    }
    assert_eq!(process.ask("release m"), "Released");
    assert_eq!(process.ask("release 0"), "Released");
}

#[test]
fn the_longest_name_and_the_largest_record_fit() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        let name = "\u{e4}".repeat(127) + "x";
        assert_eq!(name.len(), 255);
        let mut claims = Vec::new();
        for _ in 0..100 {
            let claim = claim_of(client.id, &name, false, Kind::SlotPool, 100);
            claims.push(claim.id);
            assert!(matches!(client.claim(claim).await.unwrap(), ClaimAnswer::Granted(_)));
        }
        let view = client.engine.inspect(name.clone(), None, 10).await.unwrap().remove(0);
        assert_eq!(view.holds.len(), 100);
        for claim in claims {
            assert_eq!(client.release(&name, claim).await, ReleaseAnswer::Released);
        }
    });
}

#[test]
fn what_is_held_no_more_leaves_nothing_behind() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        for round in 0..3 {
            let mut held = Vec::new();
            for number in 0..500 {
                let name = format!("round {round} number {number}");
                held.push((client.take(&name).await.0, name));
            }
            for (claim, name) in held {
                client.release(&name, claim).await;
            }
        }
        assert_eq!(client.engine.rows().unwrap(), 1, "only the row of the store's birth is left");
    });
}

#[test]
fn doctor_sees_the_place() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        let findings = client.engine.check().await;
        for what in ["directory", "file system", "free space", "scope", "clients", "store", "clock"] {
            assert!(findings.iter().any(|finding| finding.what == what), "{what} is not in {findings:?}");
        }
        let bad = findings.iter().find(|finding| finding.severity > tenure_core::engine::Severity::Warning);
        assert_eq!(bad, None);
        std::fs::set_permissions(directory.place(), PermissionsExt::from_mode(0o777)).unwrap();
        let findings = client.engine.check().await;
        let bad = findings.iter().find(|finding| finding.severity > tenure_core::engine::Severity::Warning);
        assert_eq!(bad.unwrap().what, "directory");
    });
}

#[test]
fn a_removed_directory_is_noticed() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        client.take("m").await;
        std::fs::remove_dir_all(directory.place()).unwrap();
        crate::world::pause(std::time::Duration::from_millis(150)).await;
        for _ in 0..3 {
            let error = client.claim(client.request("m", false)).await.unwrap_err();
            assert_says(&error, ErrorKind::Unavailable, &["removed", "restart"]);
        }
        // Another process makes a new one; then the old one is dead for good.
        let mut there = Process::start(&directory.place());
        assert!(there.ask("try m").starts_with("granted"));
        assert!(client.claim(client.request("m", false)).await.is_err());
        let error = Client::try_connect(Config::in_directory(directory.place())).await.err().unwrap();
        assert_says(&error, ErrorKind::Unavailable, &["removed", "restart"]);
    });
}
