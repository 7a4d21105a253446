use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer, shared};
use tokio::time::timeout_at;

use super::*;
use crate::client::proto::{DeleteRangeRequest, EventType, WatchFilter, end_of_prefix};
use crate::test_client::{connect, hasty, put, run, soon, unique, within};

fn prefix(at: &str) -> Wanted {
    Wanted { key: at.into(), range_end: end_of_prefix(at.as_bytes()), ..Wanted::default() }
}

async fn next(watch: &mut Watch) -> Result<Notice, End> {
    timeout_at(soon(), watch.next()).await.expect("a notice")
}

async fn began(watch: &mut Watch) -> i64 {
    match next(watch).await {
        Ok(Notice::Began { revision }) => revision,
        other => panic!("{other:?}"),
    }
}

/// The keys and values of the next events, `count` of them; a deletion has no value.
async fn events(watch: &mut Watch, count: usize) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while found.len() < count {
        let Notice::Events { events, .. } = next(watch).await.unwrap() else { panic!("it began before") };
        for event in events {
            let kv = event.kv.unwrap();
            let [key, value] = [kv.key, kv.value].map(|bytes| String::from_utf8(bytes).unwrap());
            found.push((key, value));
        }
    }
    found
}

/// Writes until it is answered, which may write twice.
async fn insist(endpoints: &Endpoints, key: &str, value: &str) {
    let until = soon();
    while let Err(fault) = endpoints.call(put(key, value), within(Duration::from_secs(1))).await {
        assert!(Instant::now() < until, "{fault}");
    }
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn a_watch_tells_of_everything_after_its_beginning_in_order() {
    run(async {
        let endpoints = connect(&shared());
        let watches = Watches::start(&endpoints);
        let at = unique("watch");
        let key = format!("{at}1");
        let (mut all, mut one) = (watches.watch(prefix(&at)), watches.watch(prefix(&key)));
        let no_put = Wanted { filters: vec![WatchFilter::NoPut.into()], prev_kv: true, ..prefix(&at) };
        let mut deletions = watches.watch(no_put);
        let first = began(&mut all).await;
        began(&mut one).await;
        began(&mut deletions).await;
        for (key, value) in [(&key, "a"), (&at, "b"), (&key, "c")] {
            endpoints.call(put(key, value), soon()).await.unwrap();
        }
        let delete = DeleteRangeRequest { key: key.clone().into(), ..DeleteRangeRequest::default() };
        endpoints.call(delete, soon()).await.unwrap();
        assert_eq!(
            events(&mut all, 4).await,
            [pair(&key, "a"), pair(&at, "b"), pair(&key, "c"), pair(&key, "")]
        );
        assert_eq!(events(&mut one, 3).await, [pair(&key, "a"), pair(&key, "c"), pair(&key, "")]);
        let Ok(Notice::Events { events: deleted, .. }) = next(&mut deletions).await else {
            panic!("a deletion")
        };
        assert_eq!(deleted[0].r#type, EventType::Delete as i32);
        assert_eq!(deleted[0].prev_kv.as_ref().unwrap().value, b"c");
        // What was before can be watched, too.
        let mut later = watches.watch(Wanted { start_revision: first + 1, ..prefix(&at) });
        assert_eq!(began(&mut later).await, first);
        assert_eq!(events(&mut later, 4).await.len(), 4);
        drop(all);
        endpoints.call(put(&key, "d"), soon()).await.unwrap();
        assert_eq!(events(&mut one, 1).await, [pair(&key, "d")]);
    });
}

#[test]
fn many_watches_share_a_stream() {
    run(async {
        let endpoints = connect(&shared());
        let watches = Watches::start(&endpoints);
        let at = unique("many");
        let mut all: Vec<Watch> = (0..200).map(|i| watches.watch(prefix(&format!("{at}{i}/")))).collect();
        for watch in &mut all {
            began(watch).await;
        }
        for i in 0..200 {
            endpoints.call(put(&format!("{at}{i}/"), "a"), soon()).await.unwrap();
        }
        for (i, watch) in all.iter_mut().enumerate() {
            assert_eq!(events(watch, 1).await, [pair(&format!("{at}{i}/"), "a")]);
        }
    });
}

#[test]
fn what_is_compacted_cannot_be_watched() {
    let server = EtcdServer::start(&EtcdOptions::default());
    run(async {
        let endpoints = connect(&server.url());
        let mut revision = 0;
        for _ in 0..5 {
            revision = endpoints.call(put("a", "1"), soon()).await.unwrap().header.unwrap().revision;
        }
        server.ctl(&["compact", &revision.to_string()]);
        let watches = Watches::start(&endpoints);
        let mut watch = watches.watch(Wanted { start_revision: revision - 2, ..prefix("a") });
        let end = loop {
            match next(&mut watch).await {
                Ok(Notice::Began { .. }) => {}
                other => break other,
            }
        };
        assert_eq!(end, Err(End::Behind));
        let mut watch = watches.watch(Wanted { start_revision: revision, ..prefix("a") });
        began(&mut watch).await;
        assert_eq!(events(&mut watch, 1).await.len(), 1);
    });
}

#[test]
fn who_does_not_read_is_told_to_begin_anew() {
    run(async {
        let endpoints = connect(&shared());
        let watches = Watches::start(&endpoints);
        let at = unique("slow");
        let (mut slow, mut quick) = (watches.watch(prefix(&at)), watches.watch(prefix(&at)));
        began(&mut quick).await;
        for i in 0..=NOTICES_MAX {
            endpoints.call(put(&at, &i.to_string()), soon()).await.unwrap();
            events(&mut quick, 1).await;
        }
        began(&mut slow).await;
        let mut count = 0;
        while let Ok(notice) = next(&mut slow).await {
            count += 1;
            assert!(matches!(notice, Notice::Events { .. }));
        }
        assert!(count < NOTICES_MAX, "{count}");
        assert_eq!(next(&mut slow).await, Err(End::Behind));
    });
}

#[test]
fn a_watch_without_permission_is_refused_and_one_with_an_old_token_is_not() {
    let options = EtcdOptions::default().login("tenure", "secret").flag("--auth-token-ttl=1");
    let server = EtcdServer::start(&options);
    run(async {
        let endpoints = connect(&server.url());
        let watches = Watches::start(&endpoints);
        let mut first = watches.watch(prefix("a"));
        began(&mut first).await;
        // Its token expires meanwhile.
        sleep(Duration::from_millis(2500)).await;
        let mut second = watches.watch(prefix("a"));
        began(&mut second).await;
        endpoints.call(put("a", "1"), soon()).await.unwrap();
        assert_eq!(events(&mut second, 1).await.len(), 1);
        assert_eq!(events(&mut first, 1).await.len(), 1);
        server.ctl(&["role", "revoke-permission", "--prefix=true", "every-key", ""]);
        let end = next(&mut watches.watch(prefix("a"))).await.unwrap_err();
        assert!(
            matches!(&end, End::Refused(fault) if fault.to_string().contains("permission denied")),
            "{end:?}"
        );
    });
}

#[test]
fn a_watch_misses_nothing_when_servers_stop_die_or_hand_over() {
    let cluster = EtcdCluster::start(&hasty());
    run(async {
        let (watching, writing) = (connect(&cluster.url()), connect(&cluster.servers()[2].url()));
        let watches = Watches::start(&watching);
        let mut watch = watches.watch(prefix("k"));
        began(&mut watch).await;
        cluster.move_leader(2);
        let mut values = Vec::new();
        let step = async |values: &mut Vec<String>, what: &str| {
            insist(&writing, "k", what).await;
            values.push(what.to_owned());
        };
        step(&mut values, "before").await;
        cluster.servers()[0].stop();
        step(&mut values, "stopped").await;
        // The watch goes on at the second server while the first is silent.
        let mut seen = Vec::new();
        while !seen.contains(&pair("k", "stopped")) {
            seen.extend(events(&mut watch, 1).await);
        }
        cluster.servers()[0].cont();
        cluster.servers()[1].kill();
        step(&mut values, "killed").await;
        cluster.servers()[1].restart();
        cluster.move_leader(1);
        step(&mut values, "handed over").await;
        while !seen.contains(&pair("k", "handed over")) {
            seen.extend(events(&mut watch, 1).await);
        }
        // What was written twice is reported twice.
        seen.dedup();
        assert_eq!(seen.into_iter().map(|(_, value)| value).collect::<Vec<_>>(), values);
    });
}

#[test]
fn a_watch_leaves_a_server_that_is_cut_off() {
    let cluster = EtcdCluster::start_separable(&hasty());
    run(async {
        let watches = Watches::start(&connect(&cluster.url()));
        let mut watch = watches.watch(prefix("k"));
        began(&mut watch).await;
        let writing = connect(&cluster.servers()[1].url());
        cluster.cut_off(0);
        insist(&writing, "k", "after").await;
        assert_eq!(events(&mut watch, 1).await[0], pair("k", "after"));
        cluster.heal();
    });
}
