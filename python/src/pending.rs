//! A request that is under way: waited for by a thread, or polled by an event loop.
//!
//! Nothing here runs Python from another thread. Whoever is woken is told by a flag, a futex or a file descriptor: the
//! client's thread renews leases, and must never wait for the interpreter's lock, which a C call may keep for long.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use tenure::Error;

use crate::failure::{self, exception};
use crate::own::Own;
use crate::wakes::Wakes;

/// How long the main thread waits before it looks for signals.
const SLICE: Duration = Duration::from_millis(50);

/// Makes what Python gets of an answer.
type Make = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Py<PyAny>> + Send>;
type Work = Pin<Box<dyn Future<Output = Result<Make, Error>> + Send>>;

/// The thread that ends the interpreter: no other one may ask for its lock from then on.
static EXITING: OnceLock<ThreadId> = OnceLock::new();

/// What of a request there is.
enum State {
    Working(Work),
    Done(Result<Make, Error>),
    /// Cancelled, or what it was about is gone.
    Gone,
}

/// What a waiting thread, a lease and Python share of a request.
pub(crate) struct Place {
    state: Mutex<State>,
    waker: Mutex<Option<Waker>>,
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is nothing left to wait for.
    fn poll(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        let State::Working(work) = &mut *state else { return true };
        // Before the poll: who cancels in between wakes this one.
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
        match work.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(answer) => {
                *state = State::Done(answer);
                true
            }
            Poll::Pending => false,
        }
    }

    /// Drops what is under way, and wakes who waits for it.
    pub(crate) fn cancel(&self) {
        let old = mem::replace(&mut *self.state(), State::Gone);
        drop(old);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        waker.iter().for_each(Waker::wake_by_ref);
    }

    fn take(&self) -> State {
        mem::replace(&mut *self.state(), State::Gone)
    }
}

/// Wakes a thread.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A request that is under way. Dropping it withdraws it.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Pending {
    place: Own<Arc<Place>>,
}

impl Pending {
    /// Begins a request: it is sent when it is polled.
    pub(crate) fn new<T>(work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Pending
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let work: Work = Box::pin(async move {
            let value = work.await?;
            Ok(Box::new(move |py: Python<'_>| value.into_py_any(py)) as Make)
        });
        Pending::of(State::Working(work))
    }

    /// One that has failed.
    pub(crate) fn failed(error: Error) -> Pending {
        Pending::of(State::Done(Err(error)))
    }

    fn of(state: State) -> Pending {
        let place = Place { state: Mutex::new(state), waker: Mutex::new(None) };
        Pending { place: Own::new(Arc::new(place)) }
    }

    /// The shared part, for a lease that cancels what waits for it.
    pub(crate) fn place(&self) -> Option<&Arc<Place>> {
        self.place.get()
    }

    fn here(&self) -> Result<&Arc<Place>, Error> {
        self.place.get().ok_or_else(|| failure::forked("?"))
    }
}

#[pymethods]
impl Pending {
    /// Waits for the answer and returns it. Other threads run meanwhile; a signal's handler runs, and what it raises ends the wait.
    fn block(&self, py: Python<'_>, is_main: bool) -> PyResult<Py<PyAny>> {
        let place = self.here().map_err(|error| exception(py, &error))?;
        loop {
            let is_done = py.detach(|| wait(place, is_main));
            if is_done {
                return self.take(py);
            }
            py.check_signals().inspect_err(|_| place.cancel())?;
        }
    }

    /// Whether the answer is there. If not, `wakes` tells `key` when to ask again.
    fn poll(&self, py: Python<'_>, wakes: &Wakes, key: u64) -> PyResult<bool> {
        let place = self.here().map_err(|error| exception(py, &error))?;
        Ok(place.poll(&wakes.waker(key)))
    }

    /// Returns the answer once it is there, and raises its error. None of what was cancelled.
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.here().map_err(|error| exception(py, &error))?.take() {
            State::Done(Ok(make)) => make(py),
            State::Done(Err(error)) => Err(exception(py, &error)),
            State::Working(_) | State::Gone => Ok(py.None()),
        }
    }

    /// Withdraws it.
    fn cancel(&self) {
        // A forked child has no part in it.
        self.place.get().into_iter().for_each(|place| place.cancel());
    }
}

/// Waits until it is done, or for a slice. Whether it is done.
fn wait(place: &Place, has_signals: bool) -> bool {
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let mut is_first = true;
    while !place.poll(&waker) {
        match (has_signals, is_first) {
            (true, true) => thread::park_timeout(SLICE),
            (true, false) => return false,
            (false, _) => thread::park(),
        }
        is_first = false;
    }
    stay_if_exiting();
    true
}

/// Does something without the interpreter's lock.
pub(crate) fn detached<T: Send>(py: Python<'_>, does: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let done = does();
        stay_if_exiting();
        done
    })
}

/// Stays where it is when the interpreter is about to end: that ends a thread which asks for its lock where it stands,
/// and Rust does not bear it.
fn stay_if_exiting() {
    while EXITING.get().is_some_and(|ends| *ends != thread::current().id()) {
        thread::park();
    }
}

/// The interpreter is about to end: other threads that wait stay where they are.
#[pyfunction]
pub(crate) fn exiting() {
    EXITING.get_or_init(|| thread::current().id());
}

/// The interpreter that has the package.
static INTERPRETER: OnceLock<usize> = OnceLock::new();

/// Whether this interpreter has the package: the first one that asked. Another one's end would end the waits of this one, and takes no
/// thread that outlives it.
#[pyfunction]
pub(crate) fn has_package(interpreter: usize) -> bool {
    *INTERPRETER.get_or_init(|| interpreter) == interpreter
}
