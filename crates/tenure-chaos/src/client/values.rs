//! Values that one loads for all: each names the token under which it was loaded.

use std::time::Duration;

use pollster::block_on;
use tenure::{Error, ErrorKind, Fetched, FetchedFrom, Lease};

use super::sections::{Work, period};
use super::{Stage, pause};
use crate::history::notes::Source;
use crate::history::{Kind, now};
use crate::resource::Resource;

/// How long a value is fresh.
pub(crate) const FRESH: Duration = Duration::from_millis(300);
/// For how long after that it is served while another loads; only of the second key.
pub(crate) const STALE: Duration = Duration::from_millis(600);
const KEYS: [&str; 2] = ["value", "value-or-stale"];
/// One of so many loads fails.
const LOADS_PER_FAILURE: u32 = 10;

/// Why there is no value.
enum Failure {
    Told(Error),
    /// The load did not want.
    Own,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Told(error)
    }
}

/// Asks for values until it is over.
pub(super) fn fetch(stage: &Stage, task: &str) {
    let mut resource = Resource::connect(&stage.resource);
    while !stage.is_over() {
        let key = KEYS[fastrand::usize(0..KEYS.len())];
        let flight = stage.tenure.single_flight(key).fresh(FRESH).ttl(stage.ttl);
        let flight = if key == KEYS[1] { flight.serve_stale(STALE) } else { flight };
        let asked = now();
        let load = async |lease: &Lease| load(stage, lease, key, asked, task, &mut resource).await;
        match block_on(flight.get_or_refresh(load)) {
            Ok(found) => note(stage, key, &found, asked, task),
            Err(Failure::Own) => {}
            Err(Failure::Told(error)) if error.kind() == ErrorKind::Timeout => {}
            Err(Failure::Told(error)) => stage.note("fetch", &error),
        }
        pause(Duration::from_millis(fastrand::u64(0..60)));
    }
}

async fn load(
    stage: &Stage,
    lease: &Lease,
    key: &str,
    asked: u64,
    task: &str,
    resource: &mut Resource,
) -> Result<Vec<u8>, Failure> {
    let mut work = Work::begin(stage, Kind::Load, 1, asked, task, vec![(key.to_owned(), lease)]);
    let is_held = work.go_on(Some((resource, "")), period(stage)).await;
    if !is_held || (!stage.is_calm() && fastrand::u32(0..LOADS_PER_FAILURE) == 0) {
        return Err(Failure::Own);
    }
    Ok(lease.token().to_string().into_bytes())
}

fn note(stage: &Stage, key: &str, found: &Fetched, asked: u64, task: &str) {
    let at = now();
    let loaded = String::from_utf8_lossy(&found.bytes);
    let (source, token) = match found.source {
        FetchedFrom::Fresh(token) => (Source::Fresh, Some(token)),
        FetchedFrom::Loaded(token) => (Source::Loaded, Some(token)),
        FetchedFrom::Stale => (Source::Stale, None),
    };
    if token.is_some_and(|token| token.to_string() != loaded) {
        let error = Error::new(ErrorKind::Internal, "fetch", "a value with the token of another");
        return stage.note("fetch", &error);
    }
    stage.journal.write(&[
        "fetched",
        key,
        source.as_str(),
        &loaded,
        &asked.to_string(),
        &at.to_string(),
        task,
    ]);
}
