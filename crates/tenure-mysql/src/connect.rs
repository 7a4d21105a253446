//! How settings become an engine.

use std::sync::Arc;

use tenure_core::engine::Connect;

use crate::config::Config;

impl From<Config> for Connect {
    /// What [`Tenure::new`](tenure_core::Tenure::new) takes. Nothing is tried yet.
    fn from(config: Config) -> Connect {
        Connect::new("mysql", async move |client| Ok(Arc::new(crate::engine::connect(config, client).await?)))
    }
}
