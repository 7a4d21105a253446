//! Fences in memory, by key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::rule::{Fence, Mark, Stale};

/// Fences in the memory of one process, by key. For what dies with the process as well: a fence that forgets
/// lets a late write in.
///
/// It keeps an entry of about a hundred bytes for each key that it has ever seen: keys must not be what
/// strangers choose. Where each resource is a value of its own, a [`Fence`] inside of it is simpler.
#[derive(Debug, Default)]
pub struct Memory {
    fences: Mutex<HashMap<String, Arc<Mutex<Fence>>>>,
}

impl Memory {
    /// Makes one that has seen nothing.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Accepts a write, unless a write or a read of a later grant has been accepted. See [`Fence::check`].
    ///
    /// The write that follows is not part of this step: prefer [`Memory::run`].
    ///
    /// # Errors
    /// [`Stale`] if it is refused.
    pub fn check(&self, key: &str, mark: impl Into<Mark>) -> Result<(), Stale> {
        lock(&self.fence(key)).check(mark)
    }

    /// Accepts a read, unless a write of a later grant has been accepted. See [`Fence::check_read`].
    ///
    /// # Errors
    /// [`Stale`] if it is refused.
    pub fn check_read(&self, key: &str, mark: impl Into<Mark>) -> Result<(), Stale> {
        lock(&self.fence(key)).check_read(mark)
    }

    /// Accepts a write and carries it out, in one step: no other access to this key comes between.
    ///
    /// `work` must not use the same key of this value: it would wait for itself.
    ///
    /// # Errors
    /// [`Stale`] if it is refused; `work` has not run then.
    pub fn run<T>(&self, key: &str, mark: impl Into<Mark>, work: impl FnOnce() -> T) -> Result<T, Stale> {
        let fence = self.fence(key);
        let mut fence = lock(&fence);
        fence.check(mark)?;
        Ok(work())
    }

    fn fence(&self, key: &str) -> Arc<Mutex<Fence>> {
        let mut fences = lock(&self.fences);
        match fences.get(key) {
            Some(fence) => fence.clone(),
            None => fences.entry(key.to_owned()).or_default().clone(),
        }
    }
}

/// A mark stays whatever became of the work: after a panic the fence is as right as before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
