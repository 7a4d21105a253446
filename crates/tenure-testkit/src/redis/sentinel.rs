//! A Redis master with replicas, watched by Sentinels.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::{RedisOptions, RedisServer, tls};
use crate::process::poll;
use crate::{Connection, Port, Proxy, Reply, Server, Site, certificates};

/// The name of the master.
const NAME: &str = "mymaster";

/// How many servers there are, and how many Sentinels.
const COUNT: usize = 3;

/// How long a failover may take. One that nobody asked for begins up to 10 s after the last, and again 10 s later each time that
/// the Sentinels split their votes or a phase was late, as on a busy machine.
const FAILOVER_MAX: Duration = Duration::from_secs(60);

/// How long a server may be silent before a Sentinel misses it. It asks a master that it has just heard of for the first time
/// after 1 s, and counts its silence from the beginning: with 1 s it would miss every other new master, and replace it at once.
const DOWN_AFTER: Duration = Duration::from_millis(1500);

/// A master, two replicas and three Sentinels, of which two must agree. They miss a server after 1.5 s.
///
/// As everywhere, a failover that nobody asked for begins no sooner than twice the failover timeout (10 s here)
/// after the last one, and an old master that comes back is made a replica after 8 s.
///
/// In a set that is [`RedisSentinel::start_separable`], Sentinels and replicas know each server by the port of a proxy, and so name it
/// to clients.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
    /// The proxy before each server, if they can be separated.
    links: Vec<Proxy>,
    sentinels: Vec<Sentinel>,
}

/// One Sentinel.
#[derive(Debug)]
pub struct Sentinel {
    server: Server,
    port: Port,
}

impl RedisSentinel {
    /// Starts a set, and waits until each Sentinel knows the others and both replicas.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start() -> RedisSentinel {
        RedisSentinel::start_with(&RedisOptions::default())
    }

    /// Starts a set of servers with these options, which may not be a password.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(options: &RedisOptions) -> RedisSentinel {
        RedisSentinel::start_on(&Site::new(), options)
    }

    /// Starts a set of which one server can be [cut off](RedisSentinel::cut_off) from the others, or its replicas
    /// [left behind](RedisSentinel::leave_behind).
    ///
    /// # Panics
    /// If it does not start, or has TLS.
    pub fn start_separable(options: &RedisOptions) -> RedisSentinel {
        assert!(!options.tls, "who calls is not seen in what is encrypted");
        let ports: Vec<Port> = (0..COUNT).map(|_| Port::free()).collect();
        let links = ports.iter().map(|port| Proxy::start(([127, 0, 0, 1], port.number()))).collect();
        RedisSentinel::start_among(&Site::new(), options, ports, links)
    }

    /// Starts a set on a site.
    pub(crate) fn start_on(site: &Arc<Site>, options: &RedisOptions) -> RedisSentinel {
        RedisSentinel::start_among(site, options, (0..COUNT).map(|_| Port::free()).collect(), Vec::new())
    }

    fn start_among(
        site: &Arc<Site>,
        options: &RedisOptions,
        ports: Vec<Port>,
        links: Vec<Proxy>,
    ) -> RedisSentinel {
        assert!(options.password.is_none(), "Sentinels are not told of passwords");
        let options = options.clone().line("repl-diskless-sync-delay 0");
        let announced: Vec<u16> = match links.is_empty() {
            true => ports.iter().map(Port::number).collect(),
            false => links.iter().map(Proxy::port).collect(),
        };
        let named = |options: RedisOptions, port: u16| match links.is_empty() {
            true => options,
            false => options.line(format!("replica-announce-ip 127.0.0.1\nreplica-announce-port {port}")),
        };
        let mut servers: Vec<RedisServer> = Vec::new();
        for (port, announced_port) in ports.into_iter().zip(&announced) {
            let options = match servers.first() {
                None => options.clone(),
                Some(master) => {
                    options.clone().trusting(master).line(format!("replicaof 127.0.0.1 {}", announced[0]))
                }
            };
            servers.push(RedisServer::launch(site, port, named(options, *announced_port)));
        }
        // A Sentinel looks at its servers seldom: what it sees at first must be what should be.
        servers[0].wait_until_ready();
        for replica in &servers[1..] {
            replica.wait_until_linked();
        }
        servers[0].wait_until_replicated(COUNT - 1);
        let ports: Vec<Port> = (0..COUNT).map(|_| Port::free()).collect();
        let numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        let sentinels = ports
            .into_iter()
            .map(|port| Sentinel::launch(site, port, &servers[0], &announced, &numbers))
            .collect();
        let set = RedisSentinel { servers, links, sentinels };
        for sentinel in &set.sentinels {
            sentinel.hurry();
        }
        set.wait_until_ready();
        set
    }

    /// Returns the address: `redis+sentinel://127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003/mymaster`.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("{}+sentinel://{}/{NAME}", self.servers[0].scheme(), hosts.join(","))
    }

    /// Returns the servers; the first began as the master.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the ports by which Sentinels name the servers, in their order.
    pub fn announced(&self) -> Vec<u16> {
        match self.links.is_empty() {
            true => self.servers.iter().map(RedisServer::port).collect(),
            false => self.links.iter().map(Proxy::port).collect(),
        }
    }

    /// Cuts a server off from the Sentinels and the other servers, silently; clients that know its own port reach it.
    ///
    /// # Panics
    /// If the set is not separable.
    pub fn cut_off(&self, server: usize) {
        self.links.get(server).expect("a set that was started so that it can be separated").black_hole();
    }

    /// Has replicas of a server receive nothing any more of what it writes, while Sentinels find all well.
    ///
    /// # Panics
    /// If the set is not separable.
    pub fn leave_behind(&self, server: usize) {
        self.links.get(server).expect("a set that was started so that it can be separated").silence(b"PSYNC");
    }

    /// Joins what [`RedisSentinel::cut_off`] or [`RedisSentinel::leave_behind`] has separated.
    pub fn heal(&self) {
        self.links.iter().for_each(Proxy::heal);
    }

    /// Returns the Sentinels.
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// Returns the master that the first living Sentinel names. It may be dead.
    ///
    /// # Panics
    /// If no Sentinel lives.
    pub fn master(&self) -> &RedisServer {
        let named = self.sentinels.iter().find_map(|sentinel| sentinel.master());
        self.named(named.expect("a Sentinel that answers")).expect("a server of this set")
    }

    /// Has the Sentinels make a replica the master, and waits for it.
    ///
    /// # Panics
    /// If they do not.
    pub fn failover(&self) -> &RedisServer {
        let old = self.master();
        let first = &self.sentinels[0];
        // Refused while another failover is under way, or no replica looks good enough.
        first.server.wait_for("start of a failover", || {
            (first.ask(&["SENTINEL", "FAILOVER", NAME])?.to_string() == "OK").then_some(())
        });
        self.wait_for_new_master(old)
    }

    /// Waits until every Sentinel that lives names another master than the old one, and that one is a master.
    ///
    /// # Panics
    /// If they do not.
    pub fn wait_for_new_master(&self, old: &RedisServer) -> &RedisServer {
        let found = poll(FAILOVER_MAX, || {
            let mut named = self.sentinels.iter().filter_map(Sentinel::master);
            let port = named.next()?;
            let new = self.named(port).filter(|new| new.port() != old.port())?;
            let agree = named.all(|other| other == port);
            (agree && new.info("role")? == "master").then_some(new)
        });
        found.unwrap_or_else(|| {
            panic!("no new master within {FAILOVER_MAX:?}\n{}", self.sentinels[0].server.log())
        })
    }

    /// The server of an announced port.
    fn named(&self, port: u16) -> Option<&RedisServer> {
        let index = self.announced().iter().position(|announced| *announced == port)?;
        self.servers.get(index)
    }

    /// Waits until each Sentinel finds a quorum and two replicas that follow the master.
    ///
    /// # Panics
    /// If they do not.
    pub fn wait_until_ready(&self) {
        for sentinel in &self.sentinels {
            sentinel.server.wait_for("quorum with two replicas", || {
                let quorum = sentinel.ask(&["SENTINEL", "CKQUORUM", NAME])?.to_string();
                let replicas = sentinel.ask(&["SENTINEL", "REPLICAS", NAME])?;
                let linked =
                    |replica: &&Reply| field(replica, "master-link-status").is_some_and(|s| s == "ok");
                let count = replicas.parts().iter().filter(linked).count();
                (quorum.starts_with(&format!("OK {COUNT} ")) && count == COUNT - 1).then_some(())
            });
        }
    }
}

crate::server::is_a_server!(Sentinel);

impl Sentinel {
    /// Starts one that knows all others and the servers, by their ports, from the beginning, which saves it seconds of asking.
    fn launch(
        site: &Arc<Site>,
        port: Port,
        first: &RedisServer,
        servers: &[u16],
        sentinels: &[u16],
    ) -> Sentinel {
        let own = port.number();
        let master = servers[0];
        let mut lines = vec![
            if first.options.tls { tls(own) } else { format!("port {own}") },
            format!("bind 127.0.0.1\nunixsocket socket\ndaemonize no\nsentinel myid {}", id(own)),
            format!("sentinel monitor {NAME} 127.0.0.1 {master} 2"),
            format!("sentinel down-after-milliseconds {NAME} {}", DOWN_AFTER.as_millis()),
            format!("sentinel failover-timeout {NAME} 5000\nsentinel parallel-syncs {NAME} 1"),
        ];
        for replica in &servers[1..] {
            lines.push(format!("sentinel known-replica {NAME} 127.0.0.1 {replica}"));
        }
        for other in sentinels.iter().filter(|other| **other != own) {
            lines.push(format!("sentinel known-sentinel {NAME} 127.0.0.1 {other} {}", id(*other)));
        }
        let server = Server::start(site, &format!("sentinel-{own}"), |directory| {
            if first.options.tls {
                certificates::take(first.server.directory(), directory);
            }
            let text = lines.join("\n") + "\n";
            fs::write(directory.join("sentinel.conf"), text).expect("a file of configuration");
            let mut command = Command::new("redis-server");
            command.args(["sentinel.conf", "--sentinel"]);
            command
        });
        Sentinel { server, port }
    }

    /// Has it look at its servers every second instead of every ten, so that what comes after a failover does
    /// not take twenty. Servers before 7.0 cannot, and are only slower.
    fn hurry(&self) {
        self.server.wait_for("answer", || self.ask(&["SENTINEL", "DEBUG", "INFO-PERIOD", "1000"]));
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Calls a command; `None` where there is no answer.
    pub fn ask<A: AsRef<[u8]>>(&self, command: &[A]) -> Option<Reply> {
        Connection::to_socket(&self.server.directory().join("socket"))
            .and_then(|mut connection| connection.ask(command))
            .ok()
    }

    /// Returns the port of the master, as it sees it; `None` where it does not answer.
    pub fn master(&self) -> Option<u16> {
        let address = self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?;
        address.parts().get(1)?.to_string().parse().ok()
    }
}

/// The id of the Sentinel of a port.
fn id(port: u16) -> String {
    format!("{port:040x}")
}

/// A field of an answer that is a list of names and values.
fn field(reply: &Reply, name: &str) -> Option<String> {
    let pairs = reply.parts().chunks_exact(2);
    pairs.into_iter().find(|pair| pair[0].to_string() == name).map(|pair| pair[1].to_string())
}
