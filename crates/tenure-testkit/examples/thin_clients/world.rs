//! What a case has: a server, a proxy before it, a client behind that, and its own way to the server.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::proxy::{Proxy, forward};

#[derive(Debug)]
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(command: &str, engine: &str, port: u16) -> Server {
        let mut line = Command::new(command);
        line.args(["--engine", engine, "serve", "--listen", &format!("127.0.0.1:{port}")]);
        line.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = line.spawn().expect("`tenure` can be started");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let first = said.next().and_then(Result::ok).unwrap_or_default();
        let port = first.strip_prefix("tenure: serving at 127.0.0.1:").and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("`tenure serve` says {first:?}"));
        // A pipe that nobody reads would stop it.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
        Server { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[derive(Debug)]
pub(crate) struct World {
    driver: Vec<String>,
    command: String,
    engine: String,
    server: Option<Server>,
    port: u16,
    pub(crate) proxy: Proxy,
    pub(crate) client: Driver,
    /// A name of its own, so that no case meets another.
    pub(crate) name: String,
}

impl World {
    pub(crate) fn new(command: &str, engine: &str, driver: &[String], name: &str) -> World {
        let server = Server::start(command, engine, 0);
        let (port, proxy) = (server.port, Proxy::start(server.port));
        let client = Driver::start(driver, &proxy.url());
        let (command, engine) = (command.to_owned(), engine.to_owned());
        let (driver, name) = (driver.to_vec(), name.to_owned());
        World { driver, command, engine, server: Some(server), port, proxy, client, name }
    }

    /// One more client, behind a proxy of its own.
    pub(crate) fn another(&self) -> (Driver, Proxy) {
        let proxy = Proxy::start(self.port);
        (Driver::start(&self.driver, &proxy.url()), proxy)
    }

    /// Ends the server as a power cut does, and starts it again at the same port.
    pub(crate) fn restart(&mut self) {
        self.server = None;
        self.server = Some(Server::start(&self.command, &self.engine, self.port));
    }

    /// Ends the server.
    pub(crate) fn stop(&mut self) {
        self.server = None;
    }

    /// Asks the server, past the proxy.
    pub(crate) fn ask(&self, line: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        let answer = forward(self.port, format!("{head}{body}").as_bytes());
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        (status, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    /// Tries to take the lock of the case for another client; its id if it was free.
    pub(crate) fn rival(&self) -> Option<String> {
        let id = new_id();
        let (status, body) = self
            .ask(&format!("PUT /v1/claims/{id}"), &format!("{{\"name\":\"{}\",\"wait\":false}}", self.name));
        assert!(status == 200 || status == 423, "{status} {body}");
        (status == 200).then_some(id)
    }

    /// Releases what [`World::rival`] took.
    pub(crate) fn release(&self, id: &str) {
        let name = self.name.replace('/', "%2F");
        let (status, body) = self.ask(&format!("DELETE /v1/claims/{id}?name={name}"), "");
        assert_eq!(status, 200, "{body}");
    }

    /// What the server says of the lock.
    pub(crate) fn resource(&self) -> String {
        let name = self.name.replace('/', "%2F");
        let (status, body) = self.ask(&format!("GET /v1/resource?name={name}"), "");
        assert!(status == 200 || status == 404, "{status} {body}");
        body
    }

    /// The token under which the lock is held, if it is.
    pub(crate) fn token(&self) -> Option<u64> {
        number(&self.resource(), "token")
    }

    /// Has the client take the lock of the case as `a`, and says its token.
    pub(crate) fn acquire(&mut self, ttl_ms: u64, wait_ms: u64) -> u64 {
        let line = format!("acquire a {} {ttl_ms} {wait_ms}", self.name);
        let said = self.client.ask(&line);
        granted(&said).unwrap_or_else(|| panic!("{said}"))
    }

    /// Whether the client believes that it holds `a`.
    pub(crate) fn is_held(&mut self) -> bool {
        match self.client.ask("check a").as_str() {
            "held" => true,
            "lost" => false,
            other => panic!("{other}"),
        }
    }
}

pub(crate) fn granted(said: &str) -> Option<u64> {
    said.strip_prefix("granted ")?.parse().ok()
}

/// A whole number in a JSON text, by the name of its field.
pub(crate) fn number(json: &str, field: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{field}\":"))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// An id that no other claim has.
pub(crate) fn new_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

/// Waits until something is so.
pub(crate) fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(comes_true(Duration::from_secs(60), condition), "{what}: it does not come true");
}

pub(crate) fn comes_true(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + within;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
