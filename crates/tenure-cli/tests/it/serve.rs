//! `tenure serve`: a process that is killed, one that is told to end, and what it says.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::Value;

use crate::redis;
use crate::world::{World, code, finish, signal, stderr, wait_for};

/// Starts a server at a socket of its own, and waits until it listens.
fn serve(world: &World, socket: &str) -> Child {
    let listen = format!("unix:{}", world.path(socket).display());
    let child = world.start(&["serve", "--listen", &listen, "--drain", "5s"]);
    wait_for("a socket", || is_served(&world.path(socket)).then_some(()));
    child
}

fn is_served(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && UnixStream::connect(path).is_ok()
}

/// Asks by curl. Returns the status, 0 if nobody answers, and the body.
fn ask(world: &World, socket: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--max-time", "60", "--write-out", "\n%{http_code}", "--request", method]);
    curl.arg("--unix-socket").arg(world.path(socket));
    if !body.is_empty() {
        curl.args(["--json", body]);
    }
    let said = curl.arg(format!("http://localhost{path}")).output().expect("curl");
    let said = String::from_utf8(said.stdout).expect("text");
    let (body, status) = said.rsplit_once('\n').expect("a status");
    (status.parse().expect("a number"), serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn on_redis_what_a_killed_server_granted_is_renewed_by_the_next_one() {
    const CLAIM: &str = "/v1/claims/6f00000000000000000000000000000a";
    let world = redis::world();
    let body = r#"{"name": "a"}"#;
    let mut server = serve(&world, "socket");
    let (status, granted) = ask(&world, "socket", "PUT", CLAIM, body);
    assert_eq!(status, 200, "{granted}");
    for _ in 0..2 {
        signal(server.id(), Signal::KILL);
        finish(server);
        assert_eq!(ask(&world, "socket", "GET", "/healthz", "").0, 0, "nobody is there");
        server = serve(&world, "socket");
        let (status, renewed) = ask(&world, "socket", "POST", &format!("{CLAIM}/renew"), body);
        assert_eq!((status, &renewed["token"]), (200, &granted["token"]), "{renewed}");
        let (status, again) = ask(&world, "socket", "PUT", CLAIM, body);
        assert_eq!((status, &again["token"]), (200, &granted["token"]), "{again}");
    }
    let (_, released) = ask(&world, "socket", "DELETE", &format!("{CLAIM}?name=a"), "");
    assert_eq!(released["released"], true);

    signal(server.id(), Signal::TERM);
    wait_for("it is not ready", || (ask(&world, "socket", "GET", "/readyz", "").0 != 200).then_some(()));
    let output = finish(server);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("serving at unix:") && said.contains("ending"), "{said}");
    assert!(
        said.contains("tenure::http") && !said.contains("name=a"),
        "a line for each request, no query: {said}"
    );
    assert!(!world.path("socket").exists(), "its socket is gone");
}

#[test]
fn memory_that_requests_had_goes_back_when_they_have_gone() {
    let world = World::new();
    let server = serve(&world, "socket");
    let resident = || {
        let pages = std::fs::read_to_string(format!("/proc/{}/statm", server.id())).expect("its pages");
        pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number")
    };
    let before = resident();
    let open = |_| {
        let mut connection = UnixStream::connect(world.path("socket")).expect("connects");
        connection.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").expect("is heard");
        assert!(connection.read(&mut [0; 1024]).expect("an answer") > 0);
        connection
    };
    let mut connections: Vec<_> = (0..800).map(open).collect();
    let grown = resident() - before;
    // The last one has blocks behind those of all others.
    connections.drain(..799);
    wait_for("less memory", || (resident() - before < grown / 2).then_some(()));
    signal(server.id(), Signal::TERM);
    finish(server);
}

#[test]
fn a_second_signal_ends_a_server_at_once() {
    let world = World::new();
    let server = serve(&world, "socket");
    signal(server.id(), Signal::INT);
    wait_for("it is not ready", || (ask(&world, "socket", "GET", "/readyz", "").0 != 200).then_some(()));
    signal(server.id(), Signal::INT);
    assert_eq!(code(&finish(server)), 130);
}

#[test]
fn a_server_reads_its_tokens_again_when_it_is_told_to_and_shows_its_metrics_where_it_is_told_to() {
    let world = World::new();
    let allow = ["metrics".to_owned()];
    let secret = tenure_serve::secret(&allow).expect("a token");
    let tokens = world.path("tokens.toml");
    std::fs::write(&tokens, secret.entry("prometheus", &allow)).expect("a file");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    let socket = |name: &str| format!("unix:{}", world.path(name).display());
    let (listen, metrics) = (socket("socket"), socket("metrics"));
    let tokens = tokens.to_str().expect("a path").to_owned();
    let child = world.start(&[
        "serve",
        "--listen",
        &listen,
        "--tokens",
        &tokens,
        "--metrics",
        &metrics,
        "--long-held",
        "leader/*",
        "--drain",
        "1s",
    ]);
    wait_for("a socket", || is_served(&world.path("socket")).then_some(()));
    let page = |name: &str, token: &str| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--header", &format!("authorization: Bearer {token}"), "--unix-socket"]);
        let said = curl.arg(world.path(name)).arg("http://localhost/metrics").output().expect("curl");
        String::from_utf8(said.stdout).expect("text")
    };
    let reloads = "tenure_http_tokens_reloads_total{outcome=\"done\"}";
    let own = page("socket", secret.token());
    assert!(own.contains(&format!("\n{reloads} 0\n")), "{own}");
    assert!(page("socket", "tnr_none").contains("unauthorized"));
    // The file has not changed: nobody reads it again who is not told to.
    signal(child.id(), Signal::HUP);
    wait_for("it is read again", || page("metrics", "").contains(&format!("\n{reloads} 1\n")).then_some(()));
    assert!(page("metrics", "").contains("\ntenure_store_names{"), "the store is on it");
    signal(child.id(), Signal::TERM);
    assert_eq!(code(&finish(child)), 0);
}
