//! The checks that every engine must pass, on each topology. The tests of a run share the servers.

use std::sync::Arc;

use tenure_conformance::Setup;
use tenure_core::engine::Connect;
use tenure_redis::{Config, Redis};
use tenure_testkit::redis::{Topology, shared};

/// Returns what connects with a URL.
pub(crate) fn connector(url: &str) -> Connect {
    let config = Config::parse(url).expect("the kit's URLs are right");
    Connect::new("redis", async move |client| Ok(Arc::new(Redis::connect(config, client).await?)))
}

macro_rules! topologies {
    ($($module:ident: $setup:ident;)*) => { $(
        mod $module {
            use super::{Connect, Setup, Topology, connector, shared};

            struct $setup(String);

            impl Setup for $setup {
                fn start() -> $setup {
                    $setup(shared(Topology::$setup))
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

topologies! {
    single: Single;
    sentinel: Sentinel;
    cluster: Cluster;
}
