//! Clients that contend for a few names while a test breaks something.

use std::time::Duration;

pub(crate) use tenure_conformance::crew::{Crew, assert_excused, now, pause};
use tenure_core::{Settings, Tenure};
use tenure_testkit::PATIENCE;

use crate::conformance::connector;

pub(crate) const CLIENTS: usize = 16;
/// How soon everybody is served again once a fault is over: a crew's client of which nothing was heard is replaced
/// after 2 s.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) fn names() -> Vec<String> {
    vec!["one".to_owned(), "two".to_owned()]
}

/// Connects one client.
pub(crate) fn connect(url: &str) -> Tenure {
    tenure_conformance::crew::connect(connector(url))
}

/// Connects a client that waits for answers which a busy server gives late: what is much at once.
pub(crate) fn connect_patiently(url: &str) -> Tenure {
    let patient = Settings::new().answer_timeout(PATIENCE);
    pollster::block_on(Tenure::connect_with(connector(url), patient)).expect("a client connects")
}

/// Starts a crew.
pub(crate) fn crew(url: &str) -> Crew {
    let url = url.to_owned();
    Crew::start(move || connector(&url), CLIENTS, &names())
}

/// A client that has nothing of tenure.
pub(crate) fn raw<T>(url: &str, work: impl AsyncFnOnce(&zookeeper_client::Client) -> T) -> T {
    let hosts = url.split("://").nth(1).expect("a URL").to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = zookeeper_client::Client::connect(&hosts).await.expect("a server that answers");
        work(&client).await
    })
}

/// Asserts that nobody holds or waits, once what is under way has arrived.
pub(crate) fn assert_nothing_is_left(client: &Tenure) {
    tenure_testkit::wait_for("an empty ensemble", || {
        pollster::block_on(client.inspect("")).expect("an answer").is_empty().then_some(())
    });
}
