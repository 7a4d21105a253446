//! Connecting a client with all servers.

use std::sync::{Arc, Mutex};

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::Connect;
use tenure_core::model::claim::ClientId;
use tenure_core::{Error, ErrorKind, Result};
use tenure_redis::server::{Dialer, Fault, Keys, Link, Listeners, News, in_millis};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::boot;
use crate::config::Config;
use crate::engine::Redlock;
use crate::quorum::majority;
use crate::rounds::node::Node;
use crate::rounds::notices::{self, Notices};
use crate::rounds::wire::{Links, Wire};
use crate::rounds::{ENGINE, Quorum, pending};

impl From<Config> for Connect {
    /// What [`Tenure::new`](tenure_core::Tenure::new) takes. Nothing is tried yet.
    fn from(config: Config) -> Connect {
        Connect::new(ENGINE, async move |client| Ok(Arc::new(Redlock::connect(config, client).await?)))
    }
}

impl Redlock {
    /// Connects a client. It must be called on a tokio runtime, which serves the client from then on.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no majority of the servers answers in time; [`ErrorKind::Invalid`] if two names lead to one
    /// server, or a server refuses the user or the password; [`ErrorKind::Unsupported`] if one is too old.
    pub async fn connect(config: Config, client: ClientId) -> Result<Redlock> {
        let failed = |fault: Fault| fault.to_error("connect");
        let dialer =
            Dialer::new(&config.login, config.db, config.is_tls, config.ca.as_deref()).map_err(failed)?;
        let inbox = Keys::new(&config.prefix, false).inbox(0, client);
        let links = config.servers.iter().map(|server| -> (Box<dyn Wire>, _) {
            let (sender, news) = unbounded_channel();
            let listeners = Listeners::new(sender);
            let start = |listeners| Link::to(dialer.clone(), server.clone(), listeners);
            let messages = start(listeners.of_inbox());
            messages.want(inbox.as_bytes());
            (Box::new(Links { commands: start(listeners), messages }), news)
        });
        let links = links.collect();
        Redlock::over(config, Arc::new(SystemClock), links).await
    }

    /// Makes the engine over connections with the servers that the settings name, each with what comes on it unasked.
    ///
    /// # Errors
    /// As [`Redlock::connect`].
    pub(crate) async fn over(
        config: Config,
        clock: Arc<dyn Clock>,
        wires: Vec<(Box<dyn Wire>, UnboundedReceiver<News>)>,
    ) -> Result<Redlock> {
        let keys = Keys::new(&config.prefix, false);
        let (mut nodes, mut heard) = (Vec::new(), Vec::new());
        for (server, (wire, news)) in config.servers.iter().zip(wires) {
            nodes.push(Node::new(wire, server.to_string(), in_millis(config.max_ttl)));
            heard.push(news);
        }
        let quorum = Arc::new(Quorum {
            nodes,
            shared_keys: keys.shared_of_quorum(),
            keys,
            max_ttl: config.max_ttl,
            clock,
            #[cfg(any(test, feature = "testing"))]
            has_plain_tokens: config.has_plain_tokens,
            owned: Mutex::default(),
            notices: Notices::new(majority(config.servers.len())),
            stamps: Default::default(),
            counted_once: Mutex::default(),
        });
        quorum.wait_for_a_majority().await?;
        quorum.learn_longest().await;
        if let Some(twin) = (0..quorum.nodes.len()).find_map(|node| quorum.twin_of(node)) {
            return Err(Error::new(ErrorKind::Invalid, "connect", twin)
                .with_hint("name each server once: it would have two votes"));
        }
        let mut tasks = Vec::new();
        for (node, news) in heard.into_iter().enumerate() {
            tasks.push(tokio::spawn(notices::listen(Arc::downgrade(&quorum), node, news)).abort_handle());
            tasks.push(tokio::spawn(boot::watch_server(Arc::downgrade(&quorum), node)).abort_handle());
            // It ends by itself: what a client that is being closed gives back is still to be sent.
            tokio::spawn(pending::send_pending(
                Arc::downgrade(&quorum),
                quorum.nodes[node].pending.clone(),
                node,
            ));
        }
        Ok(Redlock::new(quorum, tasks))
    }
}
