//! How an event loop learns that it must poll again: a file descriptor that becomes readable.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// What was woken, and the descriptor that says that there is something.
struct Woken {
    keys: Mutex<Vec<u64>>,
    fd: OwnedFd,
}

/// Tells a loop of one key.
struct Bell {
    woken: Arc<Woken>,
    key: u64,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// The loop may have ended meanwhile: then nobody reads it.
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.keys.lock().unwrap_or_else(PoisonError::into_inner).push(self.key);
        // It can be full only after 2^64 wakes that nobody has read.
        rustix::io::write(&self.woken.fd, &1_u64.to_ne_bytes()).ok();
    }
}

/// What of an event loop is to be polled again.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Wakes {
    woken: Arc<Woken>,
}

impl Wakes {
    /// The waker of one key.
    pub(crate) fn waker(&self, key: u64) -> Waker {
        Waker::from(Arc::new(Bell { woken: self.woken.clone(), key }))
    }
}

#[pymethods]
impl Wakes {
    #[new]
    fn new() -> PyResult<Wakes> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| PyOSError::new_err((error.raw_os_error(), "cannot make an eventfd")))?;
        Ok(Wakes { woken: Arc::new(Woken { keys: Mutex::default(), fd }) })
    }

    /// What a loop reads.
    fn fileno(&self) -> i32 {
        self.woken.fd.as_raw_fd()
    }

    /// The keys that were woken since it was asked last.
    fn drain(&self) -> Vec<u64> {
        let mut count = [0; 8];
        rustix::io::read(&self.woken.fd, &mut count).ok();
        std::mem::take(&mut *self.woken.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
