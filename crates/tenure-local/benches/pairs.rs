//! How many pairs of claim and release a second, beside two bare LMDB write transactions in the same process.
#![allow(unsafe_code, missing_docs, clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, EnvFlags, EnvOpenOptions};
use tenure_core::claim::{Claim, ClaimId, ClientId, HoldLimits, Kind, Label, Name, Terms};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{ClaimAnswer, Engine, ReleaseAnswer, ReleaseRequest};
use tenure_core::step::Release;
use tenure_core::token::Token;
use tenure_local::{Config, Local};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(400);

fn main() {
    let directory = std::env::temp_dir().join(format!("tenure-pairs-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let bare = bare(&directory);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let client = ClientId::new(SystemClock.random());
    let config = Config::in_directory(directory.join("place"));
    let local = runtime.block_on(Local::connect(config, client, Arc::new(SystemClock))).unwrap();
    let local = Arc::new(local);
    let blocking = blocking(&local, client);
    let tasks = |count| {
        let local = local.clone();
        let runtime = &runtime;
        move || runtime.block_on(async_pairs(&local, client, count))
    };
    let (one, many) = (tasks(1), tasks(64));
    let mut rates = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        rates[0].push(rate(&bare));
        rates[1].push(rate(&blocking));
        rates[2].push(rate(&one));
        rates[3].push(rate(&many));
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let bare = median(&mut rates[0]);
    println!("{:<24}{bare:>10.0} pairs/s", "bare LMDB");
    for (what, rates) in ["blocking", "1 task", "64 tasks"].into_iter().zip(&mut rates[1..]) {
        let rate = median(rates);
        println!("{what:<24}{rate:>10.0} pairs/s  {:.2}x", rate / bare);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Runs `pairs`, which says how many it did, for a while.
fn rate(pairs: &impl Fn() -> usize) -> f64 {
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < ROUND {
        done += pairs();
    }
    done as f64 / start.elapsed().as_secs_f64()
}

fn bare(directory: &std::path::Path) -> impl Fn() -> usize {
    let path = directory.join("bare");
    std::fs::create_dir(&path).unwrap();
    let mut options = EnvOpenOptions::new();
    options.map_size(1 << 30);
    // SAFETY: nothing of it outlives this process.
    unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC) };
    // SAFETY: the file is this process's own.
    let env = unsafe { options.open(&path).unwrap() };
    let rows: Database<'static, Bytes, Bytes> = env
        .create_databases_and_commit(env.write_txn().unwrap(), |opener, txn| {
            opener.create_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
        })
        .unwrap()
        .unwrap_commit();
    move || {
        let mut txn = env.write_txn().unwrap();
        rows.put(&mut txn, b"billing/4711", &[7; 120]).unwrap();
        txn.commit().unwrap();
        let mut txn = env.write_txn().unwrap();
        rows.delete(&mut txn, b"billing/4711").unwrap();
        txn.commit().unwrap();
        1
    }
}

fn terms() -> Arc<Terms> {
    Arc::new(Terms {
        kind: Kind::Mutex,
        capacity: 1,
        weight: 1,
        ttl: Duration::from_secs(30),
        limits: HoldLimits::default(),
        label: Label::new("host", std::process::id(), "pairs", ""),
        unless_fresh: false,
    })
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
    }
}

fn release(claim: &Claim) -> ReleaseRequest {
    let release = Release { claim: claim.id, maybe_in_flight: false, is_unused: false };
    ReleaseRequest { resource: claim.resource.clone(), release }
}

fn blocking(local: &Arc<Local>, client: ClientId) -> impl Fn() -> usize {
    let (local, terms, name) = (local.clone(), terms(), Name::new("billing/4711").unwrap());
    move || {
        let engine = local.blocking().unwrap();
        let claim = claim(&name, &terms, client);
        assert!(matches!(engine.claim(&claim).unwrap(), ClaimAnswer::Granted(_)));
        assert_eq!(engine.release(&release(&claim)).unwrap(), ReleaseAnswer::Released);
        1
    }
}

/// One pair per task, each task with a name of its own.
async fn async_pairs(local: &Arc<Local>, client: ClientId, tasks: usize) -> usize {
    let terms = terms();
    let pairs = (0..tasks).map(|task| {
        let (local, terms) = (local.clone(), terms.clone());
        let name = Name::new(&format!("billing/{task}")).unwrap();
        async move {
            let claim = claim(&name, &terms, client);
            let granted = local.claim(vec![claim.clone()]).await.remove(0).unwrap();
            assert!(matches!(granted, ClaimAnswer::Granted(_)));
            assert_eq!(
                local.release(vec![release(&claim)]).await.remove(0).unwrap(),
                ReleaseAnswer::Released
            );
        }
    });
    futures_util::future::join_all(pairs).await.len()
}
