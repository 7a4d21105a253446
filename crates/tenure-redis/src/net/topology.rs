//! Which server is in charge of a hash slot: one, the master that the Sentinels name, or a node of a cluster.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, Value};
use tenure_core::engine::{Incarnation, Shard};
use tenure_core::error::Error;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::config::{Config, Topology};
use crate::error::Fault;
use crate::net::cluster::Cluster;
use crate::net::dial::Dialer;
use crate::net::link::{Link, Place};
#[cfg(test)]
use crate::net::pause;
use crate::net::sentinel::Sentinels;
use crate::net::wire::{Listeners, Manner, News};

/// How long a call takes at most, a reconnect included. The client gives a call up after 2 s, and an error that
/// says why is worth more than one that says "no answer".
pub const CALL_TIMEOUT: Duration = Duration::from_millis(1900);

/// The servers behind a URL. Cheap to clone; connections end with the last clone.
#[derive(Clone)]
pub(crate) struct Servers(Arc<Inner>);

struct Inner {
    kind: Kind,
    /// How many replicas [`Servers::with_replicas`] waits for.
    replicas: u8,
}

enum Kind {
    One(Box<One>),
    Cluster(Cluster),
}

/// A single server, or the master of Sentinels.
struct One {
    link: Link,
    /// For messages, made when the first channel is subscribed to. Redis takes a connection with a subscription for
    /// one of a pub/sub client, and closes it, with all answers under way, when these are more than it grants to
    /// such (`client-output-buffer-limit pubsub`: 32 MB). Commands have no such limit.
    inbox: OnceLock<Link>,
    /// For commands that wait for replicas, made when the first comes: they block their connection.
    replicated: OnceLock<Link>,
    dialer: Dialer,
    place: Place,
    listeners: Listeners,
}

impl Servers {
    /// Begins to connect. It must be called on a tokio runtime. A server that is down is an error of the first
    /// call, not of this one.
    ///
    /// # Errors
    /// [`Unsupported`](tenure_core::error::ErrorKind::Unsupported) for a file with certificates that cannot be
    /// used.
    pub(crate) fn connect(config: &Config, news: UnboundedSender<News>) -> Result<Servers, Error> {
        let dialer = Dialer::new(&config.login, config.db, config.is_tls, config.ca.as_deref())
            .map_err(|fault| fault.to_error("connect"))?;
        let kind = match &config.topology {
            Topology::Single(address) => Kind::One(One::start(dialer, Place::Fixed(address.clone()), news)),
            Topology::Sentinel { sentinels, master } => {
                let to_sentinels = dialer.for_sentinels(&config.sentinel_login);
                let sentinels = Sentinels::start(to_sentinels, sentinels, master);
                Kind::One(One::start(dialer, Place::Named(sentinels), news))
            }
            Topology::Cluster(seeds) => Kind::Cluster(Cluster::start(dialer, seeds, news)),
        };
        Ok(Servers(Arc::new(Inner { kind, replicas: config.replicas })))
    }

    /// Returns whether the hash slot of a call matters.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.0.kind, Kind::Cluster(_))
    }

    /// Returns which of the servers is in charge of a hash slot, as far as is known.
    pub(crate) fn shard(&self, slot: u16) -> Shard {
        match &self.0.kind {
            Kind::One(_) => Shard::default(),
            Kind::Cluster(cluster) => cluster.shard(slot),
        }
    }

    /// Returns how many replicas [`Servers::with_replicas`] waits for.
    pub(crate) fn replicas(&self) -> u8 {
        self.0.replicas
    }

    /// Sends a command to the server in charge of a hash slot, and returns the answer and whose it is.
    ///
    /// `build` may be called several times: after a redirection, or when a replica refused. What may have been
    /// executed is never sent again.
    pub(crate) async fn call(
        &self,
        slot: u16,
        build: impl Fn(Incarnation) -> Cmd + Send + Sync,
    ) -> Result<(Value, Incarnation), Fault> {
        self.call_and_wait(slot, build, true).await
    }

    /// As [`Servers::call`], but what is refused while the slot moves is a fault at once: nothing was executed.
    pub(crate) async fn call_at_once(
        &self,
        slot: u16,
        build: impl Fn(Incarnation) -> Cmd + Send + Sync,
    ) -> Result<(Value, Incarnation), Fault> {
        self.call_and_wait(slot, build, false).await
    }

    async fn call_and_wait(
        &self,
        slot: u16,
        build: impl Fn(Incarnation) -> Cmd + Send + Sync,
        waits: bool,
    ) -> Result<(Value, Incarnation), Fault> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let answer = match &self.0.kind {
            Kind::One(one) => one.link.execute(deadline, &build, Manner::default()).await?,
            Kind::Cluster(cluster) => cluster.execute(slot, deadline, &build, 0, waits).await?,
        };
        Ok((answer.value, answer.incarnation))
    }

    /// As [`Servers::call`], on a connection for this, and waits until `?replicas=` replicas have acknowledged.
    /// Returns how many did within half a second: fewer is not a fault, since the command has been executed.
    pub(crate) async fn with_replicas(
        &self,
        slot: u16,
        build: impl Fn(Incarnation) -> Cmd + Send + Sync,
    ) -> Result<(Value, Incarnation, u32), Fault> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let replicas = self.0.replicas;
        let answer = match &self.0.kind {
            Kind::One(one) => {
                let manner = Manner { is_asking: false, replicas };
                one.replicated().execute(deadline, &build, manner).await?
            }
            Kind::Cluster(cluster) => cluster.execute(slot, deadline, &build, replicas, true).await?,
        };
        Ok((answer.value, answer.incarnation, answer.acknowledged))
    }

    /// Waits for a connection with the server in charge of a hash slot.
    pub(crate) async fn up(&self, slot: u16) -> Result<(), Fault> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        match &self.0.kind {
            Kind::One(one) => one.link.up(deadline).await.map(drop),
            Kind::Cluster(cluster) => cluster.up(slot, deadline).await,
        }
    }

    /// Subscribes to a channel of a hash slot, until [`Servers::unsubscribe`]: on every later connection and
    /// server too. Costs nothing if it is subscribed.
    pub(crate) async fn subscribe(&self, slot: u16, channel: &[u8]) -> Result<(), Fault> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        match &self.0.kind {
            Kind::One(one) => one.inbox().subscribe(deadline, channel).await,
            Kind::Cluster(cluster) => cluster.subscribe(slot, deadline, channel).await,
        }
    }

    /// Whether a channel is subscribed to now. On a cluster the table of nodes must say, and [`Servers::subscribe`] does.
    pub(crate) fn is_subscribed(&self, channel: &[u8]) -> bool {
        match &self.0.kind {
            Kind::One(one) => {
                let wire = one.inbox.get().and_then(Link::wire);
                wire.is_some_and(|wire| wire.is_subscribed(channel))
            }
            Kind::Cluster(_) => false,
        }
    }

    /// Leaves a channel.
    pub(crate) async fn unsubscribe(&self, slot: u16, channel: &[u8]) {
        let deadline = Instant::now() + CALL_TIMEOUT;
        match &self.0.kind {
            Kind::One(one) => {
                if let Some(inbox) = one.inbox.get() {
                    inbox.unsubscribe(deadline, channel).await;
                }
            }
            Kind::Cluster(cluster) => cluster.unsubscribe(slot, deadline, channel).await,
        }
    }

    /// Returns the incarnation of a hash slot's server now, if there is one.
    #[allow(dead_code, reason = "answers carry their incarnation; tests look at it without a call")]
    pub(crate) fn incarnation(&self, slot: u16) -> Option<Incarnation> {
        match &self.0.kind {
            Kind::One(one) => one.link.wire().map(|wire| wire.incarnation()),
            Kind::Cluster(cluster) => cluster.incarnation(slot),
        }
    }

    /// Returns a link with each master, to scan them all. On a cluster it waits for the first table of nodes: none
    /// would mean that nothing is held.
    pub(crate) async fn masters(&self) -> Result<Vec<Link>, Fault> {
        match &self.0.kind {
            Kind::One(one) => Ok(vec![one.link.clone()]),
            Kind::Cluster(cluster) => cluster.masters(Instant::now() + CALL_TIMEOUT).await,
        }
    }
}

impl One {
    fn start(dialer: Dialer, place: Place, news: UnboundedSender<News>) -> Box<One> {
        let listeners = Listeners { news: Some(news), ..Listeners::default() };
        let link = Link::start(dialer.clone(), place.clone(), listeners.clone(), false);
        Box::new(One { link, inbox: OnceLock::new(), replicated: OnceLock::new(), dialer, place, listeners })
    }

    fn inbox(&self) -> &Link {
        self.inbox.get_or_init(|| {
            Link::start(self.dialer.clone(), self.place.clone(), self.listeners.of_inbox(), false)
        })
    }

    fn replicated(&self) -> &Link {
        self.replicated
            .get_or_init(|| Link::start(self.dialer.clone(), self.place.clone(), Listeners::default(), false))
    }
}

#[cfg(test)]
pub(crate) mod tests;
