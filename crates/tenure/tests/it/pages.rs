//! Each Rust block of the READMEs and of `docs/` compiles: it stands here, in a function with what the page leaves to its
//! readers, and a test compares.
//!
//! One module of this binary, and not a doc test for each: those would cost minutes, and show their readers the lines that they need. The
//! whole programs of `examples/` count too.

#![expect(dead_code, unused_variables, reason = "compiled, and not run")]
#![expect(clippy::let_and_return, reason = "the pages' readers go on")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::fence::{self, Fence, Mark, Stale};
use tenure::{Detached, ErrorKind, Lease, Mutex, Settings, Tenure, Token};
use tenure_tower::FenceLayer;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What a page calls and does not show: work under a token.
async fn works(_: Token) -> Outcome {
    Ok(())
}

async fn start() -> Outcome {
    #[tokio::main(flavor = "current_thread")]
    async fn main() -> tenure::Result<()> {
        let tenure = tenure::connect("local:").await?;
        let report = tenure.mutex("nightly-report");
        report.run(async |lease| println!("working under token {}", lease.token())).await
    }
    Ok(main()?)
}

#[cfg(feature = "postgres")]
async fn postgres_pool(pool: tenure::postgres::deadpool_postgres::Pool) -> Outcome {
    let config = tenure::postgres::Config::from_pool(pool)?.with("connections", "2")?;
    let tenure = Tenure::new(config).await?;
    Ok(())
}

async fn cache_stampede(tenure: Tenure, fetch_rates: impl AsyncFn() -> Outcome<Vec<u8>>) -> Outcome {
    let rates =
        tenure.single_flight("rates").fresh(Duration::from_secs(600)).serve_stale(Duration::from_secs(3600));
    let found = rates.get_or_refresh(async |_lease| fetch_rates().await).await?;
    Ok(())
}

async fn detached_by_a_request(tenure: Tenure, jobs: tenure::Queue, busy: impl Fn() -> Outcome) -> Outcome {
    let billing = tenure.mutex("billing/4711").ttl(Duration::from_secs(60));
    let Some(lease) = billing.try_acquire().await? else { return busy() };
    let job = serde_json::to_vec(&lease.detach()?)?;
    jobs.push(job).await?;
    Ok(())
}

async fn detached_to_a_worker(
    tenure: Tenure,
    jobs: tenure::Queue,
    charge: impl AsyncFn(Token) -> Outcome,
    begin_again: impl Fn(&tenure::Name),
) -> Outcome {
    let delivery = jobs.next().await?;
    let detached: Detached = serde_json::from_slice(delivery.payload())?;
    match tenure.attach(&detached).await? {
        Some(lease) => {
            charge(lease.token()).await?;
            lease.release().await?;
        }
        None => begin_again(detached.resource()), // it lay in line for longer than its ttl
    }
    delivery.ack().await?;
    Ok(())
}

async fn detached_deliveries(jobs: tenure::Queue) -> Outcome {
    let detached = jobs.next().await?.detach()?;
    // elsewhere:
    if let Some(delivery) = jobs.attach(&detached).await? {
        delivery.ack().await?;
    }
    Ok(())
}

async fn detached_for_others(tenure: Tenure, id: tenure::ClaimId) -> Outcome {
    let lease = tenure.mutex("billing/4711").claim_id(id).acquire_within(Duration::from_secs(25)).await?;
    let token = lease.token();
    let detached = lease.detach()?; // its client renews it from now on
    // at each of its client's renewals:
    let kept = tenure.detached().renew(vec![(detached.resource().clone(), id)]).await;
    Ok(())
}

struct Account {
    balance: i64,
    fence: Fence,
}

fn set(account: &mut Account, mark: Mark, balance: i64) -> Result<(), Stale> {
    account.fence.check(mark)?;
    account.balance = balance;
    Ok(())
}

fn fencing_after_a_refusal(tenure: Tenure, lease: Lease, mut account: Account, balance: i64) -> Outcome {
    if let Err(stale) = set(&mut account, Mark::from(&lease), balance) {
        tenure.raise_floor("billing", stale.max)?;
    }
    Ok(())
}

fn fencing_a_file(lease: Lease, text: &str) -> Outcome {
    let fence = fence::File::new("report.fence");
    fence.run("report", &lease, || std::fs::write("report", text))???;
    Ok(())
}

/// As in the crate `etcd-client`, on which nothing here depends.
#[cfg(feature = "etcd")]
mod etcd_client {
    pub(super) struct Compare;
    pub(super) enum CompareOp {
        Equal,
    }
    pub(super) struct Txn;
    pub(super) struct TxnOp;
    pub(super) struct Client;

    impl Compare {
        pub(super) fn create_revision(_: impl Into<Vec<u8>>, _: CompareOp, _: i64) -> Compare {
            Compare
        }
    }

    impl Txn {
        pub(super) fn new() -> Txn {
            Txn
        }

        pub(super) fn when(self, _: impl Into<Vec<Compare>>) -> Txn {
            self
        }

        pub(super) fn and_then(self, _: impl Into<Vec<TxnOp>>) -> Txn {
            self
        }
    }

    impl TxnOp {
        pub(super) fn put(_: impl Into<Vec<u8>>, _: impl Into<Vec<u8>>, _: Option<()>) -> TxnOp {
            TxnOp
        }
    }

    impl Client {
        pub(super) async fn txn(&mut self, _: Txn) -> std::io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(feature = "etcd")]
async fn fencing_on_etcd(url: &str, lease: Lease, mut client: etcd_client::Client) -> Outcome {
    use etcd_client::{Compare, CompareOp, Txn, TxnOp};
    use tenure::etcd;

    let key = etcd::Config::parse(url)?.entry_key(lease.resource(), lease.claim());
    let is_held = Compare::create_revision(key, CompareOp::Equal, lease.token().get() as i64);
    client.txn(Txn::new().when([is_held]).and_then([TxnOp::put("account/7", "20", None)])).await?;
    Ok(())
}

fn fencing_over_http(fences: std::sync::Arc<fence::Memory>) -> FenceLayer<Vec<u8>> {
    let layer = FenceLayer::new(fences, |request| Some(request.uri().path().to_owned()));
    layer
}

struct Ledger;
struct Refund;

impl Ledger {
    fn book(&self, _: &Refund, _: Mark) -> Outcome<bool> {
        Ok(true)
    }
}

fn refund(_: &tenure::Delivery) -> Outcome<Refund> {
    Ok(Refund)
}

fn fifo_dispatch(tenure: tenure::blocking::Tenure, ledger: Ledger) -> Outcome {
    let queue = tenure.queue("refunds").group_interval(Duration::from_millis(200));
    loop {
        let delivery = queue.next()?;
        if ledger.book(&refund(&delivery)?, Mark::from(delivery.lease()))? {
            delivery.ack()?;
        }
    }
}

async fn try_else_enqueue(tenure: Tenure, refund: String, stop: impl Future<Output = ()>) -> Outcome {
    async fn pay_back(_: &str, _: Token) -> Outcome {
        Ok(())
    }

    let mutex = tenure.mutex("refunds/shop");
    let queue = tenure.queue("refunds");

    match mutex.try_acquire().await? {
        Some(lease) => {
            pay_back(&refund, lease.token()).await?;
            lease.release().await?;
        }
        None => {
            queue.push(refund.as_bytes()).group("shop").dedup(&refund).await?;
        }
    }

    queue
        .serve(stop, async |delivery| {
            let refund = String::from_utf8_lossy(delivery.payload()).into_owned();
            mutex.run(async |lease| pay_back(&refund, lease.token()).await).await?
        })
        .await?;
    Ok(())
}

async fn from_for_update(tenure: Tenure, mut db: tokio_postgres::Client) -> Outcome {
    async fn ask_the_bank() -> Outcome<i64> {
        Ok(20)
    }

    use tenure::fence::sql::POSTGRESQL;

    let lease = tenure.mutex("account/7").acquire().await?;
    let bank_says = ask_the_bank().await?;

    let (token, claim) = (i64::try_from(lease.token().get())?, lease.claim().to_string());
    let transaction = db.transaction().await?;
    if transaction.execute(POSTGRESQL.write, &[&"account/7", &token, &claim]).await? == 0 {
        return Err("a later holder has been here".into());
    }
    transaction.execute("UPDATE account SET balance = balance - $1 WHERE id = 7", &[&bank_says]).await?;
    transaction.commit().await?;
    lease.release().await?;
    Ok(())
}

async fn leader(tenure: Tenure) -> Outcome {
    use works as schedule;

    let scheduler = tenure.election("scheduler").ttl(Duration::from_secs(10));
    scheduler
        .run(async |term| {
            term.publish(b"10.0.0.7:8080").await?;
            schedule(term.token()).await
        })
        .await??;

    let leader = scheduler.leader().await?;
    let mut changes = scheduler.changes()?;
    while let Some(leader) = changes.next().await {
        println!("{:?} leads", leader?);
    }
    Ok(())
}

async fn limit_concurrency(tenure: Tenure, pages: Vec<String>) -> Outcome {
    async fn fetch(page: String) -> String {
        page
    }
    let mut tasks = tokio::task::JoinSet::new();

    let scrapers = tenure.semaphore("scrapers", 8);
    for page in pages {
        let lease = scrapers.acquire().await?;
        tasks.spawn(async move {
            let fetched = fetch(page).await;
            drop(lease);
            fetched
        });
    }
    Ok(())
}

async fn lost_lease(mutex: Mutex, retry_later: impl Fn()) -> Outcome {
    use works as import;

    match mutex.run(async |lease| import(lease.token()).await).await {
        Err(error) if error.kind() == ErrorKind::Lost => retry_later(),
        done => done??,
    }
    Ok(())
}

async fn worker_ids(tenure: Tenure) -> Outcome {
    struct IdGenerator;
    impl IdGenerator {
        fn new(_: u32, _: Token) -> IdGenerator {
            IdGenerator
        }
    }
    async fn serve(_: IdGenerator) {}

    let pool = tenure.slot_pool("worker-ids", 1024).lock_delay(Duration::from_secs(60));
    pool.run(async |slot| {
        let ids = IdGenerator::new(slot.number(), slot.token());
        serve(ids).await
    })
    .await?;
    Ok(())
}

async fn metrics() -> Outcome {
    let settings = Settings::new().counts(true).scopes(["billing/*", "nightly-*"]);
    let tenure = tenure::connect_with("redis://127.0.0.1", settings).await?;
    let (address, counted) = ("127.0.0.1:9184".parse()?, tenure.clone());
    let server = tenure_metrics::Server::start(&address, move || vec![counted.counts()])?;
    Ok(())
}

async fn all_of(tenure: Tenure) -> Outcome {
    async fn book(from: Option<Token>, to: Option<Token>) -> String {
        format!("{from:?} {to:?}")
    }

    let (from, to) = (tenure.mutex("account/17"), tenure.mutex("account/4"));
    let worker = tenure.slot_pool("workers", 4);
    let transfer = tenure.all([from.into(), to.into(), worker.into()]);
    let receipt = transfer
        .run(async |leases| book(leases.token("account/17"), leases.token("account/4")).await)
        .await?;
    Ok(())
}

async fn any_of(tenure: Tenure) -> Outcome {
    async fn work_as(id: &str) -> usize {
        id.len()
    }

    let ids = (0..16).map(|id| tenure.mutex(&format!("thread_id_lock:{id}")).into());
    let number = tenure.any(ids).run(async |lease| work_as(lease.resource().as_str()).await).await?;
    Ok(())
}

async fn election(tenure: Tenure) -> Outcome {
    let scheduler = tenure.election("scheduler");
    let term = scheduler.campaign().await?;
    term.publish(b"10.0.0.7:8080").await?;
    let leader = scheduler.leader().await?;
    Ok(())
}

async fn mutex(tenure: Tenure, charge: impl AsyncFn(Token)) -> Outcome {
    let billing = tenure.mutex("billing/4711").ttl(Duration::from_secs(30));
    billing.run(async |lease| charge(lease.token()).await).await?;
    Ok(())
}

async fn queue(tenure: Tenure) -> Outcome {
    async fn pay_back(_: &[u8], _: Token) -> Outcome {
        Ok(())
    }

    let refunds = tenure.queue("refunds").group_interval(Duration::from_millis(200));
    refunds.push(b"order 4711").group("merchant 17").dedup("refund 90").await?;

    refunds.run(async |delivery| pay_back(delivery.payload(), delivery.token()).await).await??;
    Ok(())
}

async fn rw_lock(tenure: Tenure, list: impl AsyncFn(), rebuild: impl AsyncFn(Token)) -> Outcome {
    let catalog = tenure.rw_lock("catalog").ttl(Duration::from_secs(30));
    catalog.read().run(async |_lease| list().await).await?;
    catalog.write().run(async |lease| rebuild(lease.token()).await).await?;
    Ok(())
}

async fn semaphore(tenure: Tenure, fetch: impl AsyncFn()) -> Outcome {
    let scrapers = tenure.semaphore("scrapers", 8);
    scrapers.run(async |_lease| fetch().await).await?;
    let heavy = scrapers.weight(3).acquire().await?;
    Ok(())
}

async fn single_flight(tenure: Tenure, load_price: impl AsyncFn(Token) -> Outcome<Vec<u8>>) -> Outcome {
    let price = tenure.single_flight("price/4711").fresh(Duration::from_secs(60));
    let found = price.get_or_refresh(async |lease| load_price(lease.token()).await).await?;
    Ok(())
}

async fn slot_pool(tenure: Tenure, work_as: impl AsyncFn(u32)) -> Outcome {
    let slot = tenure.slot_pool("worker-ids", 16).acquire().await?;
    println!("worker {}", slot.number());

    let leases = tenure.slot_pool("worker-ids", 16).several(3).acquire().await?;
    let ids: Vec<u32> = leases.iter().filter_map(|lease| lease.slot()).collect();

    tenure.slot_pool("worker-ids", 16).run(async |slot| work_as(slot.number()).await).await?;
    Ok(())
}

/// The files below a directory with this ending.
fn files(directory: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("it is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

/// Code without its comments, and without what rustfmt changes.
fn squeezed(code: &str) -> String {
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.map(|line| line.split(" // ").next().unwrap_or_default());
    code.flat_map(str::chars).filter(|c| !c.is_whitespace() && *c != ',').collect()
}

#[test]
fn each_rust_block_of_the_pages_compiles() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("text");
    let mut sources = vec![here.join("tests/it/pages.rs")];
    files(&here.join("examples"), "rs", &mut sources);
    let compiled: Vec<String> = sources.iter().map(|path| squeezed(&read(path))).collect();

    let mut pages = vec![here.join("../../README.md"), here.join("../../README.zh-CN.md")];
    files(&here.join("../../docs"), "md", &mut pages);
    let mut count = 0;
    for page in pages {
        let text = read(&page);
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            if !line.trim_start().starts_with("```rust") {
                continue;
            }
            let block: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```").collect();
            let block = squeezed(&block.join("\n"));
            assert!(
                compiled.iter().any(|source| source.contains(&block)),
                "{}:{}: this block stands in no function of tests/it/pages.rs, which compiles it",
                page.display(),
                number + 1
            );
            count += 1;
        }
    }
    assert!(count > 20, "the blocks were found: {count}");
}
