//! The engine's own client: an answer is that of its question, however earlier calls ended, and nobody gets in without the
//! password.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::pin;
use std::thread::JoinHandle;

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
        // A busy server takes longer, and more rounds until it answers in time.
        for round in 0..8000 {
            if round >= 400 && dropped > 20 && answered > 20 {
                break;
            }
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
        let refused = refused.expect_err("a wrong login");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert!(!format!("{refused} {refused:?}").contains("hunter2"), "{refused}");
    }
    let client = connect(&url("locks:sword%3Afish%40%25@"));
    pollster::block_on(client.mutex("m").acquire()).expect("it is free");
}

/// Puts a packet together.
fn packet(number: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short").to_le_bytes();
    [&length[..3], &[number], payload].concat()
}

/// A peer without TLS, whose greeting names a way to prove the password, and which asks for more in the packet behind that.
/// Returns its port, and what the client has sent in the end.
fn peer_that_asks(method: &str, asks: Vec<u8>) -> (u16, JoinHandle<Vec<u8>>) {
    // All that a client needs, but for TLS.
    let capabilities = 0x208_u32 | 0x2000 | 0x8000 | 0x1_0000 | 0x2_0000 | 0x8_0000;
    let [low, lower, high, higher] = capabilities.to_le_bytes();
    let greeting = [
        b"\x0a8.0.36\0\x01\0\0\0saltsalt\0",
        &[low, lower, 45, 2, 0, high, higher, 21][..],
        &[0; 10],
        b"saltsaltsalt\0",
        method.as_bytes(),
        &[0],
    ];
    let greeting = packet(0, &greeting.concat());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let read = |stream: &mut TcpStream, heard: &mut Vec<u8>| {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap_or(0);
        heard.extend_from_slice(&bytes[..count]);
        count > 0
    };
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut heard = Vec::new();
        stream.write_all(&greeting).expect("it listens");
        if read(&mut stream, &mut heard) {
            stream.write_all(&packet(2, &asks)).expect("it listens");
            while read(&mut stream, &mut heard) {}
        }
        heard
    });
    (port, peer)
}

/// A peer that needs not even be the server: it says how the password is to be proved, and nobody has to tell it.
#[test]
fn a_peer_without_tls_never_gets_the_password() {
    let switch = |method: &str| [&[0xfe], method.as_bytes(), b"\0saltsaltsaltsaltsalt\0"].concat();
    for (method, asks) in [
        ("mysql_clear_password", switch("mysql_clear_password")),
        ("mysql_native_password", switch("mysql_clear_password")),
        ("mysql_native_password", switch("sha256_password")),
        // The whole of it, under a key that the peer would send.
        ("caching_sha2_password", vec![1, 4]),
    ] {
        let (port, peer) = peer_that_asks(method, asks);
        let url = format!("mysql://me:hunter2@127.0.0.1:{port}/test");
        let refused = pollster::block_on(Tenure::connect_with(connector(&url), Settings::default()));
        let refused = refused.expect_err("nothing is proved");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let heard = peer.join().expect("no panic");
        assert!(!heard.windows(7).any(|part| part == b"hunter2"), "{method}: {heard:?}");
        let introduction = 4 + usize::from(heard[0]);
        assert_eq!(heard.len(), introduction, "{method}: it answers nothing that was asked: {heard:?}");
    }
    let (port, peer) = peer_that_asks("mysql_native_password", Vec::new());
    let url = format!("mysql://me:hunter2@127.0.0.1:{port}/test?tls=on");
    let refused = pollster::block_on(Tenure::connect_with(connector(&url), Settings::default()));
    assert_eq!(refused.expect_err("there is no TLS").kind(), ErrorKind::Invalid);
    assert_eq!(
        peer.join().expect("no panic"),
        [0; 0],
        "where TLS is wanted, no name and no proof go out without it"
    );
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
    let refused = refused.expect_err("it is no server");
    assert!(refused.to_string().contains("more than"), "{refused}");
    let sent = peer.join().expect("no panic");
    // What the system's buffers take, and no more.
    assert!(sent < 16 << 20, "{sent} bytes were taken");
}
