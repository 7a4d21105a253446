//! What the engine's own constants are made of: from how many entries on a record belongs into rows, and how
//! large a batch should be. `cargo xtask bench` measures the engine as users meet it.
#![allow(missing_docs, clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{Engine, ReleaseRequest};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Kind, Label, Name, Terms};
use tenure_core::model::step::Release;
use tenure_core::model::token::Token;
use tenure_local::{Config, Local};
use tenure_testkit::TestDirectory;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(400);

fn main() {
    let directory = TestDirectory::new();
    records(directory.path());
    batches(directory.path());
}

/// What a pair costs beside other holders, with the record as one value and in rows.
fn records(directory: &Path) {
    let runtime = runtime();
    for holders in [4, 8, 16, 32, 64] {
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            for (rows_above, rates) in [usize::MAX, 1].into_iter().zip(&mut rates) {
                let place = directory.join(format!("records-{holders}-{round}-{}", rows_above == 1));
                let config = Config::in_directory(place).with_rows_above(rows_above);
                let client = ClientId::new(SystemClock.random());
                let local = runtime.block_on(Local::connect(config, client, Arc::new(SystemClock))).unwrap();
                let terms = Arc::new(Terms { kind: Kind::Semaphore, capacity: 1000, ..(*terms()).clone() });
                let name = Name::new("semaphore").unwrap();
                let engine = local.blocking().unwrap();
                for _ in 0..holders {
                    engine.claim(&claim(&name, &terms, client)).unwrap();
                }
                rates.push(rate(&|| {
                    let claim = claim(&name, &terms, client);
                    engine.claim(&claim).unwrap();
                    engine.release(&release(&claim)).unwrap();
                    1
                }));
            }
        }
        let [whole, rows] = rates.map(|mut rates| 1e6 / median(&mut rates));
        println!("a pair beside {holders:>2} holders: {whole:>5.1} us whole, {rows:>5.1} us in rows");
    }
}

/// What a command costs in batches of different sizes.
fn batches(directory: &Path) {
    let runtime = runtime();
    let (client, local) = connect(&runtime, directory);
    let terms = terms();
    for size in [1, 8, 32, 128, 512] {
        let names: Vec<_> = (0..size).map(|number| Name::new(&format!("batch/{number}")).unwrap()).collect();
        let mut rates: Vec<_> = (0..ROUNDS)
            .map(|_| {
                rate(&|| {
                    let claims: Vec<_> = names.iter().map(|name| claim(name, &terms, client)).collect();
                    let releases = claims.iter().map(release).collect();
                    runtime.block_on(local.claim(claims));
                    runtime.block_on(local.release(releases));
                    size
                })
            })
            .collect();
        let each = 1e6 / median(&mut rates) / 2.0;
        println!("batches of {size:>3}: {each:>5.1} us a command, {:>6.0} us a batch", each * size as f64);
    }
}

fn connect(runtime: &tokio::runtime::Runtime, directory: &Path) -> (ClientId, Arc<Local>) {
    let client = ClientId::new(SystemClock.random());
    let config = Config::in_directory(directory.join("place"));
    let local = runtime.block_on(Local::connect(config, client, Arc::new(SystemClock))).unwrap();
    (client, Arc::new(local))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap()
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// How many a second.
fn rate(pairs: &impl Fn() -> usize) -> f64 {
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < ROUND {
        done += pairs();
    }
    done as f64 / start.elapsed().as_secs_f64()
}

fn terms() -> Arc<Terms> {
    Arc::new(Terms::of_mutex(Label::new("host", std::process::id(), "bench", "")))
}

fn claim(name: &Name, terms: &Arc<Terms>, client: ClientId) -> Claim {
    Claim {
        resource: name.clone(),
        id: ClaimId::new(u128::from(SystemClock.random())),
        client,
        terms: terms.clone(),
        wait: false,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

fn release(claim: &Claim) -> ReleaseRequest {
    let release = Release { claim: claim.id, maybe_in_flight: false, is_unused: false };
    ReleaseRequest { resource: claim.resource.clone(), release }
}
