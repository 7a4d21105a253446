//! How settings become an engine.

use std::sync::Arc;

use tenure_core::engine::{Connect, Engine};

use crate::config::{Config, Topology};
use crate::engine::Redis;
use crate::redlock::Redlock;

impl From<Config> for Connect {
    /// What [`Tenure::new`](tenure_core::Tenure::new) takes. Nothing is tried yet.
    fn from(config: Config) -> Connect {
        Box::new(move |client| {
            Box::pin(async move {
                let engine: Arc<dyn Engine> = match &config.topology {
                    Topology::Quorum(_) => Arc::new(Redlock::connect(config, client).await?),
                    _ => Arc::new(Redis::connect(config, client).await?),
                };
                Ok(engine)
            })
        })
    }
}
