//! Queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure::queue::{ItemId, ItemState, ItemView};
use tenure::{Error, Queue};
use tokio::sync::Notify;

use crate::failure::exception;
use crate::hold::{Bytes, Hold};
use crate::lock::period;
use crate::own::Own;
use crate::pending::Pending;

/// How items are taken.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Orders {
    ttl: Option<Duration>,
    interval: Option<Duration>,
    group_interval: Option<Duration>,
    max_attempts: Option<u32>,
    label: Option<String>,
}

#[pymethods]
impl Orders {
    #[new]
    #[pyo3(signature = (*, ttl=None, interval=None, group_interval=None, max_attempts=None, label=None))]
    fn new(
        py: Python<'_>,
        ttl: Option<f64>,
        interval: Option<f64>,
        group_interval: Option<f64>,
        max_attempts: Option<u32>,
        label: Option<String>,
    ) -> PyResult<Orders> {
        let read = || {
            let (ttl, interval) = (period("ttl", ttl)?, period("interval", interval)?);
            let group_interval = period("group_interval", group_interval)?;
            Ok(Orders { ttl, interval, group_interval, max_attempts, label })
        };
        read().map_err(|error: Error| exception(py, &error))
    }

    /// How another process makes the same: what `pickle` asks for.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyDict>)> {
        let orders = PyDict::new(py);
        let times = [("ttl", self.ttl), ("interval", self.interval), ("group_interval", self.group_interval)];
        for (name, time) in times {
            orders.set_item(name, time.map(|time| time.as_secs_f64()))?;
        }
        orders.set_item("max_attempts", self.max_attempts)?;
        orders.set_item("label", self.label.as_deref())?;
        Ok(((), orders))
    }
}

impl Orders {
    /// Sets what was given.
    pub(crate) fn set(&self, mut queue: Queue) -> Queue {
        if let Some(ttl) = self.ttl {
            queue = queue.ttl(ttl);
        }
        if let Some(interval) = self.interval {
            queue = queue.interval(interval);
        }
        if let Some(interval) = self.group_interval {
            queue = queue.group_interval(interval);
        }
        if let Some(attempts) = self.max_attempts {
            queue = queue.max_attempts(attempts);
        }
        if let Some(label) = &self.label {
            queue = queue.label(label);
        }
        queue
    }

    /// Takes an item. None: the wait is over, or it was told to stop.
    pub(crate) fn take(&self, queue: Queue, wait: Option<Duration>, stop: Option<&Stop>) -> Pending {
        let queue = self.set(queue);
        let stopped = stop.and_then(|stop| stop.stopping.get()).cloned();
        Pending::new(async move {
            let next = async {
                match wait {
                    None => queue.next().await.map(Some),
                    Some(wait) if wait.is_zero() => queue.try_next().await,
                    Some(wait) => queue.next_within(wait).await,
                }
            };
            let Some(stopped) = stopped else { return Ok(next.await?.map(Hold::from)) };
            match select(Box::pin(stopped.stopped()), Box::pin(next)).await {
                // An item that comes at the same moment goes back.
                Either::Left(_) => Ok(None),
                Either::Right((taken, _)) => Ok(taken?.map(Hold::from)),
            }
        })
    }
}

/// Whether consumers are to stop.
#[derive(Default)]
struct Stopping {
    is_set: AtomicBool,
    changed: Notify,
}

impl Stopping {
    async fn stopped(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_set.load(Ordering::Acquire) {
                return;
            }
            changed.await;
        }
    }
}

/// Ends iterations over items once what is in hand is done.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Stop {
    stopping: Own<Arc<Stopping>>,
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Stop {
        Stop { stopping: Own::new(Arc::default()) }
    }

    /// Has consumers stop. From any thread, and from a signal's handler.
    fn set(&self) {
        if let Some(stopping) = self.stopping.get() {
            stopping.is_set.store(true, Ordering::Release);
            stopping.changed.notify_waiters();
        }
    }

    /// Whether they are to stop. In a forked child they are.
    fn is_set(&self) -> bool {
        self.stopping.get().is_none_or(|stopping| stopping.is_set.load(Ordering::Acquire))
    }
}

/// What an operator asks of a queue.
pub(crate) fn operate(queue: Queue, verb: String, item: Option<u64>) -> Pending {
    let item = item.map(ItemId);
    let count = async |asked: tenure::Result<u64>| asked.map(|count| (count, 0, 0, None));
    Pending::new(async move {
        match verb.as_str() {
            "replay" => count(queue.replay(item).await).await,
            "purge" => count(queue.purge(item).await).await,
            "purge_dead" => count(queue.purge_dead(item).await).await,
            _ => queue.stats().await.map(|stats| {
                let next_in = stats.next_in.map(|next| next.as_secs_f64());
                (stats.waiting, stats.in_flight, stats.dead, next_in)
            }),
        }
    })
}

/// Lists items, or dead letters.
pub(crate) fn list(queue: Queue, is_dead: bool, after: Option<u64>, most: usize) -> Pending {
    let after = after.map(ItemId);
    Pending::new(async move {
        let items = match is_dead {
            true => queue.dead_letters(after, most).await?,
            false => queue.items(after, most).await?,
        };
        Ok(items.into_iter().map(told).collect::<Vec<_>>())
    })
}

/// Number, group, payload, context, attempts, age, state, and why it is dead.
type Told = (u64, Option<String>, Bytes, Option<String>, u32, f64, &'static str, Option<String>);

fn told(view: ItemView) -> Told {
    let (state, reason) = match &view.state {
        ItemState::Waiting { .. } => ("waiting", None),
        ItemState::Behind => ("behind", None),
        ItemState::InFlight { .. } => ("in_flight", None),
        ItemState::Dead { reason, .. } => ("dead", Some(reason.clone())),
    };
    let group = view.group.map(|group| group.as_str().to_owned());
    let context = view.context.map(|context| context.as_str().to_owned());
    let age = view.age.as_secs_f64();
    (view.item.0, group, Bytes(view.payload), context, view.attempts, age, state, reason)
}
