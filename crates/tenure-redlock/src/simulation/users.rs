//! What the users of a world do, each on the client of its machine.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tenure_core::engine::Connect;
use tenure_core::model::claim::ClientId;
use tenure_core::{ErrorKind, Result, Settings, Tenure};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;

use super::beliefs::{Had, Share};
use super::network::{Simulated, Way};
use super::time::{ClientClock, Shared};
use super::{MAX_TTL, World};
use crate::config::Config;
use crate::engine::Redlock;
use crate::rounds::ENGINE;
use crate::rounds::wire::Wire;

/// How many things there are to be used, and which of them is a value. The others are locks.
const RESOURCES: usize = 3;
const VALUE: usize = 2;

/// A machine: a client, and what uses it. When it dies, another takes its place.
pub(crate) struct Machine {
    world: Arc<World>,
    life: Mutex<Life>,
}

/// A machine between two deaths.
struct Life {
    clock: Arc<ClientClock>,
    ways: Vec<Arc<Way>>,
    tenure: Tenure,
    users: Vec<JoinHandle<()>>,
}

impl Machine {
    pub(crate) async fn start(world: &Arc<World>) -> Machine {
        Machine { world: world.clone(), life: Mutex::new(Life::start(world).await) }
    }

    fn life(&self) -> std::sync::MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the time of day, in microseconds ahead of what is right.
    pub(crate) fn set_ahead(&self, micros: i64) {
        self.life().clock.set_ahead(micros);
    }

    pub(crate) fn clock(&self) -> Arc<ClientClock> {
        self.life().clock.clone()
    }

    pub(crate) fn ways(&self) -> Vec<Arc<Way>> {
        self.life().ways.clone()
    }

    /// The machine is gone from one moment to the next, and another one comes.
    pub(crate) async fn crash(&self) {
        let next = Life::start(&self.world).await;
        let gone = std::mem::replace(&mut *self.life(), next);
        gone.ways.iter().for_each(|way| way.die());
        gone.users.iter().for_each(JoinHandle::abort);
        drop(self.world.forget(&gone.clock));
    }

    /// Waits until its users have done what they had begun, and closes the client.
    pub(crate) async fn finish(self) {
        let life = self.life.into_inner().unwrap_or_else(PoisonError::into_inner);
        for user in life.users {
            if let Err(error) = user.await {
                self.world.fail(format!("a user panicked: {error}"));
            }
        }
        life.tenure.close().await;
        life.ways.iter().for_each(|way| way.die());
    }
}

impl Life {
    async fn start(world: &Arc<World>) -> Life {
        let (rate, seed) = world.draw(|random| (random.i64(-4_500..=4_500), random.u64(..)));
        let clock = ClientClock::new(world.time, rate, seed);
        loop {
            let shared = Arc::new(Mutex::new(Vec::new()));
            let (of_engine, made, machine) = (world.clone(), shared.clone(), clock.clone());
            let connect = Connect::new(ENGINE, async move |client| {
                let (ways, engine) = connect(&of_engine, &machine, client);
                *made.lock().unwrap_or_else(PoisonError::into_inner) = ways;
                Ok(Arc::new(engine.await?))
            });
            let started =
                Tenure::start_here(connect, Arc::new(Shared(clock.clone())), Settings::default()).await;
            let ways = std::mem::take(&mut *shared.lock().unwrap_or_else(PoisonError::into_inner));
            match started {
                Ok(tenure) => {
                    let user = |_| {
                        let user =
                            User { world: world.clone(), clock: clock.clone(), tenure: tenure.clone() };
                        tokio::spawn(user.live())
                    };
                    let users = (0..world.users).map(user).collect();
                    return Life { clock, ways, tenure, users };
                }
                // Too few servers are there, or two names lead to one.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Invalid) => {}
                Err(error) => world.fail(format!("a client cannot start: {error:?}")),
            }
            ways.iter().for_each(|way| way.die());
            world.time.sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Makes the connections of a client, and what connects its engine over them.
fn connect(
    world: &Arc<World>,
    clock: &Arc<ClientClock>,
    client: ClientId,
) -> (Vec<Arc<Way>>, impl Future<Output = Result<Redlock>> + use<>) {
    let servers = world.servers().len();
    let names: Vec<String> = (0..servers).map(|server| format!("s{server}")).collect();
    let url = format!("redlock://{}?max_ttl={}s", names.join(","), MAX_TTL.as_secs());
    let config = Config::parse(&url).expect("a good URL");
    let (mut ways, mut wires) = (Vec::new(), Vec::new());
    for server in 0..servers {
        let (sender, news) = unbounded_channel();
        let way = Way::start(world, clock, server, sender);
        wires.push((Box::new(Simulated(way.clone())) as Box<dyn Wire>, news));
        ways.push(way);
    }
    world.listen(client, &ways);
    (ways, Redlock::over(config, Arc::new(Shared(clock.clone())), wires))
}

/// One task that uses a client.
pub(crate) struct User {
    pub(crate) world: Arc<World>,
    pub(crate) clock: Arc<ClientClock>,
    pub(crate) tenure: Tenure,
}

impl User {
    async fn live(self) {
        while self.world.is_faulty() {
            self.clock.sleep(self.period(0.3)).await;
            let resource = self.world.draw(|random| random.usize(..RESOURCES));
            if let Err(error) = self.use_once(resource).await
                && !matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Lost)
            {
                self.world.fail(format!("a user was told {error:?}"));
            }
        }
        // Whoever wants something then gets it.
        self.clock.time.until(self.world.calm_at()).await;
        for resource in 0..RESOURCES {
            if let Err(error) = self.use_once(resource).await {
                self.world.fail(format!("a user was told {error:?} although the faults have stopped"));
            }
        }
    }

    async fn use_once(&self, resource: usize) -> Result<()> {
        if resource == VALUE { self.value().await } else { self.lock(resource).await }
    }

    /// Draws a period of up to so many ttls.
    pub(crate) fn period(&self, ttls: f64) -> Duration {
        self.world.ttl.mul_f64(self.world.draw(|random| random.f64()) * ttls)
    }

    /// Waits for something, and sometimes loses patience.
    pub(crate) async fn patiently<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if !self.world.chance(15) {
            return Some(work.await);
        }
        let patience = pin!(self.clock.sleep(self.period(1.5)));
        match select(pin!(work), patience).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    async fn lock(&self, resource: usize) -> Result<()> {
        let (world, name) = (&self.world, format!("r{resource}"));
        let (how, is_write) = world.draw(|random| (random.u8(..4), random.bool()));
        let before = world.largest(&name);
        macro_rules! take {
            ($primitive:expr) => {{
                let primitive = $primitive;
                match how {
                    // In the end everybody waits.
                    0 if world.is_faulty() => {
                        self.patiently(primitive.try_acquire()).await.transpose()?.flatten()
                    }
                    1 if world.is_faulty() => {
                        self.patiently(primitive.acquire_within(world.ttl)).await.transpose()?
                    }
                    _ => self.patiently(primitive.acquire()).await.transpose()?,
                }
            }};
        }
        macro_rules! limited {
            ($primitive:expr) => {{
                let primitive = $primitive.ttl(world.ttl);
                match world.max_hold {
                    Some(max_hold) => primitive.max_hold(max_hold),
                    None => primitive,
                }
            }};
        }
        let got = match if resource == 0 { 0 } else { world.kind } {
            0 => take!(limited!(self.tenure.mutex(&name))).map(|lease| (Had::Lease(lease), Share::Alone)),
            1 if is_write => take!(limited!(self.tenure.rw_lock(&name)).write())
                .map(|lease| (Had::Lease(lease), Share::Alone)),
            1 => take!(limited!(self.tenure.rw_lock(&name)).read())
                .map(|lease| (Had::Lease(lease), Share::Reader)),
            _ => take!(limited!(self.tenure.slot_pool(&name, 2))).map(|slot| {
                let share = Share::Slot(slot.number());
                (Had::Slot(slot), share)
            }),
        };
        let Some((had, share)) = got else { return Ok(()) };
        world.count_served();
        let number = world.got(had, share, &self.clock, before);
        self.hold(number).await;
        Ok(())
    }

    /// Holds what it has got for a while, to its end or beyond, and lets go of it in one way or another.
    async fn hold(&self, number: u64) {
        let most = if self.world.is_faulty() {
            [0.2, 0.2, 1.5][self.world.draw(|random| random.usize(..3))]
        } else {
            0.1
        };
        let until = self.clock.now() + self.period(most);
        let is_careful = self.world.draw(|random| random.u8(..3)) > 0;
        while self.clock.now() < until && (!is_careful || self.world.is_held(number)) {
            self.clock.sleep(self.world.ttl / 12).await;
        }
        let is_released = self.world.draw(|random| random.bool());
        match self.world.let_go(number) {
            // What became of it is for others to see.
            Some(Had::Lease(lease)) if is_released => drop(lease.release().await),
            Some(Had::Slot(slot)) if is_released => drop(slot.release().await),
            had => drop(had),
        }
    }
}
