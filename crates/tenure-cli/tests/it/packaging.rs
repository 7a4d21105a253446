//! The files for nginx, systemd and Kubernetes that users copy (`packaging/`): each is read by the program that it is for.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Output};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_testkit::nginx::NginxServer;
use tenure_testkit::{Port, foreign};

use crate::redis;
use crate::world::{World, code, finish, signal, stderr, wait_for};

const NGINX: &str = include_str!("../../../../packaging/nginx/tenure.conf");
const SERVE: &str = include_str!("../../../../packaging/systemd/tenure-serve.service");
const RUN: &str = include_str!("../../../../packaging/systemd/tenure-run@.service");
const TIMER: &str = include_str!("../../../../packaging/systemd/tenure-run@.timer");
const FLAGS: &str = include_str!("../../../../packaging/debian/serve.env");
const DEPLOYMENT: &str = include_str!("../../../../packaging/kubernetes/tenure-serve.yaml");
const SIDECAR: &str = include_str!("../../../../packaging/kubernetes/sidecar.yaml");

/// What a text becomes in which a part of it is another one.
fn with(text: &str, part: &str, other: &str) -> String {
    assert!(text.contains(part), "no {part:?} in it");
    text.replace(part, other)
}

/// The number behind a text.
fn figure(text: &str, before: &str) -> u64 {
    let (_, after) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?}"));
    let digits: String = after.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Two instances behind nginx.
struct Proxied {
    world: World,
    instances: [Child; 2],
    nginx: NginxServer,
}

impl Proxied {
    /// Starts instances that listen where they are told to, and nginx in front of them.
    fn start(listen: [&str; 2], upstream: [&str; 2], world: World) -> Proxied {
        let instances = listen.map(|address| {
            let flags = ["--listen", address, "--host", "locks.example.org", "--drain", "1s"];
            let flags = [&flags[..], &["--trusted-proxy", "127.0.0.1"]].concat();
            let child = world.start(&[&["serve"][..], &flags].concat());
            wait_for("an instance", || match address.strip_prefix("unix:") {
                Some(path) => std::os::unix::net::UnixStream::connect(path).map(drop).ok(),
                None => TcpStream::connect(address).map(drop).ok(),
            });
            child
        });
        let nginx = NginxServer::start(|port, directory| {
            let tls = directory.display();
            let text = with(NGINX, "listen 443 ssl", &format!("listen 127.0.0.1:{port} ssl"));
            let text = with(&text, "/etc/nginx/tls/locks.crt", &format!("{tls}/server.crt"));
            let text = with(&text, "/etc/nginx/tls/locks.key", &format!("{tls}/server.key"));
            let text = with(&text, "server 127.0.0.1:7071;", &format!("server {};", upstream[0]));
            with(&text, "server 127.0.0.1:7072;", &format!("server {};", upstream[1]))
        });
        Proxied { world, instances, nginx }
    }

    /// Two clients wait, one by each instance. One instance is killed, and nobody notices: not its waiter, not the holder.
    fn an_instance_dies(&self) {
        let id = |number: u32| format!("6f{number:030x}");
        let client = Client(&self.nginx);
        let (status, granted) = client.claim(&id(0), 100);
        assert_eq!(status, 200, "{granted}");
        let (status, waiting) = client.claim(&id(1), 100);
        assert_eq!((status, &waiting["position"]), (202, &json!(1)), "it is answered when its time is over");
        let victim = self.instances[0].id();
        let (first, second) = std::thread::scope(|threads| {
            let first = threads.spawn(move || client.claim(&id(1), 50_000));
            let second = threads.spawn(move || client.claim(&id(2), 50_000));
            self.world.wait_for_waiters(2);
            signal(victim, Signal::KILL);
            let body = json!({"name": "a"});
            let renew = || {
                let path = format!("/v1/claims/{}/renew", id(0));
                Some(client.ask("POST", &path, "locks.example.org", Some(&body)))
                    .filter(|(status, _)| *status != 502)
            };
            // nginx repeats no POST: its client does.
            let (status, renewed) = wait_for("an answer", renew);
            assert_eq!((status, &renewed["token"]), (200, &granted["token"]), "the other instance renews it");
            // It is told of what is granted from now on, although the places were taken by the dead one.
            wait_for("both at the living instance", || {
                let (_, metrics) = client.read("GET", "/metrics", "locks.example.org", None);
                metrics.contains("tenure_http_open{what=\"waiting\"} 2\n").then_some(())
            });
            assert_eq!(client.release(&id(0)), (200, json!({"released": true})));
            let first = first.join().expect("no panic");
            assert_eq!((first.0, &first.1["claim"]), (200, &json!(id(1))), "it was first in line: {first:?}");
            assert_eq!(client.release(&id(1)).0, 200);
            (first, second.join().expect("no panic"))
        });
        assert_eq!((second.0, &second.1["claim"]), (200, &json!(id(2))), "{second:?}");
        let token = |answer: &Value| answer["token"].as_u64().expect("a token");
        assert!(token(&granted) < token(&first.1) && token(&first.1) < token(&second.1));
        assert_eq!(client.release(&id(2)).0, 200);
        assert_eq!(self.world.status(), json!([]), "nothing is left");
    }
}

/// A client that reaches the instances through nginx.
#[derive(Clone, Copy)]
struct Client<'a>(&'a NginxServer);

impl Client<'_> {
    /// Asks through nginx as a client does. Returns the status, and the body.
    fn ask(self, method: &str, path: &str, host: &str, body: Option<&Value>) -> (u16, Value) {
        let (status, text) = self.read(method, path, host, body);
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    fn read(self, method: &str, path: &str, host: &str, body: Option<&Value>) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "60", "--write-out", "\n%{http_code}", "--request", method]);
        curl.arg("--cacert").arg(self.0.authority()).args(["--header", &format!("Host: {host}")]);
        if let Some(body) = body {
            curl.args(["--json", &body.to_string()]);
        }
        let said = curl.arg(format!("https://127.0.0.1:{}{path}", self.0.port())).output().expect("curl");
        let said = String::from_utf8(said.stdout).expect("text");
        let (body, status) = said.rsplit_once('\n').expect("a status");
        (status.parse().expect("a number"), body.to_owned())
    }

    fn claim(self, id: &str, poll_ms: u64) -> (u16, Value) {
        let body = json!({"name": "a", "poll_ms": poll_ms});
        self.ask("PUT", &format!("/v1/claims/{id}"), "locks.example.org", Some(&body))
    }

    fn release(self, id: &str) -> (u16, Value) {
        self.ask("DELETE", &format!("/v1/claims/{id}?name=a"), "locks.example.org", None)
    }
}

#[test]
fn behind_nginx_a_claim_goes_on_at_the_other_instance() {
    let ports = [Port::free(), Port::free()];
    let addresses = ports.each_ref().map(|port| format!("127.0.0.1:{}", port.number()));
    let addresses = addresses.each_ref().map(String::as_str);
    let proxied = Proxied::start(addresses, addresses, redis::world());
    assert_eq!(Client(&proxied.nginx).ask("GET", "/healthz", "locks.example.org", None).0, 200);
    assert_eq!(
        Client(&proxied.nginx).ask("GET", "/healthz", "elsewhere.example.org", None).0,
        403,
        "the host is passed on"
    );
    // Another address of this machine is another client, whatever that says of itself.
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--interface", "127.0.0.9", "--header", "Host: locks.example.org"]);
    curl.args(["--header", "Forwarded: for=203.0.113.9", "--cacert"]).arg(proxied.nginx.authority());
    curl.arg(format!("https://127.0.0.1:{}/healthz", proxied.nginx.port()));
    assert!(curl.output().expect("curl").status.success());
    proxied.an_instance_dies();
    let said = proxied.instances.map(|instance| {
        signal(instance.id(), Signal::TERM);
        stderr(&finish(instance))
    });
    let said = said.concat();
    assert!(said.contains("127.0.0.9") && !said.contains("203.0.113.9"), "{said}");
    // Longer than a poll may last, and shorter than an instance keeps a connection.
    assert!(figure(NGINX, "proxy_read_timeout ") > 50 && figure(NGINX, "keepalive_timeout ") < 75);
}

#[test]
fn behind_nginx_instances_may_listen_at_unix_sockets() {
    let world = redis::world();
    let sockets = ["one", "other"].map(|name| format!("unix:{}", world.path(name).display()));
    let sockets = sockets.each_ref().map(String::as_str);
    Proxied::start(sockets, sockets, world).an_instance_dies();
}

/// The units with the command under test in the place of the installed one.
fn units(world: &World) {
    let tenure = env!("CARGO_BIN_EXE_tenure");
    for (name, text) in
        [("tenure-serve.service", SERVE), ("tenure-run@.service", RUN), ("tenure-run@.timer", TIMER)]
    {
        let text = text.replace("=/usr/bin/tenure ", &format!("={tenure} "));
        fs::write(world.path(name), text).expect("a unit");
    }
}

fn analyze(world: &World, arguments: &[&str]) -> Output {
    let mut analyze = Command::new("systemd-analyze");
    analyze.current_dir(world.directory.path()).args(arguments).output().expect("systemd-analyze")
}

#[test]
fn systemd_understands_the_units() {
    let world = World::new();
    units(&world);
    for unit in ["./tenure-serve.service", "./tenure-run@report.service", "./tenure-run@report.timer"] {
        let verified = analyze(&world, &["verify", "--man=no", unit]);
        // It ends with 0 whatever it finds in a section that it knows.
        assert!(verified.status.success() && verified.stderr.is_empty(), "{unit}: {}", stderr(&verified));
    }
    // In tenths: what is open to a service, of 100.
    let exposed = analyze(
        &world,
        &["security", "--offline=yes", "--no-pager", "--threshold=15", "tenure-serve.service"],
    );
    assert!(exposed.status.success(), "{exposed:?}");
    // 3 s until nobody new is let in, and 20 s for what is open; 12,000 connections and what is open beside them.
    assert!(figure(SERVE, "TimeoutStopSec=") > 23 && figure(SERVE, "LimitNOFILE=") >= 12_500);
}

/// Asserts that the command knows flags.
fn knows(arguments: &[&str]) {
    let world = World::new();
    let helped = finish(world.start(arguments));
    assert_eq!(code(&helped), 0, "{arguments:?}: {}", stderr(&helped));
}

#[test]
fn the_command_knows_the_flags_that_the_files_give_it() {
    let flags = FLAGS.lines().find_map(|line| line.strip_prefix("TENURE_SERVE_FLAGS=")).expect("flags");
    knows(&[&["serve"][..], &flags.split(' ').collect::<Vec<_>>(), &["--help"]].concat());
    let run = RUN.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/tenure ")).expect("a line");
    let run = run.replace("$TENURE_RUN_FLAGS", "--every 20h --help").replace("$JOB", "true");
    knows(&run.split(' ').collect::<Vec<_>>());
    let flags: Vec<&str> = DEPLOYMENT.lines().filter_map(|line| line.trim().strip_prefix("- --")).collect();
    assert!(flags.len() > 4, "{flags:?}");
    let flags: Vec<String> = flags.iter().map(|flag| format!("--{flag}")).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    knows(&[&["serve"][..], &flags, &["--help"]].concat());
}

#[test]
fn kubernetes_knows_the_manifests() {
    let world = World::new();
    fs::write(world.path("tenure-serve.yaml"), DEPLOYMENT).expect("a file");
    fs::write(world.path("sidecar.yaml"), SIDECAR).expect("a file");
    let mut validate = foreign::python();
    // The oldest one that has sidecars.
    validate.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", "1.29"]);
    validate.args(["tenure-serve.yaml", "sidecar.yaml"]).current_dir(world.directory.path());
    let said = validate.output().expect("python");
    let text = format!("{}{}", String::from_utf8_lossy(&said.stdout), stderr(&said));
    assert!(said.status.success(), "{text}");
    assert_eq!(text.matches("passed for resource").count(), 4, "{text}");
    // 3 s until nobody new is let in, and 20 s for what is open.
    for manifest in [DEPLOYMENT, SIDECAR] {
        assert!(figure(manifest, "terminationGracePeriodSeconds:") > 23);
    }
}
