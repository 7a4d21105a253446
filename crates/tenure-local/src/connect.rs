//! How settings become an engine.

use std::sync::Arc;

use tenure_core::clock::SystemClock;
use tenure_core::engine::Connect;

use crate::config::Config;
use crate::engine::{ENGINE, Local};

impl From<Config> for Connect {
    /// What [`Tenure::new`](tenure_core::Tenure::new) takes. Nothing is tried yet.
    fn from(config: Config) -> Connect {
        Connect::new(ENGINE, async move |client| {
            Ok(Arc::new(Local::connect(config, client, Arc::new(SystemClock)).await?))
        })
    }
}
