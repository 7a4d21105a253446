//! Directories, clients and claims for the tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{BoxStream, StreamExt};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{
    ClaimAnswer, Engine, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Wake,
};
use tenure_core::error::Result;
use tenure_core::model::claim::{Claim, ClaimId, ClientId, HoldLimits, Kind, Label, Name, Terms};
use tenure_core::model::step::Release;
use tenure_core::model::token::Token;
use tenure_local::{Config, Local};
use tenure_testkit::TestDirectory;

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A directory of a test's own, and the places inside of it.
pub(crate) struct TestPlace(TestDirectory);

impl TestPlace {
    pub(crate) fn new() -> TestPlace {
        TestPlace(TestDirectory::new())
    }

    /// A place for an engine, not created yet.
    pub(crate) fn place(&self) -> PathBuf {
        self.path().join("place")
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The directory of the present boot.
    pub(crate) fn boot(&self) -> PathBuf {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        self.place().join(id.trim())
    }

    /// The file of the store.
    pub(crate) fn data(&self) -> PathBuf {
        self.boot().join("data.mdb")
    }
}

/// Runs a test on a runtime like the client's thread.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(test)
}

/// Panics if something that must happen does not.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    let clock = SystemClock;
    let at = clock.now() + PATIENCE;
    let mut timer = clock.timer().unwrap();
    let end = std::future::poll_fn(|cx| timer.poll_until(at, cx));
    match select(std::pin::pin!(what), std::pin::pin!(end)).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => panic!("it did not happen within {PATIENCE:?}"),
    }
}

pub(crate) async fn pause(period: Duration) {
    let clock = SystemClock;
    let at = clock.now() + period;
    let mut timer = clock.timer().unwrap();
    std::future::poll_fn(|cx| timer.poll_until(at, cx)).await;
}

/// A connected client.
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) engine: Local,
    wakes: BoxStream<'static, Wake>,
}

impl Client {
    pub(crate) async fn connect(place: &Path) -> Client {
        Client::try_connect(Config::in_directory(place)).await.unwrap()
    }

    pub(crate) async fn try_connect(config: Config) -> Result<Client> {
        Client::connect_with(config, Arc::new(SystemClock)).await
    }

    pub(crate) async fn connect_with(config: Config, clock: Arc<dyn Clock>) -> Result<Client> {
        let id = ClientId::new(random_id());
        let engine = Local::connect(config, id, clock).await?;
        let wakes = engine.wakes();
        Ok(Client { id, engine, wakes })
    }

    pub(crate) fn request(&self, name: &str, wait: bool) -> Claim {
        claim(self.id, name, wait)
    }

    pub(crate) async fn claim(&self, claim: Claim) -> Result<ClaimAnswer> {
        self.engine.claim(vec![claim]).await.remove(0)
    }

    pub(crate) async fn try_mutex(&self, name: &str) -> (ClaimId, ClaimAnswer) {
        let claim = self.request(name, false);
        (claim.id, self.claim(claim).await.unwrap())
    }

    /// Takes a free mutex.
    pub(crate) async fn take(&self, name: &str) -> (ClaimId, Token) {
        match self.try_mutex(name).await {
            (id, ClaimAnswer::Granted(grant)) => (id, grant.token),
            (_, other) => panic!("{name} is not free: {other:?}"),
        }
    }

    /// Queues for a mutex that is not free.
    pub(crate) async fn queue(&self, name: &str) -> ClaimId {
        let claim = self.request(name, true);
        let id = claim.id;
        match self.claim(claim).await.unwrap() {
            ClaimAnswer::Waiting(..) => id,
            other => panic!("{name} does not queue: {other:?}"),
        }
    }

    pub(crate) async fn renew(&self, name: &str, claim: ClaimId, is_waiter: bool) -> RenewAnswer {
        let request = RenewRequest { resource: Name::new(name).unwrap(), claim, is_waiter };
        self.engine.renew(vec![request]).await.remove(0).unwrap()
    }

    pub(crate) async fn release(&self, name: &str, claim: ClaimId) -> ReleaseAnswer {
        self.engine.release(vec![release(name, claim)]).await.remove(0).unwrap()
    }

    /// The next news, heartbeats done on the way.
    pub(crate) async fn granted(&mut self, name: &str, claim: ClaimId) -> Token {
        loop {
            match within(self.wakes.next()).await.unwrap() {
                Wake::Granted { claim: woken, grant, .. } if woken == claim => return grant.token,
                Wake::Granted { .. } => {}
                _ => {
                    if let RenewAnswer::Granted(grant) = self.renew(name, claim, true).await {
                        return grant.token;
                    }
                }
            }
        }
    }

    /// The next news, whenever they come.
    pub(crate) async fn next_wake(&mut self) -> Wake {
        self.wakes.next().await.unwrap()
    }

    pub(crate) async fn wake(&mut self) -> Wake {
        within(self.wakes.next()).await.unwrap()
    }
}

pub(crate) fn release(name: &str, claim: ClaimId) -> ReleaseRequest {
    ReleaseRequest {
        resource: Name::new(name).unwrap(),
        release: Release { claim, maybe_in_flight: false, is_unused: false },
    }
}

pub(crate) fn claim(client: ClientId, name: &str, wait: bool) -> Claim {
    claim_of(client, name, wait, Kind::Mutex, 1)
}

pub(crate) fn claim_of(client: ClientId, name: &str, wait: bool, kind: Kind, capacity: u32) -> Claim {
    Claim {
        resource: Name::new(name).unwrap(),
        id: ClaimId::new(u128::from(random_id()) << 64 | u128::from(random_id())),
        client,
        terms: Arc::new(Terms {
            kind,
            capacity,
            weight: 1,
            ttl: Duration::from_secs(30),
            limits: HoldLimits::default(),
            label: Label::new("host", std::process::id(), "test", ""),
            unless_fresh: false,
        }),
        wait,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

pub(crate) fn random_id() -> u64 {
    SystemClock.random()
}
