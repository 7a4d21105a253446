//! Clients that contend for a few names while a test breaks something.

pub(crate) use tenure_conformance::crew::{Crew, TTL, assert_excused, now, pause, use_every_kind};
use tenure_core::Tenure;

use crate::conformance::connector;

/// Connects one client.
pub(crate) fn connect(url: &str) -> Tenure {
    tenure_conformance::crew::connect(connector(url))
}

/// Starts so many clients.
pub(crate) fn crew(url: &str, clients: usize, names: &[String]) -> Crew {
    let url = url.to_owned();
    Crew::start(move || connector(&url), clients, names)
}
