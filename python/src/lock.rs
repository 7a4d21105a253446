//! What a lock is called and how it is set, and what is asked of a store for it.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure::{
    ClaimId, Error, LockRequest, Mutex, ReadLock, Result, Semaphore, SlotPool, Tenure, WriteLock, blocking,
};

use crate::failure::{exception, seconds};
use crate::hold::Hold;
use crate::pending::Pending;

/// Which primitive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mutex,
    Read,
    Write,
    Semaphore,
    SlotPool,
}

/// A lock as Python names it: the same in every process.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Lock {
    kind: Kind,
    name: String,
    capacity: u32,
    weight: u32,
    ttl: Option<Duration>,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    lock_delay: Option<Duration>,
    label: Option<String>,
    claim: Option<ClaimId>,
}

/// Which one: its kind, its name, how many units there are, and how many it takes.
type Named<'lock> = (&'static str, &'lock str, u32, u32);

/// A time that may be left out.
pub(crate) fn period(what: &str, given: Option<f64>) -> Result<Option<Duration>> {
    given.map(|given| seconds(what, given)).transpose()
}

#[pymethods]
impl Lock {
    #[new]
    #[pyo3(signature = (kind, name, capacity=1, weight=1, *, ttl=None, max_hold=None, min_hold=None, lock_delay=None, label=None, claim_id=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords of one call")]
    fn new(
        py: Python<'_>,
        kind: &str,
        name: String,
        capacity: u32,
        weight: u32,
        ttl: Option<f64>,
        max_hold: Option<f64>,
        min_hold: Option<f64>,
        lock_delay: Option<f64>,
        label: Option<String>,
        claim_id: Option<&str>,
    ) -> PyResult<Lock> {
        let made = || {
            let kind = match kind {
                "read" => Kind::Read,
                "write" => Kind::Write,
                "semaphore" => Kind::Semaphore,
                "slot_pool" => Kind::SlotPool,
                _ => Kind::Mutex,
            };
            let claim = claim_id.map(str::parse::<ClaimId>).transpose()?;
            let (ttl, max_hold) = (period("ttl", ttl)?, period("max_hold", max_hold)?);
            let (min_hold, lock_delay) = (period("min_hold", min_hold)?, period("lock_delay", lock_delay)?);
            Ok(Lock { kind, name, capacity, weight, ttl, max_hold, min_hold, lock_delay, label, claim })
        };
        made().map_err(|error: Error| exception(py, &error))
    }

    /// How another process makes the same: what `pickle` asks for.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Named<'_>, Bound<'py, PyDict>)> {
        let kind = match self.kind {
            Kind::Mutex => "mutex",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Semaphore => "semaphore",
            Kind::SlotPool => "slot_pool",
        };
        let settings = PyDict::new(py);
        let times = [
            ("ttl", self.ttl),
            ("max_hold", self.max_hold),
            ("min_hold", self.min_hold),
            ("lock_delay", self.lock_delay),
        ];
        for (name, time) in times {
            settings.set_item(name, time.map(|time| time.as_secs_f64()))?;
        }
        settings.set_item("label", self.label.as_deref())?;
        settings.set_item("claim_id", self.claim.map(|claim| claim.to_string()))?;
        Ok(((kind, &self.name, self.capacity, self.weight), settings))
    }
}

/// A primitive of a client.
enum Primitive {
    Mutex(Mutex),
    Read(ReadLock),
    Write(WriteLock),
    Semaphore(Semaphore),
    SlotPool(SlotPool),
}

/// Does the same with each kind of primitive.
macro_rules! with {
    ($of:expr, $primitive:ident => $does:expr) => {
        match $of {
            Primitive::Mutex($primitive) => $does,
            Primitive::Read($primitive) => $does,
            Primitive::Write($primitive) => $does,
            Primitive::Semaphore($primitive) => $does,
            Primitive::SlotPool($primitive) => $does,
        }
    };
}

/// Sets what was given.
macro_rules! set {
    ($lock:expr, $primitive:expr, claim $($claim:ident)?) => {{
        let (lock, mut primitive) = ($lock, $primitive);
        if let Some(ttl) = lock.ttl {
            primitive = primitive.ttl(ttl);
        }
        if let Some(max_hold) = lock.max_hold {
            primitive = primitive.max_hold(max_hold);
        }
        if let Some(min_hold) = lock.min_hold {
            primitive = primitive.min_hold(min_hold);
        }
        if let Some(lock_delay) = lock.lock_delay {
            primitive = primitive.lock_delay(lock_delay);
        }
        if let Some(label) = &lock.label {
            primitive = primitive.label(label);
        }
        $(if let Some(claim) = lock.claim {
            primitive = primitive.$claim(claim);
        })?
        primitive
    }};
}

impl Lock {
    fn of(&self, tenure: &Tenure) -> Primitive {
        let name = &self.name;
        match self.kind {
            Kind::Mutex => Primitive::Mutex(set!(self, tenure.mutex(name), claim claim_id)),
            Kind::Semaphore => {
                let semaphore = tenure.semaphore(name, self.capacity).weight(self.weight);
                Primitive::Semaphore(set!(self, semaphore, claim claim_id))
            }
            Kind::SlotPool => {
                Primitive::SlotPool(set!(self, tenure.slot_pool(name, self.capacity), claim claim_id))
            }
            Kind::Read => Primitive::Read(set!(self, tenure.rw_lock(name), claim).read()),
            Kind::Write => Primitive::Write(set!(self, tenure.rw_lock(name), claim).write()),
        }
    }

    fn request(&self, tenure: &Tenure) -> LockRequest {
        with!(self.of(tenure), primitive => primitive.into())
    }

    /// Waits for ever, or for so long.
    pub(crate) fn acquire(&self, tenure: &Tenure, wait: Option<Duration>) -> Pending {
        with!(self.of(tenure), primitive => {
            let acquire = wait.map_or_else(|| primitive.acquire(), |wait| primitive.acquire_within(wait));
            Pending::new(async move { acquire.await.map(Hold::from) })
        })
    }

    /// Does not wait.
    pub(crate) fn try_acquire(&self, tenure: &Tenure) -> Pending {
        with!(self.of(tenure), primitive => {
            Pending::new(async move { Ok(primitive.try_acquire().await?.map(Hold::from)) })
        })
    }

    /// Does not wait, and works on this thread.
    pub(crate) fn try_acquire_here(&self, tenure: &Tenure) -> Result<Option<Hold>> {
        let taken = match self.of(tenure) {
            Primitive::Mutex(it) => blocking::Mutex::from(it).try_acquire()?,
            Primitive::Read(it) => blocking::ReadLock::from(it).try_acquire()?,
            Primitive::Write(it) => blocking::WriteLock::from(it).try_acquire()?,
            Primitive::Semaphore(it) => blocking::Semaphore::from(it).try_acquire()?,
            Primitive::SlotPool(it) => blocking::SlotPool::from(it).try_acquire()?.map(blocking::Lease::from),
        };
        Ok(taken.map(Hold::from))
    }
}

/// How several are taken.
pub(crate) struct Several {
    pub(crate) locks: Vec<Py<Lock>>,
    pub(crate) is_all: bool,
    pub(crate) waits: bool,
    pub(crate) wait: Option<Duration>,
}

/// Takes all of several, or any one of them.
pub(crate) fn several(tenure: &Tenure, asked: &Several) -> Pending {
    let locks = || asked.locks.iter().map(|lock| lock.get().request(tenure));
    let (waits, wait) = (asked.waits, asked.wait);
    if asked.is_all {
        let all = tenure.all(locks());
        Pending::new(async move {
            Ok(match (waits, wait) {
                (false, _) => all.try_acquire().await?.map(Hold::from),
                (true, Some(wait)) => Some(all.acquire_within(wait).await?.into()),
                (true, None) => Some(all.acquire().await?.into()),
            })
        })
    } else {
        let any = tenure.any(locks());
        Pending::new(async move {
            Ok(match (waits, wait) {
                (false, _) => any.try_acquire().await?.map(Hold::from),
                (true, Some(wait)) => Some(any.acquire_within(wait).await?.into()),
                (true, None) => Some(any.acquire().await?.into()),
            })
        })
    }
}
