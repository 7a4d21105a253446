//! Real servers. What is shared with the tests of Sentinel and Cluster is at the end.

use std::future::Future;
use std::time::Duration;

use redis::{Cmd, Value};
use tenure_core::error::ErrorKind;
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::{Loss, Proxy};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::*;

/// What the client above gives a call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn a_call_waits_for_the_first_connection() {
    let server = RedisServer::start(RedisOptions::default());
    run(async {
        let mut client = Client::of(&format!("{}/3", server.url()));
        assert_eq!(client.servers.incarnation(0), None);
        let (_, incarnation) = client.servers.call(0, |_| set("in", "db 3")).await.unwrap();
        assert_eq!(client.servers.incarnation(0), Some(incarnation));
        assert!(!client.servers.is_cluster());
        assert_eq!(client.servers.masters().await.unwrap().len(), 1);
        assert_eq!(client.up().await, (incarnation, false));
        assert!(server.command(&["INFO", "keyspace"]).contains("db3:keys=1"));
        assert!(server.command(&["CLIENT", "LIST"]).contains("name=tenure "));
        let fault =
            client.servers.call(0, |_| redis::cmd("EVALSHA").arg("0".repeat(40)).arg(0).to_owned()).await;
        assert!(fault.unwrap_err().is_no_script());
    });
}

#[test]
fn a_killed_connection_comes_back_as_the_same_server() {
    let server = RedisServer::start(RedisOptions::default());
    run(async {
        let mut client = Client::of(&server.url());
        client.servers.subscribe(0, b"inbox").await.unwrap();
        let first = client.both().await;
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert_eq!(client.both().await, (first.0, false));
        // By now it is subscribed again: coming up says that messages may have been missed, not that they will be.
        assert_eq!(server.command(&["PUBLISH", "inbox", "hello"]), "1");
        assert_eq!(client.message().await, ("inbox".to_owned(), "hello".to_owned()));
        assert_eq!(client.increment().await.unwrap().1, first.0);
        client.servers.unsubscribe(0, b"inbox").await;
        assert_eq!(server.command(&["PUBLISH", "inbox", "gone"]), "0");
        client.increment().await.unwrap();
        client.servers.subscribe(0, b"inbox").await.unwrap();
        client.servers.subscribe(0, b"inbox").await.unwrap();
        assert_eq!(server.command(&["PUBLISH", "inbox", "again"]), "1");
        assert_eq!(client.message().await.1, "again");
    });
}

#[test]
fn messages_have_a_connection_of_their_own_which_comes_back_by_itself() {
    let server = RedisServer::start(RedisOptions::default());
    let count =
        || server.command(&["CLIENT", "LIST"]).lines().filter(|line| line.contains("name=tenure")).count();
    run(async {
        let mut client = Client::of(&server.url());
        client.increment().await.unwrap();
        assert_eq!(count(), 1, "who listens to nothing needs one connection");
        client.servers.subscribe(0, b"inbox").await.unwrap();
        client.both().await;
        assert_eq!(count(), 2);
        let servers = client.servers.clone();
        let blocked = tokio::spawn(async move {
            servers.call(0, |_| redis::cmd("BLPOP").arg("list").arg(0).to_owned()).await
        });
        server.wait_for("blocked client", || (server.info("blocked_clients")? == "1").then_some(()));
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        while !matches!(client.next().await, News::Listening { is_new: false }) {}
        assert_eq!(server.command(&["PUBLISH", "inbox", "hello"]), "1");
        assert_eq!(client.message().await.1, "hello");
        server.command(&["LPUSH", "list", "x"]);
        blocked.await.unwrap().expect("a command under way minds nothing of that");
    });
}

#[test]
fn what_is_wanted_while_a_connection_is_being_made_is_subscribed_to() {
    let server = RedisServer::start(RedisOptions::default());
    run(async {
        // The server takes the connection, and answers nothing for a while.
        server.command(&["CLIENT", "PAUSE", "500", "ALL"]);
        let (news, mut heard) = unbounded_channel();
        let listeners = Listeners { news: Some(news), ..Listeners::default() }.of_inbox();
        let config = Config::parse(&server.url()).unwrap();
        let Topology::Single(address) = &config.topology else { panic!("one server") };
        let dialer = Dialer::new(&config.login, config.db, false, None).unwrap();
        let link = Link::start(dialer, Place::Fixed(address.clone()), listeners, false);
        link.want(b"early");
        pause::sleep(Duration::from_millis(150)).await;
        assert!(link.wire().is_none(), "it is being made");
        link.want(b"late");
        let told = timeout(Duration::from_secs(5), heard.recv()).await.expect("it comes up");
        assert_eq!(told, Some(News::Listening { is_new: false }));
        for channel in ["early", "late"] {
            assert_eq!(server.command(&["PUBLISH", channel, "hello"]), "1", "{channel}");
        }
    });
}

#[test]
fn a_restarted_server_is_another_incarnation() {
    let server = RedisServer::start(RedisOptions::default());
    run(async {
        let mut client = Client::of(&server.url());
        client.servers.subscribe(0, b"inbox").await.unwrap();
        let first = client.both().await;
        server.restart();
        let second = client.both().await;
        assert!(second.1 && second.0 != first.0, "{first:?} {second:?}");
        assert_eq!(client.increment().await.unwrap().1, second.0);
        assert_eq!(server.command(&["PUBLISH", "inbox", "hello"]), "1");
        assert_eq!(client.message().await.1, "hello");
    });
}

#[test]
fn a_stopped_server_is_a_fault_in_time_and_is_used_again() {
    let server = RedisServer::start(RedisOptions::default());
    run(async {
        let mut client = Client::of(&server.url());
        client.servers.subscribe(0, b"inbox").await.unwrap();
        let first = client.both().await;
        server.stop();
        // The first may have been executed; the second finds no connection.
        for is_outcome_unknown in [true, false] {
            let fault = client.increment().await.unwrap_err();
            assert_eq!(fault.is_outcome_unknown(), is_outcome_unknown, "{fault:?}");
            let error = fault.to_error("claim");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.hint().is_some_and(|hint| hint.contains("tenure doctor")));
        }
        server.cont();
        assert_eq!(client.both().await, (first.0, false));
        assert_eq!(client.increment().await.unwrap().1, first.0);
        server.command(&["PUBLISH", "inbox", "hello"]);
        assert_eq!(client.message().await.1, "hello");
    });
}

#[test]
fn what_is_under_way_fails_at_once_when_the_connection_breaks() {
    let server = RedisServer::start(RedisOptions::default());
    run(async {
        let mut client = Client::of(&server.url());
        client.up().await;
        let servers = client.servers.clone();
        let waiting = tokio::spawn(async move {
            servers.call(0, |_| redis::cmd("BLPOP").arg("nothing").arg(0).to_owned()).await
        });
        server.wait_for("blocked client", || (server.info("blocked_clients")? == "1").then_some(()));
        let killed_at = Instant::now();
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        let fault = waiting.await.unwrap().unwrap_err();
        assert!(matches!(fault, Fault::Cut { .. }), "{fault:?}");
        assert_in_time(killed_at.elapsed(), Duration::from_millis(500));
    });
}

#[test]
fn a_server_that_becomes_a_replica_is_not_used_until_it_is_a_master_again() {
    let server = RedisServer::start(RedisOptions::default());
    let master = RedisServer::start(RedisOptions::default());
    run(async {
        let mut client = Client::of(&server.url());
        let first = client.up().await;
        server.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        let error = client.increment().await.unwrap_err().to_error("claim");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.hint().is_some_and(|hint| hint.contains("failover")), "{error:?}");
        server.command(&["REPLICAOF", "NO", "ONE"]);
        let second = client.up().await;
        assert!(second.1 && second.0 != first.0, "{first:?} {second:?}");
        client.increment().await.unwrap();
        // Without any command, its role is checked.
        server.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        let left_at = Instant::now();
        while client.servers.incarnation(0).is_some() {
            assert_in_time(left_at.elapsed(), Duration::from_secs(5));
            pause::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_server_that_is_down_is_an_error_in_time_with_a_hint() {
    let server = RedisServer::start(RedisOptions::default());
    server.kill();
    run(async {
        let client = Client::of(&server.url());
        let fault = client.increment().await.unwrap_err();
        assert!(!fault.is_outcome_unknown());
        let error = fault.to_error("claim");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = format!("claim: cannot connect to 127.0.0.1:{}: connection refused", server.port());
        assert_eq!(error.to_string(), text);
        assert!(error.hint().is_some_and(|hint| hint.contains("is it running")));
    });
}

#[test]
fn a_password_is_given_and_a_wrong_one_is_an_error_at_once() {
    let server = RedisServer::start(RedisOptions::default().password("hunter2"));
    server.command(&["ACL", "SETUSER", "me", "on", ">p@/ss", "~*", "&*", "+@all"]);
    server.command(&["ACL", "SETUSER", "poor", "on", ">x", "~*", "&*", "+@all", "-info"]);
    let port = server.port();
    run(async {
        Client::of(&server.url()).increment().await.unwrap();
        Client::of(&format!("redis://me:p%40%2Fss@127.0.0.1:{port}")).increment().await.unwrap();
        for (login, kind, word) in [
            (":hunter3@", ErrorKind::Invalid, "password"),
            ("me:hunter2@", ErrorKind::Invalid, "password"),
            ("", ErrorKind::Invalid, "password"),
            ("poor:x@", ErrorKind::Unsupported, "INFO"),
        ] {
            let asked_at = Instant::now();
            let client = Client::of(&format!("redis://{login}127.0.0.1:{port}"));
            let error = client.increment().await.unwrap_err().to_error("claim");
            assert_eq!(error.kind(), kind, "{login} {error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains(word)), "{error:?}");
            assert_in_time(asked_at.elapsed(), Duration::from_millis(900));
            assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
        }
    });
}

#[test]
fn sockets_and_tls_reach_the_same_server() {
    let server = RedisServer::start(RedisOptions::default().tls());
    let other = RedisServer::start(RedisOptions::default().tls());
    run(async {
        Client::of(&format!("redis+unix://{}", server.socket().display())).increment().await.unwrap();
        let url = |server: &RedisServer| format!("{}?ca={}", server.url(), server.authority().display());
        let client = Client::of(&url(&server));
        assert_eq!(client.increment().await.unwrap().0, Value::Int(2));
        // Another authority, none that is known, and no TLS at all.
        let wrong_authority = format!("{}?ca={}", server.url(), other.authority().display());
        let no_tls = format!("redis://127.0.0.1:{}", server.port());
        for url in [wrong_authority, server.url(), no_tls] {
            let error = Client::of(&url).increment().await.unwrap_err().to_error("claim");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error:?}");
        }
        let config = Config::parse(&format!("{}?ca=/nowhere", server.url())).unwrap();
        let error = Servers::connect(&config, unbounded_channel().0).err().expect("no such file");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn a_connection_into_nothing_is_found_out_without_any_call() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    run(async {
        let mut client = Client::of(&format!("redis://127.0.0.1:{}", proxy.port()));
        client.servers.subscribe(0, b"inbox").await.unwrap();
        let first = client.both().await;
        proxy.black_hole();
        let lost_at = Instant::now();
        while client.servers.incarnation(0).is_some() {
            assert_in_time(lost_at.elapsed(), Duration::from_secs(4));
            pause::sleep(Duration::from_millis(10)).await;
        }
        proxy.heal();
        assert_eq!(client.up().await, (first.0, false));
        // The other connection finds out by itself, about then.
        let healed_at = Instant::now();
        while server.command(&["PUBLISH", "inbox", "hello"]) == "0"
            || timeout(Duration::from_millis(100), client.message()).await.is_err()
        {
            assert_in_time(healed_at.elapsed(), Duration::from_secs(4));
        }
    });
}

#[test]
fn what_may_have_been_executed_is_never_sent_again() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    run(async {
        let client = Client::of(&format!("redis://127.0.0.1:{}", proxy.port()));
        assert_eq!(client.increment().await.unwrap().0, Value::Int(1));
        proxy.lose_replies(1, b"INCR", Loss::Cut);
        let asked_at = Instant::now();
        let fault = client.increment().await.unwrap_err();
        assert!(matches!(fault, Fault::Cut { .. }), "{fault:?}");
        assert_in_time(asked_at.elapsed(), Duration::from_millis(500));
        assert_eq!(client.increment().await.unwrap().0, Value::Int(3));
        proxy.lose_replies(1, b"INCR", Loss::Silence);
        let fault = client.increment().await.unwrap_err();
        assert!(fault.is_outcome_unknown(), "{fault:?}");
        proxy.heal();
        assert_eq!(client.increment().await.unwrap().0, Value::Int(5));
        // While no client can connect, nothing is sent.
        proxy.refuse();
        proxy.cut();
        let fault = loop {
            let fault = client.increment().await.unwrap_err();
            if !fault.is_outcome_unknown() {
                break fault;
            }
        };
        assert!(matches!(fault, Fault::Down { .. }), "{fault:?}");
        let before: i64 = server.command(&["GET", "n"]).parse().unwrap();
        proxy.heal();
        assert_eq!(client.increment().await.unwrap().0, Value::Int(before + 1));
    });
}

// page: docs/engines/redis.md "If fewer acknowledge within 0.5 s"
#[test]
fn replicas_that_acknowledge_are_counted_and_those_that_do_not_are_no_fault() {
    let master = RedisServer::start(RedisOptions::default());
    let of_master = RedisOptions::default().line(format!("replicaof 127.0.0.1 {}", master.port()));
    let replica = RedisServer::start(of_master.line("repl-diskless-sync-delay 0"));
    replica.wait_for("link", || (replica.info("master_link_status")? == "up").then_some(()));
    master.wait_for("replica", || (master.info("slave0")?.contains("state=online")).then_some(()));
    run(async {
        let client = Client::of(&format!("{}?replicas=1", master.url()));
        let increment = |_| redis::cmd("INCR").arg("n").to_owned();
        // On a busy machine a replica may be late.
        let mut asked = 0;
        let incarnation = loop {
            let (value, incarnation, acknowledged) =
                client.servers.with_replicas(0, increment).await.unwrap();
            asked += 1;
            assert_eq!(value, Value::Int(asked));
            if acknowledged == 1 {
                break incarnation;
            }
            assert!(asked < 50, "no replica acknowledges");
        };
        assert_eq!(client.servers.incarnation(0).unwrap_or(incarnation), incarnation);
        replica.stop();
        // Many that wait, one behind the other, all have their answers in time; and no other command waits for them.
        let call = || timeout(ANSWER_TIMEOUT, client.servers.with_replicas(0, increment));
        let calls: Vec<_> = (0..200).map(|_| call()).collect();
        let asked_at = Instant::now();
        let all = futures_util::future::join_all(calls);
        let other = async {
            client.increment().await.unwrap();
            asked_at.elapsed()
        };
        let (all, other) = futures_util::future::join(all, other).await;
        assert!(other < Duration::from_millis(300), "{other:?}");
        for answer in all {
            assert_eq!(answer.expect("an answer in time").unwrap().2, 0);
        }
        let asked_at = Instant::now();
        call().await.expect("an answer in time").unwrap();
        assert!(asked_at.elapsed() >= Duration::from_millis(500), "they are given half a second");
        let refused = client.servers.with_replicas(0, |_| redis::cmd("INCR").to_owned()).await;
        assert_eq!(refused.unwrap_err().code(), Some("ERR"));
    });
}

/// A client with what it hears.
pub(crate) struct Client {
    pub(crate) servers: Servers,
    /// Of the key "n".
    pub(crate) slot: u16,
    news: UnboundedReceiver<News>,
    has_heard_of_new: bool,
}

impl Client {
    pub(crate) fn of(url: &str) -> Client {
        let (sender, news) = unbounded_channel();
        let config = Config::parse(url).unwrap();
        Client { servers: Servers::connect(&config, sender).unwrap(), slot: 0, news, has_heard_of_new: false }
    }

    /// Makes a call within the time that the client above gives it.
    pub(crate) async fn increment(&self) -> Result<(Value, Incarnation), Fault> {
        let call = self.servers.call(self.slot, |_| redis::cmd("INCR").arg("n").to_owned());
        timeout(ANSWER_TIMEOUT, call).await.expect("an answer or a fault in time")
    }

    /// Waits for the next coming-up. Messages before it are dropped.
    pub(crate) async fn up(&mut self) -> (Incarnation, bool) {
        loop {
            if let News::Up { incarnation, is_new } = self.next().await {
                return (incarnation, is_new);
            }
        }
    }

    /// Waits until both connections have come up, and returns what the one for commands said.
    pub(crate) async fn both(&mut self) -> (Incarnation, bool) {
        let (mut up, mut is_listening) = (None, false);
        loop {
            match self.next().await {
                News::Up { incarnation, is_new } => up = Some((incarnation, is_new)),
                News::Listening { .. } => is_listening = true,
                News::Message { .. } => {}
            }
            if let Some(up) = up.filter(|_| is_listening) {
                return up;
            }
        }
    }

    /// Waits for the next message. Comings-up before it are dropped.
    pub(crate) async fn message(&mut self) -> (String, String) {
        loop {
            if let News::Message { channel, payload, incarnation } = self.next().await {
                assert_eq!(self.servers.incarnation(self.slot).unwrap_or(incarnation), incarnation);
                return (String::from_utf8(channel).unwrap(), String::from_utf8(payload).unwrap());
            }
        }
    }

    /// Waits until another incarnation has come up, now or ever since this client began. A message may be heard on a
    /// connection that is just coming up, before it is said that it is up.
    pub(crate) async fn told_of_new(&mut self) {
        while !self.has_heard_of_new {
            self.next().await;
        }
    }

    async fn next(&mut self) -> News {
        let news = timeout(Duration::from_secs(20), self.news.recv()).await.expect("news in time");
        let news = news.expect("a living client");
        self.has_heard_of_new |=
            matches!(news, News::Up { is_new: true, .. } | News::Listening { is_new: true });
        news
    }
}

pub(crate) fn set(key: &str, value: &str) -> Cmd {
    redis::cmd("SET").arg(key).arg(value).to_owned()
}

/// Runs a test. The links run on a thread of their own, so that the test may block on its servers.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.unwrap().block_on(test);
}
