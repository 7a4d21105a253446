//! One task: it takes a lease, writes to the resource under it while it looks whether it still holds, and gives it back.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use pollster::block_on;
use tenure::fence::{Mark, slot_key};
use tenure::{Delivery, Error, ErrorKind, Lease, Leases, LockRequest, Slot, Term};

use super::line::Asking;
use super::watched::Watched;
use super::{BRISK, PAIR, QUEUE, Stage, UNITS, WRITER, pause};
use crate::history::{Kind, now};
use crate::resource::Resource;

pub(super) const MUTEXES: usize = 4;
/// Of how many mutexes a brisk task takes one: others seldom want it, too.
const BRISK_MUTEXES: usize = 32;
const SLOTS: u32 = 3;
/// How long a task works between two looks at its lease.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a task does nothing after an error that came at once, such as from a store that is away.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);
/// After how many looks it writes again. It also does after each look that came late, as one who was stopped and does not know.
pub(super) const LOOKS_PER_WRITE: u32 = 3;
/// A look that came so late is of one who was stopped.
const LATE: Duration = Duration::from_millis(50);

enum Held {
    Lease(Lease),
    Pair(Leases),
    Term(Term),
    Slot(Slot),
    Delivery(Delivery),
}

/// What a task asks for, and as what it is judged.
struct Wanted {
    kind: Kind,
    name: String,
    /// The other one of a pair of mutexes.
    other: Option<String>,
    weight: u32,
    /// How long it waits. `None`: it tries once.
    wait: Option<Duration>,
}

/// Takes leases of a kind until it is over.
pub(super) fn work(stage: &Stage, kind: Kind, task: &str) {
    let mut resource = Resource::connect(&stage.resource);
    while !stage.is_over() {
        let wanted = Wanted::random(stage, kind, task);
        let asked = now();
        match wanted.take(stage, asked, task) {
            Ok(Some(held)) => section(stage, &wanted, held, asked, task, &mut resource),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Err(error) => {
                stage.note(kind.as_str(), &error);
                pause(PAUSE_AFTER_ERROR);
            }
        }
        if task != BRISK {
            pause(Duration::from_millis(fastrand::u64(0..60)));
        }
    }
}

impl Wanted {
    fn random(stage: &Stage, kind: Kind, task: &str) -> Wanted {
        let first = fastrand::usize(0..MUTEXES);
        let other =
            (task == PAIR).then(|| format!("mutex-{}", (first + fastrand::usize(1..MUTEXES)) % MUTEXES));
        let name = match kind {
            Kind::Mutex if task == BRISK => format!("brisk-{}", fastrand::usize(0..BRISK_MUTEXES)),
            Kind::Mutex => format!("mutex-{first}"),
            Kind::Semaphore => "semaphore".to_owned(),
            Kind::ReadWrite => "read-write".to_owned(),
            Kind::Term => "election".to_owned(),
            Kind::Slot => "pool".to_owned(),
            Kind::Delivery => QUEUE.to_owned(),
            Kind::Load => unreachable!("values have tasks of their own"),
        };
        let weight = match kind {
            Kind::Semaphore => fastrand::u32(1..UNITS),
            Kind::ReadWrite if fastrand::u32(0..3) == 0 => WRITER,
            _ => 1,
        };
        let wait = match stage.is_calm() {
            // A task that waits at an empty queue must not keep its process from ending.
            true => Some(Duration::from_secs(if kind == Kind::Delivery { 1 } else { 5 })),
            false => (fastrand::u32(0..5) > 0).then(|| Duration::from_millis(fastrand::u64(50..3000))),
        };
        Wanted { kind, name, other, weight, wait }
    }

    fn take(&self, stage: &Stage, asked: u64, task: &str) -> Result<Option<Held>, Error> {
        let (tenure, ttl, name) = (&stage.tenure, stage.ttl, self.name.as_str());
        let line = Asking { stage, kind: self.kind, resource: name, asked, task };
        if let Some(other) = &self.other {
            let both = [name, other].map(|name| LockRequest::from(tenure.mutex(name).ttl(ttl)));
            let leases = match self.wait {
                None => block_on(tenure.all(both).try_acquire()),
                Some(wait) => block_on(tenure.all(both).acquire_within(wait)).map(Some),
            };
            return Ok(leases?.map(Held::Pair));
        }
        match (self.kind, self.wait) {
            (Kind::Mutex, None) => leased(block_on(tenure.mutex(name).ttl(ttl).try_acquire())),
            (Kind::Mutex, Some(wait)) => {
                leased(line.wait(tenure.mutex(name).ttl(ttl).acquire_within(wait)).map(Some))
            }
            (Kind::Semaphore, wait) => {
                let units = tenure.semaphore(name, UNITS).weight(self.weight).ttl(ttl);
                leased(match wait {
                    None => block_on(units.try_acquire()),
                    Some(wait) => line.wait(units.acquire_within(wait)).map(Some),
                })
            }
            (Kind::ReadWrite, wait) => {
                let lock = tenure.rw_lock(name).ttl(ttl);
                leased(match (self.weight, wait) {
                    (WRITER, None) => block_on(lock.write().try_acquire()),
                    (WRITER, Some(wait)) => line.wait(lock.write().acquire_within(wait)).map(Some),
                    (_, None) => block_on(lock.read().try_acquire()),
                    (_, Some(wait)) => line.wait(lock.read().acquire_within(wait)).map(Some),
                })
            }
            (Kind::Term, wait) => {
                let election = tenure.election(name).ttl(ttl);
                let term = match wait {
                    None => block_on(election.try_campaign()),
                    Some(_) => block_on(election.campaign()).map(Some),
                };
                Ok(term?.map(Held::Term))
            }
            (Kind::Slot, wait) => {
                let pool = tenure.slot_pool(name, SLOTS).ttl(ttl);
                let slot = match wait {
                    None => block_on(pool.try_acquire()),
                    Some(wait) => line.wait(pool.acquire_within(wait)).map(Some),
                };
                Ok(slot?.map(Held::Slot))
            }
            (Kind::Delivery, wait) => {
                // Never a dead letter: each item is to have its effect.
                let queue = tenure.queue(name).ttl(ttl).max_attempts(0);
                let delivery = block_on(queue.next_within(wait.unwrap_or(Duration::ZERO)));
                Ok(delivery?.map(Held::Delivery))
            }
            (Kind::Load, _) => unreachable!("values have tasks of their own"),
        }
    }
}

fn leased(lease: Result<Option<Lease>, Error>) -> Result<Option<Held>, Error> {
    Ok(lease?.map(Held::Lease))
}

impl Held {
    /// Its leases, each with what is fenced and judged by itself.
    fn leases(&self, name: &str) -> Vec<(String, &Lease)> {
        match self {
            Held::Lease(lease) => vec![(name.to_owned(), lease)],
            Held::Pair(leases) => leases.iter().map(|lease| (lease.resource().to_string(), lease)).collect(),
            Held::Term(term) => vec![(name.to_owned(), &**term)],
            Held::Slot(slot) => vec![(slot_key(name, slot.number()), &**slot)],
            Held::Delivery(delivery) => {
                let key = format!("{name}/{}", delivery.group().unwrap_or_default());
                vec![(key, delivery.lease())]
            }
        }
    }

    /// The item whose effect a write is.
    fn item(&self) -> String {
        match self {
            Held::Delivery(delivery) => String::from_utf8_lossy(delivery.payload()).into_owned(),
            _ => String::new(),
        }
    }

    /// Gives it back, and returns what came of that.
    fn settle(self) -> String {
        let told = |error: Error| error.kind().as_str().to_owned();
        match self {
            // One of ten is dropped, as by a program that leaves its section by an error.
            Held::Lease(lease) if fastrand::u32(0..10) == 0 => {
                drop(lease);
                "dropped".to_owned()
            }
            Held::Lease(lease) => block_on(lease.release()).map_or_else(told, |answer| format!("{answer:?}")),
            Held::Pair(leases) => {
                block_on(leases.release()).map_or_else(told, |answer| format!("{answer:?}"))
            }
            Held::Term(term) => block_on(term.resign()).map_or_else(told, |answer| format!("{answer:?}")),
            Held::Slot(slot) => block_on(slot.release()).map_or_else(told, |answer| format!("{answer:?}")),
            Held::Delivery(delivery) => block_on(delivery.ack()).map_or_else(told, |()| "acked".to_owned()),
        }
    }
}

/// Works under leases that are held together, writes down what it sees of them, and gives them back.
fn section(stage: &Stage, wanted: &Wanted, held: Held, asked: u64, task: &str, resource: &mut Resource) {
    // Nothing says which of several holders a write should be compared with; so those who share do not write.
    let writes = match wanted.kind {
        Kind::Semaphore => false,
        Kind::ReadWrite => wanted.weight == WRITER,
        Kind::Mutex | Kind::Slot | Kind::Term | Kind::Delivery | Kind::Load => true,
    };
    let item = held.item();
    let mut work = Work::begin(stage, wanted.kind, wanted.weight, asked, task, held.leases(&wanted.name));
    let period = if task == BRISK { Duration::ZERO } else { period(stage) };
    if !block_on(work.go_on(writes.then_some((resource, &item)), period)) {
        return;
    }
    let numbers = work.end();
    let settled = held.settle();
    numbers.iter().for_each(|number| stage.journal.write(&["settled", number, &settled]));
}

/// Work under leases that are held together.
pub(super) struct Work<'a> {
    watched: Vec<Watched<'a>>,
    granted: u64,
    is_over: bool,
}

impl<'a> Work<'a> {
    /// Writes down that they were granted.
    pub(super) fn begin(
        stage: &'a Stage,
        kind: Kind,
        weight: u32,
        asked: u64,
        task: &str,
        leases: Vec<(String, &'a Lease)>,
    ) -> Work<'a> {
        let granted = now();
        let watched = leases.into_iter().map(|(key, lease)| {
            let watched = Watched::new(stage, key, lease);
            let [weight, token, asked, at] =
                [weight.into(), lease.token().get(), asked, granted].map(|value: u64| value.to_string());
            let Watched { number, key, .. } = &watched;
            stage.journal.write(&["granted", number, kind.as_str(), key, &weight, &token, &asked, &at, task]);
            watched
        });
        Work { watched: watched.collect(), granted, is_over: false }
    }

    /// Works for a time and writes an item to the resource meanwhile; returns false if the leases were lost.
    pub(super) async fn go_on(
        &mut self,
        mut writes: Option<(&mut Resource, &str)>,
        period: Duration,
    ) -> bool {
        let ends = self.granted + period.as_nanos() as u64;
        let (mut last, mut looks) = (self.granted, 0);
        loop {
            let at = now();
            let is_due = looks % LOOKS_PER_WRITE == 0 || at - last > LATE.as_nanos() as u64;
            if let Some((resource, item)) = writes.as_mut().filter(|_| is_due) {
                for one in &self.watched {
                    let at = now();
                    if !resource.write(&one.key, Mark::from(one.lease), item) {
                        one.note("refused", &[at]);
                    }
                }
            }
            let at = now();
            // Those that are held together are lost together.
            if self.watched.iter().any(|one| one.lease.is_lost()) {
                self.lose();
                return false;
            }
            if at >= ends {
                self.watched.iter().for_each(|one| one.note("exit", &[at]));
                self.is_over = true;
                return true;
            }
            self.watched.iter_mut().for_each(|one| one.see(at));
            (last, looks) = (at, looks + 1);
            pause(LOOK_EVERY);
            // Whoever lets it work may drop it here.
            yield_now().await;
        }
    }

    /// Returns the numbers by which the history names the leases, which are held.
    fn end(mut self) -> Vec<String> {
        std::mem::take(&mut self.watched).into_iter().map(|one| one.number).collect()
    }

    fn lose(&mut self) {
        self.is_over = true;
        self.watched.iter_mut().for_each(Watched::lose);
    }
}

/// The library drops work whose lease is lost.
impl Drop for Work<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.lose();
        }
    }
}

/// Is polled once more.
async fn yield_now() {
    let mut is_over = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// How long a section takes: mostly some milliseconds, at times so long that the lease must be renewed.
pub(super) fn period<C>(stage: &Stage<C>) -> Duration {
    let ttl_ms = u64::try_from(stage.ttl.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(match fastrand::u32(0..20) {
        0 if !stage.is_calm() => fastrand::u64(0..ttl_ms * 3 / 2),
        1..=3 => fastrand::u64(0..150),
        _ => fastrand::u64(0..20),
    })
}
