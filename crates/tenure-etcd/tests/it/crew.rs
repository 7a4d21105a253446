//! Clients that contend for a few names while a test breaks something.

use std::time::Duration;

pub(crate) use tenure_conformance::crew::{Crew, TTL, now, pause};
use tenure_core::model::claim::ClaimId;
use tenure_core::{Lease, Tenure};
use tenure_testkit::etcd::{EtcdOptions, EtcdServer};
use tenure_testkit::wait_for;

use crate::conformance::connector;

/// The election timeout of clusters whose elections are to be over soon, and how the clients' URLs say so.
pub(crate) const ELECTION: Duration = Duration::from_millis(500);

/// Elections that are over soon.
pub(crate) fn hasty() -> EtcdOptions {
    EtcdOptions::default().election(Duration::from_millis(50), ELECTION)
}

/// The address of servers with [`hasty`] elections.
pub(crate) fn with_hasty(url: &str) -> String {
    format!("{url}?election_timeout={}ms", ELECTION.as_millis())
}

/// Connects one client.
pub(crate) fn connect(url: &str) -> Tenure {
    tenure_conformance::crew::connect(connector(url))
}

/// Starts so many clients.
pub(crate) fn crew(url: &str, clients: usize, names: &[String]) -> Crew {
    let url = url.to_owned();
    Crew::start(move || connector(&url), clients, names)
}

/// Takes a free lock.
pub(crate) fn take(client: &Tenure, name: &str, ttl: Duration) -> Lease {
    pollster::block_on(client.mutex(name).ttl(ttl).acquire()).expect("it is free")
}

/// The keys that begin so.
pub(crate) fn keys(server: &EtcdServer, prefix: &str) -> Vec<String> {
    let listed = server.ctl(&["get", "--prefix", "--keys-only", prefix]);
    listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Waits until no entry and no value is left. (Ids that are finished end with their leases.)
pub(crate) fn assert_nothing_is_left(server: &EtcdServer) {
    for prefix in ["tenure/line/", "tenure/value/"] {
        wait_for("an empty store", || keys(server, prefix).is_empty().then_some(()));
    }
}

/// Waits until so many claims wait for a resource.
pub(crate) fn wait_for_waiters(client: &Tenure, name: &str, count: u32) {
    wait_for("waiters", || {
        let view = pollster::block_on(client.view(name)).expect("an answer");
        (view.map_or(0, |view| view.waiting) == count).then_some(())
    });
}

/// The ids of all leases that there are, as etcdctl writes them.
pub(crate) fn leases(server: &EtcdServer) -> Vec<String> {
    let listed = server.ctl(&["lease", "list"]);
    listed.lines().skip(1).map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The lease on which a claim's entry is.
pub(crate) fn lease_of(server: &EtcdServer, name: &str, claim: ClaimId) -> String {
    let json = server.ctl(&["get", "--write-out=json", &format!("tenure/line/{name}\x1fc{claim}")]);
    let number = json.split("\"lease\":").nth(1).expect("a key on a lease");
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    // As etcdctl lists them: with the zeros in front.
    format!("{:016x}", digits.parse::<i64>().expect("a number"))
}
