//! One side of `cargo xtask bench anchors` in a process of its own, in Rust: `anchors/compare.py` says what its arguments and its lines are.
#![allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]

use std::error::Error;
use std::io::{self, BufRead};
use std::process::exit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How each lock is taken and released.
#[derive(Clone)]
enum Locks {
    Tenure(tenure::Tenure),
    Rslock(rslock::LockManager),
}

/// What is held.
enum Held {
    Lease(tenure::Lease),
    Rslock(rslock::LockGuard),
}

impl Locks {
    async fn connect(side: &str, url: &str) -> Outcome<Locks> {
        match side {
            "tenure" => Ok(Locks::Tenure(tenure::connect(url).await?)),
            "rslock" => {
                let bare = url.split('?').next().unwrap_or(url);
                Ok(Locks::Rslock(rslock::LockManager::new(vec![bare.to_owned()])))
            }
            other => Err(format!("{other:?} is no side").into()),
        }
    }

    async fn take(&self, name: &str, ttl: Duration) -> Outcome<Held> {
        match self {
            Locks::Tenure(tenure) => Ok(Held::Lease(tenure.mutex(name).ttl(ttl).acquire().await?)),
            Locks::Rslock(manager) => Ok(Held::Rslock(manager.acquire(name, ttl).await?)),
        }
    }
}

impl Held {
    async fn release(self) -> Outcome<()> {
        match self {
            Held::Lease(lease) => {
                lease.release().await?;
            }
            Held::Rslock(lock) => lock.release().await,
        }
        Ok(())
    }
}

/// What all workers have done.
struct Tally {
    holds: Vec<AtomicU64>,
    changes: AtomicU64,
    last: AtomicUsize,
    /// Since when each waits, and how long each has waited at most.
    waits: Vec<Mutex<(Option<Instant>, Duration)>>,
}

impl Tally {
    fn new(workers: usize) -> Tally {
        Tally {
            holds: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            changes: AtomicU64::new(0),
            last: AtomicUsize::new(usize::MAX),
            waits: (0..workers).map(|_| Mutex::new((None, Duration::ZERO))).collect(),
        }
    }

    /// Of one that still waits, what it has waited so far.
    fn waited(&self, worker: usize, since: Option<Instant>) -> Duration {
        let mut wait = self.waits[worker].lock().unwrap_or_else(PoisonError::into_inner);
        let longest = wait.1.max(wait.0.map_or(Duration::ZERO, |since| since.elapsed()));
        *wait = (since, longest);
        longest
    }

    fn holds(&self, worker: usize) {
        self.waited(worker, None);
        self.holds[worker].fetch_add(1, Ordering::Relaxed);
        if self.last.swap(worker, Ordering::Relaxed) != worker {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(&self) -> String {
        let longest = self.waits.iter().map(|wait| {
            let mut wait = wait.lock().unwrap_or_else(PoisonError::into_inner);
            let longest = wait.1.max(wait.0.map_or(Duration::ZERO, |since| since.elapsed()));
            wait.1 = Duration::ZERO;
            longest
        });
        let longest = longest.max().unwrap_or_default().as_secs_f64() * 1e3;
        let holds: Vec<u64> = self.holds.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let changes = self.changes.load(Ordering::Relaxed);
        format!("{{\"holds\":{holds:?},\"changes\":{changes},\"longest_ms\":{longest}}}")
    }
}

async fn work(locks: Locks, name: String, ttl: Duration, worker: usize, tally: Arc<Tally>) -> Outcome<()> {
    loop {
        tally.waited(worker, Some(Instant::now()));
        let held = locks.take(&name, ttl).await?;
        tally.holds(worker);
        held.release().await?;
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [side, kind, workers, ttl_ms, url, name] = &arguments[..] else {
        return Err("SIDE WORK WORKERS TTL_MS URL NAME".into());
    };
    let (workers, ttl) = (workers.parse()?, Duration::from_millis(ttl_ms.parse()?));
    // As on a machine with one processor: the store has the other one.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let locks = runtime.block_on(Locks::connect(side, url))?;
    if kind == "hold" {
        println!("ready");
        io::stdin().read_line(&mut String::new())?;
        let _held = runtime.block_on(locks.take(name, ttl))?;
        println!("held");
        io::stdin().lines().for_each(drop);
        exit(0);
    }
    let tally = Arc::new(Tally::new(workers));
    for worker in 0..workers {
        let name = if kind == "pairs" { format!("{name}/{worker}") } else { name.clone() };
        let work = work(locks.clone(), name, ttl, worker, tally.clone());
        runtime.spawn(async {
            let ended = work.await;
            eprintln!("a worker has ended: {ended:?}");
            exit(1);
        });
    }
    println!("ready");
    for _ in io::stdin().lock().lines() {
        println!("{}", tally.count());
    }
    // Whoever waits has nothing to say any more.
    exit(0);
}
