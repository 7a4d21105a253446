//! A client of a store, for one process.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure::{Detached, DetachedDelivery, Leaders, Settings, Severity, Tenure, Token, View};
use tenure_metrics::{Format, render};

use crate::failure::{exception, forked, seconds};
use crate::hold::{Bytes, Hold};
use crate::lock::{Lock, Several, period, several};
use crate::own::Own;
use crate::pending::{Pending, detached};
use crate::queue::{Orders, Stop};
use crate::single_flight::{Flight, Freshness};

type Connecting = Shared<BoxFuture<'static, tenure::Result<Tenure>>>;

/// One attempt to connect, for all threads and tasks of a process.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Connection {
    connecting: Own<Connecting>,
}

#[pymethods]
impl Connection {
    #[new]
    #[pyo3(signature = (url, *, label=None, answer_timeout=None, counts=true, scopes=Vec::new()))]
    fn new(
        py: Python<'_>,
        url: String,
        label: Option<&str>,
        answer_timeout: Option<f64>,
        counts: bool,
        scopes: Vec<String>,
    ) -> PyResult<Connection> {
        let mut settings = Settings::new().counts(counts).scopes(scopes);
        if let Some(label) = label {
            settings = settings.label(label);
        }
        if let Some(timeout) = answer_timeout {
            let timeout = seconds("answer_timeout", timeout).map_err(|error| exception(py, &error))?;
            settings = settings.answer_timeout(timeout);
        }
        let connecting = async move { tenure::connect_with(&url, settings).await }.boxed().shared();
        Ok(Connection { connecting: Own::new(connecting) })
    }

    /// Waits until it is connected.
    fn connected(&self) -> Pending {
        let Some(connecting) = self.connecting.get().cloned() else { return Pending::failed(forked("?")) };
        Pending::new(async move { connecting.await.map(|tenure| Client { tenure: Own::new(tenure) }) })
    }
}

/// A connected client.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Client {
    tenure: Own<Tenure>,
}

impl Client {
    /// Asks, but in a forked child.
    fn ask(&self, about: &str, ask: impl FnOnce(&Tenure) -> Pending) -> Pending {
        self.tenure.get().map_or_else(|| Pending::failed(forked(about)), ask)
    }

    fn here(&self, py: Python<'_>) -> PyResult<&Tenure> {
        self.tenure.get().ok_or_else(|| exception(py, &forked("?")))
    }
}

#[pymethods]
impl Client {
    /// The engine's one word.
    fn engine(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.here(py).map(Tenure::engine)
    }

    /// Waits for a lock for ever, or for `wait` seconds.
    #[pyo3(signature = (lock, wait=None))]
    fn acquire(&self, py: Python<'_>, lock: &Lock, wait: Option<f64>) -> PyResult<Pending> {
        let wait = period("wait", wait).map_err(|error| exception(py, &error))?;
        Ok(self.ask("?", |tenure| lock.acquire(tenure, wait)))
    }

    /// Takes a lock that is free.
    fn try_acquire(&self, lock: &Lock) -> Pending {
        self.ask("?", |tenure| lock.try_acquire(tenure))
    }

    /// Takes a lock that is free, on this thread: for engines that live on this machine.
    fn try_acquire_here(&self, py: Python<'_>, lock: &Lock) -> PyResult<Option<Hold>> {
        let tenure = self.here(py)?;
        detached(py, || lock.try_acquire_here(tenure)).map_err(|error| exception(py, &error))
    }

    /// Takes all of several, or any one of them.
    #[pyo3(signature = (locks, is_all, waits, wait=None))]
    fn several(
        &self,
        py: Python<'_>,
        locks: Vec<Py<Lock>>,
        is_all: bool,
        waits: bool,
        wait: Option<f64>,
    ) -> PyResult<Pending> {
        let wait = period("wait", wait).map_err(|error| exception(py, &error))?;
        let asked = Several { locks, is_all, waits, wait };
        Ok(self.ask("?", |tenure| several(tenure, &asked)))
    }

    /// Campaigns in an election.
    #[pyo3(signature = (name, waits, ttl=None, label=None))]
    fn campaign(
        &self,
        py: Python<'_>,
        name: &str,
        waits: bool,
        ttl: Option<f64>,
        label: Option<&str>,
    ) -> PyResult<Pending> {
        let ttl = period("ttl", ttl).map_err(|error| exception(py, &error))?;
        Ok(self.ask(name, |tenure| {
            let mut election = tenure.election(name);
            if let Some(ttl) = ttl {
                election = election.ttl(ttl);
            }
            if let Some(label) = label {
                election = election.label(label);
            }
            Pending::new(async move {
                if waits {
                    return election.campaign().await.map(|term| Some(Hold::from(term)));
                }
                Ok(election.try_campaign().await?.map(Hold::from))
            })
        }))
    }

    /// Who leads: label, token, value.
    fn leader(&self, name: &str) -> Pending {
        self.ask(name, |tenure| {
            let election = tenure.election(name);
            Pending::new(async move { Ok(election.leader().await?.map(shown)) })
        })
    }

    /// The leader, and each change.
    fn leaders(&self, py: Python<'_>, name: &str) -> PyResult<Changes> {
        let leaders = self.here(py)?.election(name).changes().map_err(|error| exception(py, &error))?;
        Ok(Changes { leaders: Own::new(Arc::new(tokio::sync::Mutex::new(leaders))) })
    }

    /// The value that one of all loads.
    #[pyo3(signature = (key, *, fresh=None, stale=None, ttl=None, is_refresh=false))]
    fn flight(
        &self,
        py: Python<'_>,
        key: &str,
        fresh: Option<f64>,
        stale: Option<f64>,
        ttl: Option<f64>,
        is_refresh: bool,
    ) -> PyResult<Flight> {
        let read = || {
            let (fresh, stale) = (period("fresh", fresh)?, period("stale", stale)?);
            Ok(Freshness { fresh, stale, ttl: period("ttl", ttl)?, is_refresh })
        };
        let freshness = read().map_err(|error: tenure::Error| exception(py, &error))?;
        Ok(Flight::new(self.here(py)?.single_flight(key), &freshness))
    }

    /// Drops the value.
    fn forget(&self, key: &str) -> Pending {
        self.ask(key, |tenure| {
            let flight = tenure.single_flight(key);
            Pending::new(async move { flight.forget().await })
        })
    }

    /// Puts an item in line: its number, and whether it was there already.
    #[pyo3(signature = (queue, payload, *, group=None, delay=None, dedup=None, context=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords of one call")]
    fn push(
        &self,
        py: Python<'_>,
        queue: &str,
        payload: &[u8],
        group: Option<&str>,
        delay: Option<f64>,
        dedup: Option<&str>,
        context: Option<&str>,
    ) -> PyResult<Pending> {
        let delay = period("delay", delay).map_err(|error| exception(py, &error))?;
        Ok(self.ask(queue, |tenure| {
            let mut push = tenure.queue(queue).push(payload);
            if let Some(group) = group {
                push = push.group(group);
            }
            if let Some(delay) = delay {
                push = push.delay(delay);
            }
            if let Some(dedup) = dedup {
                push = push.dedup(dedup);
            }
            if let Some(context) = context {
                push = push.context(context);
            }
            Pending::new(async move { push.await.map(|pushed| (pushed.item.0, pushed.is_duplicate)) })
        }))
    }

    /// Takes an item: waits for ever, for `wait` seconds, not at all (zero), or until it is told to stop.
    #[pyo3(signature = (queue, orders, wait=None, stop=None))]
    fn take(
        &self,
        py: Python<'_>,
        queue: &str,
        orders: &Orders,
        wait: Option<f64>,
        stop: Option<&Stop>,
    ) -> PyResult<Pending> {
        let wait = period("wait", wait).map_err(|error| exception(py, &error))?;
        Ok(self.ask(queue, |tenure| orders.take(tenure.queue(queue), wait, stop)))
    }

    /// What an operator asks of a queue: `stats`, `depth`, `replay`, `purge`, `purge_dead`.
    #[pyo3(signature = (queue, verb, item=None))]
    fn queue(&self, queue: &str, verb: &str, item: Option<u64>) -> Pending {
        self.ask(queue, |tenure| crate::queue::operate(tenure.queue(queue), verb.to_owned(), item))
    }

    /// Items of a queue, or its dead letters.
    #[pyo3(signature = (queue, is_dead, after, most))]
    fn queue_items(&self, queue: &str, is_dead: bool, after: Option<u64>, most: usize) -> Pending {
        self.ask(queue, |tenure| crate::queue::list(tenure.queue(queue), is_dead, after, most))
    }

    /// Makes a lease of what was detached. None: it had ended.
    fn attach(&self, py: Python<'_>, detached: &str) -> PyResult<Pending> {
        let detached: Detached = serde_json::from_str(detached).map_err(|error| not_detached(py, &error))?;
        Ok(self.ask("?", |tenure| {
            let tenure = tenure.clone();
            Pending::new(async move { Ok(tenure.attach(&detached).await?.map(Hold::from)) })
        }))
    }

    /// Makes a delivery of what was detached. None: it had ended.
    fn attach_item(&self, py: Python<'_>, queue: &str, orders: &Orders, detached: &str) -> PyResult<Pending> {
        let detached: DetachedDelivery =
            serde_json::from_str(detached).map_err(|error| not_detached(py, &error))?;
        Ok(self.ask(queue, |tenure| {
            let queue = orders.set(tenure.queue(queue));
            Pending::new(async move { Ok(queue.attach(&detached).await?.map(Hold::from)) })
        }))
    }

    /// Everything under a prefix.
    fn inspect(&self, prefix: &str) -> Pending {
        self.ask(prefix, |tenure| {
            let (tenure, prefix) = (tenure.clone(), prefix.to_owned());
            Pending::new(async move {
                Ok(tenure.inspect(&prefix).await?.into_iter().map(Seen).collect::<Vec<_>>())
            })
        })
    }

    /// One name. None: it is idle.
    fn view(&self, name: &str) -> Pending {
        self.ask(name, |tenure| {
            let (tenure, name) = (tenure.clone(), name.to_owned());
            Pending::new(async move { Ok(tenure.view(&name).await?.map(Seen)) })
        })
    }

    /// What the engine finds out about its store: severity, what, found, hint.
    fn doctor(&self) -> Pending {
        self.ask("?", |tenure| {
            let tenure = tenure.clone();
            Pending::new(async move {
                let told = |finding: tenure::Finding| {
                    let severity = match finding.severity {
                        Severity::Good => "good",
                        Severity::Warning => "warning",
                        Severity::Bad => "bad",
                    };
                    (severity, finding.what, finding.found, finding.hint)
                };
                Ok(tenure.check().await?.into_iter().map(told).collect::<Vec<_>>())
            })
        })
    }

    /// Makes the next token of a name larger than this one.
    fn raise_floor(&self, py: Python<'_>, name: &str, token: u64) -> PyResult<()> {
        self.here(py)?.raise_floor(name, Token::new(token)).map_err(|error| exception(py, &error))
    }

    /// What was counted, as a page for Prometheus or OpenMetrics.
    fn metrics(&self, py: Python<'_>, is_open: bool) -> PyResult<String> {
        let format = if is_open { Format::OpenMetrics } else { Format::Prometheus };
        Ok(render(&[self.here(py)?.counts()], format))
    }

    /// What was counted, by primitive and scope.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.here(py)?.counts();
        let all = PyDict::new(py);
        for scope in &counts.scopes {
            let one = PyDict::new(py);
            for (end, count) in tenure_core::counts::ClaimEnd::ALL.iter().zip(scope.claims) {
                one.set_item(end.as_str(), count)?;
            }
            one.set_item("leases", scope.leases)?;
            one.set_item("waiting", scope.waiting)?;
            one.set_item("lost", scope.lost.iter().sum::<u64>())?;
            one.set_item("pushes", scope.pushes.iter().sum::<u64>())?;
            one.set_item("deliveries", scope.deliveries.iter().sum::<u64>())?;
            all.set_item((scope.scope.primitive.as_str(), &*scope.scope.label), one)?;
        }
        Ok(all)
    }

    /// Ends the client once what was released is answered.
    fn close(&self) -> Pending {
        self.ask("?", |tenure| {
            let tenure = tenure.clone();
            Pending::new(async move {
                tenure.close().await;
                Ok(())
            })
        })
    }
}

fn not_detached(py: Python<'_>, error: &serde_json::Error) -> PyErr {
    let message = format!("this was not detached: {error}");
    let error = tenure::Error::new(tenure::ErrorKind::Invalid, "attach", message);
    exception(py, &error.with_hint("pass what detach() returned"))
}

/// Label, token and value of a leader.
fn shown(leader: tenure::Leader) -> (String, u64, Option<Bytes>) {
    (leader.label.as_str().to_owned(), leader.token.get(), leader.value.map(Bytes))
}

/// The leader of an election, and each change.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Changes {
    leaders: Own<Arc<tokio::sync::Mutex<Leaders>>>,
}

#[pymethods]
impl Changes {
    /// Waits for the next one: whether there is any, and who leads.
    fn next(&self) -> Pending {
        let Some(leaders) = self.leaders.get().cloned() else { return Pending::failed(forked("?")) };
        Pending::new(async move {
            let changed = leaders.lock().await.next().await;
            Ok(match changed.transpose()? {
                Some(leader) => (true, leader.map(shown)),
                None => (false, None),
            })
        })
    }
}

/// A record as seen from outside.
struct Seen(View);

impl<'py> IntoPyObject<'py> for Seen {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let view = self.0;
        let hold = |hold: &tenure::HoldView| {
            let (held_for, ends_in) = (hold.held_for.as_secs_f64(), hold.ends_in.as_secs_f64());
            let label = hold.label.as_str().to_owned();
            (label, hold.token.get(), hold.slot, hold.weight, held_for, ends_in, hold.claim.is_none())
        };
        let holds: Vec<_> = view.holds.iter().map(hold).collect();
        let waiters: Vec<String> =
            view.waiters.iter().map(|waiter| waiter.label.as_str().to_owned()).collect();
        let head = (view.resource.as_str().to_owned(), view.kind.as_str(), view.capacity, view.used);
        let rest = (view.last_token.get(), holds, view.waiting, waiters, view.value.map(Bytes));
        Ok((head, rest).into_pyobject(py)?.into_any())
    }
}
