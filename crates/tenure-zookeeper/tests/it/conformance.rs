//! The checks that every engine must pass: on one server, and on an ensemble. The tests of a run share the servers.

use tenure_conformance::Setup;
use tenure_core::engine::Connect;
use tenure_testkit::zookeeper;
use tenure_zookeeper::Config;

/// A timeout that a test can wait for, and the kit's tick.
pub(crate) const BRIEF: &str = "session_timeout=2s&tick=200ms";

/// Returns what connects with a URL.
pub(crate) fn connector(url: &str) -> Connect {
    Config::parse(url).expect("the kit's URLs are right").into()
}

macro_rules! ways {
    ($($module:ident: $setup:ident = $url:expr;)*) => { $(
        mod $module {
            use super::{BRIEF, Connect, Setup, connector, zookeeper};

            struct $setup(String);

            impl Setup for $setup {
                fn start() -> $setup {
                    $setup(format!("{}/conformance?{BRIEF}", $url))
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

ways! {
    single: Single = zookeeper::shared();
    ensemble: Ensemble = zookeeper::shared_ensemble();
}
