//! The checks that every engine must pass: directly, and behind PgBouncer. The tests of a run share the servers.

use tenure_conformance::Setup;
use tenure_core::engine::Connect;
use tenure_postgres::Config;
use tenure_testkit::postgres;

/// Returns what connects with a URL.
pub(crate) fn connector(url: &str) -> Connect {
    Config::parse(url).expect("the kit's URLs are right").into()
}

macro_rules! ways {
    ($($module:ident: $setup:ident = $url:expr;)*) => { $(
        mod $module {
            use super::{Connect, Setup, connector, postgres};

            struct $setup(String);

            impl Setup for $setup {
                fn start() -> $setup {
                    $setup($url)
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
    direct: Direct = postgres::shared();
    // Transaction mode: no connection is anybody's for longer than a transaction, and nobody hears a notification.
    pgbouncer: Bouncer = postgres::shared_behind_pgbouncer();
}
