//! The short path of a free mutex.

use std::time::Duration;

use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};
use tenure_testkit::wait_for;

use crate::crew::connect;

/// How often a text stands in the log of all that a server is sent.
fn count(server: &MariaDbServer, what: &str) -> usize {
    let log = std::fs::read_to_string(server.directory().join("data/general.log")).expect("the server's log");
    log.lines().filter(|line| line.contains(what)).count()
}

fn logging() -> MariaDbServer {
    let options = MariaDbOptions::default().setting("general-log", "1");
    MariaDbServer::start(&options.setting("general-log-file", "general.log"))
}

#[test]
fn a_free_mutex_is_claimed_and_released_by_a_text_each() {
    const PAIRS: usize = 20;
    let server = logging();
    let client = connect(&server.url());
    pollster::block_on(async {
        // The row is made by the long way.
        client.mutex("m").acquire().await?.release().await?;
        let (long, short) = ("SELECT HEX(name), kind", "SELECT MAX(");
        let (long_before, short_before) = (count(&server, long), count(&server, short));
        let mut last = tenure_core::Token::ZERO;
        for _ in 0..PAIRS {
            let lease = client.mutex("m").acquire().await?;
            assert!(lease.token() > last, "{} after {last}", lease.token());
            last = lease.token();
            assert!(connect(&server.url()).mutex("m").try_acquire().await?.is_none(), "it is held");
            lease.release().await?;
        }
        // A claim that is refused goes the long way after the short.
        assert_eq!(
            (count(&server, long) - long_before, count(&server, short) - short_before),
            (PAIRS, 3 * PAIRS)
        );
        Ok::<(), tenure_core::Error>(())
    })
    .expect("it is free");
}

#[test]
fn a_locked_row_is_left_to_the_long_way() {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let client = connect(&server.url());
    let mutex = client.mutex("m").ttl(Duration::from_secs(30));
    pollster::block_on(async { mutex.acquire().await?.release().await }).expect("it is free");
    let mut holder = server.connect().expect("one more");
    // Of the statements only these come behind one that may wait, and a text ends with the first that fails.
    let executed = || {
        let counted = "SELECT SUM(variable_value) FROM information_schema.global_status \
            WHERE variable_name IN ('Com_insert_select', 'Com_delete')";
        let mut observer = server.connect().expect("one more");
        observer.run(counted).first().and_then(|count| count.parse::<f64>().ok()).expect("a count")
    };
    let mut while_locked = |begin: &mut dyn FnMut()| {
        let before = executed();
        holder.run("BEGIN");
        holder.run("SELECT name FROM test.tenure_resource WHERE name = 'm' FOR UPDATE");
        begin();
        wait_for("end of the short path", || (executed() > before).then_some(()));
        holder.run("ROLLBACK");
    };
    std::thread::scope(|scope| {
        let mut claim = None;
        while_locked(&mut || claim = Some(scope.spawn(|| pollster::block_on(mutex.acquire()))));
        let lease = claim.expect("it began").join().expect("no panic").expect("it is free");
        let mut release = None;
        let mut lease = Some(lease);
        while_locked(&mut || {
            let lease = lease.take().expect("once");
            release = Some(scope.spawn(move || pollster::block_on(lease.release())));
        });
        release.expect("it began").join().expect("no panic").expect("it is held");
    });
}
