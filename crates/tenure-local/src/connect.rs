//! How settings become an engine.

use std::sync::Arc;

use tenure_core::clock::SystemClock;
use tenure_core::engine::{Connect, Engine};

use crate::config::Config;
use crate::engine::Local;

impl From<Config> for Connect {
    /// What [`Tenure::new`](tenure_core::Tenure::new) takes. Nothing is tried yet.
    fn from(config: Config) -> Connect {
        Box::new(move |client| {
            Box::pin(async move {
                let engine: Arc<dyn Engine> =
                    Arc::new(Local::connect(config, client, Arc::new(SystemClock)).await?);
                Ok(engine)
            })
        })
    }
}
