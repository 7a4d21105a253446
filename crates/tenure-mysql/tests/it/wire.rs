//! The engine's own client: an answer is that of its question, however earlier calls ended, and nobody gets in without the
//! password.

use std::io::Write;
use std::net::TcpListener;
use std::pin::pin;

use futures_util::future::{Either, select};
use tenure_core::engine::Engine;
use tenure_core::model::claim::{ClientId, Name};
use tenure_core::{ErrorKind, Settings, Tenure};
use tenure_mysql::Config;
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer, shared};

use crate::conformance::connector;
use crate::crew::connect;

/// Other clients were seen to take the answer to the call before, after that was dropped by a timeout.
#[test]
fn after_a_dropped_call_the_next_answer_is_the_right_one() {
    let url = format!("{}?prefix=dropped_&connections=1", shared());
    let client = connect(&url);
    let name = |at: usize| Name::new(&format!("m{at}")).expect("a name");
    let leases: Vec<_> = (0..2)
        .map(|at| pollster::block_on(client.mutex(name(at).as_str()).acquire()).expect("it is free"))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut dropped, mut answered) = (0, 0);
    runtime.block_on(async {
        let config = Config::parse(&url).expect("the kit's URLs are right");
        let engine = tenure_mysql::connect(config, ClientId::new(1)).await.expect("it connects");
        for round in 0..400 {
            // From before the text is sent to after all of the answer has come: a timer would be too coarse.
            let patience = pin!(async {
                for _ in 0..2 * round {
                    tokio::task::yield_now().await;
                }
            });
            match select(std::pin::pin!(engine.view(name(0))), patience).await {
                Either::Left((view, _)) => {
                    assert_eq!(view.expect("an answer").expect("it is held").resource, name(0));
                    answered += 1;
                }
                Either::Right(_) => dropped += 1,
            }
            let view = engine.view(name(1)).await.expect("an answer").expect("it is held");
            assert_eq!(view.resource, name(1), "the answer to the question before");
            assert_eq!(view.holds[0].token, leases[1].token(), "the answer to the question before");
        }
    });
    println!("{dropped} calls were dropped, {answered} were answered in time");
    assert!(dropped > 20 && answered > 20, "the test is worth something only if there are both");
}

#[test]
fn a_value_and_a_label_of_any_bytes_come_back_as_they_were() {
    let client = connect(&format!("{}?prefix=bytes_", shared()));
    let label = "it's \\ \"the\" nightly; -- one\u{0}é🦀".replace('\0', "");
    let lease = pollster::block_on(client.mutex("Name'; DROP TABLE x; --é").label(&label).acquire());
    let lease = lease.expect("it is free");
    let view =
        pollster::block_on(client.view("Name'; DROP TABLE x; --é")).expect("an answer").expect("it is held");
    assert!(view.holds[0].label.as_str().contains(&label), "{view:?}");
    // Names are bytes: this is another one.
    let other =
        pollster::block_on(client.mutex("name'; drop table x; --é").try_acquire()).expect("an answer");
    assert!(other.is_some());
    drop((lease, other));
}

#[test]
fn a_password_is_needed_and_proved() {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let mut admin = server.connect().expect("the server takes one more");
    admin.run("CREATE USER locks@'%' IDENTIFIED BY 'sword:fish@%'");
    admin.run("GRANT ALL ON test.* TO locks@'%'");
    let url = |login: &str| server.url().replace("root@", login);
    for wrong in ["locks:hunter2@", "locks@", "nobody:hunter2@"] {
        let refused = pollster::block_on(Tenure::connect_with(connector(&url(wrong)), Settings::default()));
        let refused = refused.err().expect("a wrong login");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert!(!format!("{refused} {refused:?}").contains("hunter2"), "{refused}");
    }
    let client = connect(&url("locks:sword%3Afish%40%25@"));
    pollster::block_on(client.mutex("m").acquire()).expect("it is free");
}

/// Whoever answers has proved nothing before the login, and with TLS not even who it is.
#[test]
fn a_peer_that_sends_without_end_is_left_after_a_little() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let peer = std::thread::spawn(move || -> usize {
        let (mut stream, _) = listener.accept().expect("a client");
        // Parts of full length: the packet never ends.
        let mut part = [&[0xff, 0xff, 0xff, 0][..], &vec![b'x'; 0xff_ffff]].concat();
        let mut sent = 0_usize;
        'parts: for number in 0_u8..64 {
            part[3] = number;
            let mut part = &part[..];
            while !part.is_empty() {
                let chunk = &part[..part.len().min(4096)];
                match stream.write(chunk) {
                    Ok(count) => (sent, part) = (sent + count, &part[count..]),
                    Err(_) => break 'parts,
                }
            }
        }
        sent
    });
    let url = format!("mysql://root@127.0.0.1:{port}/test");
    let refused = pollster::block_on(Tenure::connect_with(connector(&url), Settings::default()));
    let refused = refused.err().expect("it is no server");
    assert!(refused.to_string().contains("more than"), "{refused}");
    let sent = peer.join().expect("no panic");
    // What the system's buffers take, and no more.
    assert!(sent < 16 << 20, "{sent} bytes were taken");
}
