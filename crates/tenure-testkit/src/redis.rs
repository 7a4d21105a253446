//! Redis: one server, a Sentinel set, a Cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::{Connection, Port, Reply, Server, ServerClock, Site, certificates};

mod cluster;
mod sentinel;

pub use cluster::RedisCluster;
pub use sentinel::{RedisSentinel, Sentinel};

/// What the system takes for the path of a socket.
const SOCKET_PATH_MAX: usize = 107;

/// What Redis servers are together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// A master and two replicas behind three Sentinels.
    Sentinel,
    /// A cluster of six nodes.
    Cluster,
}

/// Returns the address of servers that all tests of this run share, and starts them if no test has yet. Tests
/// that break servers start their own.
pub fn shared(topology: Topology) -> String {
    match topology {
        Topology::Single => crate::shared("redis-single", |site| {
            let server = RedisServer::launch(site, Port::free(), RedisOptions::default());
            server.wait_until_ready();
            (server.url(), server)
        }),
        Topology::Sentinel => crate::shared("redis-sentinel", |site| {
            let set = RedisSentinel::start_on(site, &RedisOptions::default());
            (set.url(), set)
        }),
        Topology::Cluster => crate::shared("redis-cluster", |site| {
            let cluster = RedisCluster::start_on(site, &RedisOptions::default());
            (cluster.url(), cluster)
        }),
    }
}

/// Returns the address of so many independent servers that all tests of this run share, and starts them if no test has yet.
/// `found` is told the address of servers that were just started, and makes a quorum of them.
pub fn shared_quorum(servers: usize, found: impl FnOnce(&str)) -> String {
    crate::shared(&format!("redis-quorum-{servers}"), |site| {
        let launch = |_| RedisServer::launch(site, Port::free(), RedisOptions::default());
        let servers: Vec<RedisServer> = (0..servers).map(launch).collect();
        servers.iter().for_each(RedisServer::wait_until_ready);
        let url = quorum_url(&servers);
        found(&url);
        (url, servers)
    })
}

/// Returns the address of servers that are a quorum: `redlock://127.0.0.1:20000,127.0.0.1:20001,127.0.0.1:20002`.
pub fn quorum_url(servers: &[RedisServer]) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redlock://{}", hosts.join(","))
}

/// When a server writes its log of changes to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Before each answer: a restart forgets nothing.
    Always,
    /// Every second: a killed machine forgets up to two seconds. (A killed process forgets nothing.)
    EverySecond,
}

/// How a [`RedisServer`] is started. Without more: nothing is kept, no password, no TLS, the clock of this
/// machine.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    lines: Vec<String>,
    fsync: Option<Fsync>,
    password: Option<String>,
    tls: bool,
    /// The server whose certificates it takes. `None`: it makes its own.
    certificates_of: Option<PathBuf>,
    clock: bool,
}

impl RedisOptions {
    /// Adds a line of configuration, such as `maxmemory 10mb`.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Keeps what was written over a restart.
    #[must_use]
    pub fn persistent(mut self, fsync: Fsync) -> Self {
        self.fsync = Some(fsync);
        self
    }

    /// Demands a password; it may contain no quotes and no white space.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Accepts TLS only, with a certificate for 127.0.0.1 and localhost of an authority of its own
    /// ([`RedisServer::authority`]).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Takes the certificates of another server, so that the two trust each other.
    pub(crate) fn trusting(mut self, other: &RedisServer) -> Self {
        self.certificates_of = self.tls.then(|| other.server.directory().to_owned());
        self
    }

    /// Gives the server a wall clock of its own, which a test moves: [`RedisServer::clock`].
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }
}

/// A Redis server. It is killed and its files are removed when this value ends.
#[derive(Debug)]
pub struct RedisServer {
    server: Server,
    port: Port,
    options: RedisOptions,
    clock: Option<ServerClock>,
}

crate::server::is_a_server!(RedisServer);

impl RedisServer {
    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(options: RedisOptions) -> RedisServer {
        let server = RedisServer::launch(&Site::new(), Port::free(), options);
        server.wait_until_ready();
        server
    }

    /// Starts one on a site, and does not wait for it.
    pub(crate) fn launch(site: &Arc<Site>, port: Port, options: RedisOptions) -> RedisServer {
        let number = port.number();
        let mut clock = None;
        let server = Server::start(site, &format!("redis-{number}"), |directory| {
            let socket = directory.join("socket");
            assert!(
                socket.as_os_str().len() <= SOCKET_PATH_MAX,
                "{} is too long for a socket",
                socket.display()
            );
            fs::write(directory.join("redis.conf"), configuration(number, directory, &options))
                .expect("a file of configuration");
            let mut command = Command::new("redis-server");
            command.arg("redis.conf");
            clock = options.clock.then(|| ServerClock::install(directory, &mut command));
            command
        });
        RedisServer { server, port, options, clock }
    }

    /// Returns its address with its password: `redis://127.0.0.1:20000`, or `rediss://` with TLS.
    pub fn url(&self) -> String {
        let scheme = self.scheme();
        let password = self.options.password.as_ref().map(|password| format!(":{password}@"));
        format!("{scheme}://{}127.0.0.1:{}", password.unwrap_or_default(), self.port())
    }

    fn scheme(&self) -> &'static str {
        if self.options.tls { "rediss" } else { "redis" }
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns its socket in the file system, which needs no TLS.
    pub fn socket(&self) -> PathBuf {
        self.server.directory().join("socket")
    }

    /// Returns the certificate of its authority, a PEM file.
    ///
    /// # Panics
    /// If it has no TLS.
    pub fn authority(&self) -> PathBuf {
        assert!(self.options.tls, "{} has no TLS", self.server);
        self.server.directory().join("ca.crt")
    }

    /// Returns its wall clock.
    ///
    /// # Panics
    /// If it was not started with one of its own.
    pub fn clock(&self) -> &ServerClock {
        self.clock.as_ref().unwrap_or_else(|| panic!("{} has the clock of this machine", self.server))
    }

    /// Kills it if it runs, starts it again on the same port with the same files, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.server.restart();
        self.wait_until_ready();
    }

    /// Connects with it, around the network: by its socket in the file system.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn connect(&self) -> std::io::Result<Connection> {
        let mut connection = Connection::to_socket(&self.socket())?;
        if let Some(password) = &self.options.password {
            connection.ask(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Calls a command on a connection of its own.
    ///
    /// # Panics
    /// If there is no answer within 10 s; a refusal is a [`Reply`].
    pub fn ask<A: AsRef<[u8]>>(&self, command: &[A]) -> Reply {
        let answer = self.connect().and_then(|mut connection| connection.ask(command));
        answer.unwrap_or_else(|error| panic!("{}: {error}\n{}", self.server, self.server.log()))
    }

    /// Calls a command on a connection of its own, and returns the answer as text.
    ///
    /// # Panics
    /// If the server refuses or does not answer.
    pub fn command(&self, command: &[&str]) -> String {
        match self.ask(command) {
            Reply::Error(error) => panic!("{}: {command:?}: {error}", self.server),
            reply => reply.to_string(),
        }
    }

    /// Describes all keys, in order: the type, what is in it, and when it ends, in milliseconds since 1970 (-1: never).
    pub fn dump(&self) -> String {
        let text = |reply: &Reply| match reply {
            Reply::Bytes(bytes) => bytes.escape_ascii().to_string(),
            Reply::Integer(number) => number.to_string(),
            other => format!("{other:?}"),
        };
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]).parts().iter().map(text).collect();
        keys.sort();
        let mut dump = String::new();
        for key in keys {
            let ask = |command: &[&str]| self.ask(&[&command[..1], &[&key], &command[1..]].concat());
            let kind = text(&ask(&["TYPE"]));
            // What has no order of its own is sorted.
            let (read, each): (&[&str], usize) = match kind.as_str() {
                "hash" => (&["HGETALL"], 2),
                "set" => (&["SMEMBERS"], 1),
                "list" => (&["LRANGE", "0", "-1"], 0),
                "zset" => (&["ZRANGE", "0", "-1", "WITHSCORES"], 0),
                "stream" => (&["XRANGE", "-", "+"], 0),
                _ => (&["GET"], 0),
            };
            let read = ask(read);
            let mut lines: Vec<String> = match &read {
                Reply::List(parts) => parts
                    .chunks(each.max(1))
                    .map(|part| part.iter().map(text).collect::<Vec<_>>().join(" "))
                    .collect(),
                one => vec![text(one)],
            };
            if each > 0 {
                lines.sort();
            }
            let ends = text(&ask(&["PEXPIRETIME"]));
            dump += &format!("{key} {kind} until {ends}\n");
            lines.iter().for_each(|line| dump += &format!("  {line}\n"));
        }
        dump
    }

    /// Returns how often a command has been called, by its name in small letters.
    ///
    /// # Panics
    /// If the server refuses or does not answer.
    pub fn calls(&self, command: &str) -> usize {
        let stats = self.command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Returns a field of `INFO`, such as `role`; `None` where the server does not answer.
    pub fn info(&self, field: &str) -> Option<String> {
        let text = self.connect().and_then(|mut connection| connection.ask(&["INFO"])).ok()?.to_string();
        let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.map(|value| value.trim().to_owned())
    }

    pub(crate) fn wait_until_ready(&self) {
        self.server.wait_for("answer to PING", || {
            let pong = self.connect().and_then(|mut connection| connection.ask(&["PING"])).ok()?;
            (pong == Reply::Bytes(b"PONG".to_vec())).then_some(())
        });
    }

    /// Waits until so many replicas have a write of this master, which has no data yet. A replica that calls
    /// its link up has not always asked for the stream of writes, and would lose the first ones.
    pub(crate) fn wait_until_replicated(&self, replicas: usize) {
        self.server.wait_for("replicas that follow", || {
            let mut connection = self.connect().ok()?;
            connection.ask(&["FLUSHALL"]).ok()?;
            let count = connection.ask(&["WAIT", &replicas.to_string(), "1000"]).ok()?;
            (count == Reply::Integer(i64::try_from(replicas).ok()?)).then_some(())
        });
    }

    /// Waits until it follows its master.
    pub(crate) fn wait_until_linked(&self) {
        self.server
            .wait_for("link to the master", || (self.info("master_link_status")? == "up").then_some(()));
    }
}

/// What has a server, or a Sentinel, speak TLS only, also with others of its kind.
fn tls(port: u16) -> String {
    let files = "tls-cert-file server.crt\ntls-key-file server.key\ntls-ca-cert-file ca.crt";
    format!("port 0\ntls-port {port}\ntls-auth-clients no\ntls-replication yes\n{files}")
}

/// The allocator's thread waits for moments of the clock. Where the test has set that back they are over at once, and it takes a whole processor.
const CALM: &str = "jemalloc-bg-thread no";

/// The text of a server's configuration; the certificates are made where it needs some.
fn configuration(port: u16, directory: &Path, options: &RedisOptions) -> String {
    let mut lines: Vec<String> =
        ["bind 127.0.0.1", "unixsocket socket", "save \"\"", "daemonize no", CALM].map(str::to_owned).into();
    if options.tls {
        match &options.certificates_of {
            Some(other) => certificates::take(other, directory),
            None => certificates::make(directory),
        }
        lines.push(tls(port));
    } else {
        lines.push(format!("port {port}"));
    }
    lines.push(match options.fsync {
        None => "appendonly no".to_owned(),
        Some(Fsync::Always) => "appendonly yes\nappendfsync always".to_owned(),
        Some(Fsync::EverySecond) => "appendonly yes\nappendfsync everysec".to_owned(),
    });
    lines.extend(options.password.iter().map(|password| format!("requirepass {password}")));
    lines.extend(options.lines.iter().cloned());
    lines.join("\n") + "\n"
}
