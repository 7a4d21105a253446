//! The primitives under one face, so that one check, and one actor, can play with each of them.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_core::model::claim::CAPACITY_MAX;
use tenure_core::{
    Acquire, AllOf, Election, Lease, Leases, Mutex, ReadLock, ReleaseAnswer, Result, Semaphore, SlotPool,
    Tenure, Term, WriteLock,
};

/// What a claim is for: a primitive and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Mutex,
    Read,
    Write,
    Semaphore {
        capacity: u32,
        weight: u32,
    },
    Slots(u32),
    /// So many slots of a pool of so many, all or none.
    SlotSet {
        slots: u32,
        of: u32,
    },
    /// A mutex that is taken once in so many milliseconds.
    Period(u32),
    /// The leadership of an election.
    Term,
    /// Two of three mutexes in a ring, the one of this number first. Any two such sets overlap.
    Several(u32),
}

/// How many mutexes the ring of [`Form::Several`] has.
const RING: u32 = 3;

/// Names a mutex of the ring of [`Form::Several`]. The first has the name itself.
pub(crate) fn in_ring(name: &str, number: u32) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}/{number}") }
}

/// Two claims that cannot be granted together.
#[derive(Clone, Copy)]
pub(crate) struct Contest {
    pub(crate) holder: Form,
    pub(crate) next: Form,
}

impl Contest {
    pub(crate) const MUTEX: Contest = Contest { holder: Form::Mutex, next: Form::Mutex };
    pub(crate) const RW_LOCK: Contest = Contest { holder: Form::Read, next: Form::Write };
    pub(crate) const SEMAPHORE: Contest = Contest {
        holder: Form::Semaphore { capacity: 3, weight: 2 },
        next: Form::Semaphore { capacity: 3, weight: 2 },
    };
    pub(crate) const SLOT_POOL: Contest = Contest { holder: Form::Slots(1), next: Form::Slots(1) };
    pub(crate) const ELECTION: Contest = Contest { holder: Form::Term, next: Form::Term };
    pub(crate) const SEVERAL: Contest = Contest { holder: Form::Several(0), next: Form::Several(0) };
}

impl Form {
    /// Names the primitive from a client.
    pub(crate) fn of(self, client: &Tenure, name: &str, ttl: Duration) -> Lock {
        match self {
            Form::Mutex => Lock::Mutex(client.mutex(name).ttl(ttl)),
            Form::Read => Lock::Read(client.rw_lock(name).ttl(ttl).read()),
            Form::Write => Lock::Write(client.rw_lock(name).ttl(ttl).write()),
            Form::Semaphore { capacity, weight } => {
                Lock::Semaphore(client.semaphore(name, capacity).weight(weight).ttl(ttl))
            }
            Form::Slots(slots) => Lock::SlotPool(client.slot_pool(name, slots).ttl(ttl)),
            Form::SlotSet { slots, of } => {
                let set = client.slot_pool(name, of).ttl(ttl).several(slots);
                Lock::Several(Whose::new(client, name), set)
            }
            Form::Period(millis) => {
                Lock::Mutex(client.mutex(name).ttl(ttl).min_hold(Duration::from_millis(millis.into())))
            }
            Form::Term => Lock::Election(Whose::new(client, name), client.election(name).ttl(ttl)),
            Form::Several(first) => {
                let both = [first % RING, (first + 1) % RING];
                let both = both.map(|number| client.mutex(&in_ring(name, number)).ttl(ttl).into());
                Lock::Several(Whose::new(client, name), client.all(both))
            }
        }
    }

    /// Returns how many units a claim takes.
    pub(crate) fn weight(self) -> u32 {
        match self {
            Form::Write => CAPACITY_MAX,
            Form::Semaphore { weight, .. } => weight,
            _ => 1,
        }
    }
}

impl fmt::Display for Form {
    /// Writes it as [`Form::from_str`] reads it, in another process.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Mutex => f.write_str("mutex"),
            Form::Read => f.write_str("read"),
            Form::Write => f.write_str("write"),
            Form::Semaphore { capacity, weight } => write!(f, "semaphore {capacity} {weight}"),
            Form::Slots(slots) => write!(f, "slots {slots}"),
            Form::SlotSet { slots, of } => write!(f, "slot-set {slots} {of}"),
            Form::Period(millis) => write!(f, "period {millis}"),
            Form::Term => f.write_str("term"),
            Form::Several(first) => write!(f, "several {first}"),
        }
    }
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Form, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |word: &str| word.parse::<u32>().map_err(|error| format!("{text:?}: {error}"));
        Ok(match words[..] {
            ["mutex"] => Form::Mutex,
            ["read"] => Form::Read,
            ["write"] => Form::Write,
            ["semaphore", capacity, weight] => {
                Form::Semaphore { capacity: number(capacity)?, weight: number(weight)? }
            }
            ["slots", slots] => Form::Slots(number(slots)?),
            ["slot-set", slots, of] => Form::SlotSet { slots: number(slots)?, of: number(of)? },
            ["period", millis] => Form::Period(number(millis)?),
            ["term"] => Form::Term,
            ["several", first] => Form::Several(number(first)?),
            _ => return Err(format!("{text:?} is no form")),
        })
    }
}

/// A primitive that was named.
#[derive(Clone)]
pub(crate) enum Lock {
    Mutex(Mutex),
    Read(ReadLock),
    Write(WriteLock),
    Semaphore(Semaphore),
    SlotPool(SlotPool),
    Election(Whose, Election),
    Several(Whose, AllOf),
}

/// From which client something was named, and how.
#[derive(Clone)]
pub(crate) struct Whose {
    pub(crate) client: Tenure,
    pub(crate) name: String,
}

impl Whose {
    fn new(client: &Tenure, name: &str) -> Whose {
        Whose { client: client.clone(), name: name.to_owned() }
    }
}

impl Lock {
    /// Waits for it.
    pub(crate) fn acquire(&self) -> Wait {
        match self {
            Lock::Mutex(mutex) => Wait::Acquire(mutex.acquire()),
            Lock::Read(read) => Wait::Acquire(read.acquire()),
            Lock::Write(write) => Wait::Acquire(write.acquire()),
            Lock::Semaphore(semaphore) => Wait::Acquire(semaphore.acquire()),
            Lock::SlotPool(pool) => Wait::Acquire(pool.acquire().into()),
            Lock::Election(whose, election) => {
                let election = election.clone();
                Wait::Other(whose.clone(), Box::pin(async move { election.campaign().await.map(Held::Term) }))
            }
            Lock::Several(whose, several) => {
                let several = several.clone();
                Wait::Other(whose.clone(), Box::pin(async move { several.acquire().await.map(Held::Leases) }))
            }
        }
    }

    /// Tries it once.
    pub(crate) async fn try_acquire(&self) -> Result<Option<Held>> {
        let lease = match self {
            Lock::Mutex(mutex) => mutex.try_acquire().await,
            Lock::Read(read) => read.try_acquire().await,
            Lock::Write(write) => write.try_acquire().await,
            Lock::Semaphore(semaphore) => semaphore.try_acquire().await,
            Lock::SlotPool(pool) => Ok(pool.try_acquire().await?.map(Lease::from)),
            Lock::Election(_, election) => return Ok(election.try_campaign().await?.map(Held::Term)),
            Lock::Several(_, several) => return Ok(several.try_acquire().await?.map(Held::Leases)),
        };
        Ok(lease?.map(Held::Lease))
    }

    /// Works under it.
    pub(crate) async fn run<T>(&self, work: impl AsyncFn(&Lease) -> T) -> Result<T> {
        match self {
            Lock::Mutex(mutex) => mutex.run(work).await,
            Lock::Read(read) => read.run(work).await,
            Lock::Write(write) => write.run(work).await,
            Lock::Semaphore(semaphore) => semaphore.run(work).await,
            Lock::SlotPool(pool) => pool.run(async |slot| work(slot).await).await,
            Lock::Election(_, election) => election.run(async |term| work(term).await).await,
            Lock::Several(_, several) => several.run(async |leases| work(first(leases)).await).await,
        }
    }
}

/// A wait for any of them.
pub(crate) enum Wait {
    Acquire(Acquire),
    /// One that does not tell its place.
    Other(Whose, BoxFuture<'static, Result<Held>>),
}

impl Future for Wait {
    type Output = Result<Held>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Held>> {
        match &mut *self {
            Wait::Acquire(acquire) => Pin::new(acquire).poll(cx).map_ok(Held::Lease),
            Wait::Other(_, other) => other.as_mut().poll(cx),
        }
    }
}

/// What is held of any of them: a lease, to which it derefs. Of several leases, that is the first by name.
#[derive(Debug)]
pub(crate) enum Held {
    Lease(Lease),
    Leases(Leases),
    Term(Term),
}

impl Held {
    /// Releases it and waits for the answer.
    pub(crate) async fn release(self) -> Result<ReleaseAnswer> {
        match self {
            Held::Lease(lease) => lease.release().await,
            Held::Leases(leases) => leases.release().await,
            Held::Term(term) => term.resign().await,
        }
    }
}

impl Deref for Held {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Held::Lease(lease) => lease,
            Held::Leases(leases) => first(leases),
            Held::Term(term) => term,
        }
    }
}

fn first(leases: &Leases) -> &Lease {
    leases.iter().next().expect("nobody takes none at once")
}

impl From<Mutex> for Lock {
    fn from(mutex: Mutex) -> Lock {
        Lock::Mutex(mutex)
    }
}

impl From<&Mutex> for Lock {
    fn from(mutex: &Mutex) -> Lock {
        Lock::Mutex(mutex.clone())
    }
}

impl From<&Lock> for Lock {
    fn from(lock: &Lock) -> Lock {
        lock.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_as_it_is_written() {
        let semaphore = Form::Semaphore { capacity: 5, weight: 2 };
        let others = [Form::SlotSet { slots: 3, of: 4 }, Form::Period(70), Form::Term, Form::Several(2)];
        for form in
            [Form::Mutex, Form::Read, Form::Write, semaphore, Form::Slots(16)].into_iter().chain(others)
        {
            assert_eq!(form.to_string().parse(), Ok(form));
        }
    }
}
