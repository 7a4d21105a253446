//! The other side of a token.

use std::time::Duration;

use pyo3::prelude::*;
use tenure::fence::{File, Mark, Memory, Stale, slot_key as key_of_slot};

use crate::failure::exception;
use crate::pending::detached;

fn mark(py: Python<'_>, token: u64, claim: &str) -> PyResult<Mark> {
    Mark::parse(&token.to_string(), claim).map_err(|error| exception(py, &error))
}

/// The largest token that was seen, where a holder comes too late.
fn seen(checked: Result<(), Stale>) -> Option<u64> {
    checked.err().map(|stale| stale.max.get())
}

/// Fences by name, in this process.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct MemoryFence(Memory);

#[pymethods]
impl MemoryFence {
    #[new]
    fn new() -> MemoryFence {
        MemoryFence(Memory::new())
    }

    /// None, or the larger token that was seen.
    #[pyo3(signature = (key, token, claim, is_read=false))]
    fn check(
        &self,
        py: Python<'_>,
        key: &str,
        token: u64,
        claim: &str,
        is_read: bool,
    ) -> PyResult<Option<u64>> {
        let mark = mark(py, token, claim)?;
        Ok(seen(if is_read { self.0.check_read(key, mark) } else { self.0.check(key, mark) }))
    }
}

/// Fences by name in a file, which `tenure fence check` reads, too.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct FileFence(File);

#[pymethods]
impl FileFence {
    #[new]
    #[pyo3(signature = (path, wait=None))]
    fn new(py: Python<'_>, path: std::path::PathBuf, wait: Option<f64>) -> PyResult<FileFence> {
        let wait: Option<Duration> =
            crate::lock::period("wait", wait).map_err(|error| exception(py, &error))?;
        let file = File::new(path);
        Ok(FileFence(match wait {
            Some(wait) => file.with_wait_max(wait),
            None => file,
        }))
    }

    /// None, or the larger token that was seen.
    #[pyo3(signature = (key, token, claim, is_read=false))]
    fn check(
        &self,
        py: Python<'_>,
        key: &str,
        token: u64,
        claim: &str,
        is_read: bool,
    ) -> PyResult<Option<u64>> {
        let mark = mark(py, token, claim)?;
        let checked =
            detached(py, || if is_read { self.0.check_read(key, mark) } else { self.0.check(key, mark) });
        checked.map(seen).map_err(|error| exception(py, &error))
    }
}

/// What a slot of a pool is fenced by.
#[pyfunction]
pub(crate) fn slot_key(name: &str, slot: u32) -> String {
    key_of_slot(name, slot)
}
