//! What reads what Redis servers answer, for random bytes.

use std::sync::Arc;
use std::time::Duration;

use redis::{Value, parse_redis_value};
use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{Interval, Rules, Take, Which};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Label, Name, Terms};
use tenure_core::model::token::Token;
use tenure_core::testing::fuzz::{Target, read_url, texts};

use crate::config::Config;
use crate::error::Fault;
use crate::lua::answer;
use crate::net::address::Address;
use crate::net::cluster::shape::{Redirect, View, merge};
use crate::queues::answer as queue;

/// The readers of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "redis-claim", read: claim, seeds: claims },
    Target { name: "redis-look", read: look, seeds: looks },
    Target { name: "redis-queue", read: in_queue, seeds: queue_answers },
    Target { name: "redis-message", read: message, seeds: messages },
    Target { name: "redis-cluster", read: cluster, seeds: clusters },
    Target { name: "redis-url", read: url, seeds: urls },
];

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn name() -> Name {
    Name::new("r").expect("a good name")
}

/// Reads all answers in some bytes.
fn values(bytes: &[u8]) -> Vec<Value> {
    match parse_redis_value(bytes) {
        Ok(Value::Array(items)) => vec![Value::Array(items.clone())].into_iter().chain(items).collect(),
        Ok(other) => vec![other],
        Err(_) => Vec::new(),
    }
}

fn claim(bytes: &[u8]) {
    let terms = Terms::of_mutex(Label::new("host", 1, "program", "text"));
    let (id, client) = (ClaimId::new(1), ClientId::new(2));
    let (resource, terms) = (name(), Arc::new(terms));
    let claim = Claim {
        resource,
        id,
        client,
        terms,
        wait: true,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    };
    for value in values(bytes) {
        answer::foreign(&value);
        drop(answer::claimed(&claim, NOW, value.clone()));
        drop(answer::renewed(value.clone()));
        drop(answer::released(value.clone()));
        drop(answer::answers(value));
    }
}

fn claims() -> Vec<Vec<u8>> {
    texts([
        ":1800000000000000\r\n",
        "*4\r\n$1\r\nG\r\n:17\r\n$1\r\n3\r\n:9000\r\n",
        "*4\r\n$1\r\nW\r\n:3\r\n:17\r\n:-1\r\n",
        "*8\r\n$1\r\nB\r\n:17\r\n:2\r\n:500\r\n:17\r\n:4000\r\n:0\r\n$17\r\nhost/1/program it\r\n",
        "*4\r\n$1\r\nV\r\n:1000\r\n:17\r\n$5\r\nvalue\r\n",
        "*3\r\n$1\r\nC\r\n$1\r\ns\r\n:4\r\n",
        "*2\r\n$1\r\nX\r\n$4\r\nzset\r\n",
        "*2\r\n$1\r\nE\r\n$3\r\nwhy\r\n",
        "*3\r\n:1800000000000000\r\n:1\r\n*1\r\n$1\r\nF\r\n",
    ])
}

fn look(bytes: &[u8]) {
    for value in values(bytes) {
        drop(answer::view(&name(), NOW, Token::new(3), value));
    }
}

fn looks() -> Vec<Vec<u8>> {
    let hold = "00000000000000000000000000000001 h 1800000000000000 1799999999000000 00010000 0000000000000007 0 0 0 1 - host/1/program it";
    let mutex = format!("*3\r\n$1\r\nm\r\n${}\r\n{hold}\r\n:1800000005000\r\n", hold.len());
    let pool = format!(
        "*7\r\n$1\r\np\r\n:3\r\n:1\r\n:1\r\n*2\r\n${0}\r\n{hold}\r\n:1800000005000\r\n*3\r\n$32\r\n{id}\r\n${1}\r\n{waiter}\r\n:1800000005000\r\n$-1\r\n",
        hold.len(),
        "00010000 0000000000000007 0 0 0 1 - host/1/program it".len(),
        id = "00000000000000000000000000000002",
        waiter = "00010000 0000000000000007 0 0 0 1 - host/1/program it",
    );
    vec![mutex.into_bytes(), pool.into_bytes()]
}

fn in_queue(bytes: &[u8]) {
    let label = Label::new("host", 1, "program", "text");
    let (ttl, interval) = (Duration::from_secs(10), Interval::default());
    let rules = Arc::new(Rules { ttl, interval, attempts_max: 3, label });
    let claims = (1..4).map(ClaimId::new).collect();
    let take = Take { queue: name(), claims, client: ClientId::new(2), rules, floor: Token::ZERO };
    for value in values(bytes) {
        drop(queue::pushed(&value));
        drop(queue::taken(&take, NOW, value.clone()));
        for which in [Which::Live, Which::Dead] {
            drop(queue::view(which, NOW, value.clone()));
        }
        if let Value::Array(items) = &value {
            drop(queue::stats(items));
            drop(queue::count(items));
        }
    }
}

fn queue_answers() -> Vec<Vec<u8>> {
    let item = "17999999990000001800000000000000group\tpayload";
    let state = format!(
        "{:0>16}{:0>16}{:0>90}host/1/program it",
        1_800_000_000_000_000_u64, 1_800_000_009_000_000_u64, 1
    );
    let dead = format!("17999999990000000000000003{:0>3}reason{item}", 6);
    vec![
        b":17\r\n".to_vec(),
        b"$16\r\n0000000000000017\r\n".to_vec(),
        format!("*5\r\n:-1\r\n:17\r\n:1\r\n:1800000000000000\r\n${}\r\n{item}\r\n", item.len()).into_bytes(),
        b"*4\r\n:5\r\n:2\r\n:1\r\n:-1\r\n".to_vec(),
        b"*2\r\n:5\r\n$2\r\n17\r\n".to_vec(),
        format!("*4\r\n:17\r\n${}\r\n{item}\r\n${}\r\n{state}\r\n:-1\r\n", item.len(), state.len())
            .into_bytes(),
        format!("*2\r\n:17\r\n${}\r\n{dead}\r\n", dead.len()).into_bytes(),
    ]
}

fn message(bytes: &[u8]) {
    drop(answer::message(bytes));
}

fn messages() -> Vec<Vec<u8>> {
    texts([
        "G 00000000000000000000000000000001 1800000000000000 - 9000 77",
        "L 00000000000000000000000000000001",
        "Q jobs",
    ])
}

/// The slots and the nodes of a cluster, and a refusal.
fn cluster(bytes: &[u8]) {
    let asked = Address::Tcp("asked".to_owned(), 6379);
    let text = String::from_utf8_lossy(bytes);
    if let Some((code, detail)) = text.split_once(' ') {
        let fault = Fault::server("asked", code, Some(detail));
        Redirect::read(&fault, &asked);
    }
    Address::parse(&text, &asked);
    let mut items = match parse_redis_value(bytes) {
        Ok(Value::Array(items)) => items.into_iter(),
        _ => return,
    };
    let (Some(slots), Some(nodes)) = (items.next(), items.next()) else { return };
    if let Ok(view) = View::read(slots, nodes, &asked) {
        let owners = merge(&[view.clone(), view]);
        assert_eq!(owners.len(), crate::net::cluster::shape::SLOTS);
    }
}

fn clusters() -> Vec<Vec<u8>> {
    let nodes = "a h:1@2 myself,master - 0 0 7 connected 0-5461\nb h:2@3 slave a 0 0 6 connected\n";
    let slots =
        "*1\r\n*4\r\n:0\r\n:5461\r\n*3\r\n$1\r\nh\r\n:1\r\n$1\r\na\r\n*3\r\n$1\r\nh\r\n:2\r\n$1\r\nb\r\n";
    vec![
        format!("*2\r\n{slots}${}\r\n{nodes}\r\n", nodes.len()).into_bytes(),
        b"MOVED 3999 127.0.0.1:6381".to_vec(),
        b"ASK 3999 [::1]:6381".to_vec(),
    ]
}

fn url(bytes: &[u8]) {
    read_url(bytes, Config::parse);
}

fn urls() -> Vec<Vec<u8>> {
    texts([
        "redis://user:s3cret%2Fpass@host:6379/2?prefix=a:&replicas=1",
        "rediss://[::1]:6379?ca=/a/b.pem",
        "redis+sentinel://a:1,b:2/main?password=s3cret",
        "redis+cluster://a:1,b:2",
        "redis+unix:///run/redis.sock",
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
