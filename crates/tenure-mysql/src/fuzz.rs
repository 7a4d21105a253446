//! What reads what a MySQL server sends, for random bytes.

use futures_util::FutureExt;
use tenure_core::testing::fuzz::{Target, read_url, texts};

use crate::client::dial::login;
use crate::client::wire::Wire;
use crate::config::Config;

/// The readers of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "mysql-login", read: log_in, seeds: logins },
    Target { name: "mysql-answer", read: answer, seeds: answers },
    Target { name: "mysql-url", read: url, seeds: urls },
];

/// A connection on which a server says this, and nothing more.
fn wire(bytes: &[u8]) -> Wire {
    Wire::new(Box::new(tokio::io::join(std::io::Cursor::new(bytes.to_vec()), tokio::io::sink())))
}

fn log_in(bytes: &[u8]) {
    let config = Config::parse("mysql://user:s3cret@host/test").expect("a good URL");
    let ended = login(&config, wire(bytes), Some("host")).now_or_never();
    assert!(ended.is_some(), "it waits for more than there will be");
}

fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    [&length[..3], &[sequence], payload].concat()
}

fn logins() -> Vec<Vec<u8>> {
    let greeting = |method: &str| {
        let head =
            b"\x0a10.11.19-MariaDB\0\x01\0\0\0saltsalt\0\xff\xf7\x2d\x02\0\xff\x81\x15\0\0\0\0\0\0\0\0\0\0";
        packet(0, &[&head[..], b"twelve bytes\0", method.as_bytes(), b"\0"].concat())
    };
    let ok = packet(2, b"\0\0\0\x02\0\0\0");
    vec![
        [greeting("mysql_native_password"), ok.clone()].concat(),
        [greeting("caching_sha2_password"), packet(2, b"\x01\x03"), packet(3, b"\0\0\0\x02\0\0\0")].concat(),
        [greeting("unknown"), packet(2, b"\xfemysql_native_password\0saltsaltsaltsaltsalt\0"), ok].concat(),
        packet(0, b"\xff\x10\x04Too many connections"),
    ]
}

fn answer(bytes: &[u8]) {
    let mut wire = wire(bytes);
    wire.is_known();
    let ended = wire.run("SELECT 1").now_or_never();
    assert!(ended.is_some(), "it waits for more than there will be");
}

fn answers() -> Vec<Vec<u8>> {
    let column = b"\x03def\0\0\0\x01a\0\x0c\x3f\0\x01\0\0\0\x08\x81\0\0\0\0";
    let end = b"\xfe\0\0\x02\0";
    let rows = [
        packet(1, b"\x01"),
        packet(2, column),
        packet(3, end),
        packet(4, b"\x0217"),
        packet(5, b"\xfb"),
        packet(6, end),
    ];
    vec![packet(1, b"\0\x01\0\x02\0\0\0"), rows.concat(), packet(1, b"\xff\x7a\x04#42S02no such table")]
}

fn url(bytes: &[u8]) {
    read_url(bytes, Config::parse);
}

fn urls() -> Vec<Vec<u8>> {
    texts([
        "mysql://user:s3cret@host:3306/db?tls=on&ca=/a.pem&connections=3",
        "mariadb://user@host/db?socket=/run/mysqld/mysqld.sock&prefix=x",
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
