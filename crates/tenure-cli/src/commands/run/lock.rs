//! What `tenure run` acquires, as its flags say.

use std::time::Duration;

use tenure::{Acquire, Mutex, ReadLock, Result, Semaphore, SlotPool, Tenure, WriteLock, blocking};

use super::arguments::Run;

/// A primitive with its settings.
pub(crate) enum Lock {
    Mutex(Mutex),
    Read(ReadLock),
    Write(WriteLock),
    Semaphore(Semaphore),
    SlotPool(SlotPool),
}

/// Makes the settings that all primitives share.
macro_rules! set {
    ($primitive:expr, $arguments:expr) => {{
        let mut primitive = $primitive.ttl($arguments.ttl);
        if let Some(max_hold) = $arguments.max_hold {
            primitive = primitive.max_hold(max_hold);
        }
        if let Some(every) = $arguments.every {
            primitive = primitive.min_hold(every);
        }
        if let Some(lock_delay) = $arguments.lock_delay {
            primitive = primitive.lock_delay(lock_delay);
        }
        primitive
    }};
}

impl Lock {
    /// Names what the flags ask for.
    pub(crate) fn new(tenure: &Tenure, arguments: &Run) -> Lock {
        let name = &arguments.name;
        if let Some(slots) = arguments.slots {
            return Lock::SlotPool(set!(tenure.slot_pool(name, slots), arguments));
        }
        if let Some(permits) = arguments.permits {
            let semaphore = tenure.semaphore(name, permits).weight(arguments.weight.unwrap_or(1));
            return Lock::Semaphore(set!(semaphore, arguments));
        }
        if arguments.shared {
            return Lock::Read(set!(tenure.rw_lock(name), arguments).read());
        }
        if arguments.exclusive {
            return Lock::Write(set!(tenure.rw_lock(name), arguments).write());
        }
        Lock::Mutex(set!(tenure.mutex(name), arguments))
    }

    /// Asks on this thread, without waiting.
    pub(crate) fn acquire_at_once(&self) -> Result<blocking::Lease> {
        let zero = Duration::ZERO;
        match self {
            Lock::Mutex(mutex) => blocking::Mutex::from(mutex.clone()).acquire_within(zero),
            Lock::Read(read) => blocking::ReadLock::from(read.clone()).acquire_within(zero),
            Lock::Write(write) => blocking::WriteLock::from(write.clone()).acquire_within(zero),
            Lock::Semaphore(semaphore) => blocking::Semaphore::from(semaphore.clone()).acquire_within(zero),
            Lock::SlotPool(pool) => {
                blocking::SlotPool::from(pool.clone()).acquire_within(zero).map(blocking::Lease::from)
            }
        }
    }

    /// Waits so long, or for ever.
    pub(crate) fn acquire(&self, wait: Option<Duration>) -> Acquire {
        macro_rules! acquire {
            ($primitive:expr) => {
                match wait {
                    Some(wait) => $primitive.acquire_within(wait),
                    None => $primitive.acquire(),
                }
            };
        }
        match self {
            Lock::Mutex(mutex) => acquire!(mutex),
            Lock::Read(read) => acquire!(read),
            Lock::Write(write) => acquire!(write),
            Lock::Semaphore(semaphore) => acquire!(semaphore),
            Lock::SlotPool(pool) => acquire!(pool).into(),
        }
    }
}
