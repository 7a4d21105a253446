//! Tables that an older version of tenure made: they are used as they are, and made new while clients are at work.

use std::time::Duration;

use tenure_core::engine::{Connect, Severity};
use tenure_core::{ErrorKind, Tenure};

use crate::crew::{Crew, connect, now, pause, use_every_kind};

/// A connection without tenure: runs a statement, and gives the first value of the answer.
pub type Somebody = Box<dyn FnMut(&str) -> Option<String>>;

/// A database with the tables of the version before this one, named by the usual prefix.
pub trait OlderTables {
    /// Returns what connects clients with it.
    fn connectors(&self) -> Box<dyn Fn() -> Connect + Send + Sync>;

    /// Connects without tenure.
    fn somebody(&self) -> Somebody;
}

const VERSION: &str = "SELECT max(version) FROM tenure_version";

fn number(database: &dyn OlderTables, statement: &str) -> u64 {
    database.somebody()(statement).expect("a number").parse().expect("a number")
}

/// They are used as they are until an operator says otherwise, and what is held then stays held.
///
/// # Panics
/// If that is not so.
pub fn are_used_as_they_are(database: &dyn OlderTables) {
    let connector = database.connectors();
    let (a, b) = (connect(connector()), connect(connector()));
    use_every_kind(&a, &b);
    let held = pollster::block_on(a.mutex("m").acquire()).expect("it is free");
    assert_eq!(number(database, "SELECT count(*) FROM tenure_claim WHERE name = 'm' AND place = 0"), 1);
    assert_eq!(number(database, VERSION), 1);
    let tables = |client: &Tenure| {
        let found = pollster::block_on(client.check()).expect("an answer");
        found.into_iter().find(|finding| finding.what == "tables").expect("a finding")
    };
    let found = tables(&a);
    assert!(found.severity == Severity::Good && found.hint.is_some_and(|hint| hint.contains("--migrate")));
    assert!(pollster::block_on(a.migrate()).expect("it may").is_some_and(|text| text.contains("version 2")));
    assert_eq!(tables(&b).hint, None, "there is nothing more to gain");
    // Again is nothing new.
    pollster::block_on(b.migrate()).expect("it may");
    assert_eq!(number(database, VERSION), 2);
    assert!(pollster::block_on(b.mutex("m").try_acquire()).expect("an answer").is_none(), "it is held still");
    pollster::block_on(held.release()).expect("it is held");
    let again = pollster::block_on(b.mutex("m").acquire()).expect("it is free");
    assert_eq!(number(database, "SELECT count(hold_claim) FROM tenure_resource WHERE name = 'm'"), 1);
    assert_eq!(number(database, "SELECT count(*) FROM tenure_entry WHERE name = 'm'"), 0);
    pollster::block_on(again.release()).expect("it is held");
    use_every_kind(&a, &b);
}

/// They are made new while clients are at work: holders, waiters and renewals go on, nobody holds what another holds, and no user sees
/// an error.
///
/// # Panics
/// If that is not so.
pub fn are_made_new_under_clients(database: &dyn OlderTables) {
    const CLIENTS: usize = 8;
    let connector = database.connectors();
    let names = ["one", "two", "three"].map(str::to_owned);
    let holder = connect(connector());
    let held = pollster::block_on(holder.mutex("long").ttl(Duration::from_secs(3)).acquire());
    let held = held.expect("it is free");
    let crew = Crew::start(database.connectors(), CLIENTS, &names);
    pause(Duration::from_millis(500));
    pollster::block_on(connect(connector()).migrate()).expect("nobody keeps the tables for long");
    let at = now();
    crew.wait_until_served(CLIENTS, at, Duration::from_secs(10), "after the tables were made new");
    // Long enough for what could not be renewed to end.
    pause(Duration::from_secs(4));
    let report = crew.finish(names.len());
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
    assert!(!held.is_lost(), "it was renewed before and after");
    pollster::block_on(held.release()).expect("it is held");
    assert_eq!(number(database, VERSION), 2);
}

/// Somebody's long transaction keeps them as they are, and does not keep clients from working behind whoever waits for it. The operator
/// is told what was waited for.
///
/// # Panics
/// If that is not so.
pub fn are_left_as_they_are_while_somebody_keeps_them(database: &dyn OlderTables) {
    let connector = database.connectors();
    let client = connect(connector());
    let mut somebody = database.somebody();
    somebody("BEGIN");
    somebody("SELECT count(*) FROM tenure_claim");
    let told = std::thread::scope(|scope| {
        let migrating = scope.spawn(|| pollster::block_on(connect(connector()).migrate()));
        let mut pairs = 0;
        while !migrating.is_finished() {
            let pair = async { client.mutex("m").acquire().await?.release().await };
            pollster::block_on(pair).expect("it waits for a second at most");
            pairs += 1;
        }
        assert!(pairs > 20, "{pairs} pairs meanwhile");
        migrating.join().expect("no panic")
    });
    let told = told.expect_err("it is locked");
    assert!(told.kind() == ErrorKind::Unavailable && told.to_string().contains("timeout"), "{told}");
    somebody("ROLLBACK");
    assert_eq!(number(database, VERSION), 1);
    pollster::block_on(client.migrate()).expect("nobody keeps them");
}
