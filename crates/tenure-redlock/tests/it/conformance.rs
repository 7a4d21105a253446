//! The checks that every engine must pass, on three and on five independent servers. The tests of a run share the servers.

use std::sync::Arc;

use tenure_conformance::Setup;
use tenure_core::engine::{Connect, Engine};
use tenure_core::model::claim::ClientId;
use tenure_redlock::{Config, Redlock};
use tenure_testkit::redis::shared_quorum;

/// Returns what connects with a URL.
pub(crate) fn connector(url: &str) -> Connect {
    let config = Config::parse(url).expect("the kit's URLs are right");
    Connect::new("redlock", async move |client| Ok(Arc::new(Redlock::connect(config, client).await?)))
}

/// Makes a quorum of new servers.
pub(crate) fn init(url: &str) {
    let config = Config::parse(url).expect("the kit's URLs are right");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let engine = Redlock::connect(config, ClientId::new(1)).await.expect("the servers answer");
        engine.migrate().await.expect("all servers are there");
    });
}

macro_rules! quorums {
    ($($module:ident: $setup:ident of $servers:literal;)*) => { $(
        mod $module {
            use super::{Connect, Setup, connector, init, shared_quorum};

            struct $setup(String);

            impl Setup for $setup {
                fn start() -> $setup {
                    $setup(shared_quorum($servers, init))
                }

                fn at(address: &str) -> $setup {
                    $setup(address.to_owned())
                }

                fn address(&self) -> String {
                    self.0.clone()
                }

                fn connector(&self) -> Connect {
                    connector(&self.0)
                }
            }

            tenure_conformance::suite!($setup);
        }
    )* };
}

quorums! {
    three: Three of 3;
    five: Five of 5;
}
