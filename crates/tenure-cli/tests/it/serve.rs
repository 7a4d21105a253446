//! `tenure serve`: a process that is killed, one that is told to end, and what it says.

use std::os::unix::fs::FileTypeExt;
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
        && std::os::unix::net::UnixStream::connect(path).is_ok()
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
fn what_a_killed_server_granted_is_renewed_by_the_next_one() {
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
fn a_second_signal_ends_a_server_at_once() {
    let world = World::new();
    let server = serve(&world, "socket");
    signal(server.id(), Signal::INT);
    wait_for("it is not ready", || (ask(&world, "socket", "GET", "/readyz", "").0 != 200).then_some(()));
    signal(server.id(), Signal::INT);
    assert_eq!(code(&finish(server)), 130);
}
