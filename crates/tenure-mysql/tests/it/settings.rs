//! What an administrator may have set for everybody: a session of the engine has its own settings from its birth on.

use std::time::Duration;

use tenure_core::engine::Severity;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, Tenure};
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};

use crate::crew::{connect, now};

/// What each primitive needs: a hold that excludes, waiters in their order, a release that is one, and an item that is
/// handed out once and in order.
async fn use_all(url: &str) {
    let (a, b, c) = (connect(url), connect(url), connect(url));
    let findings = a.check().await.expect("an answer");
    let trial = findings.iter().find(|finding| finding.what == "trial").expect("the doctor tries");
    assert_eq!(trial.severity, Severity::Good, "{trial:?}");
    let held = a.mutex("m").acquire().await.expect("it is free");
    assert!(b.mutex("m").try_acquire().await.expect("an answer").is_none());
    let first = tokio::spawn(async move { b.mutex("m").acquire().await.expect("in turn") });
    wait_for_waiters(&a, 1).await;
    let second = tokio::spawn(async move { c.mutex("m").acquire().await.expect("in turn") });
    wait_for_waiters(&a, 2).await;
    let released_at = now();
    held.release().await.expect("it is held");
    let next = first.await.expect("no panic");
    assert_in_time(now().since(released_at), Duration::from_secs(5));
    assert!(!second.is_finished(), "first come, first served");
    next.release().await.expect("it is held");
    second.await.expect("no panic").release().await.expect("it is held");
    let queue = a.queue("q");
    for item in ["one", "two"] {
        queue.push(item).group("g").await.expect("it is pushed");
    }
    for item in ["one", "two"] {
        let delivery = queue.next().await.expect("it is ready");
        assert_eq!((delivery.payload(), delivery.attempt()), (item.as_bytes(), 1));
        delivery.ack().await.expect("it is known");
    }
}

#[allow(clippy::disallowed_methods, reason = "the server's time is waited for")]
async fn wait_for_waiters(client: &Tenure, count: u32) {
    while client.view("m").await.expect("an answer").is_none_or(|view| view.waiting < count) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_for_everybody_changes_no_lock_and_no_queue() {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let mut admin = server.connect().expect("it answers");
    // All at once: each by itself broke something.
    let all = "sql_safe_updates = 1, GLOBAL max_join_size = 1, GLOBAL sql_select_limit = 1, GLOBAL max_sort_length = 8, \
        GLOBAL sql_auto_is_null = 1, GLOBAL unique_checks = 0, GLOBAL completion_type =";
    for completion in ["CHAIN", "RELEASE"] {
        admin.run(&format!("SET GLOBAL {all} '{completion}'"));
        let url = format!("{}?prefix={}_", server.url(), completion.to_ascii_lowercase());
        let used = tokio::time::timeout(Duration::from_secs(60), use_all(&url)).await;
        assert!(used.is_ok(), "{completion}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_log_of_statements_is_told_with_what_to_do() {
    let options =
        MariaDbOptions::default().setting("log-bin", "binlog").setting("binlog-format", "STATEMENT");
    let server = MariaDbServer::start(&options);
    let client = connect(&server.url());
    let refused = client.mutex("m").try_acquire().await.expect_err("no statement of ours can be logged so");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("binlog_format")), "{refused:?}");
    let findings = client.check().await.expect("an answer");
    let told = findings.iter().find(|finding| finding.what == "binlog_format").expect("the doctor sees it");
    assert_eq!(told.severity, Severity::Bad, "{told:?}");
}
