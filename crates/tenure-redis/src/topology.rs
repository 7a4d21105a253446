//! Which server is in charge of a hash slot: one, the master that the Sentinels name, or a node of a cluster.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tenure_core::engine::Incarnation;
use tenure_core::error::Error;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::config::{Config, Topology};
use crate::dial::Dialer;
use crate::error::Fault;
use crate::link::{Link, Place};
use crate::wire::{Ears, News};

/// How long a call takes at most, a reconnect included. The client gives a call up after 2 s, and an error that
/// says why is worth more than one that says "no answer".
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(1900);

/// The servers behind a URL. Cheap to clone; connections end with the last clone.
#[derive(Clone)]
pub(crate) struct Servers(Arc<Kind>);

enum Kind {
    One(Link),
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
        let ears = Ears { news: Some(news), strays: None };
        let kind = match &config.topology {
            Topology::Single(address) => Kind::One(Link::start(dialer, Place::Fixed(address.clone()), ears)),
            Topology::Sentinel { .. } | Topology::Cluster(_) => {
                let fault = Fault::Setup { why: "not built yet".to_owned(), hint: "use a single server" };
                return Err(fault.to_error("connect"));
            }
        };
        Ok(Servers(Arc::new(kind)))
    }

    /// Returns whether the hash slot of a call matters.
    pub(crate) fn is_cluster(&self) -> bool {
        match &*self.0 {
            Kind::One(_) => false,
        }
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
        let deadline = Instant::now() + CALL_TIMEOUT;
        let _ = slot;
        match &*self.0 {
            Kind::One(link) => link.call(deadline, &build).await,
        }
    }

    /// Subscribes to a channel of a hash slot, until [`Servers::unsubscribe`]. Costs nothing if it is subscribed.
    pub(crate) async fn subscribe(&self, slot: u16, channel: &[u8]) -> Result<(), Fault> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let _ = slot;
        match &*self.0 {
            Kind::One(link) => link.subscribe(deadline, channel).await,
        }
    }

    /// Leaves a channel.
    pub(crate) async fn unsubscribe(&self, slot: u16, channel: &[u8]) {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let _ = slot;
        match &*self.0 {
            Kind::One(link) => link.unsubscribe(deadline, channel).await,
        }
    }

    /// Returns who answers for a hash slot now, if anybody does.
    pub(crate) fn incarnation(&self, slot: u16) -> Option<Incarnation> {
        let _ = slot;
        match &*self.0 {
            Kind::One(link) => link.wire().map(|wire| wire.incarnation()),
        }
    }

    /// Returns a link with each master, to scan them all.
    pub(crate) fn masters(&self) -> Vec<Link> {
        match &*self.0 {
            Kind::One(link) => vec![link.clone()],
        }
    }
}
