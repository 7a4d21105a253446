//! Values that one process loads for all: the load is Python's, the rest is not.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use pyo3::prelude::*;
use tenure::{Error, ErrorKind, Fetched, FetchedFrom, SingleFlight};
use tokio::sync::oneshot;

use crate::failure::forked;
use crate::hold::Bytes;
use crate::own::Own;
use crate::pending::Pending;

/// How long a value is good for.
pub(crate) struct Freshness {
    pub(crate) fresh: Option<Duration>,
    pub(crate) stale: Option<Duration>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) is_refresh: bool,
}

/// Asks Python to load under this token, and is told what was loaded.
type Turn = (u64, oneshot::Sender<Vec<u8>>);
type Fetching = Pin<Box<dyn Future<Output = tenure::Result<Fetched>> + Send>>;

/// What a request for a value and Python's load share.
struct Shared {
    fetching: Mutex<Fetching>,
    turn: Arc<Mutex<Option<Turn>>>,
    loaded: Mutex<Option<oneshot::Sender<Vec<u8>>>>,
}

/// One request for a value. Python calls `step` until it is done, and loads where it is asked to.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Flight {
    shared: Own<Arc<Shared>>,
}

impl Flight {
    pub(crate) fn new(flight: SingleFlight, freshness: &Freshness) -> Flight {
        let flight = set(flight, freshness);
        let is_refresh = freshness.is_refresh;
        let turn: Arc<Mutex<Option<Turn>>> = Arc::default();
        let asked = turn.clone();
        let fetching = async move {
            let load = async |lease: &tenure::Lease| {
                let (loaded, value) = oneshot::channel();
                *asked.lock().unwrap_or_else(PoisonError::into_inner) = Some((lease.token().get(), loaded));
                let dropped = |_| Error::new(ErrorKind::Internal, "load", "nobody loads the value any more");
                value.await.map_err(dropped)
            };
            match is_refresh {
                true => flight.refresh(load).await,
                false => flight.get_or_refresh(load).await,
            }
        };
        let fetching: Mutex<Fetching> = Mutex::new(Box::pin(fetching));
        Flight { shared: Own::new(Arc::new(Shared { fetching, turn, loaded: Mutex::default() })) }
    }
}

fn set(mut flight: SingleFlight, freshness: &Freshness) -> SingleFlight {
    if let Some(fresh) = freshness.fresh {
        flight = flight.fresh(fresh);
    }
    if let Some(stale) = freshness.stale {
        flight = flight.serve_stale(stale);
    }
    if let Some(ttl) = freshness.ttl {
        flight = flight.ttl(ttl);
    }
    flight
}

/// The value, where it came from, and the token; or no value, and the token to load under.
type Step = (Option<Bytes>, &'static str, u64);

fn found(fetched: Fetched) -> Step {
    let (source, token) = match fetched.source {
        FetchedFrom::Fresh(token) => ("fresh", token.get()),
        FetchedFrom::Stale => ("stale", 0),
        FetchedFrom::Loaded(token) => ("loaded", token.get()),
    };
    (Some(Bytes(fetched.bytes)), source, token)
}

#[pymethods]
impl Flight {
    /// Waits for the value, or for the turn to load it.
    fn step(&self) -> Pending {
        let Some(shared) = self.shared.get().cloned() else { return Pending::failed(forked("?")) };
        Pending::new(poll_fn(move |cx| {
            let mut fetching = shared.fetching.lock().unwrap_or_else(PoisonError::into_inner);
            if let Poll::Ready(fetched) = fetching.as_mut().poll(cx) {
                return Poll::Ready(fetched.map(found));
            }
            let turn = shared.turn.lock().unwrap_or_else(PoisonError::into_inner).take();
            match turn {
                Some((token, loaded)) => {
                    *shared.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
                    Poll::Ready(Ok((None, "load", token)))
                }
                None => Poll::Pending,
            }
        }))
    }

    /// Hands over what was loaded.
    fn loaded(&self, value: Vec<u8>) {
        let Some(shared) = self.shared.get() else { return };
        let loaded = shared.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Its lease may have been lost meanwhile.
        loaded.into_iter().for_each(|loaded| drop(loaded.send(value.clone())));
    }
}
