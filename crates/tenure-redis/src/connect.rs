//! How settings become an engine.

use std::sync::Arc;

use tenure_core::engine::{Connect, Engine};

use crate::config::Config;
use crate::engine::Redis;

impl From<Config> for Connect {
    /// What [`Tenure::new`](tenure_core::Tenure::new) takes. Nothing is tried yet.
    fn from(config: Config) -> Connect {
        Box::new(move |client| {
            Box::pin(async move {
                let engine: Arc<dyn Engine> = Arc::new(Redis::connect(config, client).await?);
                Ok(engine)
            })
        })
    }
}
