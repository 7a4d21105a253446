//! A quota that is used up, on a server that keeps to it.

use std::time::Duration;

use tenure_core::engine::finding::Severity;
use tenure_core::{Delivery, Error, ErrorKind, Queue, ReleaseAnswer, Settings, Tenure};
use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer};
use tenure_testkit::{Proxy, wait_for};
use zookeeper_client::{Acls, CreateMode};

use crate::conformance::{BRIEF, connector};
use crate::crew::{connect, pause, raw};

const TTL: Duration = Duration::from_secs(2);
/// Where the servers keep the quota of the path.
const QUOTA: &str = "/zookeeper/quota/locks";
/// How long the client that is cut off waits for an answer.
const ANSWER: Duration = Duration::from_secs(3);

/// What a quota limits.
#[derive(Clone, Copy, Debug)]
enum Of {
    Nodes,
    Bytes,
}

/// A server that enforces quotas, and one on the path of all clients.
struct Limited {
    server: ZooKeeperServer,
    of: Of,
}

impl Limited {
    fn start(of: Of) -> Limited {
        let options = ZooKeeperOptions::default().property("zookeeper.enforceQuota", "true");
        let server = ZooKeeperServer::start(&options);
        let limited = Limited { server, of };
        // Whoever connects first makes the path.
        drop(limited.connect());
        let limits = limited.limits(1_000_000);
        raw(&limited.server.url(), async |client| {
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            client.create(QUOTA, b"", &options).await.expect("a new quota");
            client
                .create(&format!("{QUOTA}/zookeeper_limits"), limits.as_bytes(), &options)
                .await
                .expect("a limit");
            client
                .create(&format!("{QUOTA}/zookeeper_stats"), b"count=0,bytes=0", &options)
                .await
                .expect("counts");
        });
        limited
    }

    fn connect(&self) -> Tenure {
        connect(&format!("{}/locks?{BRIEF}", self.server.url()))
    }

    fn limits(&self, most: i64) -> String {
        let (nodes, bytes) = match self.of {
            Of::Nodes => (most, -1),
            Of::Bytes => (-1, most),
        };
        format!("count=-1,bytes=-1=;byteHardLimit={bytes};countHardLimit={nodes}")
    }

    /// How much is used.
    fn used(&self) -> i64 {
        let (stats, _) = raw(&self.server.url(), async |client| {
            client.get_data(&format!("{QUOTA}/zookeeper_stats")).await.expect("what is used")
        });
        let stats = String::from_utf8(stats).expect("a text");
        let name = match self.of {
            Of::Nodes => "count=",
            Of::Bytes => "bytes=",
        };
        let used = stats.split(',').find_map(|pair| pair.strip_prefix(name)).expect("a count");
        used.parse().expect("a number")
    }

    fn limit(&self, most: i64) {
        let limits = self.limits(most);
        raw(&self.server.url(), async |client| {
            client
                .set_data(&format!("{QUOTA}/zookeeper_limits"), limits.as_bytes(), None)
                .await
                .expect("a limit");
        });
    }

    /// Leaves no room, once what is under way has arrived.
    fn fill(&self) {
        let used = wait_for("a path at rest", || {
            let used = self.used();
            pause(Duration::from_millis(300));
            (self.used() == used).then_some(used)
        });
        self.limit(used);
    }

    fn make_room(&self) {
        self.limit(1_000_000);
    }

    /// Returns which change made the first of the nodes that the only consumer keeps.
    fn room_made_by(&self) -> Option<i64> {
        raw(&self.server.url(), async |client| {
            let nodes = client.list_children("/locks/%queue-calls").await.ok()?;
            let first = nodes.iter().find(|node| node.ends_with("-0"))?;
            let stat = client.check_stat(&format!("/locks/%queue-calls/{first}")).await.ok()??;
            Some(stat.czxid)
        })
    }
}

/// Asserts that somebody was told what is wrong, and what helps.
fn assert_full(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("quota"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("setquota")), "{error:?}");
}

fn quota_finding(client: &Tenure) -> (Severity, String) {
    let found = pollster::block_on(client.check()).expect("an answer");
    let quota = found.into_iter().find(|finding| finding.what == "quota").expect("a finding");
    (quota.severity, quota.found)
}

#[test]
fn a_full_quota_keeps_what_is_held_and_grants_nothing_more() {
    for of in [Of::Nodes, Of::Bytes] {
        let limited = Limited::start(of);
        let (client, other) = (limited.connect(), limited.connect());
        let held = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("there is room");
        let mutex = other.mutex("m").ttl(TTL);
        let waiting =
            std::thread::spawn(move || pollster::block_on(mutex.acquire_within(Duration::from_secs(60))));
        let waits =
            || pollster::block_on(client.inspect("m")).expect("an answer").first()?.waiters.first().cloned();
        wait_for("a waiter", waits);
        assert_eq!(quota_finding(&client).0, Severity::Good, "{of:?}");
        limited.fill();
        assert_full(&pollster::block_on(other.mutex("n").try_acquire()).expect_err("there is no room"));
        assert_full(&pollster::block_on(client.mutex("n").acquire()).expect_err("there is no room"));
        let (severity, found) = quota_finding(&client);
        assert!(severity == Severity::Bad && found.starts_with("/locks: "), "{of:?}: {found}");
        pause(TTL + Duration::from_millis(500));
        assert!(!held.is_lost(), "{of:?}: a renewal writes nothing");
        assert_eq!(pollster::block_on(held.release()).expect("an answer"), ReleaseAnswer::Released);
        let next = waiting.join().expect("no panic").expect("who is in line is served");
        assert_eq!(pollster::block_on(next.release()).expect("an answer"), ReleaseAnswer::Released);
        limited.make_room();
        drop(pollster::block_on(other.mutex("n").try_acquire()).expect("an answer").expect("it is free"));
        assert_eq!(quota_finding(&client).0, Severity::Good, "{of:?}");
    }
}

/// What a consumer removes where there is no room it makes again, and then nobody hears that it did.
#[test]
fn a_renewal_that_is_cut_off_leaves_room_for_the_next() {
    let limited = Limited::start(Of::Nodes);
    let proxy = Proxy::start(([127, 0, 0, 1], limited.server.port()));
    let url = format!("zookeeper://127.0.0.1:{}/locks?session_timeout=20s&tick=200ms", proxy.port());
    let settings = Settings::new().answer_timeout(ANSWER);
    let client =
        pollster::block_on(Tenure::connect_with(connector(&url), settings)).expect("a client connects");
    let queue = client.queue("q").ttl(5 * TTL);
    pollster::block_on(queue.push("kept").into_future()).expect("there is room");
    let kept = next(&queue);
    limited.fill();
    let kept_by = wait_for("room that is kept", || limited.room_made_by());
    let room_since = |before| {
        wait_for("room that is made again", || limited.room_made_by().filter(|made_by| *made_by > before))
    };
    // So long is the answer under way, which is then held back. One that was quicker was not cut off, and the next renewal shows as much.
    proxy.delay(Duration::from_millis(140));
    let made_again_by = room_since(kept_by);
    proxy.pause();
    pause(ANSWER + Duration::from_secs(1));
    proxy.heal();
    // The next renewal needs it.
    room_since(made_again_by);
    assert!(!kept.lease().is_lost());
    pollster::block_on(kept.ack()).expect("what is done can be acknowledged");
}

#[test]
fn a_slot_for_which_there_is_no_room_leaves_nothing_behind() {
    let limited = Limited::start(Of::Nodes);
    let client = limited.connect();
    // Its container and its entry, and no slot.
    limited.limit(limited.used() + 2);
    assert_full(
        &pollster::block_on(client.slot_pool("p", 2).ttl(TTL).acquire()).expect_err("there is no room"),
    );
    crate::crew::assert_nothing_is_left(&client);
    limited.make_room();
    drop(
        pollster::block_on(client.slot_pool("p", 2).ttl(TTL).try_acquire())
            .expect("an answer")
            .expect("a slot"),
    );
}

/// Takes the next item of a queue, which is there.
fn next(queue: &Queue) -> Delivery {
    wait_for("an item", || pollster::block_on(queue.next_within(Duration::from_millis(500))).ok().flatten())
}

#[test]
fn a_full_quota_keeps_what_consumers_have_and_lets_them_acknowledge_it() {
    for of in [Of::Nodes, Of::Bytes] {
        let limited = Limited::start(of);
        let (client, other) = (limited.connect(), limited.connect());
        let queue = client.queue("q").ttl(TTL);
        for (payload, group) in [("kept", "a"), ("done", "b"), ("behind", "b"), ("put back", "c")] {
            pollster::block_on(queue.push(payload).group(group).into_future()).expect("there is room");
        }
        let [kept, done, back] = [next(&queue), next(&queue), next(&queue)];
        limited.fill();
        let refused = wait_for("a refusal", || pollster::block_on(queue.push("n").into_future()).err());
        assert_full(&refused);
        assert!(refused.has_no_effect(), "{refused:?}");
        pause(3 * TTL);
        let lost = [&kept, &done, &back].map(|delivery| delivery.lease().is_lost());
        assert_eq!(lost, [false; 3], "{of:?}: renewals go on");
        pollster::block_on(done.ack()).expect("what is done can be acknowledged");
        pollster::block_on(back.retry()).expect("what is put back is put back");
        limited.make_room();
        let theirs = other.queue("q").ttl(TTL);
        let (one, two) = (next(&theirs), next(&theirs));
        let mut payloads = [one.payload().to_vec(), two.payload().to_vec()];
        payloads.sort();
        assert_eq!(
            payloads,
            [b"behind".to_vec(), b"put back".to_vec()],
            "{of:?}: what is held is nobody else's"
        );
        assert!(pollster::block_on(theirs.try_next()).expect("an answer").is_none(), "{of:?}");
        for delivery in [kept, one, two] {
            pollster::block_on(delivery.ack()).expect("it is held");
        }
        let stats = pollster::block_on(queue.stats()).expect("an answer");
        assert_eq!((stats.waiting, stats.in_flight, stats.dead), (0, 0, 0), "{of:?}: {stats:?}");
    }
}
