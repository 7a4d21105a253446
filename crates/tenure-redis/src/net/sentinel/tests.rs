use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::error::ErrorKind;
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{RedisOptions, RedisSentinel};

use super::*;
use crate::net::topology::tests::{Client, run};

/// How long after the end of a failover calls work again. (In between they fail, each in time.)
const BACK_WITHIN: Duration = Duration::from_secs(2);

#[test]
fn a_killed_master_is_replaced_by_the_one_that_the_sentinels_name() {
    let set = RedisSentinel::start();
    run(async {
        let mut client = subscribed(&set).await;
        let old = set.master();
        old.kill();
        follows(&mut client, &set, set.wait_for_new_master(old).port()).await;
    });
}

#[test]
fn a_hung_master_is_left_although_it_never_closes_a_connection() {
    let set = RedisSentinel::start();
    run(async {
        let mut client = subscribed(&set).await;
        let old = set.master();
        old.stop();
        follows(&mut client, &set, set.wait_for_new_master(old).port()).await;
        // It wakes up as a master that has missed everything. No client goes back to it.
        old.cont();
        let until = Instant::now() + Duration::from_secs(3);
        let incarnation = client.servers.incarnation(0);
        while Instant::now() < until {
            let answer = client.increment().await.expect("a call on the new master");
            assert_eq!(Some(answer.1), incarnation);
            pause::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn a_failover_that_was_asked_for_is_followed_at_once() {
    let set = RedisSentinel::start();
    run(async {
        let mut client = subscribed(&set).await;
        for _ in 0..2 {
            let new = set.failover();
            follows(&mut client, &set, new.port()).await;
            set.wait_until_ready();
        }
    });
}

#[test]
fn a_failover_that_was_asked_for_keeps_what_was_acknowledged() {
    let set = RedisSentinel::start();
    run(async {
        let client = subscribed(&set).await;
        let servers = client.servers.clone();
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let counting = tokio::spawn(async move {
            let mut acknowledged = 0;
            while !until.load(Ordering::Relaxed) {
                let answer = servers.call(0, |_| redis::cmd("INCR").arg("n").to_owned()).await;
                acknowledged += i64::from(answer.is_ok());
            }
            acknowledged
        });
        let new = set.failover();
        set.wait_until_ready();
        is_over.store(true, Ordering::Relaxed);
        let acknowledged = 1 + counting.await.unwrap();
        let kept: i64 = new.command(&["GET", "n"]).parse().unwrap();
        // Thousands are lost if the old master is left only when the Sentinels name another one.
        assert!(kept + 10 >= acknowledged, "{acknowledged} acknowledged, {kept} kept");
    });
}

#[test]
fn a_replica_that_is_about_to_be_promoted_is_the_master_until_the_sentinel_says_otherwise() {
    let tcp = |port| Address::Tcp("h".to_owned(), port);
    let said = |text: &str| read_promoting(&(PROMOTING.to_owned(), text.to_owned()), "m", &tcp(0));
    assert_eq!(said("slave h:2 h 2 @ m h 1"), Some(tcp(2)));
    assert_eq!(said("slave h:2 h 2 @ other h 1"), None);
    assert_eq!(said("slave h:2 h x @ m h 1"), None);
    assert_eq!(said("m"), None);
    let named = |port, age| Named { address: tcp(port), age };
    let pending = |ends_in| Some(Promotion { replica: tcp(2), until: Instant::now() + ends_in });
    let hour = Duration::from_secs(3600);
    for (sight, mut promotion, seen, is_pending) in [
        (named(1, (3, false)), None, named(1, (3, false)), false),
        (named(1, (3, false)), pending(hour), named(2, (3, true)), true),
        (named(1, (3, false)), pending(Duration::ZERO), named(1, (3, false)), false),
        (named(2, (3, true)), pending(hour), named(2, (3, true)), false),
        (named(2, (4, false)), pending(hour), named(2, (4, false)), false),
    ] {
        let Sight::Master(found) = with_promotion(Sight::Master(sight), &mut promotion) else { panic!() };
        assert_eq!((found, promotion.is_some()), (seen, is_pending));
    }
}

#[test]
fn sentinels_that_are_down_or_hang_do_not_matter_while_one_answers() {
    let set = RedisSentinel::start();
    set.sentinels()[0].kill();
    set.sentinels()[1].stop();
    run(async {
        let client = Client::of(&set.url());
        let asked_at = Instant::now();
        client.increment().await.unwrap();
        assert_in_time(asked_at.elapsed(), Duration::from_millis(500));
        // With none left, the connection with the master stays.
        set.sentinels()[2].kill();
        client.increment().await.unwrap();
        let error = Client::of(&set.url()).increment().await.unwrap_err().to_error("claim");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let unknown = set.url().replace("mymaster", "nobody");
        set.sentinels()[2].restart();
        let error = Client::of(&unknown).increment().await.unwrap_err().to_error("claim");
        assert!(error.hint().is_some_and(|hint| hint.contains("Sentinels")), "{error:?}");
    });
}

#[test]
fn sentinels_may_ask_for_another_password_than_the_servers() {
    let set = RedisSentinel::start();
    for sentinel in set.sentinels() {
        sentinel.ask(&["ACL", "SETUSER", "ear", "on", ">p/w", "~*", "&*", "+@all"]).unwrap();
        sentinel.ask(&["ACL", "SETUSER", "default", "off"]).unwrap();
    }
    run(async {
        let url = format!("{}?sentinel_user=ear&sentinel_password=", set.url());
        Client::of(&format!("{url}p%2Fw")).increment().await.unwrap();
        let asked_at = Instant::now();
        let error = Client::of(&format!("{url}wrong")).increment().await.unwrap_err().to_error("claim");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert_in_time(asked_at.elapsed(), Duration::from_millis(500));
    });
}

#[test]
fn the_sentinel_that_knows_of_the_latest_failover_is_believed() {
    let named = |port: u16, age| Sight::Master(Named { address: Address::Tcp("h".to_owned(), port), age });
    let nobody = |code: &str| Sight::Nobody(Fault::server("h", code, None));
    for (sights, port) in [
        (vec![named(1, (3, false)), named(2, (4, false)), named(1, (3, false))], 2),
        (vec![named(1, (3, false)), named(2, (3, true))], 2),
        (vec![named(2, (4, false)), named(1, (3, true))], 2),
        (vec![Sight::Unknown, named(1, (0, false)), nobody("ERR")], 1),
    ] {
        assert_eq!(best(&sights).unwrap(), Address::Tcp("h".to_owned(), port), "{sights:?}");
    }
    assert!(best(&[Sight::Unknown, nobody("NOAUTH")]).unwrap_err().is_none());
    let fault = best(&[nobody("NOAUTH"), nobody("LOADING")]).unwrap_err().unwrap();
    assert_eq!(fault.code(), Some("LOADING"));
}

#[test]
fn sentinels_and_servers_are_spoken_with_over_tls() {
    let set = RedisSentinel::start_with(&RedisOptions::default().tls());
    run(async {
        let url = format!("{}?ca={}", set.url(), set.servers()[0].authority().display());
        assert!(url.starts_with("rediss+sentinel://"));
        let mut client = subscribed_at(&url).await;
        assert_eq!(set.master().command(&["PUBLISH", "inbox", "hello"]), "1");
        assert_eq!(client.message().await.1, "hello");
        let new = set.failover();
        follows(&mut client, &set, new.port()).await;
    });
}

async fn subscribed(set: &RedisSentinel) -> Client {
    subscribed_at(&set.url()).await
}

async fn subscribed_at(url: &str) -> Client {
    let mut client = Client::of(url);
    client.servers.subscribe(0, b"inbox").await.unwrap();
    client.both().await;
    client.increment().await.unwrap();
    client
}

/// Calls and messages go through the new master within [`BACK_WITHIN`].
async fn follows(client: &mut Client, set: &RedisSentinel, port: u16) {
    let new = set.servers().iter().find(|server| server.port() == port).unwrap();
    let count =
        |server: &tenure_testkit::redis::RedisServer| server.command(&["GET", "n"]).parse().unwrap_or(0);
    let before: i64 = count(new);
    let since = Instant::now();
    let (value, incarnation) = loop {
        match client.increment().await {
            Ok((Value::Int(value), incarnation)) if count(new) == value => break (value, incarnation),
            answer => assert!(since.elapsed() < BACK_WITHIN, "{answer:?} after {:?}", since.elapsed()),
        }
    };
    assert_in_time(since.elapsed(), BACK_WITHIN);
    assert!(value > before);
    loop {
        let (up, is_new) = client.up().await;
        if up == incarnation {
            assert!(is_new);
            break;
        }
    }
    // The connection for messages comes by itself.
    while new.command(&["PUBLISH", "inbox", "hello"]) == "0" {
        assert_in_time(since.elapsed(), BACK_WITHIN);
        pause::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.message().await.1, "hello");
}
