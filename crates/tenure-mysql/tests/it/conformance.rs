//! The checks that every engine must pass. The tests of a run share the server.

use tenure_conformance::Setup;
use tenure_core::engine::Connect;
use tenure_mysql::Config;

/// Returns what connects with a URL.
pub(crate) fn connector(url: &str) -> Connect {
    Config::parse(url).expect("the kit's URLs are right").into()
}

struct MariaDb(String);

impl Setup for MariaDb {
    fn start() -> MariaDb {
        MariaDb(tenure_testkit::mariadb::shared())
    }

    fn at(address: &str) -> MariaDb {
        MariaDb(address.to_owned())
    }

    fn address(&self) -> String {
        self.0.clone()
    }

    fn connector(&self) -> Connect {
        connector(&self.0)
    }
}

tenure_conformance::suite!(MariaDb);
