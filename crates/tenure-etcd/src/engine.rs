//! The engine: how a client connects.

use std::sync::Arc;

use tenure_core::Result;
use tenure_core::model::claim::ClientId;
use tenure_ordered::{Ordered, Wakes};
use tokio::time::Instant;

use crate::client::endpoints::{Endpoints, deadline};
use crate::client::etcd_leases::EtcdLeases;
use crate::client::lease::Leases;
use crate::client::proto::StatusRequest;
use crate::client::watch::Watches;
use crate::config::Config;
use crate::error::Fault;
use crate::keys::Keys;
use crate::locks::store::Parts;
use crate::locks::wake::Waits;

pub use crate::locks::store::Etcd;

/// Connects with a cluster.
///
/// No example: users give a [`Config`] to a client, which calls it.
///
/// # Errors
/// [`Unavailable`](tenure_core::ErrorKind::Unavailable) if no server answers in time;
/// [`Invalid`](tenure_core::ErrorKind::Invalid) for a wrong user or password;
/// [`Unsupported`](tenure_core::ErrorKind::Unsupported) for files with certificates that cannot be used.
pub async fn connect(config: Config, client: ClientId) -> Result<Ordered<Etcd>> {
    let endpoints = Endpoints::new(&config)?;
    let until = deadline();
    let status = loop {
        match endpoints.call(StatusRequest {}, until).await {
            // This call is not repeated, so it is given all its time.
            Err(Fault::Down { .. }) if Instant::now() < until => {}
            answer => break answer,
        }
    };
    let status = status.map_err(|fault| fault.to_error("connect"))?;
    let cluster = status.header.map_or(0, |header| header.cluster_id);
    let wakes = Arc::new(Wakes::default());
    let watches = Watches::start(&endpoints);
    let parts = Parts {
        keys: Keys::new(&config.prefix, config.layout),
        etcd_leases: EtcdLeases::new(Leases::start(&endpoints), config.election_timeout),
        waits: Waits::new(watches.clone(), wakes.clone()),
        watches,
        endpoints,
        client,
        cluster,
        wakes,
    };
    Ok(Ordered::new(Etcd::new(parts)))
}
