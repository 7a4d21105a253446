//! Pairs of claim and release, beside two bare LMDB write transactions: in one process, and in four at once.
//! Then how long a mutex takes to pass from one process to another.
#![allow(unsafe_code, missing_docs, clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::StreamExt;
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, EnvFlags, EnvOpenOptions};
use tenure_core::claim::{Claim, ClaimId, ClientId, HoldLimits, Kind, Label, Name, Terms};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{ClaimAnswer, Engine, ReleaseAnswer, ReleaseRequest, Wake};
use tenure_core::step::Release;
use tenure_core::token::Token;
use tenure_local::{Config, Local};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(400);

const PROCESSES: usize = 4;
const CHILD: &str = "TENURE_BENCH_CHILD";
const HAND_OVERS: usize = 20_000;

fn main() {
    if let Ok(what) = std::env::var(CHILD) {
        return child(&what);
    }
    let directory = std::env::temp_dir().join(format!("tenure-bench-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    one_process(&directory);
    several_processes(&directory);
    hand_over(&directory);
    records(&directory);
    batches(&directory);
    std::fs::remove_dir_all(&directory).unwrap();
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

fn one_process(directory: &Path) {
    let bare = bare(directory);
    let runtime = runtime();
    let (client, local) = connect(&runtime, directory);
    let blocking = blocking(&local, client, "billing/4711");
    let tasks = |count| {
        let (local, runtime) = (local.clone(), &runtime);
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
    let bare = median(&mut rates[0]);
    println!("{:<28}{bare:>10.0} pairs/s", "bare LMDB");
    for (what, rates) in ["blocking", "1 task", "64 tasks"].into_iter().zip(&mut rates[1..]) {
        let rate = median(rates);
        println!("{what:<28}{rate:>10.0} pairs/s  {:.2}x", rate / bare);
    }
}

fn start(directory: &Path, what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .env(CHILD, format!("{what} {}", directory.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts children, lets them go together, and returns what each prints.
fn together(mut children: Vec<Child>) -> Vec<Vec<f64>> {
    let mut outputs: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().unwrap())).collect();
    for output in &mut outputs {
        output.read_line(&mut String::new()).unwrap();
    }
    for child in &mut children {
        drop(child.stdin.take());
    }
    let numbers =
        outputs.into_iter().map(|output| output.lines().map(|line| line.unwrap().parse().unwrap()).collect());
    let numbers = numbers.collect();
    children.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
    numbers
}

fn several_processes(directory: &Path) {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (what, rates) in ["bare", "blocking"].into_iter().zip(&mut rates) {
            let children = (0..PROCESSES).map(|_| start(directory, what)).collect();
            rates.push(together(children).into_iter().flatten().sum());
        }
    }
    let bare = median(&mut rates[0]);
    println!("bare LMDB, {PROCESSES} processes     {bare:>10.0} pairs/s");
    let rate = median(&mut rates[1]);
    println!("blocking, {PROCESSES} processes      {rate:>10.0} pairs/s  {:.2}x", rate / bare);
}

fn hand_over(directory: &Path) {
    let mut times: Vec<f64> = together((0..2).map(|_| start(directory, "hand-over")).collect()).concat();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[(times.len() as f64 * share) as usize];
    println!("from one holder to the next, another process: p50 {:.0} us, p99 {:.0} us", at(0.5), at(0.99));
}

/// Where a record is better kept in rows of its own: what a pair costs beside others that hold.
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

/// What another process does: it says that it is ready, waits for the end of its input, and prints numbers.
fn child(what: &str) {
    let (what, directory) = what.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let ready = || {
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
    };
    if what == "bare" {
        let bare = bare(directory);
        ready();
        return println!("{}", rate(&bare));
    }
    let runtime = runtime();
    let (client, local) = connect(&runtime, directory);
    if what == "blocking" {
        let blocking = blocking(&local, client, &format!("billing/{}", std::process::id()));
        ready();
        return println!("{}", rate(&blocking));
    }
    ready();
    for time in take_turns(&runtime, &local, client, directory) {
        println!("{time}");
    }
}

/// Takes a mutex in turn with another process, and says how long each hand-over took, in microseconds, from
/// before the release to after the wake.
fn take_turns(
    runtime: &tokio::runtime::Runtime,
    local: &Arc<Local>,
    client: ClientId,
    directory: &Path,
) -> Vec<f64> {
    let engine = local.blocking().unwrap();
    let (name, terms) = (Name::new("turns").unwrap(), terms());
    let mut options = std::fs::OpenOptions::new();
    let file =
        options.create(true).truncate(false).read(true).write(true).open(directory.join("released")).unwrap();
    let mut wakes = local.wakes();
    let mut times = Vec::new();
    for _ in 0..HAND_OVERS {
        let claim = Claim { wait: true, ..claim(&name, &terms, client) };
        if let ClaimAnswer::Waiting(..) = engine.claim(&claim).unwrap() {
            loop {
                let wake = runtime.block_on(wakes.next()).unwrap();
                if matches!(wake, Wake::Granted { claim: woken, .. } if woken == claim.id) {
                    break;
                }
            }
            let mut released_at = [0; 8];
            file.read_exact_at(&mut released_at, 0).unwrap();
            times.push((SystemClock.now().nanos() - u64::from_le_bytes(released_at)) as f64 / 1e3);
        }
        file.write_all_at(&SystemClock.now().nanos().to_le_bytes(), 0).unwrap();
        engine.release(&release(&claim)).unwrap();
    }
    times
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

fn bare(directory: &Path) -> impl Fn() -> usize + use<> {
    let path = directory.join("bare");
    drop(std::fs::create_dir(&path));
    let key = format!("billing/{}", std::process::id());
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
        rows.put(&mut txn, key.as_bytes(), &[7; 120]).unwrap();
        txn.commit().unwrap();
        let mut txn = env.write_txn().unwrap();
        rows.delete(&mut txn, key.as_bytes()).unwrap();
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

fn blocking(local: &Arc<Local>, client: ClientId, name: &str) -> impl Fn() -> usize + use<> {
    let (local, terms, name) = (local.clone(), terms(), Name::new(name).unwrap());
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
