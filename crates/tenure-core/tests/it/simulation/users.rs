//! What the users of a world do, each on the client of its machine.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tenure_core::{Delivery, Error, ErrorKind, Mutex as TenureMutex, Name, Result, Settings, Tenure, Token};
use tokio::task::JoinHandle;

use super::beliefs::{Had, Item};
use super::network::{BROKEN, Wire, connector};
use super::tally::Tally;
use super::time::{NodeClock, SharedClock};
use super::{Play, USERS, World};

/// How many resources there are for all to want.
const RESOURCES: usize = 2;
/// How many groups the items of a queue have; the items of the group 0 stand for themselves.
const GROUPS: u8 = 3;
/// How long a loaded value is fresh, in ttls.
const FRESH: u32 = 2;

/// A machine: a client, and what uses it. When it dies, another takes its place.
pub(crate) struct Node {
    world: Arc<World>,
    number: usize,
    life: Mutex<Life>,
}

/// A machine between two deaths.
struct Life {
    wire: Arc<Wire>,
    clock: Arc<NodeClock>,
    tenure: Tenure,
    users: Vec<JoinHandle<()>>,
    /// What the client has told, if that is compared.
    tally: Option<Arc<Tally>>,
}

impl Node {
    pub(crate) async fn start(world: &Arc<World>, number: usize) -> Node {
        let life = Life::start(world, number).await;
        Node { world: world.clone(), number, life: Mutex::new(life) }
    }

    fn life(&self) -> std::sync::MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pause(&self, period: Duration) {
        self.life().clock.pause(period);
    }

    /// The machine is gone from one moment to the next, and another one comes.
    pub(crate) async fn crash(&self) {
        let next = Life::start(&self.world, self.number).await;
        let gone = std::mem::replace(&mut *self.life(), next);
        // What its users had stays with them.
        gone.compare(&gone.tenure, false);
        gone.wire.die();
        gone.users.iter().for_each(JoinHandle::abort);
        drop(self.world.die(&gone.clock));
    }

    /// An operator on this machine breaks somebody's hold. Its units rest until the holder knows.
    pub(crate) async fn break_a_hold(&self) {
        let name = self.world.resource(self.world.time.random(|random| random.usize(..RESOURCES)));
        let Some(hold) = self.world.store.view(&name).and_then(|view| view.holds.into_iter().next()) else {
            return;
        };
        let tenure = self.life().tenure.clone();
        // Its outcome may be unknown, as on any network.
        tenure.break_hold(name.as_str(), hold.token, false).await.ok();
    }

    /// Waits until its users have done what they had begun, and closes the client. Returns what it was connected by: a value that is
    /// refreshed behind its users keeps the client for longer than them.
    pub(crate) async fn finish(self) -> Arc<Wire> {
        let mut life = self.life.into_inner().unwrap_or_else(PoisonError::into_inner);
        for user in std::mem::take(&mut life.users) {
            if let Err(error) = user.await {
                self.world.time.fail(format!("a user of machine {} panicked: {error}", self.number));
            }
        }
        let counted = life.tenure.clone();
        life.tenure.clone().close().await;
        life.compare(&counted, true);
        let Life { tenure, wire, .. } = life;
        drop(counted);
        tenure.close().await;
        wire
    }
}

impl Life {
    async fn start(world: &Arc<World>, number: usize) -> Life {
        let rate = world.time.random(|random| random.i64(-4_500..=4_500));
        let clock = NodeClock::new(&world.time, rate);
        let wire = Wire::new(world, &clock);
        let (connect, time) = (connector(wire.clone()), Arc::new(SharedClock(clock.clone())));
        let tally = world.is_counted.then(Arc::<Tally>::default);
        let settings = match &tally {
            Some(tally) => Settings::new().counts(true).listener(tally.clone()),
            None => Settings::default(),
        };
        let tenure = Tenure::start_here(connect, time, settings).await.expect("it connects");
        let users = (0..USERS).map(|user| {
            let user = User {
                world: world.clone(),
                clock: clock.clone(),
                tenure: tenure.clone(),
                node: number,
                user,
                seen: Mutex::default(),
            };
            tokio::spawn(user.live())
        });
        Life { users: users.collect(), wire, clock, tenure, tally }
    }

    /// Compares what the client has counted with what it has told.
    fn compare(&self, tenure: &Tenure, is_over: bool) {
        let Some(tally) = &self.tally else { return };
        let compared = tally.compare(&tenure.counts(), is_over);
        self.wire.world.compared.fetch_add(compared, std::sync::atomic::Ordering::Relaxed);
    }
}

/// One task that uses a client.
struct User {
    world: Arc<World>,
    clock: Arc<NodeClock>,
    tenure: Tenure,
    node: usize,
    user: usize,
    /// The largest token that it was given of each resource.
    seen: Mutex<HashMap<Name, Token>>,
}

impl User {
    async fn live(self) {
        // Through its pauses too: what it pushes behind one is to be worked off.
        let producing = (self.world.play == Play::Queues && self.user == 0).then(|| self.world.begin_push());
        while self.world.is_faulty() {
            self.idle().await;
            let done = match self.world.play {
                Play::Locks => self.lock().await,
                Play::Sets => self.set().await,
                Play::Elections => self.lead().await,
                Play::SingleFlight => self.fetch().await,
                Play::Queues if self.user == 0 => self.push().await,
                Play::Queues => self.consume().await,
            };
            self.expect_fair(done);
        }
        drop(producing);
        if matches!(self.world.play, Play::Locks | Play::Sets | Play::Elections) {
            self.clock
                .sleep(Duration::from_nanos(self.world.calm_at().saturating_sub(self.world.time.now())))
                .await;
            let done = match self.world.play {
                Play::Locks => self.lock().await,
                Play::Sets => self.set().await,
                _ => self.lead().await,
            };
            if let Err(error) = done
                && error.kind() != ErrorKind::Timeout
            {
                self.world.time.fail(format!("user {} of machine {}: {error:?}", self.user, self.node));
            }
        }
        // What lies in the queue, or is just pushed, is worked off.
        let is_left = || self.world.pushing() > 0 || !self.world.beliefs().items.are_all_over();
        while self.world.play == Play::Queues && self.user != 0 && is_left() {
            let done = self.consume().await;
            self.expect_fair(done);
        }
    }

    /// Keeps what it has got. Whatever the store forgets, the client asks for tokens above those that it has seen.
    fn got(&self, had: Had, is_exclusive: bool) -> u64 {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for lease in had.leases() {
            if let Some(last) = seen.insert(lease.resource().clone(), lease.token())
                && lease.token() <= last
            {
                self.world.time.fail(format!(
                    "{}: {last}, then {} for the same user",
                    lease.resource(),
                    lease.token()
                ));
            }
        }
        self.world.got(had, &self.clock, is_exclusive)
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        self.world.time.random(draw)
    }

    /// Draws a period of up to so many ttls.
    fn period(&self, ttls: f64) -> Duration {
        self.world.ttl.mul_f64(self.draw(|random| random.f64()) * ttls)
    }

    async fn idle(&self) {
        self.clock.sleep(self.period(0.5)).await;
    }

    /// Only time and the network may keep a user from what it wants.
    fn expect_fair(&self, done: Result<()>) {
        if let Err(error) = done
            && !matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Lost)
            && !error.to_string().contains(BROKEN)
        {
            self.world.time.fail(format!("user {} of machine {}: {error:?}", self.user, self.node));
        }
    }

    /// Waits for something, and sometimes loses patience.
    async fn patiently<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if !self.world.chance(15) {
            return Some(work.await);
        }
        let patience = std::pin::pin!(self.clock.sleep(self.period(1.5)));
        match select(std::pin::pin!(work), patience).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    fn mutex(&self, name: &str) -> TenureMutex {
        let mutex = self.tenure.mutex(name).ttl(self.world.ttl).lock_delay(self.world.lock_delay);
        match self.world.max_hold {
            Some(max_hold) => mutex.max_hold(max_hold),
            None => mutex,
        }
    }

    async fn lock(&self) -> Result<()> {
        let (world, ttl) = (&self.world, self.world.ttl);
        let resource = self.draw(|random| random.usize(..RESOURCES));
        let (how, is_write) = self.draw(|random| (random.u8(..4), random.bool()));
        // Of two resources in each world, one may be something else than a mutex.
        let kind = if resource == 0 { 0 } else { world.kind };
        let name = format!("r{resource}");
        macro_rules! with_limits {
            ($primitive:expr) => {{
                let primitive = $primitive.ttl(ttl).lock_delay(world.lock_delay);
                match world.max_hold {
                    Some(max_hold) => primitive.max_hold(max_hold),
                    None => primitive,
                }
            }};
        }
        macro_rules! take {
            ($primitive:expr, $had:path, $exclusive:expr) => {{
                let primitive = $primitive;
                let got = match how {
                    0 => self.patiently(primitive.try_acquire()).await.transpose()?.flatten(),
                    1 => self.patiently(primitive.acquire_within(ttl)).await.transpose()?,
                    _ => self.patiently(primitive.acquire()).await.transpose()?,
                };
                got.map(|got| self.got($had(got), $exclusive))
            }};
        }
        let number = match kind {
            0 => take!(with_limits!(self.tenure.mutex(&name)), Had::Lease, true),
            1 if is_write => take!(with_limits!(self.tenure.rw_lock(&name)).write(), Had::Lease, true),
            1 => take!(with_limits!(self.tenure.rw_lock(&name)).read(), Had::Lease, false),
            2 => {
                let weight = self.draw(|random| random.u32(1..=2));
                take!(with_limits!(self.tenure.semaphore(&name, 3).weight(weight)), Had::Lease, false)
            }
            _ => take!(with_limits!(self.tenure.slot_pool(&name, 2)), Had::Slot, false),
        };
        match number {
            Some(number) => self.hold(number).await,
            None => Ok(()),
        }
    }

    /// Takes two of three mutexes in a ring. Any two such sets overlap.
    async fn set(&self) -> Result<()> {
        let (first, how) = self.draw(|random| (random.usize(..3), random.u8(..3)));
        let both = [first, (first + 1) % 3].map(|number| self.mutex(&format!("r{number}")).into());
        let set = self.tenure.all(both);
        let got = match how {
            0 => self.patiently(set.try_acquire()).await.transpose()?.flatten(),
            1 => self.patiently(set.acquire_within(self.world.ttl)).await.transpose()?,
            _ => self.patiently(set.acquire()).await.transpose()?,
        };
        let Some(leases) = got else { return Ok(()) };
        let number = self.got(Had::Set(leases), true);
        self.hold(number).await
    }

    async fn lead(&self) -> Result<()> {
        let election = self.tenure.election("r0").ttl(self.world.ttl);
        if self.draw(|random| random.u8(..4)) == 0 {
            return election.leader().await.map(drop);
        }
        let Some(term) = self.patiently(election.campaign()).await.transpose()? else { return Ok(()) };
        self.world.check_token(&term, true);
        // A term that is over by then publishes nothing.
        self.patiently(term.publish(term.token().to_string().as_bytes())).await;
        let number = self.world.keep(Had::Term(term), &self.clock);
        self.hold(number).await
    }

    /// Holds something for a while, and does not always look whether it still has it.
    async fn keep(&self, number: u64, most: f64) {
        let is_calm = self.world.time.now() > self.world.calm_at();
        let until = self.clock.now() + self.period(most);
        let is_careful = self.draw(|random| random.u8(..3)) > 0;
        while self.clock.now() < until && (!is_careful || self.world.is_held(number)) {
            self.clock.sleep(self.world.ttl / 8).await;
        }
        let may_end = self.world.play != Play::Elections && self.world.max_hold.is_some();
        if is_calm && !may_end && !self.world.is_held(number) {
            self.world.time.fail("a lease was lost although the faults have stopped".to_owned());
        }
    }

    /// Holds what it has got, to its end or beyond, and lets go of it in one way or another.
    async fn hold(&self, number: u64) -> Result<()> {
        self.keep(number, 4.0).await;
        let how = self.draw(|random| random.u8(..3));
        let Some(had) = self.world.let_go(number) else { return Ok(()) };
        if how == 0 {
            drop(had);
            return Ok(());
        }
        let released = async {
            match had {
                Had::Lease(lease) => lease.release().await,
                Had::Slot(slot) => slot.release().await,
                Had::Set(leases) => leases.release().await,
                Had::Term(term) => term.resign().await,
                Had::Delivery(_) => unreachable!("deliveries are settled"),
            }
        };
        self.patiently(released).await.transpose().map(drop)
    }

    /// Wants a value, and loads it if nobody has.
    async fn fetch(&self) -> Result<()> {
        let ttl = self.world.ttl;
        let mut flight = self.tenure.single_flight("r1").ttl(ttl).fresh(ttl * FRESH);
        if self.draw(|random| random.bool()) {
            flight = flight.serve_stale(ttl);
        }
        let load = async |lease: &tenure_core::Lease| {
            self.world.check_token(lease, true);
            self.clock.sleep(self.period(1.5)).await;
            Ok::<_, Error>(lease.token().get().to_string().into_bytes())
        };
        let Some(found) = self.patiently(flight.get_or_refresh(load)).await.transpose()? else {
            return Ok(());
        };
        self.world.count_served();
        if !found.bytes.iter().all(u8::is_ascii_digit) {
            self.world.time.fail(format!("a value that nobody loaded: {:?}", found.bytes));
        }
        Ok(())
    }

    /// Pushes an item after the one that it pushed before into the same group.
    async fn push(&self) -> Result<()> {
        // A group has one producer, so that its order is known.
        let group = self.draw(|random| random.u8(..GROUPS));
        let group = if group == 0 { 0 } else { group * 16 + self.node as u8 };
        let item = self.world.beliefs().items.name(group);
        let payload = format!("{} {}", item.0, item.1);
        let mut push = self.tenure.queue("r0").push(&payload).dedup(&payload);
        if group != 0 {
            push = push.group(&group.to_string());
        }
        if self.draw(|random| random.u8(..8)) == 0 {
            push = push.delay(self.period(2.0));
        }
        push.await?;
        self.world.beliefs().items.pushed(item);
        Ok(())
    }

    async fn consume(&self) -> Result<()> {
        let queue = self.tenure.queue("r0").ttl(self.world.ttl).max_attempts(0);
        let got = self.patiently(queue.next_within(self.world.ttl)).await.transpose()?.flatten();
        let Some(delivery) = got else { return Ok(()) };
        let item = named(&delivery);
        if let Some(wrong) = self.world.beliefs().items.handed_out(item) {
            self.world.time.fail(wrong);
        }
        let number = self.world.got(Had::Delivery(delivery), &self.clock, false);
        self.keep(number, 1.5).await;
        let Some(Had::Delivery(delivery)) = self.world.let_go(number) else { return Ok(()) };
        // In the end everything is acknowledged: what is dropped again and again comes back later and later.
        let how = if self.world.is_faulty() { self.draw(|random| random.u8(..8)) } else { 7 };
        match how {
            0 => drop(delivery),
            1 => delivery.put_back().await?,
            2 => drop(delivery.retry_after(self.period(1.0)).await?),
            _ => {
                self.world.beliefs().items.may_end(item);
                if self.patiently(delivery.ack()).await.transpose()?.is_some() {
                    self.world.beliefs().items.ended(item);
                }
            }
        }
        Ok(())
    }
}

/// Reads which item a delivery is.
fn named(delivery: &Delivery) -> Item {
    let text = String::from_utf8_lossy(delivery.payload()).into_owned();
    let (group, number) = text.split_once(' ').expect("a payload of ours");
    (group.parse().expect("a group"), number.parse().expect("a number"))
}
