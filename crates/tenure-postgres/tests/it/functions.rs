//! Where sessions are shared, plans are kept in functions: who makes them, who calls them, and what is done without.

use futures_util::future::try_join_all;
use tenure_core::engine::{Finding, Severity};
use tenure_core::{Lease, Tenure};
use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresServer};
use tenure_testkit::{SqlConnection, wait_for};

use crate::crew::connect;

/// Makes a server one on which no function can be made.
pub(crate) fn without_functions(server: &PostgresServer) {
    server.connect().expect("it answers").run("DROP EXTENSION plpgsql");
}

/// A server with a user `app`, for whom sessions may be shared, and one who may do anything.
fn start() -> (PostgresServer, SqlConnection, String) {
    let server = PostgresServer::start(&PostgresOptions::default().setting("track_functions", "all"));
    let mut admin = server.connect().expect("it answers");
    admin.run("CREATE ROLE app LOGIN");
    admin.run("GRANT CREATE ON SCHEMA public TO app");
    let url = format!("{}?listen=off", server.url().replace("//postgres@", "//app@"));
    (server, admin, url)
}

/// Uses locks and queues, one thing at a time and several.
async fn use_all(tenure: &Tenure) -> Result<(), tenure_core::Error> {
    tenure.mutex("m").acquire().await?.release().await?;
    let names: Vec<String> = (0..8).map(|index| format!("m{index}")).collect();
    let held = try_join_all(names.iter().map(|name| tenure.mutex(name.as_str()).acquire())).await?;
    try_join_all(held.into_iter().map(Lease::release)).await?;
    let queue = tenure.queue("q");
    queue.push("one").await?;
    queue.next().await?.ack().await
}

fn plans(tenure: &Tenure) -> Finding {
    let found = pollster::block_on(tenure.check()).expect("an answer");
    found.into_iter().find(|finding| finding.what == "plans").expect("a finding")
}

fn texts(admin: &mut SqlConnection, statement: &str) -> Vec<String> {
    admin.run(statement).rows.into_iter().map(|row| row.into_iter().flatten().collect()).collect()
}

/// The functions that have been called, as far as the server has counted them.
fn called(admin: &mut SqlConnection) -> Vec<String> {
    texts(admin, "SELECT funcname FROM pg_stat_user_functions WHERE calls > 0")
}

const OURS: &str = "FROM pg_proc p WHERE p.proname LIKE 'tenure\\_%\\_1'";

#[test]
fn behind_a_pooler_functions_keep_the_plans() {
    let (server, ..) = start();
    let bouncer = PgBouncer::start(&server);
    let tenure = connect(&bouncer.url());
    pollster::block_on(use_all(&tenure)).expect("it works");
    let found = plans(&tenure);
    assert!(found.severity == Severity::Good && found.found.contains("functions"), "{found:?}");
    let expected = ["claim_one", "release_one", "q_push_one", "q_take_one", "q_ack_one"];
    // The server counts late.
    wait_for("counts", || {
        let called = called(&mut server.connect().ok()?);
        expected.iter().all(|name| called.contains(&format!("tenure_{name}_1"))).then_some(())
    });
    // Who has sessions of its own prepares statements there.
    let direct = connect(&server.url());
    assert!(plans(&direct).found.contains("alone"), "{:?}", plans(&direct));
}

/// What a function returns is declared beside its text, and compared by the server only when it is called.
#[test]
fn each_function_returns_what_it_says() {
    let (_server, mut admin, url) = start();
    pollster::block_on(use_all(&connect(&url))).expect("it works");
    let calls = texts(
        &mut admin,
        &format!(
            "SELECT p.proname || '(' || array_to_string(ARRAY(SELECT CASE t WHEN 'bytea'::regtype THEN '''q''::bytea' \
               WHEN 'bigint'::regtype THEN '1' ELSE '''{{}}''::' || t END FROM unnest(p.proargtypes::regtype[]) t), ',') || ')' {OURS}"
        ),
    );
    assert_eq!(calls.len(), 19, "{calls:?}");
    admin.run("SET tenure.begun = 0");
    for call in calls {
        admin.run(&format!("SELECT * FROM {call}"));
    }
}

#[test]
fn who_owns_no_tables_makes_no_functions_and_calls_those_of_their_owner() {
    let (server, mut admin, url) = start();
    let owner = connect(&server.url());
    pollster::block_on(use_all(&owner)).expect("it works");
    admin.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app");
    admin.run("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO app");
    let app = connect(&url);
    pollster::block_on(use_all(&app)).expect("texts do as well");
    let found = plans(&app);
    assert!(found.severity == Severity::Warning && found.hint.is_some(), "{found:?}");
    assert_eq!(texts(&mut admin, &format!("SELECT p.proname {OURS}")), [""; 0]);
    pollster::block_on(owner.migrate()).expect("it owns the tables");
    let app = connect(&url);
    pollster::block_on(use_all(&app)).expect("it works");
    assert_eq!(plans(&app).severity, Severity::Good);
    // A right that has nothing to do with them.
    admin.run("REVOKE DELETE ON tenure_resource FROM app");
    admin.run("UPDATE tenure_resource SET forget_at = 1");
    pollster::block_on(app.purge()).expect_err("it may not delete");
    assert_eq!(plans(&app).severity, Severity::Good);
    admin.run("GRANT DELETE ON tenure_resource TO app");
    // What goes on meanwhile goes on without.
    for change in [
        "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO PUBLIC",
        "DO $$ DECLARE f record; BEGIN FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p \
           WHERE p.proname LIKE 'tenure%' LOOP EXECUTE 'DROP FUNCTION ' || f.name; END LOOP; END $$",
    ] {
        let app = connect(&url);
        pollster::block_on(use_all(&app)).expect("it works");
        admin.run(change);
        pollster::block_on(use_all(&app)).expect("it does not miss them");
    }
    assert_eq!(plans(&connect(&url)).severity, Severity::Warning);
}

/// A function does what it likes in the name of its caller.
#[test]
fn a_function_of_a_stranger_is_not_called() {
    let (server, mut admin, url) = start();
    admin.run("CREATE ROLE mallory LOGIN");
    admin.run("GRANT CREATE ON SCHEMA public TO mallory");
    let mut mallory =
        SqlConnection::to_postgres(server.port(), "mallory", "postgres").expect("it may log in");
    // All of them, and so like ours that nothing else tells them apart.
    let definitions = include_str!("../../src/functions-1.sql");
    definitions.split(";\n").filter(|text| !text.is_empty()).for_each(|text| drop(mallory.run(text)));
    let app = connect(&url);
    pollster::block_on(use_all(&app)).expect("texts do as well");
    assert_eq!(plans(&app).severity, Severity::Warning);
    assert_eq!(called(&mut admin), [""; 0]);
    assert_eq!(texts(&mut admin, &format!("SELECT p.proname {OURS}")).len(), 19, "theirs are left alone");
}
