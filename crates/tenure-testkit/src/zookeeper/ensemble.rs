//! Three ZooKeeper servers.

use std::sync::Arc;

use super::{Place, ZooKeeperOptions, ZooKeeperServer, url};
use crate::process::poll;
use crate::{Port, Proxy, READY_MAX, Site};

/// How many servers there are.
const COUNT: usize = 3;

/// An ensemble of three servers.
///
/// In one that is [`ZooKeeperEnsemble::start_separable`], each server has a view of its own: it reaches each other
/// through two proxies that nobody else uses, one to the port for followers and one to the port for elections.
///
/// For elections, there is one connection for each pair of servers. A server that is called by one with a lower number
/// hangs up, and calls back to where the caller says it is, which is around the proxies. So while an ensemble starts,
/// only the higher numbers can call the lower ones. One that was restarted must be able to call, too: from then on
/// it and those with higher numbers can *vote* around the proxies. They still follow each other through them.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    servers: Vec<ZooKeeperServer>,
    links: Vec<Link>,
    options: ZooKeeperOptions,
    // Reserved as long as the servers live.
    _ports: Vec<Ports>,
}

/// How one server reaches another.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    following: Proxy,
    electing: Proxy,
}

/// Where a server listens for others.
#[derive(Debug)]
struct Ports {
    following: Port,
    electing: Port,
}

impl ZooKeeperEnsemble {
    /// Starts an ensemble and waits until each server follows or leads.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(options: &ZooKeeperOptions) -> ZooKeeperEnsemble {
        ZooKeeperEnsemble::start_on(&Site::new(), options, false)
    }

    /// Starts an ensemble of which one server can be [cut off](ZooKeeperEnsemble::cut_off) from the others.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_separable(options: &ZooKeeperOptions) -> ZooKeeperEnsemble {
        ZooKeeperEnsemble::start_on(&Site::new(), options, true)
    }

    pub(super) fn start_on(
        site: &Arc<Site>,
        options: &ZooKeeperOptions,
        is_separable: bool,
    ) -> ZooKeeperEnsemble {
        let ports = || Ports { following: Port::free(), electing: Port::free() };
        let ports: Vec<Ports> = (0..COUNT).map(|_| ports()).collect();
        let pairs = (0..COUNT).flat_map(|from| (0..COUNT).map(move |to| (from, to)));
        let links: Vec<Link> = pairs
            .filter(|(from, to)| is_separable && from != to)
            .map(|(from, to)| Link::new(from, to, &ports[to]))
            .collect();
        let launch = |own: usize| {
            let lines: String = (0..COUNT).map(|other| line(own, other, &ports[other], &links)).collect();
            ZooKeeperServer::launch(site, options, Some(Place { number: own + 1, lines }))
        };
        let servers: Vec<ZooKeeperServer> = (0..COUNT).map(launch).collect();
        servers.iter().for_each(ZooKeeperServer::wait_until_ready);
        ZooKeeperEnsemble { servers, links, options: options.clone(), _ports: ports }
    }

    /// Returns the address: `zookeeper://127.0.0.1:20000,127.0.0.1:20001,127.0.0.1:20002`.
    pub fn url(&self) -> String {
        url(&self.options, &self.servers)
    }

    /// Returns the servers, to stop and kill them.
    pub fn servers(&self) -> &[ZooKeeperServer] {
        &self.servers
    }

    /// Waits until one of the servers that run leads, and returns which it is.
    ///
    /// # Panics
    /// If none does.
    pub fn leader(&self) -> usize {
        self.wait_for_leader(None)
    }

    /// Waits until another server than the old one leads, and returns which it is.
    ///
    /// # Panics
    /// If none does.
    pub fn wait_for_new_leader(&self, old: usize) -> usize {
        self.wait_for_leader(Some(old))
    }

    /// Kills a server if it runs, starts it again on the same ports with the same files, and waits until it follows or
    /// leads.
    ///
    /// # Panics
    /// If it does not: also where no majority runs.
    pub fn restart(&self, server: usize) {
        for link in self.links.iter().filter(|link| link.from == server && link.to > server) {
            link.electing.heal();
        }
        self.servers[server].restart();
    }

    /// Cuts a server off from the others, both ways and silently; clients reach it. It goes on to answer reads until
    /// it misses its leader, after ten ticks.
    ///
    /// # Panics
    /// If the ensemble is not separable.
    pub fn cut_off(&self, server: usize) {
        assert!(!self.links.is_empty(), "the ensemble was not started so that it can be separated");
        for link in self.links.iter().filter(|link| link.from == server || link.to == server) {
            // Not lost: servers with lower numbers could not call anew for what was lost.
            link.following.pause();
            link.electing.pause();
        }
    }

    /// Joins what [`ZooKeeperEnsemble::cut_off`] has separated.
    pub fn heal(&self) {
        for link in &self.links {
            link.following.heal();
            // Those from lower to higher numbers stay as they are, see the type.
            if link.from > link.to {
                link.electing.heal();
            }
        }
    }

    /// An election may take several attempts, each of which takes seconds to fail.
    fn wait_for_leader(&self, old: Option<usize>) -> usize {
        let found = poll(READY_MAX, || self.find_leader(old));
        found.unwrap_or_else(|| panic!("no leader within {READY_MAX:?}\n{}", self.servers[0].log()))
    }

    fn find_leader(&self, old: Option<usize>) -> Option<usize> {
        let mut others = (0..COUNT).filter(|i| Some(*i) != old && self.servers[*i].runs());
        others.find(|i| self.servers[*i].mode().as_deref() == Some("leader"))
    }
}

impl Link {
    fn new(from: usize, to: usize, ports: &Ports) -> Link {
        let proxy = |port: &Port| Proxy::start(([127, 0, 0, 1], port.number()));
        let link = Link { from, to, following: proxy(&ports.following), electing: proxy(&ports.electing) };
        if from < to {
            link.electing.refuse();
        }
        link
    }
}

/// The line of configuration that says to a server where another one is, or where itself is.
fn line(own: usize, other: usize, ports: &Ports, links: &[Link]) -> String {
    let link = links.iter().find(|link| link.from == own && link.to == other);
    let (following, electing) = match link {
        Some(link) => (link.following.port(), link.electing.port()),
        None => (ports.following.number(), ports.electing.number()),
    };
    format!("server.{}=127.0.0.1:{following}:{electing}\n", other + 1)
}
