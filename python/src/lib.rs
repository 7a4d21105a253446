//! The native part of the Python package `tenure`: requests that a thread or an event loop of Python waits for.
//!
//! The package itself is in `tenure/*.py`: names, defaults, context managers, documentation. Here is what Python cannot
//! do: hold leases, and wait without the interpreter's lock. Two rules carry it: no other thread than a caller's runs
//! Python (`pending`, `log`), and a forked child touches nothing of its parent's (`own`).

mod client;
mod failure;
mod fence;
mod hold;
mod lock;
mod log;
mod own;
mod pending;
mod queue;
mod single_flight;
mod wakes;

/// The native part of tenure.
#[pyo3::pymodule]
mod _tenure {
    #[pymodule_export]
    use crate::client::{Changes, Client, Connection};
    #[pymodule_export]
    use crate::fence::{FileFence, MemoryFence, slot_key};
    #[pymodule_export]
    use crate::hold::Hold;
    #[pymodule_export]
    use crate::lock::Lock;
    #[pymodule_export]
    use crate::log::{log_after_fork, log_from, log_lines};
    #[pymodule_export]
    use crate::pending::{Pending, exiting, has_package};
    #[pymodule_export]
    use crate::queue::{Orders, Stop};
    #[pymodule_export]
    use crate::single_flight::Flight;
    #[pymodule_export]
    use crate::wakes::Wakes;
}
