//! The checks that every engine must pass: directly, and behind PgBouncer. The tests of a run share the servers.

use tenure_conformance::Setup;
use tenure_core::engine::Connect;
use tenure_postgres::Config;
use tenure_testkit::SqlConnection;
use tenure_testkit::postgres::{self, PostgresServer};

/// Returns what connects with a URL.
pub(crate) fn connector(url: &str) -> Connect {
    Config::parse(url).expect("the kit's URLs are right").into()
}

/// Makes the tables as the version of tenure before this one did.
pub(crate) fn make_older_tables(server: &PostgresServer) {
    make_older(&mut server.connect().expect("it answers"), "tenure_");
}

fn make_older(raw: &mut SqlConnection, prefix: &str) {
    let statements = include_str!("../../src/dialect/tables-1.sql").replace("tenure_", prefix);
    statements.split(";\n").filter(|text| !text.is_empty()).for_each(|text| drop(raw.run(text)));
}

/// A shared server on which the tables with one prefix are of the version before this one.
fn with_older_tables() -> String {
    let url = postgres::shared();
    let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next()?.parse().ok());
    let mut raw =
        SqlConnection::to_postgres(port.expect("a port"), "postgres", "postgres").expect("it answers");
    // The lock is the session's: whoever comes meanwhile waits, and finds them.
    raw.run("SELECT pg_advisory_lock(1)");
    make_older(&mut raw, "older_");
    format!("{url}?prefix=older_")
}

macro_rules! ways {
    ($($module:ident: $setup:ident = $url:expr;)*) => { $(
        mod $module {
            use super::{Connect, Setup, connector};

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
    direct: Direct = super::postgres::shared();
    // Transaction mode: no connection is anybody's for longer than a transaction, and nobody hears a notification.
    pgbouncer: Bouncer = super::postgres::shared_behind_pgbouncer();
    // What an installation of before has until its tables are made new.
    older_tables: OlderTables = super::with_older_tables();
}
