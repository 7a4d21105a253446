//! Second users and strange peers: what they cannot do to a lock, and what `doctor` says of what they could.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::engine::{Finding, Severity};
use tenure_core::{ErrorKind, Settings, Tenure};
use tenure_postgres::Config;
use tenure_postgres::deadpool_postgres::{Manager, Pool};
use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresServer};
use tenure_testkit::{SqlConnection, wait_for};

use crate::conformance::connector;
use crate::crew::{connect, now, pause};

fn start() -> (PostgresServer, SqlConnection) {
    let server = PostgresServer::start(&PostgresOptions::default());
    let admin = server.connect().expect("it answers");
    (server, admin)
}

fn refused(url: &str) -> tenure_core::Error {
    let connected = pollster::block_on(Tenure::connect_with(connector(url), Settings::default()));
    connected.err().unwrap_or_else(|| panic!("{url}: it must not connect"))
}

/// A peer that has no TLS, asks for the password in clear text, and notes all that it is told.
fn peer() -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let noted = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let noted = noted.clone();
            std::thread::spawn(move || ask_for_password(stream, &noted));
        }
    });
    (port, heard)
}

fn ask_for_password(mut stream: TcpStream, noted: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        noted.lock().expect("no panic").extend(&bytes[..count]);
        let is_for_tls = bytes[..count] == [0, 0, 0, 8, 4, 210, 22, 47];
        let answer: &[u8] = if is_for_tls { b"N" } else { b"R\0\0\0\x08\0\0\0\x03" };
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

#[test]
fn a_peer_without_tls_is_told_no_password() {
    let (port, heard) = peer();
    let url = format!("postgres://app:hunter2@127.0.0.1:{port}/app");
    for setting in ["?ca=/nonexistent/ca.pem", "?sslmode=require", "?sslmode=require&ca=/nonexistent/ca.pem"]
    {
        let error = refused(&format!("{url}{setting}"));
        let heard = heard.lock().expect("no panic").clone();
        let text = String::from_utf8_lossy(&heard);
        assert!(!text.contains("hunter2") && !text.contains("user"), "{setting}: {text:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{setting}: {error}");
    }
}

#[test]
fn a_password_is_never_sent_in_clear_text() {
    let (port, heard) = peer();
    let error = refused(&format!("postgres://app:hunter2@127.0.0.1:{port}/app"));
    let text = String::from_utf8_lossy(&heard.lock().expect("no panic")).into_owned();
    assert!(text.contains("user") && !text.contains("hunter2"), "{text:?}");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("sslmode=require")), "{error:?}");
}

#[test]
fn a_server_that_wants_clear_text_gets_it_by_tls_only() {
    let server = PostgresServer::start(&PostgresOptions::default().tls());
    let mut admin = server.connect().expect("it answers");
    admin.run("CREATE ROLE locks LOGIN PASSWORD 'swordfish'");
    admin.run("GRANT CREATE ON SCHEMA public TO locks");
    let access = server.directory().join("data/pg_hba.conf");
    std::fs::write(&access, "host all postgres all trust\nhost all all all password\n").expect("a file");
    admin.run("SELECT pg_reload_conf()");
    let url = server.url().replace("//postgres@", "//locks:swordfish@");
    assert_eq!(refused(&url).kind(), ErrorKind::Invalid);
    let private = connect(&format!("{url}?ca={}", server.ca().display()));
    pollster::block_on(private.mutex("m").acquire()).expect("it is free");
    // A proof of the password may go in the open.
    std::fs::write(&access, "host all all all scram-sha-256\n").expect("a file");
    admin.run("SELECT pg_reload_conf()");
    let open = wait_for("the new rules", || {
        pollster::block_on(Tenure::connect_with(connector(&url), Settings::default())).ok()
    });
    pollster::block_on(open.mutex("n").acquire()).expect("it is free");
    // The one without TLS at all, where TLS was asked for.
    let (other, _) = start();
    for setting in ["ca=/nonexistent/ca.pem".to_owned(), format!("ca={}", server.ca().display())] {
        let error = refused(&format!("{}?{setting}", other.url()));
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("TLS"), "{error}");
    }
}

#[test]
fn a_forged_notification_begins_nothing() {
    let (server, mut admin) = start();
    let (holder, waiter) = (connect(&server.url()), connect(&server.url()));
    assert!(waiter.capability().tells_waiters);
    let held = pollster::block_on(holder.mutex("m").acquire()).expect("it is free");
    let waiting = std::thread::spawn(move || {
        let lease = pollster::block_on(waiter.mutex("m").acquire()).expect("its turn");
        (now(), lease.token())
    });
    wait_for("a waiter", || {
        (admin_number(&server, "SELECT count(*) FROM tenure_entry WHERE place > 0") == 1).then_some(())
    });
    admin.run("CREATE ROLE mon LOGIN");
    admin.run("GRANT SELECT ON tenure_entry, tenure_resource TO mon");
    let mut mon = SqlConnection::to_postgres(server.port(), "mon", "postgres").expect("it may look");
    let life = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";
    let channel = "'tenure_' || lpad(to_hex(w.client), 16, '0')";
    for letter in [
        format!("'G ' || encode(w.claim, 'hex') || ' ' || (h.hold_token + 1) || ' -1 20000000 ' || {life}"),
        "'L ' || encode(w.claim, 'hex')".to_owned(),
        // What makes no sense does no harm.
        "'G ' || encode(w.claim, 'hex')".to_owned(),
        "'Q zz'".to_owned(),
        "repeat('x', 7000)".to_owned(),
    ] {
        mon.run(&format!(
            "SELECT pg_notify({channel}, {letter}) FROM tenure_resource h JOIN tenure_entry w USING (name) \
             WHERE h.hold_claim IS NOT NULL AND w.place > 0"
        ));
    }
    pause(Duration::from_millis(300));
    assert!(!waiting.is_finished(), "two hold it");
    assert!(!held.is_lost());
    let token = held.token();
    let released_at = now();
    pollster::block_on(held.release()).expect("it is held");
    let (at, next) = waiting.join().expect("no panic");
    assert!(next > token && at.since(released_at) < Duration::from_secs(1), "{:?}", at.since(released_at));
}

fn admin_number(server: &PostgresServer, statement: &str) -> u64 {
    let answer = server.connect().expect("it answers").run(statement);
    answer.first().expect("a number").parse().expect("a number")
}

/// What an attacker makes in a schema of the search path: whoever meets one of these runs it as himself.
const TRAPS: &str = "
    CREATE TABLE loot (who text, what text);
    GRANT ALL ON loot TO PUBLIC;
    CREATE FUNCTION noted(text) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.loot VALUES (current_user, $1) $$;
    CREATE FUNCTION later(numeric, integer) RETURNS numeric LANGUAGE sql AS
      $$ SELECT public.noted('*'); SELECT $1 OPERATOR(pg_catalog.*) $2::numeric OPERATOR(pg_catalog.+) 7200000000 $$;
    CREATE OPERATOR * (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = later);
    CREATE FUNCTION sum(bigint, integer) RETURNS bigint LANGUAGE sql AS
      $$ SELECT public.noted('+'); SELECT $1 OPERATOR(pg_catalog.+) 7200000000 $$;
    CREATE OPERATOR + (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = sum);
    CREATE FUNCTION lpad(text, integer, text) RETURNS text LANGUAGE sql AS $$ SELECT public.noted('lpad'); SELECT $1 $$;
    CREATE FUNCTION greatest_of(bigint, integer) RETURNS boolean LANGUAGE sql AS
      $$ SELECT public.noted('>'); SELECT true $$;
    CREATE OPERATOR > (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = greatest_of);
    CREATE TYPE tenure_trap AS (x text)";

/// Lets everybody make things in the public schema, as PostgreSQL did by itself until version 14, and mallory makes them.
fn with_traps() -> (PostgresServer, SqlConnection) {
    let (server, mut admin) = start();
    for role in ["app", "mallory"] {
        admin.run(&format!("CREATE ROLE {role} LOGIN"));
    }
    admin.run("GRANT CREATE ON SCHEMA public TO PUBLIC");
    let mut mallory =
        SqlConnection::to_postgres(server.port(), "mallory", "postgres").expect("it may log in");
    TRAPS.split(";\n").for_each(|trap| drop(mallory.run(trap)));
    (server, admin)
}

fn as_role(server: &PostgresServer, role: &str) -> String {
    server.url().replace("//postgres@", &format!("//{role}@"))
}

/// Uses locks and queues in every way, and returns a token.
async fn use_all(a: &Tenure, b: &Tenure) -> u64 {
    let held = a.mutex("m").ttl(Duration::from_millis(1500)).acquire().await.expect("it is free");
    let mut changes = b.observe("m").expect("a name");
    changes.next().await.expect("a view").expect("an answer");
    let waits = b.mutex("m");
    let next = futures_util::future::join(waits.acquire(), async {
        // By then it has been renewed.
        pause(Duration::from_millis(700));
        let token = held.token().get();
        held.release().await.expect("it is held");
        token
    });
    let (lease, token) = next.await;
    lease.expect("its turn").release().await.expect("it is held");
    a.slot_pool("p", 3).acquire().await.expect("it is free").release().await.expect("it is held");
    a.semaphore("s", 3).weight(2).acquire().await.expect("it is free").release().await.expect("it is held");
    a.inspect("").await.expect("an answer");
    let queue = a.queue("q").interval(Duration::from_millis(1));
    queue.push("one").await.expect("pushed");
    queue.push("two").group("g").dedup(&token.to_string()).await.expect("pushed");
    queue.push("three").group("g").await.expect("pushed");
    for _ in 0..3 {
        queue.next().await.expect("an item").ack().await.expect("it is ours");
    }
    b.queue("q").stats().await.expect("an answer");
    a.purge().await.expect("an answer");
    token
}

#[test]
fn operators_of_others_are_never_called() {
    let (server, mut admin) = with_traps();
    let url = as_role(&server, "app");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let pool = {
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        Pool::builder(Manager::new(config, tokio_postgres::NoTls)).max_size(2).build().expect("a pool")
    };
    let pooled = || {
        let _inside = runtime.enter();
        let config = Config::from_pool(pool.clone()).expect("a pool");
        runtime.block_on(Tenure::new(config)).expect("the server is there")
    };
    let direct = || connect(&url);
    let quiet = || connect(&format!("{url}?listen=off"));
    for (a, b) in [(direct(), direct()), (quiet(), quiet()), (pooled(), pooled())] {
        let token = pollster::block_on(use_all(&a, &b));
        let loot = admin.run("SELECT who, what FROM loot").rows;
        assert!(loot.is_empty(), "code of mallory ran: {:?}", loot.first());
        let now =
            "SELECT (extract(epoch FROM clock_timestamp()) OPERATOR(pg_catalog.*) 1000000::numeric)::bigint";
        let now = admin_number(&server, now);
        assert!(token.abs_diff(now) < 60_000_000, "the token {token} is hours ahead of {now}");
    }
}

fn finding(client: &Tenure, what: &str) -> Option<Finding> {
    let found = pollster::block_on(client.check()).expect("an answer");
    found.into_iter().find(|finding| finding.what == what)
}

#[test]
fn tables_that_somebody_else_made_first_are_told_of() {
    let (server, mut admin) = with_traps();
    let url = as_role(&server, "mallory");
    let made = connect(&url);
    drop(pollster::block_on(made.mutex("m").try_acquire()));
    admin.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app");
    let app = connect(&as_role(&server, "app"));
    let owner = finding(&app, "owner").expect("a finding");
    assert!(owner.severity == Severity::Warning && owner.found.contains("mallory"), "{owner:?}");
    assert!(owner.hint.is_some(), "{owner:?}");
    let schema = finding(&app, "schema").expect("a finding");
    assert!(schema.severity == Severity::Warning && schema.found.contains("public"), "{schema:?}");
    // As it should be.
    admin.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    for table in ["resource", "entry", "finished", "slot", "version"] {
        admin.run(&format!("ALTER TABLE tenure_{table} OWNER TO postgres"));
    }
    for what in ["owner", "schema"] {
        let good = finding(&app, what).expect("a finding");
        assert_eq!(good.severity, Severity::Good, "{good:?}");
    }
    admin.run("GRANT CREATE ON SCHEMA public TO mallory");
    let schema = finding(&app, "schema").expect("a finding");
    assert!(schema.severity == Severity::Warning && schema.found.contains("mallory"), "{schema:?}");
}

/// What stands first in a search path is where tables are made, and where they are found again.
#[test]
fn tables_are_found_where_the_search_path_has_them() {
    let (server, mut admin) = start();
    admin.run("CREATE ROLE \"Odd.\"\"Name'\" LOGIN");
    admin.run("CREATE SCHEMA \"Odd.\"\"Name'\" AUTHORIZATION \"Odd.\"\"Name'\"");
    let url = server.url().replace("//postgres@", "//Odd.%22Name'@");
    // The second one has functions made there.
    for url in [url.clone(), format!("{url}?listen=off")] {
        let odd = connect(&url);
        pollster::block_on(use_all(&odd, &odd));
        assert_eq!(admin_number(&server, "SELECT count(*) FROM \"Odd.\"\"Name'\".tenure_resource"), 3);
    }
    let functions = "SELECT count(*) FROM pg_proc WHERE pronamespace = '\"Odd.\"\"Name''\"'::regnamespace";
    assert_eq!(admin_number(&server, functions), 19);
    admin.run("CREATE ROLE app LOGIN");
    admin.run("GRANT CREATE ON SCHEMA public TO app");
    let url = as_role(&server, "app");
    let _held = pollster::block_on(connect(&url).mutex("m").acquire()).expect("it is free");
    assert_eq!(admin_number(&server, "SELECT count(hold_claim) FROM public.tenure_resource"), 1);
    // A schema that comes first from now on, and has no such tables.
    admin.run("CREATE SCHEMA app AUTHORIZATION app");
    assert!(pollster::block_on(connect(&url).mutex("m").try_acquire()).expect("an answer").is_none());
}

#[test]
fn a_pooler_keeps_no_listener_of_a_client_that_has_gone() {
    let (server, _) = start();
    let bouncer = PgBouncer::start(&server);
    for _ in 0..3 {
        let client = connect(&bouncer.url());
        assert!(!client.capability().tells_waiters);
        pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    }
    let channels = "SELECT string_agg(c, ' ') FROM pg_listening_channels() c";
    // The last client's thread may still be ending.
    wait_for("a pool without listeners", || {
        let mut pooled = bouncer.connect().expect("it answers");
        (0..8).all(|_| pooled.run(channels).first().is_none()).then_some(())
    });
}
