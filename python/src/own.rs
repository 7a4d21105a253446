//! What belongs to the process that made it.

use std::mem;
use std::process;

/// A value that a forked child neither uses nor drops: threads that do not exist there may have held any of its locks
/// at the fork, and what it ends is the parent's. The child leaks its copy.
pub(crate) struct Own<T> {
    value: Option<T>,
    pid: u32,
}

impl<T> Own<T> {
    /// Makes it this process's.
    pub(crate) fn new(value: T) -> Own<T> {
        Own { value: Some(value), pid: process::id() }
    }

    /// Lends the value. `None` in a forked child.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| process::id() == self.pid)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if process::id() != self.pid {
            mem::forget(self.value.take());
        }
    }
}
