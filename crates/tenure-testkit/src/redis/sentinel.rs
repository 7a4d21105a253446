//! A Redis master with replicas, watched by Sentinels.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use super::{RedisOptions, RedisServer, tls};
use crate::{Connection, Port, Reply, Server, Site, certificates, wait_for};

/// The name of the master.
const NAME: &str = "mymaster";

/// How many servers there are, and how many Sentinels.
const COUNT: usize = 3;

/// A master, two replicas and three Sentinels, of which two must agree. They miss a server after 1 s.
///
/// As everywhere, a failover that nobody asked for begins no sooner than twice the failover timeout (10 s here)
/// after the last one, and an old master that comes back is made a replica after 8 s.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
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

    /// Starts a set on a site.
    pub(crate) fn start_on(site: &Arc<Site>, options: &RedisOptions) -> RedisSentinel {
        assert!(options.password.is_none(), "Sentinels are not told of passwords");
        let options = options.clone().line("repl-diskless-sync-delay 0");
        let master = RedisServer::launch(site, Port::free(), options.clone());
        let of_master = options.trusting(&master).line(format!("replicaof 127.0.0.1 {}", master.port()));
        let replicas = (1..COUNT).map(|_| RedisServer::launch(site, Port::free(), of_master.clone()));
        let servers: Vec<RedisServer> = std::iter::once(master).chain(replicas).collect();
        // A Sentinel looks at its servers seldom: what it sees at first must be what should be.
        servers[0].wait_until_ready();
        for replica in &servers[1..] {
            replica.wait_until_linked();
        }
        servers[0].wait_until_replicated(COUNT - 1);
        let ports: Vec<Port> = (0..COUNT).map(|_| Port::free()).collect();
        let numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        let sentinels =
            ports.into_iter().map(|port| Sentinel::launch(site, port, &servers, &numbers)).collect();
        let set = RedisSentinel { servers, sentinels };
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
        let port = named.expect("a Sentinel that answers");
        self.servers.iter().find(|server| server.port() == port).expect("a server of this set")
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
        wait_for("new master", || {
            let mut named = self.sentinels.iter().filter_map(Sentinel::master);
            let port = named.next().filter(|port| *port != old.port())?;
            let new = self.servers.iter().find(|server| server.port() == port)?;
            let agree = named.all(|other| other == port);
            (agree && new.info("role")? == "master").then_some(new)
        })
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
    /// Starts one that knows all others and the servers from the beginning, which saves it seconds of asking.
    fn launch(site: &Arc<Site>, port: Port, servers: &[RedisServer], sentinels: &[u16]) -> Sentinel {
        let own = port.number();
        let master = servers[0].port();
        let mut lines = vec![
            if servers[0].options.tls { tls(own) } else { format!("port {own}") },
            format!("bind 127.0.0.1\nunixsocket socket\ndaemonize no\nsentinel myid {}", id(own)),
            format!("sentinel monitor {NAME} 127.0.0.1 {master} 2"),
            format!("sentinel down-after-milliseconds {NAME} 1000"),
            format!("sentinel failover-timeout {NAME} 5000\nsentinel parallel-syncs {NAME} 1"),
        ];
        for replica in &servers[1..] {
            lines.push(format!("sentinel known-replica {NAME} 127.0.0.1 {}", replica.port()));
        }
        for other in sentinels.iter().filter(|other| **other != own) {
            lines.push(format!("sentinel known-sentinel {NAME} 127.0.0.1 {other} {}", id(*other)));
        }
        let server = Server::start(site, &format!("sentinel-{own}"), |directory| {
            if servers[0].options.tls {
                certificates::take(servers[0].server.directory(), directory);
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
