//! The primitives under one face, so that one check, and one actor, can play with each of them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::claim::CAPACITY_MAX;
use tenure_core::{Acquire, Lease, Mutex, ReadLock, Result, Semaphore, SlotPool, Tenure, WriteLock};

/// What a claim is for: a primitive and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Mutex,
    Read,
    Write,
    Semaphore { capacity: u32, weight: u32 },
    Slots(u32),
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
        }
    }

    /// Returns how many units a claim takes.
    pub(crate) fn weight(self) -> u32 {
        match self {
            Form::Write => CAPACITY_MAX,
            Form::Semaphore { weight, .. } => weight,
            Form::Mutex | Form::Read | Form::Slots(_) => 1,
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
            _ => return Err(format!("{text:?} is no form")),
        })
    }
}

/// A primitive that was named. Slots are leases like others here.
#[derive(Clone)]
pub(crate) enum Lock {
    Mutex(Mutex),
    Read(ReadLock),
    Write(WriteLock),
    Semaphore(Semaphore),
    SlotPool(SlotPool),
}

impl Lock {
    /// Waits for it.
    pub(crate) fn acquire(&self) -> Acquire {
        match self {
            Lock::Mutex(mutex) => mutex.acquire(),
            Lock::Read(read) => read.acquire(),
            Lock::Write(write) => write.acquire(),
            Lock::Semaphore(semaphore) => semaphore.acquire(),
            Lock::SlotPool(pool) => pool.acquire().into(),
        }
    }

    /// Tries it once.
    pub(crate) async fn try_acquire(&self) -> Result<Option<Lease>> {
        match self {
            Lock::Mutex(mutex) => mutex.try_acquire().await,
            Lock::Read(read) => read.try_acquire().await,
            Lock::Write(write) => write.try_acquire().await,
            Lock::Semaphore(semaphore) => semaphore.try_acquire().await,
            Lock::SlotPool(pool) => Ok(pool.try_acquire().await?.map(Lease::from)),
        }
    }

    /// Works under it.
    pub(crate) async fn run<T>(&self, work: impl AsyncFn(&Lease) -> T) -> Result<T> {
        match self {
            Lock::Mutex(mutex) => mutex.run(work).await,
            Lock::Read(read) => read.run(work).await,
            Lock::Write(write) => write.run(work).await,
            Lock::Semaphore(semaphore) => semaphore.run(work).await,
            Lock::SlotPool(pool) => pool.run(async |slot| work(slot).await).await,
        }
    }
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
        for form in [Form::Mutex, Form::Read, Form::Write, semaphore, Form::Slots(16)] {
            assert_eq!(form.to_string().parse(), Ok(form));
        }
    }
}
