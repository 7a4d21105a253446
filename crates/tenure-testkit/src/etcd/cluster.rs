//! Three etcd servers.

use std::path::PathBuf;
use std::sync::Arc;

use super::{EtcdOptions, EtcdServer, Place, url};
use crate::{Port, Proxy, Site, wait_for};

/// How many servers there are.
const COUNT: usize = 3;

/// A cluster of three servers.
///
/// In one that is [`EtcdCluster::start_separable`], the servers reach each other through proxies, one before each.
/// All of them must be told the same addresses of all, so a proxy does not know from its port who calls; but the
/// first bytes of each connection name the caller (`X-Server-From`).
#[derive(Debug)]
pub struct EtcdCluster {
    servers: Vec<EtcdServer>,
    /// The proxy before each server, if they can be separated.
    links: Vec<Proxy>,
    options: EtcdOptions,
}

impl EtcdCluster {
    /// Starts a cluster and waits until each server answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(options: &EtcdOptions) -> EtcdCluster {
        EtcdCluster::start_on(&Site::new(), options, false)
    }

    /// Starts a cluster of which one server can be [cut off](EtcdCluster::cut_off) from the others.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_separable(options: &EtcdOptions) -> EtcdCluster {
        EtcdCluster::start_on(&Site::new(), options, true)
    }

    pub(super) fn start_on(site: &Arc<Site>, options: &EtcdOptions, is_separable: bool) -> EtcdCluster {
        let ports: Vec<Port> = (0..COUNT).map(|_| Port::free()).collect();
        let proxied = |port: &Port| Proxy::start(([127, 0, 0, 1], port.number()));
        let links: Vec<Proxy> = if is_separable { ports.iter().map(proxied).collect() } else { Vec::new() };
        let advertised: Vec<u16> = if is_separable {
            links.iter().map(Proxy::port).collect()
        } else {
            ports.iter().map(Port::number).collect()
        };
        let named = advertised.iter().enumerate();
        let all: Vec<String> = named.map(|(i, port)| format!("n{i}=http://127.0.0.1:{port}")).collect();
        let cluster = all.join(",");
        let launched =
            ports.into_iter().zip(advertised).enumerate().map(|(i, (peer_port, advertised_port))| {
                let place =
                    Place { name: format!("n{i}"), peer_port, advertised_port, cluster: cluster.clone() };
                EtcdServer::launch(site, place, options)
            });
        let servers: Vec<EtcdServer> = launched.collect();
        servers.iter().for_each(EtcdServer::wait_until_ready);
        servers[0].enable_login();
        EtcdCluster { servers, links, options: options.clone() }
    }

    /// Returns the address: `etcd://127.0.0.1:20000,127.0.0.1:20001,127.0.0.1:20002`.
    pub fn url(&self) -> String {
        url(&self.options, &self.servers)
    }

    /// Returns where the servers are, as etcd writes it.
    pub fn endpoints(&self) -> Vec<String> {
        self.servers.iter().map(EtcdServer::endpoint).collect()
    }

    /// Returns the servers, to stop, kill and restart them.
    pub fn servers(&self) -> &[EtcdServer] {
        &self.servers
    }

    /// Returns the certificate of the authority, a PEM file.
    ///
    /// # Panics
    /// If the cluster has no TLS.
    pub fn authority(&self) -> PathBuf {
        self.servers[0].authority()
    }

    /// Waits until there is a leader among the servers that run, and returns which it is. (One that has been cut
    /// off takes itself for the leader for a while, but the other is of a later term.)
    ///
    /// # Panics
    /// If there is none.
    pub fn leader(&self) -> usize {
        wait_for("leader", || self.find_leader())
    }

    /// Waits until another server than the old one leads, and returns which it is.
    ///
    /// # Panics
    /// If none does.
    pub fn wait_for_new_leader(&self, old: usize) -> usize {
        wait_for("new leader", || self.find_leader().filter(|leader| *leader != old))
    }

    /// Hands leadership to another server and waits for it.
    ///
    /// # Panics
    /// If it does not take it.
    pub fn move_leader(&self, to: usize) {
        let target = self.servers[to].id();
        wait_for("new leader", || {
            let leader = self.find_leader()?;
            if leader != to {
                // Refused while the next one is not up to date.
                drop(self.servers[leader].try_ctl(&["move-leader", &target]));
            }
            (leader == to).then_some(())
        });
    }

    /// Cuts a server off from the others, both ways and silently; clients reach it.
    ///
    /// # Panics
    /// If the cluster is not separable.
    pub fn cut_off(&self, server: usize) {
        assert!(!self.links.is_empty(), "the cluster was not started so that it can be separated");
        let caller = format!("X-Server-From: {}\r\n", self.servers[server].id());
        for (to, link) in self.links.iter().enumerate() {
            if to == server { link.black_hole() } else { link.silence(caller.as_bytes()) }
        }
    }

    /// Joins what [`EtcdCluster::cut_off`] has separated.
    pub fn heal(&self) {
        self.links.iter().for_each(Proxy::heal);
    }

    fn find_leader(&self) -> Option<usize> {
        let running = self.servers.iter().enumerate().filter(|(_, server)| server.runs());
        let leading = running.filter_map(|(i, server)| Some((server.term_led()?, i)));
        leading.max().map(|(_, i)| i)
    }
}
