//! Two PostgreSQL servers: a primary, and a standby without whose word nothing is committed.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{PostgresOptions, PostgresServer};
use crate::{Port, Proxy, Site, wait_for};

/// A primary with a synchronous standby, each of which may be either.
///
/// The standby follows through a proxy before the primary, so that it can be [left behind](PostgresPair::leave_behind). While there is
/// no standby that follows, nothing is committed: no failover forgets what was answered.
#[derive(Debug)]
pub struct PostgresPair {
    servers: [PostgresServer; 2],
    /// The proxy before each server.
    links: [Proxy; 2],
    primary: AtomicUsize,
}

impl PostgresPair {
    /// Starts both, and waits until the standby follows.
    ///
    /// # Panics
    /// If they do not start.
    pub fn start(options: &PostgresOptions) -> PostgresPair {
        let options = options.clone().setting("synchronous_standby_names", "*");
        let (site, ports) = (Site::new(), [Port::free(), Port::free()]);
        let links = [0, 1].map(|index| Proxy::start(([127, 0, 0, 1], ports[index].number())));
        let [first, second] = ports;
        let primary = PostgresServer::launch(&site, first, &options);
        primary.wait_until_ready();
        let copy = |account, directory: &std::path::Path| {
            super::copy_primary(links[0].port(), account, directory);
        };
        let standby = PostgresServer::launch_filled(&site, second, &options, copy);
        standby.wait_until_ready();
        let pair = PostgresPair { servers: [primary, standby], links, primary: AtomicUsize::new(0) };
        pair.wait_until_ready();
        pair
    }

    /// Returns both, the one that began as the primary first.
    pub fn servers(&self) -> &[PostgresServer] {
        &self.servers
    }

    /// Returns the primary.
    pub fn primary(&self) -> &PostgresServer {
        &self.servers[self.primary.load(Ordering::SeqCst)]
    }

    /// Kills the primary, makes the standby the primary, and the old one its standby, without what it did not pass on.
    ///
    /// # Panics
    /// If that fails.
    pub fn failover(&self) {
        let old = self.primary.load(Ordering::SeqCst);
        let new = 1 - old;
        self.servers[old].kill();
        self.servers[new].promote();
        self.primary.store(new, Ordering::SeqCst);
        self.servers[old].follow(self.links[new].port());
        self.wait_until_ready();
    }

    /// Has the standby receive nothing any more of what the primary writes, silently.
    pub fn leave_behind(&self) {
        self.links[self.primary.load(Ordering::SeqCst)].black_hole();
    }

    /// Ends that.
    pub fn heal(&self) {
        self.links.iter().for_each(Proxy::heal);
    }

    /// Waits until the standby follows.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_until_ready(&self) {
        wait_for("synchronous standby", || {
            let answer = self.primary().connect().ok()?.ask(SYNCHRONOUS, &[]).ok()?;
            (answer.first() == Some("1")).then_some(())
        });
    }
}

/// How many standbys must have what is committed, and have all until now.
const SYNCHRONOUS: &str =
    "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'";
