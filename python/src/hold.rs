//! What Python holds: a lease, a term, leases of a set, a delivery.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use tenure::{
    Delivery, Error, ErrorKind, Lease, Leases, LossReason, ReleaseAnswer, Result, Slot, Term, blocking,
};

use crate::failure::{FORKED, exception, lost, seconds};
use crate::own::Own;
use crate::pending::{Pending, Place, detached};

/// What is held.
pub(crate) enum Thing {
    Lease(Lease),
    /// One that was taken on the caller's own thread, and goes back there.
    Here(blocking::Lease),
    Term(Term),
    Leases(Leases),
    Delivery(Delivery),
}

impl Thing {
    fn expires_in(&self) -> Duration {
        match self {
            Thing::Lease(lease) => lease.expires_in(),
            Thing::Here(lease) => lease.expires_in(),
            Thing::Term(term) => term.expires_in(),
            Thing::Leases(leases) => leases.expires_in(),
            Thing::Delivery(delivery) => delivery.lease().expires_in(),
        }
    }

    fn is_lost(&self) -> bool {
        match self {
            Thing::Lease(lease) => lease.is_lost(),
            Thing::Here(lease) => lease.is_lost(),
            Thing::Term(term) => term.is_lost(),
            Thing::Leases(leases) => leases.is_lost(),
            Thing::Delivery(delivery) => delivery.lease().is_lost(),
        }
    }

    async fn lost(&self) -> Error {
        match self {
            Thing::Lease(lease) => lease.lost().await,
            Thing::Here(lease) => lease.lost().await,
            Thing::Term(term) => term.lost().await,
            Thing::Leases(leases) => leases.lost().await,
            Thing::Delivery(delivery) => delivery.lease().lost().await,
        }
    }

    fn loss_reason(&self) -> Option<LossReason> {
        match self {
            Thing::Lease(lease) => lease.loss_reason(),
            Thing::Here(lease) => lease.loss_reason(),
            Thing::Term(term) => term.loss_reason(),
            Thing::Leases(leases) => leases.iter().find_map(Lease::loss_reason),
            Thing::Delivery(delivery) => delivery.lease().loss_reason(),
        }
    }

    /// Names, tokens, claims and slots, as they stay.
    fn parts(&self) -> Vec<Part> {
        match self {
            Thing::Lease(lease) => vec![part(lease)],
            Thing::Here(lease) => vec![part(lease)],
            Thing::Term(term) => vec![part(term)],
            Thing::Leases(leases) => leases.iter().map(part).collect(),
            Thing::Delivery(delivery) => vec![part(delivery.lease())],
        }
    }
}

/// A name, its token, its claim and its slot.
type Part = (String, u64, String, Option<u32>);

fn part(lease: &Lease) -> Part {
    (lease.resource().to_string(), lease.token().get(), lease.claim().to_string(), lease.slot())
}

/// What of an item there is: number, payload, group, context, attempt, age.
type Item = (u64, Bytes, Option<String>, Option<String>, u32, f64);

/// Bytes that Python gets as `bytes`.
pub(crate) struct Bytes(pub(crate) Arc<[u8]>);

impl<'py> IntoPyObject<'py> for Bytes {
    type Target = pyo3::types::PyBytes;
    type Output = Bound<'py, Self::Target>;
    type Error = std::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> std::result::Result<Self::Output, Self::Error> {
        Ok(pyo3::types::PyBytes::new(py, &self.0))
    }
}

/// The thing, and what was asked of it and is still under way.
struct Held {
    thing: Mutex<Option<Arc<Thing>>>,
    asked: Mutex<Vec<Weak<Place>>>,
}

impl Held {
    fn thing(&self) -> MutexGuard<'_, Option<Arc<Thing>>> {
        self.thing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for something that borrows the thing for as long as it is under way.
    fn ask<T, F>(&self, ask: impl FnOnce(Arc<Thing>) -> F) -> Option<Pending>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let thing = self.thing().clone()?;
        let pending = Pending::new(ask(thing));
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|place| place.strong_count() > 0);
        asked.extend(pending.place().map(Arc::downgrade));
        Some(pending)
    }

    /// Takes the thing out, to end it. What was asked of it is cancelled.
    fn take(&self) -> Option<Thing> {
        let thing = self.thing().take();
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        asked.iter().filter_map(Weak::upgrade).for_each(|place| place.cancel());
        // Nobody else has it: what did was cancelled.
        thing.and_then(Arc::into_inner)
    }
}

/// Something that is held: until it is released, lost or dropped.
#[pyclass(frozen, weakref, module = "tenure._tenure")]
pub(crate) struct Hold {
    held: Own<Held>,
    /// The name, token, claim and slot of each lease.
    #[pyo3(get)]
    parts: Vec<Part>,
}

impl Hold {
    pub(crate) fn new(thing: Thing) -> Hold {
        let parts = thing.parts();
        let held = Held { thing: Mutex::new(Some(Arc::new(thing))), asked: Mutex::default() };
        Hold { held: Own::new(held), parts }
    }

    fn name(&self) -> &str {
        self.parts.first().map_or("", |(name, ..)| name)
    }

    /// Lends the thing.
    fn with<T>(&self, use_it: impl FnOnce(&Thing) -> T) -> Option<T> {
        self.held.get()?.thing().as_deref().map(use_it)
    }

    /// Why it is of no use: it is another process's, or it has ended here.
    fn over(&self) -> &'static str {
        match self.held.get() {
            None => FORKED,
            Some(_) => "it was released",
        }
    }

    /// A request that fails for that.
    fn refused(&self) -> Pending {
        Pending::failed(lost(self.over(), self.name()))
    }

    fn take(&self) -> Option<Thing> {
        self.held.get()?.take()
    }
}

impl From<Lease> for Hold {
    fn from(lease: Lease) -> Hold {
        Hold::new(Thing::Lease(lease))
    }
}

impl From<blocking::Lease> for Hold {
    fn from(lease: blocking::Lease) -> Hold {
        Hold::new(Thing::Here(lease))
    }
}

impl From<Slot> for Hold {
    fn from(slot: Slot) -> Hold {
        Hold::new(Thing::Lease(slot.into()))
    }
}

impl From<Leases> for Hold {
    fn from(leases: Leases) -> Hold {
        Hold::new(Thing::Leases(leases))
    }
}

impl From<Term> for Hold {
    fn from(term: Term) -> Hold {
        Hold::new(Thing::Term(term))
    }
}

impl From<Delivery> for Hold {
    fn from(delivery: Delivery) -> Hold {
        Hold::new(Thing::Delivery(delivery))
    }
}

#[pymethods]
impl Hold {
    /// Seconds until the deadline.
    fn expires_in(&self) -> f64 {
        self.with(Thing::expires_in).map_or(0.0, |left| left.as_secs_f64())
    }

    /// Whether it is over: lost, released, or the hold of the process that this one was forked from.
    fn is_over(&self) -> bool {
        self.with(Thing::is_lost).unwrap_or(true)
    }

    /// Whether this process holds it and has not released it.
    fn is_here(&self) -> bool {
        self.with(|_| ()).is_some()
    }

    /// Whether it is the hold of the process that this one was forked from.
    fn is_forked(&self) -> bool {
        self.held.get().is_none()
    }

    /// Returns the exception that says how it ended. None while it has not.
    fn loss<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBaseException>>> {
        let reason = match self.with(|thing| thing.is_lost().then(|| thing.loss_reason())) {
            Some(None) => return Ok(None),
            Some(Some(reason)) => reason.unwrap_or(LossReason::NotRenewed).as_str(),
            None => self.over(),
        };
        let exception = exception(py, &lost(reason, self.name())).into_value(py).into_bound(py);
        exception.setattr("reason", reason)?;
        Ok(Some(exception))
    }

    /// Waits until it is lost. None if it is released first.
    fn lost(&self) -> Pending {
        let ask = |thing: Arc<Thing>| async move {
            thing.lost().await;
            Ok(true)
        };
        let asked = self.held.get().and_then(|held| held.ask(ask));
        asked.unwrap_or_else(|| self.refused())
    }

    /// Releases it: whether it was held until then.
    fn release(&self) -> Pending {
        let thing = self.take();
        Pending::new(async move {
            let answer = match thing {
                Some(Thing::Lease(lease)) => lease.release().await?,
                // It lives on this machine: nothing to wait for.
                Some(Thing::Here(lease)) => lease.release()?,
                Some(Thing::Term(term)) => term.resign().await?,
                Some(Thing::Leases(leases)) => leases.release().await?,
                Some(Thing::Delivery(delivery)) => return delivery.put_back().await.map(|()| true),
                None => return Ok(false),
            };
            Ok(answer == ReleaseAnswer::Released)
        })
    }

    /// Releases it on this thread, if it was taken so: whether it was held until then. None: ask `release`.
    fn release_here(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        if !self.with(|thing| matches!(thing, Thing::Here(_))).unwrap_or(false) {
            return Ok(None);
        }
        let Some(Thing::Here(lease)) = self.take() else { return Ok(Some(false)) };
        let released = detached(py, || lease.release()).map_err(|error| exception(py, &error))?;
        Ok(Some(released == ReleaseAnswer::Released))
    }

    /// Lets go of it in the background.
    fn let_go(&self) {
        drop(self.take());
    }

    /// Shows a value under a term.
    fn publish(&self, value: Vec<u8>) -> Pending {
        let ask = |thing: Arc<Thing>| async move {
            match &*thing {
                Thing::Term(term) => term.publish(&value).await,
                _ => Err(Error::new(ErrorKind::Unsupported, "publish", "only a term shows a value")),
            }
        };
        let asked = self.held.get().and_then(|held| held.ask(ask));
        asked.unwrap_or_else(|| self.refused())
    }

    /// Lets go of it without releasing it, as JSON.
    fn detach(&self, py: Python<'_>) -> PyResult<String> {
        let detached = match self.take() {
            Some(Thing::Lease(lease)) => lease.detach().map(|detached| serde_json::to_string(&detached)),
            Some(Thing::Here(lease)) => lease.detach().map(|detached| serde_json::to_string(&detached)),
            Some(Thing::Delivery(delivery)) => {
                delivery.detach().map(|detached| serde_json::to_string(&detached))
            }
            Some(_) => {
                Err(Error::new(ErrorKind::Unsupported, "detach", "only a lease or an item is detached"))
            }
            None => Err(lost(self.over(), self.name())),
        };
        let text = detached.map_err(|error| exception(py, &error))?;
        text.map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
    }

    /// What of the item there is.
    fn item(&self) -> Option<Item> {
        self.with(|thing| match thing {
            Thing::Delivery(delivery) => Some((
                delivery.item().0,
                Bytes(delivery.payload().into()),
                delivery.group().map(str::to_owned),
                delivery.context().map(str::to_owned),
                delivery.attempt(),
                delivery.age().as_secs_f64(),
            )),
            _ => None,
        })
        .flatten()
    }

    /// Ends a delivery: `ack`, `retry`, `fail` or `put_back`. Whether the item became a dead letter.
    #[pyo3(signature = (how, after=None, why=""))]
    fn settle(&self, how: &str, after: Option<f64>, why: &str) -> Pending {
        let after = match after.map(|after| seconds("after", after)).transpose() {
            Ok(after) => after,
            Err(error) => return Pending::failed(error),
        };
        let delivery = match self.take() {
            Some(Thing::Delivery(delivery)) => delivery,
            _ => return self.refused(),
        };
        let (how, why) = (how.to_owned(), why.to_owned());
        Pending::new(async move {
            match how.as_str() {
                "ack" => delivery.ack().await.map(|()| false),
                "fail" => delivery.fail(&why).await.map(|()| true),
                "put_back" => delivery.put_back().await.map(|()| false),
                _ => {
                    let after = after.unwrap_or_else(|| delivery.retry_delay());
                    delivery.retry_because(after, &why).await
                }
            }
        })
    }
}
