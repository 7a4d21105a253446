//! What reads what the servers of a quorum answer, for random bytes.

use redis::{Value, parse_redis_value};
use tenure_core::engine::Incarnation;
use tenure_core::testing::fuzz::{Target, read_url, texts};

use crate::config::Config;
use crate::rounds::{node, text, values, view};

/// The readers of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "redlock-answer", read: answer, seeds: answers },
    Target { name: "redlock-url", read: url, seeds: urls },
];

fn answer(bytes: &[u8]) {
    let Ok(value) = parse_redis_value(bytes) else { return };
    drop(node::said(value.clone(), Incarnation(1), 2));
    let items = match &value {
        Value::Array(items) => items.clone(),
        _ => Vec::new(),
    };
    for value in [value].into_iter().chain(items) {
        text::stamp(&value);
        drop(values::stored(&value));
        drop(view::read(value.clone(), 1_800_000_000_000_000));
        if let Value::BulkString(bytes) = &value {
            drop(text::stored(&String::from_utf8_lossy(bytes)));
        }
        drop(text::answer(value));
    }
}

fn answers() -> Vec<Vec<u8>> {
    let hold = "00000000000000000000000000000001 h 17 1800000000000000 0 0 0 0 0 0 3 host/1/program it";
    let seen = format!(
        "*6\r\n$1\r\np\r\n:3\r\n*2\r\n${}\r\n{hold}\r\n:5000\r\n*3\r\n$32\r\n{id}\r\n:500\r\n$2\r\nme\r\n:17\r\n$-1\r\n",
        hold.len(),
        id = "00000000000000000000000000000002",
    );
    texts([
        "*3\r\n:1800000000000000\r\n:17\r\n*4\r\n$1\r\nG\r\n:17\r\n$1\r\n3\r\n:9000\r\n",
        "*2\r\n:1800000000000000\r\n$1\r\nQ\r\n",
        "*3\r\n:1800000000000000\r\n$1\r\nS\r\n:17\r\n",
        "*2\r\n:17\r\n:9000\r\n",
        "*11\r\n$1\r\nB\r\n:17\r\n:2\r\n:1\r\n:-1\r\n$3\r\n1,2\r\n:17\r\n:4000\r\n:0\r\n$2\r\nid\r\n$5\r\nlabel\r\n",
        "*4\r\n$1\r\nV\r\n:1000\r\n:17\r\n$5\r\nvalue\r\n",
        "*3\r\n$1\r\nC\r\n$1\r\np\r\n:4\r\n",
        seen.as_str(),
    ])
}

fn url(bytes: &[u8]) {
    read_url(bytes, Config::parse);
}

fn urls() -> Vec<Vec<u8>> {
    texts(["redlock://:s3cret@a:1,b:2,c:3?max_ttl=2s&prefix=x:", "redlocks://a:1,b:2,c:3?ca=/a.pem"])
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
