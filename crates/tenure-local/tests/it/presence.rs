//! A store that is not where it was, or that somebody else could move away.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::time::Duration;

use tenure_core::engine::{Engine, RenewRequest};
use tenure_core::error::ErrorKind;
use tenure_core::model::claim::ClaimId;
use tenure_local::Config;

use crate::child::Process;
use crate::place::{assert_says, refusal_of};
use crate::world::{Client, TestPlace, pause, run};

/// Longer than a client goes without a look.
const LOOKED: Duration = Duration::from_millis(150);

async fn renewal(client: &Client, claim: ClaimId) -> tenure_core::error::Result<()> {
    let resource = tenure_core::model::claim::Name::new("m").unwrap();
    let request = RenewRequest { resource, claim, is_waiter: false };
    client.engine.renew(vec![request]).await.remove(0).map(drop)
}

#[test]
fn a_directory_that_is_renamed_is_noticed() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        let (claim, _) = client.take("m").await;
        let (from, to) = (directory.place(), directory.path().join("old"));
        std::fs::rename(&from, &to).unwrap();
        let mut there = Process::start(&directory.place());
        assert!(there.ask("try m").starts_with("granted"));
        pause(LOOKED).await;
        let error = renewal(&client, claim).await.unwrap_err();
        assert_says(&error, ErrorKind::Unavailable, &["removed or replaced", "restart"]);
        // For good: what was done there meanwhile is unknown here.
        drop(there);
        std::fs::remove_dir_all(&from).unwrap();
        std::fs::rename(&to, &from).unwrap();
        pause(LOOKED).await;
        assert!(renewal(&client, claim).await.is_err());
    });
}

#[test]
fn a_part_that_is_replaced_is_noticed() {
    for part in ["format", "gate", "data.mdb", "alive", "bell", ""] {
        let directory = TestPlace::new();
        run(async {
            let client = Client::connect(&directory.place()).await;
            let (claim, _) = client.take("m").await;
            let path = if part.is_empty() { directory.boot() } else { directory.boot().join(part) };
            let old = directory.path().join("old");
            std::fs::rename(&path, &old).unwrap();
            // The same, but another.
            let copied =
                std::process::Command::new("cp").args(["-a", "--sparse=always"]).args([&old, &path]).status();
            assert!(copied.unwrap().success());
            pause(LOOKED).await;
            let error = renewal(&client, claim).await.expect_err(part);
            assert_says(&error, ErrorKind::Unavailable, &["removed or replaced", "restart"]);
        });
    }
}

#[test]
fn queues_that_are_moved_away_are_noticed() {
    for part in ["", "gate", "data.mdb"] {
        let directory = TestPlace::new();
        run(async {
            let client = Client::connect(&directory.place()).await;
            client.try_push(crate::queue::push("q", "", "first")).await.unwrap();
            let path =
                directory.place().join("queue").join(part).components().collect::<std::path::PathBuf>();
            std::fs::rename(&path, directory.path().join("old")).unwrap();
            // Locks are elsewhere.
            pause(LOOKED).await;
            let error = client.try_push(crate::queue::push("q", "", "second")).await.expect_err(part);
            assert_says(&error, ErrorKind::Unavailable, &["removed or replaced", "restart"]);
            client.take("m").await;
        });
    }
}

#[test]
fn nobody_joins_a_store_whose_clients_have_been_moved_away() {
    for part in ["alive", "bell"] {
        let directory = TestPlace::new();
        run(async {
            let client = Client::connect(&directory.place()).await;
            client.take("m").await;
            std::fs::rename(directory.boot().join(part), directory.path().join("old")).unwrap();
            let error = Client::try_connect(Config::in_directory(directory.place())).await.err().unwrap();
            assert_says(&error, ErrorKind::Unavailable, &["removed or replaced", part]);
        });
    }
}

#[test]
fn what_another_user_has_put_into_the_place_is_refused() {
    let boot = TestPlace::new().boot().file_name().unwrap().to_owned();
    for (what, is_file) in [("setup", true), ("", false), ("alive", false), ("bell", false)] {
        let directory = TestPlace::new();
        let path = match what {
            "setup" => directory.place().join(what),
            _ => directory.place().join(&boot).join(what),
        };
        let path = path.components().collect::<std::path::PathBuf>();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap()).unwrap();
        match is_file {
            true => std::fs::write(&path, "").unwrap(),
            false => std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap(),
        }
        chown(&path, Some(65534), None).expect("this test runs as root");
        assert_says(&refusal_of(&directory.place()), ErrorKind::Unsupported, &["user 65534", "remove it"]);
        chown(&path, Some(0), None).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o770)).unwrap();
        assert_says(&refusal_of(&directory.place()), ErrorKind::Unsupported, &["770", "chmod go="]);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        run(async { drop(Client::connect(&directory.place()).await) });
    }
}

#[test]
fn hints_wreck_nothing() {
    let directory = TestPlace::new();
    let place = directory.place();
    let set = |mode| std::fs::set_permissions(&place, PermissionsExt::from_mode(mode)).unwrap();
    std::fs::create_dir(&place).unwrap();
    // A directory like `/tmp`, with the files of others in it or none.
    set(0o1777);
    let open = refusal_of(&place);
    assert_says(&open, ErrorKind::Unsupported, &["open to all users", "place/locks"]);
    // One that has another purpose.
    std::fs::write(place.join("precious"), "").unwrap();
    set(0o775);
    let other = refusal_of(&place);
    assert_says(&other, ErrorKind::Unsupported, &["write to", "for nothing else", "place/locks"]);
    let file = refusal_of(&place.join("precious"));
    assert_says(&file, ErrorKind::Unsupported, &["is a file, not a directory"]);
    for error in [open, other, file] {
        let hint = error.hint().unwrap();
        assert!(!hint.contains("chmod") && !hint.contains("remove"), "{hint}");
    }
}
